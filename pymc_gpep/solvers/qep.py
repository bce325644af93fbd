"""EP with between-class coupling and tilted moments by quadrature (nested EP paper, section 3.3)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.full_sites import difference_sites, packed_size
from pymc_gpep.kernels.status import TOO_LARGE
from pymc_gpep.solvers.ep_ladder import ep_ladder
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.problem import Derivatives, Found, Problem
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
    prior_mean, y = problem.mean, problem.labels
    c, n = prior_mean.shape
    d = c - 1
    sites = start.reshape(2, n, packed_size(c))
    b, mean = np.full((2, c, n), np.nan)
    w, cov = np.full((2, n, c, c), np.nan)
    pi, nu, orders = np.empty((n, d, d)), np.empty((n, d)), np.full((n, d), -1)
    location = np.empty((c, n))
    if problem.prior.square and c * n > max_size:
        return Found(np.nan, TOO_LARGE, b, mean, cov, w, lambda: Derivatives(np.empty(0), b))
    algebra = problem.prior.blocks(c)

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        difference_sites(y, sites, pi, nu, w, location)
        ok, log_det = algebra.factorise(w)
        if not ok:
            return False, np.nan, np.nan
        # Everything is relative to the prior mean: ν becomes ν − W m, and the sites have a value at m.
        pull = np.einsum("iae,ei->ai", w, prior_mean)
        relative = location - pull
        evidence = -0.5 * log_det + float(np.vdot(prior_mean, location - 0.5 * pull))
        algebra.weights(relative, b)
        algebra.moments(b, mean, cov)
        evidence += 0.5 * float(np.vdot(relative, mean))
        mean[:] += prior_mean
        terms, residual = update(hermite, rule, orders, mean, cov, pi, nu, y, sites, target, scale)
        return True, evidence + terms, residual

    def of_evidence() -> Derivatives:
        return Derivatives(algebra.gradient(b), b.copy())

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, b, mean, cov, w, of_evidence, rung)
