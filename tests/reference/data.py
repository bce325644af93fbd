"""Inputs for the reference computations: two classic data sets, one kernel, and small random problems."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_iris, load_wine

__all__ = ["Problem", "iris", "random_problem", "squared_exponential", "wine"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


class Problem(NamedTuple):
    """A classification problem at fixed hyperparameters.

    Attributes
    ----------
    X : ndarray, shape (n, d)
        Inputs.
    K : ndarray, shape (n, n) or (c, n, n)
        Prior covariance, shared by the classes or one per class.
    m : ndarray, shape (c, n)
        Prior mean.
    y : ndarray of int, shape (n,)
        Labels 0..c-1.
    """

    X: Array
    K: Array
    m: Array
    y: Labels


def _standardised(X: Array) -> Array:
    """Columns of zero mean and unit variance (divisor n)."""
    return (X - X.mean(axis=0)) / X.std(axis=0, ddof=0)


def wine() -> tuple[Array, Labels]:
    """Wine, standardised: inputs (178, 13) and labels 0 to 2."""
    bunch = load_wine()
    return _standardised(np.asarray(bunch.data, dtype=np.float64)), np.asarray(bunch.target, dtype=np.int64)


def iris() -> tuple[Array, Labels]:
    """scikit-learn's version of iris, standardised: inputs (150, 4) and labels 0 to 2."""
    bunch = load_iris()
    return _standardised(np.asarray(bunch.data, dtype=np.float64)), np.asarray(bunch.target, dtype=np.int64)


def squared_exponential(X: Array, Z: Array | None = None, *, variance: float, lengthscale: float) -> Array:
    """Squared-exponential kernel ``variance * exp(-|x - z|^2 / (2 lengthscale^2))``.

    Parameters
    ----------
    X, Z : ndarray, shapes (n, d) and (p, d)
        Inputs; `Z` defaults to `X`.
    variance, lengthscale : float
        Magnitude (in squared latent units) and lengthscale (in the units of the inputs).

    Returns
    -------
    ndarray, shape (n, p)
    """
    Z = X if Z is None else Z
    squared_distance = ((X[:, None, :] - Z[None, :, :]) ** 2).sum(axis=-1)
    return variance * np.exp(-0.5 * squared_distance / lengthscale**2)


def half_of_grid() -> list[tuple[int, int]]:
    """Log variances and log length scales that an optimiser may try: alternate points of a grid."""
    return [(a, b) for a in range(-2, 13, 2) for b in range(-2, 6) if (a // 2 + b) % 2]


def random_problem(
    seed: int,
    n: int,
    c: int,
    *,
    variance: float = 2.0,
    per_class: bool = False,
    with_mean: bool = False,
    dimension: int = 2,
) -> Problem:
    """A small random problem with labels drawn from the prior without noise.

    Parameters
    ----------
    seed : int
        Seed of the generator.
    n, c : int
        Numbers of points and classes.
    variance : float
        Magnitude of the kernel; with `per_class` it is scaled by 0.7 to 1.5 across the classes.
    per_class : bool
        Draw one covariance per class, each with its own lengthscale.
    with_mean : bool
        Draw a non-zero prior mean.
    dimension : int
        Number of inputs.

    Returns
    -------
    Problem
        Labels are the class of largest utility under one prior draw, so that every label is plausible.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, dimension))
    jitter = 1e-8 * np.eye(n)
    if per_class:
        scales = np.linspace(0.7, 1.5, c)
        K = np.stack([squared_exponential(X, variance=variance * s, lengthscale=1.2 / s) + jitter for s in scales])
    else:
        K = squared_exponential(X, variance=variance, lengthscale=1.2) + jitter
    m = rng.normal(scale=0.7, size=(c, n)) if with_mean else np.zeros((c, n))
    root = np.linalg.cholesky(np.broadcast_to(K, (c, n, n)))
    utilities = m + np.einsum("kij,kj->ki", root, rng.normal(size=(c, n))) + rng.normal(size=(c, n))
    return Problem(X=X, K=K, m=m, y=utilities.argmax(axis=0).astype(np.int64))
