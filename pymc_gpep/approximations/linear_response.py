"""How posterior means follow a small force on the latent values, where sites say how uncertain these are but not that.

A force h on the latent values, a factor exp(hᵀf), moves the means of the exact posterior by Cov(f) h. Those of an
approximation whose sites leave out what the classes have to do with each other move otherwise than its own covariance
says. They move as those of a Gaussian with the same prior and means, and with sites of the precision that tilted
distributions or log likelihood have at each point (Opper and Winther 2003).
"""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.gaussians.dense_posterior import DensePosterior
from pymc_gpep.gaussians.registry import make_posterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_hessian
from pymc_gpep.kernels.moments.inner_ep import inner_ep_update

__all__ = ["curvature_response", "tilted_response"]

Array = NDArray[np.float64]

_INNER_SWEEPS, _INNER_TOLERANCE = 200, 1e-10


def tilted_response(posterior: DensePosterior, mean: Array, cov: Array, labels: NDArray[np.int64]) -> DensePosterior:
    """For an EP of the multinomial probit that matches the marginals of the tilted distributions only.

    The mean of a tilted distribution follows that of its cavity by the tilted covariance, all of it. The precision
    that this adds to the cavity's is, by inner EP, that of a site of nested EP.

    Parameters
    ----------
    posterior : DensePosterior
    mean : array (c, n)
        Its means.
    cov : array (n, c, c)
        Its covariances between the classes of each point.
    labels : array of int (n,)
        Classes of the data, 0…c−1.
    """
    c, n = mean.shape
    cavity_mean, cavity_cov = posterior.cavities(mean, cov)
    nothing, alpha, beta, scale = np.zeros((4, n, c - 1))
    inner_ep_update(
        np.ascontiguousarray(cavity_mean.T), cavity_cov, labels, nothing, nothing, _INNER_SWEEPS, _INNER_TOLERANCE,
        alpha, beta, scale,
    )  # fmt: skip
    pi = np.ones((n, c))
    pi[np.arange(c) != labels[:, None]] = alpha.ravel()
    return make_posterior(posterior.prior, SiteForm.COUPLED, pi.T, posterior.weights, mean)


def curvature_response(posterior: DensePosterior, mean: Array, labels: NDArray[np.int64]) -> DensePosterior:
    """For an approximation of the multinomial probit whose means are the mode of the posterior: Laplace's posterior.

    Its algebra is dense, in O((cn)³).

    Parameters
    ----------
    posterior : DensePosterior
    mean : array (c, n)
        The mode.
    labels : array of int (n,)
        Classes of the data, 0…c−1.
    """
    c, n = mean.shape
    hessian = np.empty((n, c, c))
    for f, y, out in zip(np.ascontiguousarray(mean.T), labels, hessian, strict=True):
        log_probability_hessian(f, y, out)
    return make_posterior(posterior.prior, SiteForm.BLOCK, -hessian, posterior.weights, mean)
