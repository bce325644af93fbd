"""EP for a softmax with coupled sites, by quadrature and constrained projection (Seeger and Jordan 2004)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.softmax_qep import softmax_sites
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.site_posterior import derivatives, relative_posterior, site_posterior_space

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
    space = site_posterior_space(problem)
    pi = np.empty((c, n))

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        softmax_sites(sites, space.pi, space.nu)
        pi[:] = space.pi
        ok, gaussian = relative_posterior(problem, space)
        if not ok:
            return False, np.nan, np.nan
        gaussian += 0.5 * float(np.log(pi.sum(0)).sum())
        terms, residual = update(*nodes, space.mean, space.cov, problem.labels, pi, sites, target, scale)
        return True, gaussian + terms, residual

    evidence, status, rung = ep_ladder(sweep, start.reshape(2, n, c), history, largest_precision=np.inf, **options)
    return Found(evidence, status, space.weights, space.mean, space.cov, space.pi, lambda: derivatives(space), rung)
