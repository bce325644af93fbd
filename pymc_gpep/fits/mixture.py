"""Moments and predictions of a mixture. Its parts are the posteriors at nodes of the hyperparameters."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple, cast

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.user_warnings import warn

_LOST = 1e-6  # An average may omit nodes with undefined moments up to this total weight.
_SHARE = 0.975  # A fit warns if a larger share of predicted observations is below their mean.
_WIDE = 1e4  # The mean of an observation is checked if variance / (mean + mean²) is larger.


def total_variance(weights: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Return mean (...) and variance (...) of a mixture from moments (s, ...) of its s parts."""
    mean = np.tensordot(weights, means, axes=1)
    return mean, np.tensordot(weights, variances + (means - mean) ** 2, axes=1)


def total_covariance(weights: Array, parts: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return mean (..., d) and covariance (..., d, d) of a mixture, with one part in memory at a time.

    Parameters
    ----------
    weights : array (s,)
        Weights of the parts; they sum to 1.
    parts : iterable of s pairs of mean (..., d) and covariance (..., d, d)
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
    """Predictions at m new inputs."""

    p: Array
    """Probabilities of the classes, (m, classes)."""
    error: Array
    """Estimated errors of the probabilities, (m,)."""
    mean: Array
    """Means of the latent functions, (m, c)."""
    cov: Array | None = None
    """Covariances of the latent functions, (m, c, c), if requested."""
    outcome: Array | None = None
    """E y and E y² of an observation y, (m, 2), if observations are not classes; NaN if undefined."""
    log_density: Array | None = None
    """Log predictive probability of the observations, (m,), if observations are given."""
    quantiles: Array | None = None
    """Quantiles of an observation, (m, k), if requested."""
    intervals: Array | None = None
    """Lower and upper ends of intervals of class probabilities, (m, classes, 2), if requested."""
    far: Array | None = None
    """Total weight of nodes, (m,). At these nodes a point is uncorrelated with all fitted points."""

    @property
    def moments(self) -> Array | None:
        """Mean and variance of an observation, (2, m), if observations are not classes."""
        if self.outcome is None:
            return None
        mean, square = self.outcome.T
        with np.errstate(over="ignore", invalid="ignore"):
            return np.stack([mean, np.where(np.isinf(square), np.inf, square - mean**2)])


def assembled(m: int, blocks: Iterable[slice], predicted: Callable[[slice], Prediction]) -> Prediction:
    """Return the prediction at m points. `predicted` computes one block of points, and there is at least one block."""
    whole: list[Array | None] = []
    for rows in blocks:
        part = predicted(rows)
        whole = whole or [None if one is None else np.empty((m, *one.shape[1:])) for one in part]
        for into, values in zip(whole, part, strict=True):
            if into is not None:
                into[rows] = values
    return Prediction._make(whole)


def average_predictions(weights: Array, predictions: Iterable[Prediction]) -> Prediction:
    """Return the prediction of a mixture: averaged probabilities, and moments by the law of total variance.

    Parameters
    ----------
    weights : array (s,)
        Weights of the parts; they sum to 1.
    predictions : iterable of s Prediction
        Predictions, either all with covariances or all without.
    """
    sums: dict[str, Array] = {}

    def added() -> Iterator[Prediction]:
        for weight, one in zip(weights, predictions, strict=True):
            for name in ("p", "error", "mean", "far"):
                if (values := getattr(one, name)) is not None:
                    sums[name] = sums.get(name, np.zeros(())) + weight * values
            if one.outcome is not None and weight > 0.0:
                unknown = np.isnan(one.outcome)
                for name, values in (("outcome", np.where(unknown, 0.0, one.outcome)), ("lost", unknown)):
                    sums[name] = sums.get(name, np.zeros(())) + weight * values
            if one.log_density is not None:
                so_far = sums.get("log_density", np.array(-np.inf))
                sums["log_density"] = np.logaddexp(so_far, np.log(weight) + one.log_density)
            yield one

    each = added()
    first = next(each)
    cov = None
    if first.cov is None:
        deque(each, maxlen=0)
    else:
        moments = ((one.mean, cast(Array, one.cov)) for one in chain([first], each))
        _, cov = total_covariance(weights, moments)
    if (lost := sums.pop("lost", None)) is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            sums["outcome"] = np.where(lost <= _LOST, sums["outcome"] / (1.0 - lost), np.nan)
    return Prediction(**sums, cov=cov)


def warn_of_moments(prediction: Prediction, likelihood: Likelihood, name: str) -> None:
    """Warn if moments of the response `name` are undefined, or if a mean exceeds most predicted observations.

    Such means occur in log-normal mixtures: rates with an uncertain logarithm. `likelihood` is the likelihood at the
    predicted rows.
    """
    if prediction.outcome is None or (moments := prediction.moments) is None:
        return
    mean, variance = moments
    for moment, values in (("mean", mean), ("variance", variance)):
        if count := int(np.isnan(values).sum()):
            warn(
                f"{name}_{moment} is NaN in {count} of {len(values)} rows: the {moment} of {name!r} does not exist, or "
                "its integral does not converge. Quantiles exist: fit.predict(..., quantiles=[0.05, 0.5, 0.95])."
            )
            return
    positive = likelihood.least == 0.0 or likelihood.observed_dtype == "int64"
    if not positive or prediction.cov is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.flatnonzero((mean > 0.0) & (variance > _WIDE * (mean + mean**2)))
    if not rows.size:
        return
    try:
        below = likelihood.at(rows).cumulative(mean[rows], prediction.mean[rows], prediction.cov[rows])
    except TypeError:  # The check needs a distribution function. Some likelihoods have no such function.
        return
    if count := int((below > _SHARE).sum()):
        largest = mean[rows][below > _SHARE].max()
        warn(
            f"{name}_mean is above {_SHARE:.1%} of the predicted values of {name!r} in {count} of {len(mean)} rows "
            f"(the largest mean is {largest:.2g}). The logarithm of the mean is uncertain: rare large values "
            "dominate the mean. Report the median and an interval: fit.predict(..., quantiles=[0.05, 0.5, 0.95])."
        )
