"""Evidences of a softmax with one more point, under each label that it could have: Tierney and Kadane's numerators."""

import numpy as np

from pymc_gpep.kernels.blas_threads import limit_blas_threads, restore_blas_threads
from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.newton import newton
from pymc_gpep.kernels.status import CONVERGED

__all__ = ["evidences_with_new_point"]


@kernel
def evidences_with_new_point(k, prior_mean, y, b, k_cross, k_new, new_mean, tolerance, max_iterations, evidences):
    """Laplace's log q(y, y* = l) at each of m new points, each on its own, into `evidences` (m, c).

    Parameters
    ----------
    k : (1 or c, n, n) array
        Prior covariance.
    prior_mean : (c, n) array
    y : (n,) array of int
        Labels.
    b : (c, n) array
        Weights at the mode given `y`, from where each search starts.
    k_cross : (1 or c, m, n) array
    k_new : (1 or c, m) array
        Prior covariances of the new points, as many as in `k`.
    new_mean : (c, m) array
    tolerance : float
        Of the modes.
    max_iterations : int
    evidences : (m, c) array
        Overwritten; NaN where no mode was found.
    """
    c, n = prior_mean.shape
    size = n + 1
    matrices = k.shape[0]
    threads = limit_blas_threads(size)
    prior = np.empty((matrices, size, size))
    prior[:, :n, :n] = k
    mean = np.empty((c, size))
    mean[:, :n] = prior_mean
    labels = np.empty(size, np.int64)
    labels[:n] = y
    weights = np.empty((c, size))
    f, gradient, pi, step, image = np.empty((5, c, size))
    inverses = np.empty((c, size, size))
    p = np.empty((size, size))
    history = np.empty((max_iterations, 2))
    for new in range(new_mean.shape[1]):
        for a in range(matrices):
            for i in range(n):
                prior[a, n, i] = k_cross[a, new, i]
                prior[a, i, n] = k_cross[a, new, i]
            prior[a, n, n] = k_new[a, new]
        for a in range(c):
            mean[a, n] = new_mean[a, new]
        for label in range(c):
            labels[n] = label
            weights[:, :n] = b
            weights[:, n] = 0.0
            evidence, status, _ = newton(
                (prior, mean, labels), weights, (f, gradient, pi, step, image, inverses, p), tolerance, history
            )
            evidences[new, label] = evidence if status == CONVERGED else np.nan
    restore_blas_threads(threads)
