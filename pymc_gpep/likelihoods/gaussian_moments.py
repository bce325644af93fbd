"""Gaussians of latent values as predictive probabilities take them, checked in one place for all likelihoods."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array


def gaussian_moments(mean: ArrayLike, cov: ArrayLike, tolerance: float, at_least: int = 2) -> tuple[Array, Array]:
    """Mean (m, c) and covariance (m, c, c) as contiguous arrays.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer latent functions than `at_least`, or if `tolerance` is not
        positive.
    """
    mean = np.ascontiguousarray(mean, np.float64)
    cov = np.ascontiguousarray(cov, np.float64)
    if mean.ndim != 2 or cov.shape != (*mean.shape, mean.shape[-1]):
        raise ValueError(f"mean and cov must have shapes (m, c) and (m, c, c), but have {mean.shape} and {cov.shape}")
    if mean.shape[1] < at_least:
        raise ValueError(f"there must be at least {at_least} classes, but mean has shape {mean.shape}, which is (m, c)")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, but is {tolerance}")
    return mean, cov


def independent_classes(cov: Array) -> NDArray[np.bool_]:
    """At which points (m,) the covariance (m, c, c) is diagonal: all else in it exactly zero."""
    c = cov.shape[1]
    off_diagonal: NDArray[np.bool_] = (cov.reshape(len(cov), c * c) != 0.0) & ~np.eye(c, dtype=bool).ravel()
    alone: NDArray[np.bool_] = ~off_diagonal.any(axis=1)
    return alone
