"""Moments and predictions of a mixture over hyperparameters, from those given each of them."""

from collections.abc import Iterable, Iterator

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array

__all__ = ["average_predictions", "total_covariance", "total_variance"]


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


def average_predictions(weights: Array, predictions: Iterable[xr.Dataset]) -> xr.Dataset:
    """Prediction by a mixture: class probabilities and their errors averaged, moments by the law of total variance.

    Parameters
    ----------
    weights : array (s,)
        They sum to 1.
    predictions : iterable of s Datasets
        As of `pymc_gpep.fits.prediction.predict`, all of them with covariances or none.
    """
    each = iter(predictions)
    kept = [next(each)]
    averages: dict[str, Array] = {}
    if "cov" in kept[0]:

        def moments() -> Iterator[tuple[Array, Array]]:
            yield kept[0]["mean"].values, kept[0]["cov"].values
            for one in each:
                kept.append(one.drop_vars("cov"))
                yield one["mean"].values, one["cov"].values

        averages["mean"], averages["cov"] = total_covariance(weights, moments())
    else:
        kept.extend(each)
    for name in {"p", "error", "mean"} - set(averages):
        averages[name] = np.tensordot(weights, [one[name].values for one in kept], axes=1)
    first = kept[0]
    return first.assign({name: (first[name].dims, averages[str(name)]) for name in first.data_vars})
