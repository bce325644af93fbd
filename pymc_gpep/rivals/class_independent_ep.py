"""Class-independent EP: by inner EP, by quadrature, for a softmax, and with label noise.

Latent functions are independent in the posterior. For the algebra see `pymc_gpep.kernels.gaussians.coupled` and
`pymc_gpep.kernels.gaussians.independent`. With label noise site precisions may be negative. Each sweep moves all
functions by a common shift (`pymc_gpep.solvers.common_shift`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.nested_ep import NoisyNestedEP
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_algebra import SignedBlocks, factorise
from pymc_gpep.gaussians.posterior import Posterior, make_posterior
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    factorise_function,
    function_variance,
    function_weights,
)
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.kernels.methods.label_noise import sites_of_differences
from pymc_gpep.kernels.moments.full_sites import packed_size
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    CoupledQuadrature,
    DifferenceFactors,
    MixedDifferenceFactors,
    PointFactor,
)
from pymc_gpep.rivals.computations import IndependentFactors, IndependentQuadrature
from pymc_gpep.rivals.responses import nested_factors, projected_response, tilted_response
from pymc_gpep.solvers.common_shift import matrix_shift
from pymc_gpep.solvers.problem import Algebra, Found, History, Problem, own_matrix
from pymc_gpep.solvers.site_ep import SitePosterior, largest_change, site_ep, site_of, site_terms


class SeparateSitePosterior(SitePosterior):
    """Posterior with independent functions. The first c columns of sites (2, n, ·) are precisions π and locations ν.

    Parameters
    ----------
    problem : Problem
    shifts : bool
        Whether a sweep moves all functions by a common shift, and the sites with them.

    Attributes
    ----------
    location, variance : array (c, n)
        Locations of the sites, and posterior variances of the latent values.
    """

    def __init__(self, problem: Problem, *, shifts: bool = True) -> None:
        c, n = problem.mean.shape
        self._problem, self._shifts = problem, shifts
        self.precision, self.location, self.weights, self.mean, self.variance = np.full((5, c, n), np.nan)
        self.cov = np.zeros((n, c, c))
        self._variances = np.einsum("naa->na", self.cov)  # View of the variances in `cov`.
        self._inverses, self._p = np.empty((c, n, n)), np.empty((n, n))

    def take(self, sites: Array) -> tuple[bool, float]:
        """See `ImpliedPosterior`. First, site locations are moved by site precisions times a common shift."""
        prior_mean, pi, nu, mean = self._problem.mean, self.precision, self.location, self.mean
        c = len(mean)
        pi[:], nu[:] = sites[0, :, :c].T, sites[1, :, :c].T
        ok, log_det = self._factorise()
        if not ok:
            return False, np.nan
        self._weigh()
        if self._shifts:
            nu += pi * self._shift(self.weights.sum(axis=0))
            sites[1, :, :c] = nu.T
            self._weigh()
        self._spread()
        multiply_functions(self._problem.k, self.weights, mean)
        # A site on f − m, with the prior mean m, has the location ν − π m. Its constant factor is the value of the site
        # at m.
        location = nu - pi * prior_mean
        total = 0.5 * (float(np.vdot(prior_mean, nu + location) + np.vdot(location, mean)) - log_det)
        mean += prior_mean
        self._variances[:] = self.variance.T
        return True, total

    def _factorise(self) -> tuple[bool, float]:
        """Factorise A_k = I + K_k diag(π_k) of each function. Return whether all succeed, and Σ_k log|A_k|."""
        k, pi, inverses, p = self._problem.k, self.precision, self._inverses, self._p
        if self._shifts:
            ok, log_det = factorise(k, pi, inverses, p, self._problem.team)
            return ok, log_det - 2.0 * float(np.log(p.diagonal()).sum())
        each = [factorise_function(own_matrix(k, a), own, inverses[a]) for a, own in enumerate(pi)]
        return all(ok for ok, _ in each), sum(log_det for _, log_det in each)

    def _weigh(self) -> None:
        """Compute the weights b of the posterior mean m + K b from the sites."""
        given = self._inverses, self.precision, self.location, self._problem.mean, self.weights
        for own in zip(*given, strict=True):
            function_weights(*own)

    def _shift(self, pull: Array) -> Array:
        """Return the common shift δ (n,) of all functions, from the sum (n,) of their weights."""
        return matrix_shift(self._p, pull, factored=True)

    def _spread(self) -> None:
        """Compute the posterior variances."""
        k, pi, inverses, variance = self._problem.k, self.precision, self._inverses, self.variance
        self._problem.team.each(
            lambda a: function_variance(own_matrix(k, a), pi[a], inverses[a], variance[a]), range(len(pi))
        )

    def gradient(self) -> Array:
        gradient = np.zeros_like(self._problem.k)
        for a, (pi, inverse, b) in enumerate(zip(self.precision, self._inverses, self.weights, strict=True)):
            add_function_gradient(pi, inverse, b, own_matrix(gradient, a))
        return gradient


def independent_ep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[bool, float, float]],
    shifts: bool = True,
    **options: Any,
) -> Found:
    """Run EP with a scalar site for each latent value.

    `start` (2, n, d) is overwritten. It has site precisions π (c,) and locations ν (c,) of each point, then further
    sites for `update`. `update(mean, variance, pi, nu, y, sites, target, scale)` has the signature of
    `pymc_gpep.rivals.kernels.class_independent.independent_update`. Further options are passed to `site_ep`.
    """

    def matched(at: SeparateSitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        return update(at.mean, at.variance, at.precision, at.location, problem.labels, sites, target, scale)

    posterior, sites = SeparateSitePosterior(problem, shifts=shifts), start.reshape(2, problem.labels.size, -1)
    return posterior.found(site_ep(posterior, sites, history, update=matched, **options))


@dataclass(frozen=True)
class IEP(AcceleratedEP):
    """EP with independent latent functions in the posterior, and tilted moments by inner EP.

    Sites match the tilted mean and variance of each function at each point. Inner EP computes them for independent
    cavities. The posterior ignores covariances between functions. Variances are too small if the data determine
    differences between functions better than their mean.

    Parameters
    ----------
    max_inner : int
        Largest number of inner sweeps in an outer iteration. Inner EP ends earlier if it converges to the tolerance.
        Inner and outer sites are iterated together, so the fixed point does not depend on this number.
    """

    max_inner: int = field(default=1, metadata=at_least(1))

    name: ClassVar[str] = "iep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (IndependentFactors, DifferenceFactors)  # `response` needs the second.

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        update = partial(likelihood.computation(IndependentFactors).update, self.max_inner, self.tolerance)
        options = self.iteration | {"largest_precision": likelihood.largest_precision}
        return independent_ep(problem, start, history, update=update, **options)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the start: outer and inner sites."""
        return 2 * n_points * (2 * n_functions - 1)

    def response(self, solution: Solution) -> Posterior:
        """Return the coupled Gaussian whose covariance is the derivative of means in h: see `Approximator.response`."""
        return tilted_response(solution)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """Return the tilted factors of nested EP."""
        return nested_factors(solution)


