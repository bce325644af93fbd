"""Posterior moments by weighting draws from the prior with their likelihood: simple, and slow to converge.

Use it for a few points, where many prior draws have a noticeable likelihood.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tests.reference.exact import log_likelihood

__all__ = ["LIKELIHOODS", "posterior_moments"]

Array = NDArray[np.float64]


def _softmax(f: Array, y: NDArray[np.int64]) -> Array:
    shifted = f - f.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.take_along_axis(log_p, np.broadcast_to(y, f.shape[:-1])[..., None], axis=-1)[..., 0]


def _bernoulli(f: Array, y: NDArray[np.int64]) -> Array:
    return -np.logaddexp(0.0, np.where(y == 1, -1.0, 1.0) * f[..., 0])


def _bernoulli_probit(f: Array, y: NDArray[np.int64]) -> Array:
    return np.asarray(log_ndtr(np.where(y == 1, 1.0, -1.0) * f[..., 0]))


LIKELIHOODS: dict[str, Callable[[Array, NDArray[np.int64]], Array]] = {
    "multinomial_probit": log_likelihood,
    "softmax": _softmax,
    "bernoulli": _bernoulli,
    "bernoulli_probit": _bernoulli_probit,
}
"""Kind → log p(y | f) of f (..., n, c) and y (n,), shape (..., n)."""


def posterior_moments(kind: str, y: NDArray[np.int64], hyperparameters: Array, f: Array) -> tuple[Array, Array, float]:
    """Posterior means of quantities that are drawn from the prior.

    Parameters
    ----------
    kind : str
    y : ndarray of int, shape (n,)
    hyperparameters : ndarray, shape (s, d)
        Draws of the hyperparameters from their prior, on the scale whose means are returned.
    f : ndarray, shape (s, c, n)
        A draw from the prior of the latent values for each draw of the hyperparameters.

    Returns
    -------
    mean : ndarray, shape (d + 2cn,)
        Means of the hyperparameters, of f and of f².
    error : ndarray
        Standard errors, by the delta method.
    effective_size : float
    """
    # in pieces, since the quadrature stores some hundred numbers for each latent vector
    pieces = np.array_split(f.swapaxes(1, 2), len(f) // 10_000 + 1)
    log_weight = np.concatenate([LIKELIHOODS[kind](piece, y).sum(axis=-1) for piece in pieces])
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    flat = f.reshape(len(f), -1)
    values = np.concatenate([hyperparameters, flat, flat**2], axis=1)
    mean = weight @ values
    error = np.sqrt((weight**2) @ (values - mean) ** 2)
    return mean, error, float(1.0 / (weight**2).sum())
