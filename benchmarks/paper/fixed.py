"""Fixed hyperparameters: the squared exponential prior, and class probabilities under a Gaussian posterior."""

from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from benchmarks.paper.data import Split
from pymc_gpep.approximations import Solution
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS

Array = np.ndarray

JITTER = 1e-6  # added to the diagonal, as in `pm.gp.Latent`
LITTLE_JITTER = 1e-8  # where no PyMC model is compared


class Distances(NamedTuple):
    """Squared distances between training points (n, n), and of held-out points from these (m, n)."""

    own: Array
    cross: Array


class Prior(NamedTuple):
    """Prior covariance of training points (n, n), of held-out points with these (m, n), and prior variance."""

    k: Array
    cross: Array
    variance: float


def distances(data: Split) -> Distances:
    return Distances(cdist(data.X, data.X, "sqeuclidean"), cdist(data.Xnew, data.X, "sqeuclidean"))


def covariance(X: Array, log_variance: float, log_lengthscale: float) -> Array:
    """Prior covariance (n, n) at the inputs X (n, d), with jitter on the diagonal."""
    return _covariance(cdist(X, X, "sqeuclidean"), log_variance, log_lengthscale) + LITTLE_JITTER * np.eye(len(X))


def squared_exponential(squared: Distances, log_variance: float, log_lengthscale: float) -> Prior:
    """The prior that all classes share."""
    own, cross = (_covariance(d, log_variance, log_lengthscale) for d in squared)
    return Prior(own + JITTER * np.eye(len(own)), cross, float(np.exp(log_variance)))


def at_held_out(solution: Solution, prior: Prior) -> tuple[Array, Array]:
    """Latent means (m, c) and covariances (m, c, c)."""
    m = len(prior.cross)
    mean, cov = solution.posterior.predict(
        prior.cross[None], np.full((1, m), prior.variance), np.zeros((len(solution.mean), m))
    )
    return mean.T, cov


def probabilities(likelihood: str, mean: Array, cov: Array) -> Array:
    """Class probabilities (points, c) under latent means (points, c) and covariances (points, c, c)."""
    by_name = {each.name: each for each in LIKELIHOODS}
    return by_name[likelihood].probabilities(mean, cov)[0]


def of_labels(p: Array, y: Array) -> Array:
    """Probability of each point's label, (..., points), from (..., points, c)."""
    return np.take_along_axis(p, y.reshape(*(1,) * (p.ndim - 2), -1, 1), axis=-1)[..., 0]


def _covariance(squared: Array, log_variance: float, log_lengthscale: float) -> Array:
    return np.exp(log_variance - 0.5 * np.exp(-2.0 * log_lengthscale) * squared)