@dataclass(frozen=True)
class QIEP(AcceleratedEP):
    """EP with independent latent functions in the posterior, and accurate tilted moments by quadrature.

    The method differs from `"iep"` only in the moments. With independent cavities each moment is an integral over one
    variable, the utility of the observed class. The literature uses two-dimensional quadratures with few nodes (Seeger,
    Lawrence and Herbrich 2006; Girolami and Zhong 2007). Evidence and derivatives are exact for class-independent EP.
    """

    name: ClassVar[str] = "qiep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (IndependentQuadrature, DifferenceFactors)  # `response` needs the second.

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        update = likelihood.computation(IndependentQuadrature).update
        options = self.iteration | {"largest_precision": likelihood.largest_precision}
        return independent_ep(problem, start, history, update=update, **options)

    def response(self, solution: Solution) -> Posterior:
        """Return the coupled Gaussian whose covariance is the derivative of means in h: see `Approximator.response`."""
        return tilted_response(solution)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """Return the tilted factors of nested EP; for a softmax, raise the error of the base class."""
        return super().tilted_factors(solution) if self.whole_factors else nested_factors(solution)


@dataclass(frozen=True)
class QIEPSoftmax(QIEP):
    """EP for a softmax with independent latent functions in the posterior, and tilted moments by quadrature.

    The baseline of Seeger and Jordan (2004, section 6) has such sites, and visits each chosen point once. Here the
    sites are iterated to a fixed point. `QEPSoftmax` includes the couplings between classes, by the same quadrature.
    Derivatives are exact derivatives of the evidence. With eight or more classes, quadrature errors are 1 to 2 %.
    """

    name: ClassVar[str] = "qiep"
    needs: ClassVar[tuple[type, ...]] = (IndependentQuadrature, CoupledQuadrature)  # `response` needs the second.
    whole_factors: ClassVar[str] = "for a softmax"

    def response(self, solution: Solution) -> Posterior:
        """Return the coupled Gaussian whose covariance is the derivative of means in h: see `Approximator.response`."""
        return projected_response(solution)


