"""Linear response: how the means of an approximation follow a force on the latent values.

A force h on the latent values, a factor exp(hᵀf), moves the means of the exact posterior by Cov(f) h. The sites of some
approximations ignore couplings between latent functions, so that their means do not move as their own covariance says.
They move like the means of another Gaussian with the same prior and means. At each point its sites have the precision
of the tilted distribution or of the log likelihood (Opper and Winther 2003). Such coupled sites are computed here, by
quadrature and constrained projection.
"""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.posteriors import make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    BlockCurvature,
    CoupledQuadrature,
    DifferenceFactors,
    QuadraticBound,
)
from pymc_gpep.likelihoods.softmax import class_nodes

_NODES = 2000
_NOTHING = 1e-14  # precision of a site that says nothing, in units of the variance


def projected_sites(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return π and ν (c, p) that match the tilted moments of p points as nearly as coupled sites can.

    Parameters
    ----------
    likelihood : Likelihood
        One that offers `CoupledQuadrature`.
    labels : array (p,)
    mean, cov : arrays (c, p), (p, c, c)
        Moments of the latent values without the sites.
    """
    c, p = mean.shape
    update, conditioned = likelihood.computation(CoupledQuadrature)
    scale = cov.trace(axis1=1, axis2=2) / c
    none = np.ascontiguousarray(np.broadcast_to(_NOTHING / np.maximum(scale, _NOTHING), (c, p)))
    sites, target, room = np.zeros((2, p, c)), np.empty((2, p, c)), np.empty((p, c))
    moments = np.ascontiguousarray(mean), np.ascontiguousarray(cov)
    update(*class_nodes(c - conditioned, _NODES), *moments, labels, none, sites, target, room)
    return np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T)


_DIFFERENCE = 1e-4  # in standard deviations
_INNER_SWEEPS, _INNER_TOLERANCE = 200, 1e-10


def tilted_response(solution: Solution) -> DensePosterior:
    """For an EP that matches the marginals of the tilted distributions only; the likelihood has `DifferenceFactors`.

    The mean of a tilted distribution follows that of its cavity by the tilted covariance, all of it. The precision
    that this adds to the cavity's is, by inner EP, that of a site of nested EP.
    """
    posterior, labels = solution.posterior, solution.labels
    c, n = solution.mean.shape
    cavity_mean, cavity_cov = posterior.cavities(solution.mean, solution.cov)
    nothing, alpha, beta, scale = np.zeros((4, n, c - 1))
    solution.likelihood.computation(DifferenceFactors).coupled_update(
        np.ascontiguousarray(cavity_mean.T), cavity_cov, labels, nothing, nothing, _INNER_SWEEPS, _INNER_TOLERANCE,
        alpha, beta, scale,
    )  # fmt: skip
    pi = np.ones((n, c))
    pi[np.arange(c) != labels[:, None]] = alpha.ravel()
    return make_posterior(posterior.prior, SiteForm.COUPLED, pi.T, posterior.weights, solution.mean)


def projected_response(solution: Solution) -> DensePosterior:
    """The same for a likelihood that has `CoupledQuadrature`: a projection, which is whole up to three classes."""
    posterior = solution.posterior
    mean, cov = posterior.cavities(solution.mean, solution.cov)
    pi, _ = projected_sites(solution.likelihood, solution.labels, mean.T, cov)
    return make_posterior(posterior.prior, SiteForm.COUPLED, pi, posterior.weights, solution.mean)


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


def factorial_response(solution: Solution) -> DensePosterior:
    """For independent latent values of variances v: sites that leave v of what the prior has given all other values."""
    posterior = solution.posterior
    v, k = posterior.precision, posterior.prior.k
    sites, has = np.zeros_like(v), (v != 0.0).any(axis=0)  # nothing was observed where there is no factor
    given_others = np.linalg.inv(k[:, has][:, :, has]).diagonal(axis1=1, axis2=2)
    sites[:, has] = np.maximum(1.0 / v[:, has] - given_others, 0.0)
    return make_posterior(posterior.prior, SiteForm.INDEPENDENT, sites, posterior.weights, solution.mean)


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
