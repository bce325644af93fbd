"""EP for a likelihood of one latent function.

The cavity of a point has the variance D = v / (1 − πv) and the mean μ = m − D b. Here m and v are the moments of the
posterior and b its weights: nothing cancels. Let h(μ, D) = log ∫ p(y | f) N(f | μ, D) df. The tilted mean is μ + D h′
and the tilted variance D + D² h″. The new site thus has the precision γ / (1 − Dγ), γ = −h″, and pulls with the force
h′ at the tilted mean. A likelihood that is not log-concave may have γ < 0: an outlier under heavy tails has a site of
negative precision. Sites that are scaled to be 1 at m make the evidence

    Σ [h + ½ D b² + ½ log(1 + πD)] − ½ log|A| − ½ bᵀ(m − m₀)

whether or not they match. Where they do it is stationary in them (Nickisch and Rasmussen 2008, section 4).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.solvers.accelerated_ep import ep_ladder, signed_ladder
from pymc_gpep.solvers.cavity_newton import sites_at_mode
from pymc_gpep.solvers.prior_form import FunctionPosterior
from pymc_gpep.solvers.problem import (
    Derivatives,
    Found,
    History,
    Problem,
    function_found,
    lost_in_rounding,
    parameter_slopes,
)

__all__ = ["scalar_ep"]

_ROUGHLY = 1e-2  # tolerance of the mode that a solve from cold begins at
_HALVINGS = 30  # of precisions below zero, where there is no posterior
_DIGITS = 8.0 * np.finfo(np.float64).eps


def scalar_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    average: Callable[..., None],
    slopes: Callable[..., None] | None = None,
    least_precision: float = 0.0,
    **options: Any,
) -> Found:
    """EP; `start`, which is overwritten, holds precisions and locations of the sites (2, n).

    `average` is the kernel of `pymc_gpep.likelihoods.local_computations.GaussianAverage`, `slopes` that of
    `ParameterSlopes` for it. Precisions of sites are at least `least_precision`, 0 or −∞. Where EP with negative ones
    does not converge, it begins again without them, which is the last rung. Options are those of
    `pymc_gpep.solvers.accelerated_ep.ep_ladder`.
    """
    y = problem.labels
    least = least_precision
    posterior = problem.prior.posterior(problem.mean[0], signed=least < 0.0)
    h = np.empty((5, y.size))
    mean, width = np.full((2, y.size), np.nan)

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        if not _updated(posterior, sites[0, :, 0], sites[1, :, 0]):
            return False, np.nan, np.nan
        b, v, kept = posterior.weights, posterior.variance, posterior.kept
        np.divide(v, kept, out=width)
        np.subtract(posterior.mean, width * b, out=mean)
        average(mean, width, y, problem.parameters, h)
        evidence = posterior.log_normaliser + float((h[0] + 0.5 * width * b * b - 0.5 * np.log(kept)).sum())
        curvature = np.maximum(-h[2], least)
        precision = curvature / (1.0 - width * curvature)
        target[0, :, 0] = precision
        target[1, :, 0] = h[1] + precision * (mean + width * h[1])
        scale[:, 0] = v
        change = np.abs(target - sites)[:, :, 0]
        return True, evidence, float(np.max([change[0] * v, change[1] * np.sqrt(v)]))

    def derivatives() -> Derivatives:
        return Derivatives(
            posterior.gradient(), posterior.weights[None].copy(), parameter_slopes(problem, slopes, mean, width)
        )

    if not start.any():
        # From sites that say nothing EP may leave for good where the prior is wide.
        start.reshape(2, -1)[:] = sites_at_mode(problem, average, _ROUGHLY, wide=False)
    sites = start.reshape(2, -1, 1)

    def without(sites: Array) -> None:
        nonlocal least
        least = 0.0
        np.maximum(sites[0], 0.0, out=sites[0])

    if least < 0.0:
        evidence, status, rung = signed_ladder(sweep, sites, history, without, **options)
    else:
        evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    status = lost_in_rounding(problem, posterior.weights[None], history, status)
    # Sites of large counts are precise: A⁻¹ has as many digits fewer as A, at most its trace, has more than 1.
    trace = float(problem.prior.variances[0] @ np.abs(posterior.precision))
    if status == OUT_OF_ITERATIONS and history.smallest_residual < _DIGITS * trace:
        status = OUT_OF_DIGITS
    return function_found(posterior, evidence, status, derivatives, rung)


def _updated(posterior: FunctionPosterior, precision: Array, location: Array) -> bool:
    """Compute the posterior; negative precisions, which are overwritten, are halved until there is one."""
    for _ in range(_HALVINGS):
        if posterior.update(precision, location):
            return True
        if not (negative := precision < 0.0).any():
            return False
        precision[negative] *= 0.5
    precision[precision < 0.0] = 0.0
    return posterior.update(precision, location)
