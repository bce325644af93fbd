"""A Gaussian prior of latent values by its mean and dense covariance, checked once for all."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

__all__ = ["Prior", "check_prior", "solve_roots"]

Array = NDArray[np.float64]

_SYMMETRY = 1e-8  # relative: covariance functions are symmetric to rounding


class Prior(NamedTuple):
    """The Gaussian process priors at one point of the hyperparameters."""

    k: Array
    """Covariance, (1 or c, n, n)."""
    roots: Array
    """Its lower Cholesky factors, with zeros above the diagonal."""
    mean: Array
    """(c, n)."""


def check_prior(k: ArrayLike, mean: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return prior covariance (1 or c, n, n) and prior mean (c, n) in the form that kernels want.

    Raises
    ------
    ValueError
        Naming the argument, if a shape does not fit, a value is not finite, a covariance is not symmetric or has a
        negative diagonal.
    """
    prior_mean = np.ascontiguousarray(mean, dtype=np.float64)
    if prior_mean.ndim != 2 or prior_mean.shape[0] < 1 or prior_mean.shape[1] < 1:
        raise ValueError(
            f"mean must be (c, n) with c ≥ 1 functions and n ≥ 1 points, but has shape {prior_mean.shape}."
        )
    c, n = prior_mean.shape
    covariance = np.ascontiguousarray(k, dtype=np.float64)
    if covariance.shape not in ((n, n), (1, n, n), (c, n, n)):
        raise ValueError(f"k must be ({n}, {n}) or ({c}, {n}, {n}) to fit the mean, but has shape {covariance.shape}.")
    covariance = covariance.reshape(-1, n, n)
    for name, values in (("mean", prior_mean), ("k", covariance)):
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name} must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not."
            )
    size = np.abs(covariance).max()
    if np.abs(covariance - covariance.transpose(0, 2, 1)).max() > _SYMMETRY * size:
        raise ValueError("k must be symmetric, but is not: check the covariance function.")
    if covariance.diagonal(axis1=1, axis2=2).min() < 0:
        raise ValueError("k must have no negative variance on its diagonal: check the covariance function.")
    return covariance, prior_mean


def solve_roots(residual: Array, roots: Array) -> Array:
    """L_k⁻¹ r_k of each class; `residual` (c, n), `roots` (1 or c, n, n)."""
    if len(roots) == 1:
        return np.ascontiguousarray(solve_triangular(roots[0], residual.T, lower=True, check_finite=False).T)
    return np.stack(
        [solve_triangular(root, r, lower=True, check_finite=False) for root, r in zip(roots, residual, strict=True)]
    )
