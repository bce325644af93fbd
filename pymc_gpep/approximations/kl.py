"""Gaussian nearest to the posterior (Opper and Archambeau 2009; Nickisch and Rasmussen 2008), and linear responses.

A force h on the latent values f multiplies their posterior density by exp(hᵀf). A small force moves the exact means by
Cov(f) h. The means of an approximation move by another vector C h, for example if its sites ignore couplings between
latent functions. C is the covariance of the Gaussian of the response. It has the prior and the means of the
approximation. Each site has the precision of the tilted distribution, or of the log likelihood (Opper and Winther
2003).
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.approximator import Approximator, sites_between
from pymc_gpep.approximations.limits import at_least, fraction, positive
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import Posterior, make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    BlockCurvature,
    GaussianAverage,
    ParameterSlopes,
    QuadraticBound,
)
from pymc_gpep.solvers.problem import Algebra, Found, History, Problem
from pymc_gpep.solvers.scalar_bound import average_target, bound_target, scalar_bound

_DIFFERENCE = 1e-4  # Step of finite differences, in standard deviations.


def curvature_response(solution: Solution) -> Posterior:
    """Return the Gaussian of the response to a force (see the module) at the mode of the posterior.

    The likelihood must offer `BlockCurvature`. The computation takes O((cn)³), with dense matrices.
    """
    posterior = solution.posterior
    c, n = solution.mean.shape
    w = np.empty((n, c, c))
    mean = np.ascontiguousarray(solution.mean)
    solution.likelihood.computation(BlockCurvature).curvature(mean, solution.labels, w)
    return make_posterior(posterior.prior, SiteForm.BLOCK, w, posterior.weights, mean)


def bound_response(solution: Solution) -> Posterior:
    """Return the Gaussian of the response to a force (see the module) for `QuadraticVB`, at fixed variances."""
    terms = solution.likelihood.computation(QuadraticBound).terms
    variance = np.ascontiguousarray(solution.cov[:, 0, 0])
    step = _DIFFERENCE * np.sqrt(variance)
    slopes = []
    for mean in (solution.mean[0] - step, solution.mean[0] + step):
        g = np.empty((3, mean.size))
        terms(mean, variance, solution.labels, solution.likelihood.parameters, g)
        slopes.append(g[1])
    curvature = np.divide(slopes[0] - slopes[1], 2.0 * step, out=np.zeros_like(step), where=step > 0.0)
    sites = np.maximum(curvature, 0.0)[None]
    posterior = solution.posterior
    return make_posterior(posterior.prior, SiteForm.INDEPENDENT, sites, posterior.weights, solution.mean)


def average_response(solution: Solution) -> Posterior:
    """Return the Gaussian of the response to a force (see the module) for `KL`, where variances change with means.

    Let g(m, v) be the average log density of a point with posterior mean m and variance v. A force h changes the means.
    The means change the variances, and these change the means again, by g_mv = ∂²g/∂m∂v. Let K be the prior covariance,
    W the site precisions, V the posterior covariance and S = V ∘ V. The derivative of the means in h is

        [K⁻¹ + W − diag(g_mv) (I − 2 S diag(g_vv))⁻¹ 2 S diag(g_mv)]⁻¹.

    The posterior covariance omits the last term. This term is not diagonal, so it is not a site precision. Therefore
    only the diagonal v² of S is used, as if each variance changed only with the mean of the same point.
    """
    terms = solution.likelihood.computation(AverageLogDensity).terms
    mean, whole = solution.mean[0], solution.cov[:, 0, 0]
    variance = solution.posterior.algebra.site_covariances()[:, 0, 0]

    def slopes(factor: float) -> Array:
        g = np.empty((3, mean.size))
        terms(
            np.ascontiguousarray(mean),
            whole + (factor - 1.0) * variance,
            solution.labels,
            solution.likelihood.parameters,
            g,
        )
        return g[1:]

    across, along = (slopes(1.0 + _DIFFERENCE) - slopes(1.0 - _DIFFERENCE)) / (2.0 * _DIFFERENCE * variance)
    posterior = solution.posterior
    lost = 2.0 * across**2 / (variance**-2.0 - 2.0 * along)
    sites = np.maximum(posterior.precision - np.nan_to_num(lost, posinf=0.0, neginf=0.0), 0.0)
    return make_posterior(posterior.prior, SiteForm.INDEPENDENT, sites, posterior.weights, solution.mean)


@dataclass(frozen=True)
class AcceleratedBound(Approximator):
    """Gaussian that maximises a lower bound, by iteration with Anderson acceleration.

    Parameters
    ----------
    tolerance : float
        Tolerance on the largest change of a site, in units of its marginal, and on the relative change of the bound.
        The error of the bound is about the square of the tolerance.
    max_iterations : int
        Limit on iterations.
    depth : int
        Number of past steps that Anderson acceleration combines; 0 is the plain iteration.
    mixing : float
        Fraction of the combined residual in an accelerated step, in (0, 1].
    """

    tolerance: float = field(default=1e-6, metadata=positive())
    max_iterations: int = field(default=500, metadata=at_least(1))
    depth: int = field(default=4, metadata=at_least(0))
    mixing: float = field(default=1.0, metadata=fraction())

    schemes: ClassVar[tuple[str, ...]] = ("accelerated ascent",)
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    bounds: ClassVar[bool] = True

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts: sites."""
        return 2 * n_points

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        return sites_between(starts, weights, nearest)


@dataclass(frozen=True)
class KL(AcceleratedBound):
    """Gaussian q with the smallest KL(q ‖ posterior). The evidence is the largest lower bound by a Gaussian."""

    name: ClassVar[str] = "kl"
    needs: ClassVar[tuple[type, ...]] = (AverageLogDensity,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        terms = likelihood.computation(AverageLogDensity).terms
        average = likelihood.computation(GaussianAverage) if likelihood.offers(GaussianAverage) else None
        of_rows = average and average.of_rows
        slopes = likelihood.computation(ParameterSlopes).average_log if likelihood.offers(ParameterSlopes) else None
        return scalar_bound(
            problem,
            start,
            history,
            terms=terms,
            target=average_target,
            slopes=slopes,
            average=average and average.terms,
            repeated=of_rows and of_rows(problem.labels, problem.parameters, rough=True),
            largest_precision=likelihood.largest_precision,
            least_precision=likelihood.least_precision,
            several_rows=likelihood.several_rows,
            **self.settings,
        )

    def response(self, solution: Solution) -> Posterior:
        """Return the Gaussian of the response. Its site precisions are lower: variances change with means."""
        return average_response(solution)


@dataclass(frozen=True)
class QuadraticVB(AcceleratedBound):
    """Gaussian that maximises a lower bound of the evidence, with a quadratic lower bound of each point's log density.

    For the logit the quadratic bound is by Jaakkola and Jordan (2000). For the probit its curvature is 1: the result
    equals variational Bayes with utilities (Girolami and Rogers 2006). The evidence is at most the bound of `KL`.
    """

    name: ClassVar[str] = "vb"
    needs: ClassVar[tuple[type, ...]] = (QuadraticBound,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTION

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        terms = likelihood.computation(QuadraticBound).terms
        return scalar_bound(
            problem,
            start,
            history,
            terms=terms,
            target=bound_target,
            largest_precision=likelihood.largest_precision,
            **self.settings,
        )

    def response(self, solution: Solution) -> Posterior:
        """Return the Gaussian of the response. Its site precisions are the bound's curvature in the means."""
        return bound_response(solution)
