"""EP for a softmax with coupled sites, by quadrature and constrained projection (Seeger and Jordan 2004)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.kernels.methods.softmax_qep import softmax_sites
from pymc_gpep.kernels.moments.coupled_sites import relative_location
from pymc_gpep.solvers.coupled import factorise, marginal_moments
from pymc_gpep.solvers.ep_ladder import ep_ladder
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.problem import Found, Problem
from pymc_gpep.solvers.site_posterior import SitePosterior, derivatives, site_posterior_space

__all__ = ["Nodes", "softmax_qep"]


class Nodes(NamedTuple):
    """A rule for what differs among c − 1 classes, N(0, I − 11ᵀ/(c − 1))."""

    points: Array
    """(N, c − 1), each with the sum 0."""
    log_weights: Array
    """(N,)."""


def softmax_qep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    nodes: Nodes,
    **options: Any,
) -> Found:
    """EP by quadrature, its sites those that `pymc_gpep.kernels.methods.softmax_qep` describes.

    `start`, which is overwritten, is π and ν (2, n, c), zeros for a cold start. `update` is the kernel of
    `pymc_gpep.likelihoods.local_computations.CoupledQuadrature`; the other options are those of `ep_ladder`.
    """
    c, n = problem.mean.shape
    space = site_posterior_space(c, n)
    pi = np.empty((c, n))

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        softmax_sites(sites, space.pi, space.nu)
        pi[:] = space.pi
        ok, gaussian = _posterior(problem, space)
        if not ok:
            return False, np.nan, np.nan
        terms, residual = update(*nodes, space.mean, space.cov, problem.labels, pi, sites, target, scale)
        return True, gaussian + terms, residual

    evidence, status, rung = ep_ladder(sweep, start.reshape(2, n, c), history, largest_precision=np.inf, **options)
    return Found(
        evidence, status, space.weights, space.mean, space.cov, space.pi, lambda: derivatives(problem, space), rung
    )


def _posterior(problem: Problem, space: SitePosterior) -> tuple[bool, float]:
    """The posterior from π and ν in `space`. Returns success and log ∫ p(f) ∏ sites."""
    k, prior_mean, team = problem.k, problem.mean, problem.team
    pi, nu, inverses, p, work, b, mean, cov = space
    ok, log_det = factorise(k, pi, inverses, p, team)
    if not ok:
        return False, np.nan
    log_det -= float(np.log(pi.sum(0)).sum())
    constant = relative_location(prior_mean, pi, nu)
    latent_weights(inverses, p, pi, nu, b)
    marginal_moments(k, inverses, p, pi, b, work, mean, cov, team)
    constant += 0.5 * float(np.vdot(nu, mean))
    mean += prior_mean
    return True, constant - 0.5 * log_det
