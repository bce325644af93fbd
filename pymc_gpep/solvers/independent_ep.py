"""EP whose posterior keeps the latent functions independent, for any way to take tilted moments."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.independent import add_function_gradient
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix
from pymc_gpep.solvers.shifted_posterior import shifted_posterior, shifted_posterior_space

__all__ = ["independent_ep"]


def independent_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[bool, float, float]],
    **options: Any,
) -> Found:
    """EP with scalar sites for the latent values.

    `start`, which is overwritten, is (2, n, d) when it has its shape: of each point first π and ν (c,), then what else
    the `update` iterates. `update(mean, variance, pi, nu, y, sites, target, scale)` takes the moments, as
    `pymc_gpep.kernels.methods.independent_ep.independent_update` does; options are those of `ep_ladder`.
    """
    sites = start.reshape(2, problem.labels.size, -1)
    c, n = problem.mean.shape
    space = shifted_posterior_space(c, n)
    pi, nu, b, mean, variance, inverses, _ = space

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, gaussian = shifted_posterior(problem, sites, space)
        if not ok:
            return False, np.nan, np.nan
        ok, terms, residual = update(mean, variance, pi, nu, problem.labels, sites, target, scale)
        return ok, gaussian + terms, residual

    def derivatives() -> Derivatives:
        gradient = np.zeros_like(problem.k)
        for a in range(c):
            add_function_gradient(pi[a], inverses[a], b[a], own_matrix(gradient, a))
        return Derivatives(gradient, b.copy())

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, b, mean, variance.T[:, :, None] * np.eye(c), pi, derivatives, rung)
