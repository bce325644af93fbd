"""The best Gaussian under a lower bound Σ g(m_i, v_i) − KL(N(m, V) ‖ prior), for a likelihood of one latent function.

For g(m, v) = ∫ log p(y | f) N(f | m, v) df it is the Gaussian nearest to the posterior in that divergence; for a lower
bound of this g, it is a variational bound (Nickisch and Rasmussen 2008, sections 5 and 6). At the maximum the Gaussian
has sites of precision W = −2 ∂g/∂v that pull with the force b = ∂g/∂m; taking these sites from the present moments is a
step along the natural gradient, so that a short one always raises the bound.

The bound is Σ g − ½ [bᵀ(m − m₀) + tr A⁻¹ − n + log|A|].
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_ITERATIONS,
)
from pymc_gpep.solvers.accelerated_ep import Sweep, accelerated_ep
from pymc_gpep.solvers.contract import Found, Problem
from pymc_gpep.solvers.function_posterior import FunctionPosterior
from pymc_gpep.solvers.history import History

__all__ = ["SCHEMES", "scalar_bound"]

SCHEMES = ("accelerated fixed point", "natural gradient")
_PATIENCE = 40  # sweeps without progress before the second rung
_ABOVE = 1.0 + 1e-9  # of the largest precision, which a bound may have everywhere
_LEVEL = 1e-13  # of the bound: what rounding may make it fall
_SHORTEST = 1e-6


def scalar_bound(
    problem: Problem,
    start: Array,
    history: History,
    *,
    terms: Callable[..., None],
    tolerance: float,
    memory: int,
    mixing: float,
    damping: float,
    largest_precision: float,
) -> Found:
    """Raise the bound; `start`, which is overwritten, holds precisions and locations of the sites (2, n).

    `terms` is the kernel of `pymc_gpep.likelihoods.local_computations.AverageLogDensity`, or that of `QuadraticBound`.
    """
    y = problem.labels
    posterior = FunctionPosterior(problem)
    g = np.empty((3, y.size))
    sites = start.reshape(2, -1, 1)

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        if not posterior.update(sites[0, :, 0], sites[1, :, 0]):
            return False, np.nan, np.nan
        v = posterior.variance
        terms(posterior.mean, v, y, problem.parameters, g)
        target[0, :, 0] = np.maximum(-2.0 * g[2], 0.0)
        target[1, :, 0] = g[1] + target[0, :, 0] * posterior.mean
        scale[:, 0] = v
        change = np.abs(target - sites)[:, :, 0]
        residual = float(np.max([change[0] * v, change[1] * np.sqrt(v)]))
        return True, float(g[0].sum()) - posterior.divergence, residual

    def derivatives() -> tuple[Array, Array]:
        return posterior.gradient(), posterior.weights[None].copy()

    bound, status = accelerated_ep(
        sweep,
        sites,
        history,
        tolerance=tolerance,
        memory=memory,
        mixing=mixing,
        damping=damping,
        largest_precision=_ABOVE * largest_precision,
        patience=_PATIENCE,
    )
    rung = 0
    if status in (OUT_OF_ITERATIONS, NOT_FINITE) and not history.is_full():
        if status == NOT_FINITE:
            sites[:] = 0.0
        rung = 1
        bound, status = _climb(sweep, sites, history, tolerance)
    return Found(
        bound,
        status,
        posterior.weights[None],
        posterior.mean[None],
        posterior.variance[:, None, None],
        posterior.precision[None],
        derivatives,
        rung,
    )


def _climb(sweep: Sweep, sites: Array, history: History, tolerance: float) -> tuple[float, int]:
    """Go along the natural gradient, half as far whenever the bound would fall. Returns bound and status."""
    target, scale = np.empty_like(sites), np.empty(sites.shape[1:])
    old, direction = sites.copy(), np.zeros_like(sites)
    best, length = -np.inf, 1.0
    while not history.is_full():
        ok, bound, residual = sweep(sites, target, scale)
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE
        history.add(bound, residual)
        change = abs(bound - best)
        if bound >= best - _LEVEL * (1.0 + abs(best)):
            if residual < tolerance and change < tolerance * (1.0 + abs(bound)):
                return bound, CONVERGED
            best, length = bound, min(1.0, 2.0 * length)
            old[:] = sites
            np.subtract(target, sites, out=direction)
        elif length > _SHORTEST:
            length *= 0.5
        else:
            break
        np.add(old, length * direction, out=sites)
    if not np.isfinite(best):
        return np.nan, NOT_FINITE
    sites[:] = old
    _, bound, _ = sweep(sites, target, scale)
    return bound, OUT_OF_ITERATIONS
