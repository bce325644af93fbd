"""The squared exponential covariance of the paper's experiments."""

import numpy as np

from tests.reference.data import squared_exponential

Array = np.ndarray

JITTER = 1e-8
"""Added to the prior variances at the points that are learned from."""


def covariance(X: Array, log_variance: float, log_lengthscale: float) -> Array:
    """Prior covariance (n, n) at the inputs X (n, d), with jitter."""
    K = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    return K + JITTER * np.eye(len(X))
