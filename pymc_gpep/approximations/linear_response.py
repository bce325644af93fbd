"""Posteriors whose means follow a force on the latent values as the means of an approximation do (linear response).

A force h on the latent values, a factor exp(hᵀf), moves the means of the exact posterior by Cov(f) h. The sites of some
approximations ignore couplings between latent functions, so that their means do not move as their own covariance says.
They move like the means of another Gaussian with the same prior and means. At each point its sites have the precision
of the tilted distribution or of the log likelihood (Opper and Winther 2003).
"""

import numpy as np

from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.posteriors import make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    BlockCurvature,
    QuadraticBound,
)

_DIFFERENCE = 1e-4  # in standard deviations


def curvature_response(solution: Solution) -> DensePosterior:
    """For an approximation whose means are the mode of the posterior: Laplace's; the likelihood has `BlockCurvature`.

    Its algebra is dense, in O((cn)³).
    """
    posterior = solution.posterior
    c, n = solution.mean.shape
    w = np.empty((n, c, c))
    mean = np.ascontiguousarray(solution.mean)
    solution.likelihood.computation(BlockCurvature).curvature(mean, solution.labels, w)
    return make_posterior(posterior.prior, SiteForm.BLOCK, w, posterior.weights, mean)


def bound_response(solution: Solution) -> DensePosterior:
    """For one latent function under a quadratic bound: its curvature in the means, at held variances."""
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


def average_response(solution: Solution) -> DensePosterior:
    """For the Gaussian nearest to the posterior: sites as precise as points are under a cavity that moves.

    A force moves means m, these the variances v that belong to them, and these the means again, by ∂²g/∂m∂v. With the
    covariance V and S = V ∘ V, the means follow by

        [K⁻¹ + W − Dg(g_mv) (I − 2 S Dg(g_vv))⁻¹ 2 S Dg(g_mv)]⁻¹,

    which no sites express. The diagonal of S alone is used, v²: then the change is one of each point under its cavity.
    The covariance alone would leave out all of it.
    """
    terms = solution.likelihood.computation(AverageLogDensity).terms
    mean, variance = solution.mean[0], solution.cov[:, 0, 0]

    def slopes(factor: float) -> Array:
        g = np.empty((3, mean.size))
        terms(np.ascontiguousarray(mean), factor * variance, solution.labels, solution.likelihood.parameters, g)
        return g[1:]

    across, along = (slopes(1.0 + _DIFFERENCE) - slopes(1.0 - _DIFFERENCE)) / (2.0 * _DIFFERENCE * variance)
    posterior = solution.posterior
    lost = 2.0 * across**2 / (variance**-2.0 - 2.0 * along)
    sites = np.maximum(posterior.precision - np.nan_to_num(lost, posinf=0.0, neginf=0.0), 0.0)
    return make_posterior(posterior.prior, SiteForm.INDEPENDENT, sites, posterior.weights, solution.mean)
