"""Expectation propagation for a likelihood of one latent function (Minka 2001; Opper and Winther 2000, as TAP).

The cavity of a point has the variance D = v / (1 − πv) and the mean μ = m − D b. Here m and v are the moments of the
posterior and b its weights: nothing cancels. Let h(μ, D) = log ∫ p(y | f) N(f | μ, D) df. The tilted mean is μ + D h′
and the tilted variance D + D² h″. The new site thus has the precision γ / (1 − Dγ), γ = −h″, and pulls with the force
h′ at the tilted mean. A likelihood that is not log-concave may have γ < 0: an outlier under heavy tails has a site of
negative precision. Sites that are scaled to be 1 at m make the evidence

    Σ [h + ½ D b² + ½ log(1 + πD)] − ½ log|A| − ½ bᵀ(m − m₀)

whether or not they match. Where they do it is stationary in them (Nickisch and Rasmussen 2008, section 4).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import ScalarCavities, TiltedFactors, tilted_factors
from pymc_gpep.approximations.kl import KL
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.status import OUT_OF_DIGITS, OUT_OF_ITERATIONS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, GaussianAverage, ParameterSlopes
from pymc_gpep.solvers.accelerated_ep import SCHEMES, ep_ladder, signed_ladder
from pymc_gpep.solvers.newton import sites_at_mode
from pymc_gpep.solvers.prior_form import Algebra, FunctionPosterior
from pymc_gpep.solvers.problem import (
    Derivatives,
    Found,
    History,
    Problem,
    function_found,
    lost_in_rounding,
    parameter_slopes,
)

_AT_MODE = 1e-2  # tolerance of the mode that a solve from cold begins at
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
        start.reshape(2, -1)[:] = sites_at_mode(problem, average, _AT_MODE, wide=False)
    sites = start.reshape(2, -1, 1)

    def without(sites: Array) -> None:
        nonlocal least
        least = 0.0
        np.maximum(sites[0], 0.0, out=sites[0])

    if least < 0.0:
        evidence, status, rung = signed_ladder(sweep, sites, history, without, **options)
    else:
        evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    status = lost_in_rounding(problem, posterior.coordinates, history, status)
    # Sites of large counts are precise: A⁻¹ has as many digits fewer as A, at most its trace, has more than 1.
    trace = float(problem.prior.variances[0] @ np.abs(posterior.precision))
    if problem.prior.by_weights and status == OUT_OF_ITERATIONS and history.smallest_residual < _DIGITS * trace:
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


_ROUGHLY, _FEW = 1e-2, 100  # tolerance of the bound that a solve from cold begins at, and iterations
_LITTLE = 0.05  # of the precision that a row's site has under the prior, below which the row is taken for an outlier


@dataclass(frozen=True)
class EP(AcceleratedEP):
    """Gaussian sites that match mean and variance of every latent value under its tilted distribution."""

    name: ClassVar[str] = "ep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    matches_moments: ClassVar[bool] = True
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True
    looseness: ClassVar[float] = 50.0
    schemes: ClassVar[tuple[str, ...]] = (*SCHEMES, "EP with site precisions of at least 0")

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        if not (likelihood.log_concave or start.any()) and likelihood.offers(AverageLogDensity):
            # With several fixed points, that near the best Gaussian is a good one.
            begin = np.zeros_like(start)
            KL(tolerance=_ROUGHLY).solver(problem, begin, History(_FEW), likelihood=likelihood)
            start[:] = begin if np.isfinite(begin).all() else 0.0
        average = likelihood.computation(GaussianAverage).terms
        slopes = likelihood.computation(ParameterSlopes).average if likelihood.offers(ParameterSlopes) else None
        return scalar_ep(
            problem,
            start,
            history,
            average=average,
            slopes=slopes,
            largest_precision=likelihood.largest_precision,
            least_precision=likelihood.least_precision,
            **self.settings,
        )

    def from_outliers(self, solution: Solution) -> tuple[NDArray[np.intp], Array]:
        """Return rows whose sites say next to nothing beside what they would under the prior, and these sites."""
        likelihood, prior = solution.likelihood, solution.posterior.prior
        if likelihood.log_concave:
            return super().from_outliers(solution)
        mean, variance = np.ascontiguousarray(prior.mean[0]), np.ascontiguousarray(prior.variances[0])
        h = np.empty((5, mean.size))
        likelihood.computation(GaussianAverage).terms(mean, variance, solution.labels, likelihood.parameters, h)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = -h[2] / (1.0 + variance * h[2])
            location = h[1] + precision * (mean + variance * h[1])
            taken = np.isfinite(location) & (solution.posterior.precision[0] < _LITTLE * precision)
        taken &= precision > 0.0
        return np.flatnonzero(taken), np.where(taken, [precision, location], 0.0).ravel()

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """One for each point, of its latent value."""
        posterior = solution.posterior
        size = solution.mean.size
        covariance = posterior.covariance_among(np.arange(size)).reshape(size, size)
        mean, variance = posterior.cavities(solution.mean, solution.cov)
        cavities = ScalarCavities(covariance, mean.reshape(size), variance.reshape(size))
        average = solution.likelihood.computation(GaussianAverage).terms
        return tilted_factors(solution, cavities, average, solution.labels)