class SignedSitePosterior(SeparateSitePosterior):
    """Posterior with independent functions, for site precisions that may be negative."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.least = -np.inf
        priors = [DensePrior(own_matrix(problem.k, a)[None], own[None]) for a, own in enumerate(problem.mean)]
        self._each = [SignedBlocks(prior, 1) for prior in priors]

    def _factorise(self) -> tuple[bool, float]:
        pairs = zip(self._each, self.precision, strict=True)
        found = [each.factorise(own[:, None, None].copy()) for each, own in pairs]
        return all(ok for ok, _ in found), sum(log_det for _, log_det in found)

    def _weigh(self) -> None:
        relative = self.location - self.precision * self._problem.mean
        for each, own, force in zip(self._each, self.weights, relative, strict=True):
            each.weights(force[None], own[None])

    def _shift(self, pull: Array) -> Array:
        total = np.diag(self.precision.sum(axis=0)) - sum(half @ half.T for (half,) in (e.weighted for e in self._each))
        return matrix_shift(total, pull, factored=False)

    def _spread(self) -> None:
        for a, each in enumerate(self._each):
            own = np.empty((self.mean.shape[1], 1, 1))
            each.moments(self.weights[a][None], self.mean[a][None], own)
            self.variance[a] = own[:, 0, 0]

    def gradient(self) -> Array:
        gradient = np.zeros_like(self._problem.k)
        for a, (each, b) in enumerate(zip(self._each, self.weights, strict=True)):
            own_matrix(gradient, a)[:] += each.gradient(b[None])[0]
        return gradient


@dataclass(frozen=True)
class NoisyQIEP(NoisyNestedEP):
    """EP with independent latent functions in the posterior, for labels with noise.

    The method is `"qiep"` with the factor (1 − ε) p + ε / c of a point, for the probit p and label noise ε. The fixed
    point equals the fixed point of `"sparse_ep"` with all points as inducing inputs. Sites may have negative
    precisions. Derivatives of the evidence are exact, also in ε. A sweep takes O(c n³), and predictions O((cn)³).

    Parameters
    ----------
    ladder : bool
        Whether a fallback sequence follows if the iteration makes no progress: plain steps, smaller steps, and then
        only positive site precisions (with approximate derivatives).
    max_size : int
        Largest accepted number cn of latent values.
    """

    name: ClassVar[str] = "qiep"
    needs: ClassVar[tuple[type, ...]] = (PointFactor, MixedDifferenceFactors)  # `response` needs the second.
    algebra: ClassVar[Algebra] = Algebra.MATRIX

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        (c, n), epsilon, log_z = problem.mean.shape, problem.parameters, np.empty(len(problem.labels))
        factor = likelihood.computation(PointFactor).derivatives

        def matched(at: SignedSitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
            pi, nu, variance = at.precision.T, at.location.T, at.variance.T
            keep = 1.0 - pi * variance
            mean, width = map(np.ascontiguousarray, ((at.mean.T - nu * variance) / keep, variance / keep))
            rho, gamma = np.empty((2, n, c))
            factor(mean, width, problem.labels, epsilon, log_z, rho, gamma)
            target[:] = site_of(rho, np.maximum(gamma, at.least), mean, width)
            scale[:] = variance
            terms = float(log_z.sum()) - site_terms(mean, width, nu, pi)
            return True, terms, largest_change(target, sites, scale)

        def slopes() -> Array:
            noise = np.exp(-np.log(c) - log_z)
            return noise - (1.0 - epsilon * noise) / (1.0 - epsilon)

        posterior, options = SignedSitePosterior(problem), self.iteration
        options["largest_precision"] = likelihood.largest_precision
        ended = site_ep(posterior, start.reshape(2, n, c), history, update=matched, **options)
        found = posterior.found(ended, slopes)
        return found._replace(precision=found.precision.T[:, :, None] * np.eye(c))

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the start: site precisions and locations."""
        return 2 * n_points * n_functions

    def response(self, solution: Solution) -> Posterior:
        """Return the coupled Gaussian whose covariance is the derivative of means in h: see `Approximator.response`."""
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
