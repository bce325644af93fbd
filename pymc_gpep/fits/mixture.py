"""Moments and predictions of a mixture over hyperparameters, from those given each of them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import numpy as np

from pymc_gpep.array_types import Array

__all__ = ["Prediction", "average_predictions", "total_covariance", "total_variance"]


def total_variance(weights: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Mean (...) and variance (...) of a mixture, from those of its parts (s, ...): E Var + Var E."""
    mean = np.tensordot(weights, means, axes=1)
    return mean, np.tensordot(weights, variances + (means - mean) ** 2, axes=1)


def total_covariance(weights: Array, parts: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Mean (..., d) and covariance (..., d, d) of a mixture, from those of its parts, of which one at a time is held.

    Parameters
    ----------
    weights : array (s,)
        They sum to 1.
    parts : iterable of s pairs of arrays (..., d) and (..., d, d)
    """
    mean, cov, so_far = np.zeros(()), np.zeros(()), 0.0
    for weight, (own_mean, own_cov) in zip(weights, parts, strict=True):
        so_far += weight
        before = own_mean - mean if so_far > weight else np.zeros_like(own_mean)
        mean = own_mean - (1 - weight / so_far) * before
        after = own_mean - mean
        cov = cov + weight * (own_cov + before[..., :, None] * after[..., None, :])
    return mean, cov


class Prediction(NamedTuple):
    """What is predicted at m new inputs."""

    p: Array
    """Probabilities of the classes, (m, classes)."""
    error: Array
    """Their estimated errors, (m,)."""
    mean: Array
    """Of the latent functions, (m, c)."""
    cov: Array | None = None
    """Of the latent functions, (m, c, c), if it is wanted."""
    outcome: Array | None = None
    """Mean of an observation and of its square, (2, m), where observations are no classes."""


def average_predictions(weights: Array, predictions: Iterable[Prediction]) -> Prediction:
    """Prediction by a mixture: class probabilities and their errors averaged, moments by the law of total variance.

    Parameters
    ----------
    weights : array (s,)
        They sum to 1.
    predictions : iterable of s Predictions
        All of them with covariances or none.
    """
    each = iter(predictions)
    kept = [next(each)]
    cov = None
    if kept[0].cov is not None:

        def moments() -> Iterator[tuple[Array, Array]]:
            yield kept[0].mean, cast(Array, kept[0].cov)
            for one in each:
                kept.append(one._replace(cov=None))
                yield one.mean, cast(Array, one.cov)

        mean, cov = total_covariance(weights, moments())
    else:
        kept.extend(each)
        mean = np.tensordot(weights, [one.mean for one in kept], axes=1)
    p, error = (np.tensordot(weights, [getattr(one, name) for one in kept], axes=1) for name in ("p", "error"))
    outcomes = [one.outcome for one in kept if one.outcome is not None]
    return Prediction(p, error, mean, cov, np.tensordot(weights, outcomes, axes=1) if outcomes else None)
