"""EP whose posterior keeps the classes independent, by inner EP and by quadrature."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.kernels.gaussians.independent import add_class_gradient
from pymc_gpep.kernels.methods.iep import iep_update
from pymc_gpep.kernels.methods.qiep import qiep_update
from pymc_gpep.solvers.ep_ladder import ep_ladder
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.levelled_posterior import levelled_posterior, levelled_posterior_space
from pymc_gpep.solvers.problem import Array, Found, Problem, own_matrix

__all__ = ["iep", "qiep"]


def iep(problem: Problem, start: Array, history: History, *, tolerance: float, max_inner: int, **options: Any) -> Found:
    """Class-independent EP by inner EP.

    `start`, which is overwritten, is (2, n, 2c − 1), of each point π and then α, ν and then β; the other options are
    those of `ep_ladder`.
    """

    def update(*arrays: Array) -> tuple[bool, float, float]:
        return iep_update(max_inner, tolerance, *arrays)

    sites = start.reshape(2, problem.labels.size, 2 * len(problem.mean) - 1)
    return _independent_ep(update, problem, sites, history, tolerance=tolerance, **options)


def qiep(problem: Problem, start: Array, history: History, **options: Any) -> Found:
    """Class-independent EP by quadrature.

    `start`, which is overwritten, is π and ν (2, n, c); options are those of `ep_ladder`.
    """
    sites = start.reshape(2, problem.labels.size, len(problem.mean))
    return _independent_ep(qiep_update, problem, sites, history, **options)


def _independent_ep(
    update: Callable[..., tuple[bool, float, float]], problem: Problem, sites: Array, history: History, **options: Any
) -> Found:
    c, n = problem.mean.shape
    space = levelled_posterior_space(c, n)
    pi, nu, b, mean, variance, inverses, _ = space

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, gaussian = levelled_posterior(problem, sites, space)
        if not ok:
            return False, np.nan, np.nan
        ok, terms, residual = update(mean, variance, pi, nu, problem.labels, sites, target, scale)
        return ok, gaussian + terms, residual

    def derivatives() -> tuple[Array, Array]:
        gradient = np.zeros_like(problem.k)
        for a in range(c):
            add_class_gradient(pi[a], inverses[a], b[a], own_matrix(gradient, a))
        return gradient, b.copy()

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, b, mean, variance.T[:, :, None] * np.eye(c), pi, derivatives, rung)
