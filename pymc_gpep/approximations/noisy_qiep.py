"""Class-independent expectation propagation for the multinomial probit and the step likelihood with label noise."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.noisy_nested_ep import NoisyNestedEP
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.posteriors import make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.methods.nested_label_noise import sites_of_differences
from pymc_gpep.kernels.moments.full_sites import packed_size
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import MixedDifferenceFactors, PointFactor
from pymc_gpep.solvers.independent_label_noise import independent_label_noise
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["NoisyQIEP"]


@dataclass(frozen=True)
class NoisyQIEP(NoisyNestedEP):
    """EP whose posterior leaves the classes independent, where labels may be noise.

    The method is `QIEP` with the factor (1 − ε) P + ε / c of a point. The fixed point is that of ``"sparse_ep"`` with
    all points as inducing inputs. Sites may have negative precisions. Derivatives of the evidence are exact, with
    respect to ε as well. A sweep takes c n³ operations, the posterior that predicts (cn)³.

    Parameters
    ----------
    ladder : bool
        Whether to go on where the iteration does not get closer any more. Plain steps come first, then smaller ones,
        then sites without negative precisions, whose derivatives are approximate.
    max_size : int
        Largest number cn of latent values to accept.

    Examples
    --------
    >>> from pymc_gpep.likelihoods.multinomial_probit.noisy_likelihood import NoisyMultinomialProbitLikelihood
    >>> noisy = NoisyMultinomialProbitLikelihood().given(np.full((1, len(y)), 0.05))
    >>> solution = gpep.NoisyQIEP().solve(K, mean, y, likelihood=noisy)  # (n, n), (3, n), (n,)
    >>> solution.log_evidence
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
