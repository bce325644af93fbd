"""EP whose posterior keeps the latent functions independent, where labels may be noise: sites of any sign.

The common level of all functions, which labels do not see, is solved for in each sweep as
`pymc_gpep.solvers.shifted_posterior` has it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.accelerated_ep import signed_ladder
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix
from pymc_gpep.solvers.signed_blocks import SignedBlocks

__all__ = ["independent_label_noise"]

_HALVINGS = 30  # of precisions below zero, where there is no posterior


def independent_label_noise(
    problem: Problem, start: Array, history: History, *, factor: Callable[..., None], **options: Any
) -> Found:
    """Iterate from π and ν in `start` (2, n, c), which is overwritten.

    `factor` is the kernel of `pymc_gpep.likelihoods.local_computations.PointFactor`. Where EP with negative precisions
    does not converge, it begins again without them, which is the last rung. Other options are those of
    `pymc_gpep.solvers.accelerated_ep.ep_ladder`.
    """
    c, n = problem.mean.shape
    y, epsilon = problem.labels, problem.parameters
    sites = start.reshape(2, n, c)
    functions = [SignedBlocks(own_matrix(problem.k, a)[None], 1) for a in range(c)]
    b, mean, variance = np.full((3, c, n), np.nan)
    pi, log_z, least = np.full((c, n), np.nan), np.empty(n), -np.inf

    def decomposed() -> bool:
        for _ in range(_HALVINGS):
            pi[:] = sites[0].T
            found = [each.factorise(own[:, None, None].copy()) for each, own in zip(functions, pi, strict=True)]
            if all(ok for ok, _ in found):
                log_det[:] = [each for _, each in found]
                return True
            below = sites[0] < 0.0
            if not below.any():
                return False
            sites[0][below] *= 0.5
        return False

    log_det = np.empty(c)

    def located() -> None:
        relative = sites[1].T - pi * problem.mean
        for each, own, force in zip(functions, b, relative, strict=True):
            each.weights(force[None], own[None])

    def sweep(_: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        if not decomposed():
            return False, np.nan, np.nan
        located()
        total = np.diag(pi.sum(axis=0)) - sum(half @ half.T for half in (each.weighted[0] for each in functions))
        shift = np.linalg.lstsq(total, b.sum(axis=0), rcond=1e-12)[0]
        sites[1] -= (pi * shift).T
        located()
        for a, each in enumerate(functions):
            own = np.empty((n, 1, 1))
            each.moments(b[a][None], mean[a][None], own)
            variance[a] = own[:, 0, 0]
        nu = sites[1].T
        location = nu - pi * problem.mean
        evidence = 0.5 * float(np.vdot(problem.mean, nu + location) + np.vdot(location, mean) - log_det.sum())
        mean[:] += problem.mean
        keep = 1.0 - pi * variance
        at, width = (mean - nu * variance) / keep, variance / keep
        rho, gamma = np.empty((2, n, c))
        factor(np.ascontiguousarray(at.T), np.ascontiguousarray(width.T), y, epsilon, log_z, rho, gamma)
        pull = nu * nu * width + 2.0 * nu * at - pi * at * at
        stretch = 1.0 + pi * width
        evidence += float(log_z.sum()) - 0.5 * float((pull / stretch - np.log(stretch)).sum())
        gamma = np.maximum(gamma, least)
        target[0] = gamma / (1.0 - width.T * gamma)
        target[1] = rho + target[0] * (at.T + width.T * rho)
        scale[:] = variance.T
        change = np.abs(target - sites)
        return True, evidence, float(np.max([change[0] * scale, change[1] * np.sqrt(scale)]))

    def derivatives() -> Derivatives:
        gradient = np.zeros_like(problem.k)
        for a, each in enumerate(functions):
            own_matrix(gradient, a)[:] += each.gradient(b[a][None])[0]
        noise = np.exp(-np.log(c) - log_z)
        right = (1.0 - epsilon * noise) / (1.0 - epsilon)
        return Derivatives(gradient, b.copy(), noise - right)

    def without(_: Array) -> None:
        nonlocal least
        least = 0.0

    evidence, status, rung = signed_ladder(sweep, sites, history, without, again=options["ladder"], **options)
    unit = np.eye(c)
    return Found(evidence, status, b, mean, variance.T[:, :, None] * unit, pi.T[:, :, None] * unit, derivatives, rung)
