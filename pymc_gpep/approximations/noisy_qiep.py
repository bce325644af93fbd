"""Class-independent expectation propagation for the multinomial probit and the step likelihood with label noise.

The posterior keeps the latent functions independent, and sites have any sign. The common level of all functions, which
labels do not see, is solved for in each sweep as `pymc_gpep.solvers.independent_ep` has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.noisy_nested_ep import NoisyNestedEP
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.posteriors import make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.methods.label_noise import sites_of_differences
from pymc_gpep.kernels.moments.full_sites import packed_size
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import MixedDifferenceFactors, PointFactor
from pymc_gpep.solvers.accelerated_ep import signed_ladder
from pymc_gpep.solvers.dense_form import SignedBlocks
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix

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


@dataclass(frozen=True)
class NoisyQIEP(NoisyNestedEP):
    """EP whose posterior leaves the classes independent, where labels may be noise.

    The method is `"qiep"` with the factor (1 − ε) p + ε / c of a point. The fixed point is that of ``"sparse_ep"`` with
    all points as inducing inputs. Sites may have negative precisions. Derivatives of the evidence are exact, with
    respect to ε as well. A sweep takes c n³ operations, the posterior that predicts (cn)³.

    Parameters
    ----------
    ladder : bool
        Whether to go on where the iteration does not get closer any more. Plain steps come first, then smaller ones,
        then sites without negative precisions, whose derivatives are approximate.
    max_size : int
        Largest number cn of latent values to accept.
    """

    name: ClassVar[str] = "qiep"
    needs: ClassVar[tuple[type, ...]] = (PointFactor, MixedDifferenceFactors)  # the latter for the response
    algebra: ClassVar[Algebra] = Algebra.MATRIX

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        settings = self.settings
        del settings["max_size"]
        return independent_label_noise(
            problem,
            start,
            history,
            factor=likelihood.computation(PointFactor).derivatives,
            largest_precision=likelihood.largest_precision,
            **settings,
        )

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: π and ν."""
        return 2 * n_points * n_functions

    def response(self, solution: Solution) -> DensePosterior:
        """The coupled posterior that the tilted distributions would make: means respond as these do, not the sites."""
        y, (c, n) = solution.labels, solution.mean.shape
        mean, cov = solution.posterior.cavities(solution.mean, solution.cov)
        d, size = c - 1, packed_size(c)
        pi, nu, (alpha, beta) = np.zeros((n, d, d)), np.zeros((n, d)), np.zeros((2, n, d))
        nothing, target = np.zeros((2, 2, n, size))
        scale, slopes = np.empty((n, size)), np.empty((1, n))
        update = solution.likelihood.computation(MixedDifferenceFactors).update
        update(
            np.ascontiguousarray(mean.T), cov, y, solution.likelihood.parameters, 1.0, pi, nu, nothing, alpha, beta,
            target, scale, slopes,
        )  # fmt: skip
        w, location = np.empty((n, c, c)), np.empty((c, n))
        sites_of_differences(y, target, pi, nu, w, location)
        posterior = solution.posterior
        return make_posterior(posterior.prior, SiteForm.SIGNED, w, posterior.weights, solution.mean)
