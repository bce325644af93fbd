"""EP with between-class coupling and tilted moments by quadrature (nested EP paper, section 3.3)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.full_sites import difference_sites, packed_size
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.block_ep import BlockEP, BlockSpace, refused
from pymc_gpep.solvers.problem import NO_PARAMETERS, Found, History, Problem
from pymc_gpep.solvers.site_posterior import derivatives, site_posterior, site_posterior_space

__all__ = ["full_qep", "qep"]


def qep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    hermite: bool,
    rule: Array,
    **options: Any,
) -> Found:
    """EP by quadrature, its posterior that of nested EP.

    `start`, which is overwritten, is diag Λ and ξ (2, n, c − 1). `rule` (2, order) has nodes and log weights,
    Gauss–Hermite's if `hermite`; `update` is the kernel `diagonal_update` of
    `pymc_gpep.likelihoods.local_computations.DifferenceQuadrature`; the other options are those of `ep_ladder`.
    """
    c, n = problem.mean.shape
    sites = start.reshape(2, n, c - 1)
    space = site_posterior_space(problem)
    orders = np.full((n, c - 1), -1)

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, gaussian = site_posterior(problem, sites, space)
        if not ok:
            return False, np.nan, np.nan
        terms, residual = update(hermite, rule, orders, space.mean, space.cov, problem.labels, sites, target, scale)
        return True, gaussian + terms, residual

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, space.weights, space.mean, space.cov, space.pi, lambda: derivatives(space), rung)


def full_qep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    hermite: bool,
    rule: Array,
    max_size: int,
    **options: Any,
) -> Found:
    """EP with nothing left out but quadrature's error.

    The posterior has all the tilted means and covariances of g, and so of f, and the evidence is stationary in the
    sites. `start` has the layout of the kernels of full sites and is overwritten. Options are those of `qep`, with the
    kernel `full_update`. `max_size` is the largest number cn of latent values whose covariance is a matrix.
    """
    y = problem.labels
    c, n = problem.mean.shape
    sites = start.reshape(2, n, packed_size(c))
    orders = np.full((n, c - 1), -1)
    if (result := refused(problem, max_size)) is not None:
        return result

    def quadrature(space: BlockSpace, sites: Array, target: Array, scale: Array) -> tuple[float, float]:
        return update(hermite, rule, orders, space.mean, space.cov, space.pi, space.nu, y, sites, target, scale)

    ep = BlockEP(problem, problem.prior.blocks(c), difference_sites, quadrature)
    evidence, status, rung = ep_ladder(ep.sweep, sites, history, **options)
    return ep.found(evidence, status, rung, NO_PARAMETERS)
