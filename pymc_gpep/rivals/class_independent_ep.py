"""Class-independent EP: by inner EP, by quadrature, for a softmax, and with label noise.

The posterior keeps the latent functions independent. The algebra is that of `pymc_gpep.kernels.gaussians.coupled` and
`pymc_gpep.kernels.gaussians.independent`. With label noise sites have any sign.

The common shift of all functions is solved for in every sweep. A likelihood of differences does not depend on a
function δ that is added to all classes. The moments of its cavities shift by δ, and the sites of class k become (π_k,
ν_k + π_k δ). The prior decides which δ is best. A fixed point of EP has Σ_k b_k = 0. This sum is the derivative of the
evidence with respect to a mean that all classes share. An iteration that updates each class given the others approaches
that point in steps of the size 1/(1 + πK). That is no progress for a large K. A shift δ changes Σ_k b_k by P δ, P = Σ_k
B_k: one more matrix to factorise than the c of the classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.nested_ep import NoisyNestedEP
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.posteriors import make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.gaussians.independent import add_function_gradient, function_variance, function_weights
from pymc_gpep.kernels.linalg.lapack import multiply_functions, solve_with_cholesky
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
from pymc_gpep.solvers.accelerated_ep import ep_ladder, signed_ladder
from pymc_gpep.solvers.dense_form import SignedBlocks, factorise
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Derivatives, Found, History, Problem, own_matrix


class ShiftedPosterior(NamedTuple):
    """Results of `shifted_posterior`."""

    pi: Array
    """Site precisions, (c, n)."""
    nu: Array
    """Site locations, (c, n)."""
    weights: Array
    """b = K⁻¹ (mean − prior mean), (c, n)."""
    mean: Array
    """Posterior mean of the latent values, (c, n)."""
    variance: Array
    """Posterior variance of the latent values, (c, n)."""
    inverses: Array
    """A_k⁻¹ (c, n, n)."""
    p: Array
    """The Cholesky factor of P, (n, n)."""


def shifted_posterior_space(c: int, n: int) -> ShiftedPosterior:
    """Room for a posterior, NaN where nothing is computed yet."""
    pi, nu, weights, mean, variance = np.full((5, c, n), np.nan)
    return ShiftedPosterior(pi, nu, weights, mean, variance, np.empty((c, n, n)), np.empty((n, n)))


def shifted_posterior(problem: Problem, sites: Array, space: ShiftedPosterior) -> tuple[bool, float]:
    """Shift the locations in `sites` (2, n, ≥ c), π and ν first, and compute the posterior.

    Returns success and log ∫ p(f) ∏ sites.
    """
    k, prior_mean, team = problem.k, problem.mean, problem.team
    pi, nu, b, mean, variance, inverses, p = space
    c, _ = pi.shape
    pi[:], nu[:] = sites[0, :, :c].T, sites[1, :, :c].T
    ok, log_det = factorise(k, pi, inverses, p, team)
    if not ok:
        return False, np.nan
    for a in range(c):
        function_weights(inverses[a], pi[a], nu[a], prior_mean[a], b[a])
    nu -= pi * solve_with_cholesky(p, b.sum(0))
    sites[1, :, :c] = nu.T
    for a in range(c):
        function_weights(inverses[a], pi[a], nu[a], prior_mean[a], b[a])
    multiply_functions(k, b, mean)
    team.each(lambda a: function_variance(own_matrix(k, a), pi[a], inverses[a], variance[a]), range(c))
    # The log determinant is that of the A_k and P. Relative to the prior mean the location is ν − π m, and the sites
    # have a value at m.
    location = nu - pi * prior_mean
    total = np.log(p.diagonal()).sum() - 0.5 * log_det
    total += 0.5 * float(np.vdot(prior_mean, nu + location) + np.vdot(location, mean))
    mean += prior_mean
    return True, total


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
    `pymc_gpep.rivals.kernels.class_independent.independent_update` does; options are those of `ep_ladder`.
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


@dataclass(frozen=True)
class IEP(AcceleratedEP):
    """EP whose posterior leaves the classes independent, tilted moments by inner EP.

    Sites match at each point the mean and the variance of every class, as inner EP computes them under the independent
    cavities. The posterior leaves out the part that classes have in common. Variances come out too small where the data
    say more of differences between classes than of their level.

    Parameters
    ----------
    max_inner : int
        Inner sweeps per outer iteration: 1 is incremental, more runs inner EP on to the tolerance. The inner sites are
        iterated along with the outer ones, so that the fixed point is the same.
    """

    max_inner: int = field(default=1, metadata=at_least(1))

    name: ClassVar[str] = "iep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (IndependentFactors, DifferenceFactors)  # the latter for the response

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        settings = self.settings
        update = likelihood.computation(IndependentFactors).update
        settings["update"] = partial(update, settings.pop("max_inner"), self.tolerance)
        settings["largest_precision"] = likelihood.largest_precision
        return independent_ep(problem, start, history, **settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: outer and inner sites."""
        return 2 * n_points * (2 * n_functions - 1)

    def response(self, solution: Solution) -> DensePosterior:
        """The coupled posterior that the tilted distributions would make: means respond as these do, not the sites."""
        return tilted_response(solution)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """The tilted factors of nested EP."""
        return nested_factors(solution)


@dataclass(frozen=True)
class QIEP(AcceleratedEP):
    """EP whose posterior leaves the classes independent, with tilted moments to nearly full precision.

    The method differs from `"iep"` in the moments alone. With independent cavities each moment is an integral over one
    variable, the utility of the observed class. The literature takes two-dimensional quadratures of a few nodes
    (Seeger, Lawrence and Herbrich 2006; Girolami and Zhong 2007). The evidence and its derivatives are then those of
    class-independent EP without a further approximation.
    """

    name: ClassVar[str] = "qiep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (IndependentQuadrature, DifferenceFactors)  # the latter for the response

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        settings = self.settings
        settings["update"] = likelihood.computation(IndependentQuadrature).update
        settings["largest_precision"] = likelihood.largest_precision
        return independent_ep(problem, start, history, **settings)

    def response(self, solution: Solution) -> DensePosterior:
        """The coupled posterior that the tilted distributions would make: means respond as these do, not the sites."""
        return tilted_response(solution)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """The tilted factors of nested EP, where a point has factors of single numbers."""
        return super().tilted_factors(solution) if self.whole_factors else nested_factors(solution)


@dataclass(frozen=True)
class QIEPSoftmax(QIEP):
    """EP for a softmax whose posterior leaves the classes independent, with tilted moments by quadrature.

    Seeger and Jordan (2004, section 6) have these sites for their baseline, in a single pass over the points that they
    choose. Here they are iterated to a fixed point. `QEPSoftmax` has the couplings between classes as well, for the
    same quadrature. The derivatives that are reported are those of the evidence. With eight classes and more the
    quadrature leaves them off by a percent or two.
    """

    name: ClassVar[str] = "qiep"
    needs: ClassVar[tuple[type, ...]] = (IndependentQuadrature, CoupledQuadrature)  # the latter for the response
    whole_factors: ClassVar[str] = "for a softmax"

    def response(self, solution: Solution) -> DensePosterior:
        """The coupled posterior that the tilted distributions would make: means respond as these do, not the sites."""
        return projected_response(solution)


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
