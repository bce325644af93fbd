"""Responses of the means of a method to forces, with couplings of latent functions that its sites ignore.

A response is a Gaussian with the linear response of the means of a method as its covariance, see
`pymc_gpep.approximations.kl`. `nested_factors` returns the tilted factors of nested EP, for corrections of the
evidence.
"""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.approximations.nested_ep import NestedEP
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import Posterior, make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import CoupledQuadrature, DifferenceFactors
from pymc_gpep.likelihoods.softmax import class_nodes

_NODES = 2000  # Largest number of quadrature nodes for each point.
_NOTHING = 1e-14  # Precision of a negligible site, in units of the inverse mean variance of the latent values.
_INNER_SWEEPS, _INNER_TOLERANCE = 200, 1e-10


def projected_sites(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return precisions and locations (c, p) of the coupled sites that best match tilted moments of p points.

    Parameters
    ----------
    likelihood : Likelihood
        A likelihood with `CoupledQuadrature`.
    labels : array (p,)
    mean, cov : arrays (c, p), (p, c, c)
        Moments of the latent values without sites.
    """
    c, p = mean.shape
    update, conditioned = likelihood.computation(CoupledQuadrature)
    scale = cov.trace(axis1=1, axis2=2) / c
    none = np.ascontiguousarray(np.broadcast_to(_NOTHING / np.maximum(scale, _NOTHING), (c, p)))
    sites, target, room = np.zeros((2, p, c)), np.empty((2, p, c)), np.empty((p, c))
    moments = np.ascontiguousarray(mean), np.ascontiguousarray(cov)
    update(*class_nodes(c - conditioned, _NODES), *moments, labels, none, sites, target, room)
    return np.ascontiguousarray(target[0].T), np.ascontiguousarray(target[1].T)


def tilted_response(solution: Solution) -> Posterior:
    """Return the response of the means of EP with independent functions. The likelihood must offer `DifferenceFactors`.

    The response needs the whole tilted covariance of a point. Inner EP approximates the inverse of this covariance by
    the precision of the cavity plus the precision of a site of nested EP.
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


def projected_response(solution: Solution) -> Posterior:
    """Return the response of the means, with sites of `projected_sites`. It is exact for up to three classes."""
    posterior = solution.posterior
    mean, cov = posterior.cavities(solution.mean, solution.cov)
    pi, _ = projected_sites(solution.likelihood, solution.labels, mean.T, cov)
    return make_posterior(posterior.prior, SiteForm.COUPLED, pi, posterior.weights, solution.mean)


def factorial_response(solution: Solution) -> Posterior:
    """Return the response of the means of the factorial variational method.

    Given all other latent values, a value has a prior precision. With its site it has the precision of its factor.
    """
    posterior = solution.posterior
    v, k = posterior.precision, posterior.prior.k
    sites, has = np.zeros_like(v), (v != 0.0).any(axis=0)  # Points without factor have no observation.
    given_others = np.linalg.inv(k[:, has][:, :, has]).diagonal(axis1=1, axis2=2)
    sites[:, has] = np.maximum(1.0 / v[:, has] - given_others, 0.0)
    return make_posterior(posterior.prior, SiteForm.INDEPENDENT, sites, posterior.weights, solution.mean)


def nested_factors(solution: Solution) -> TiltedFactors:
    """Return the tilted factors of nested EP for the same prior and labels, for corrections of another approximation.

    If the sites of an approximation match only some tilted means and covariances, its corrections contain large terms
    with one loop. Nested EP is the sum of these terms.
    """
    prior, method = solution.posterior.prior, NestedEP()
    nested = method.solve(prior.k, prior.mean, solution.labels, likelihood=solution.likelihood)
    return method.tilted_factors(nested)
