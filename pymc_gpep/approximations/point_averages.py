"""Averages of log likelihoods under independent normal latent values, as variational bounds want them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, PointAverage
from pymc_gpep.solvers.problem import NO_PARAMETERS
from pymc_gpep.solvers.sparse_vi import PointAverages

type Terms = Callable[[Likelihood, Array, Array, NDArray[np.int64]], tuple[Array, Array, Array]]


def _of_point(likelihood: Likelihood, mean: Array, variance: Array, y: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    found = np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean)
    likelihood.computation(PointAverage).terms(mean, variance, y, likelihood.parameters, *found)
    return found


def _of_one(likelihood: Likelihood, mean: Array, variance: Array, y: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    terms = np.empty((3, len(mean)))
    given = mean[:, 0].copy(), variance[:, 0].copy(), y, NO_PARAMETERS
    likelihood.computation(AverageLogDensity).terms(*given, terms)
    return terms[0], terms[1][:, None], terms[2][:, None]


def _terms(likelihood: Likelihood) -> Terms | None:
    if likelihood.offers(PointAverage):
        return _of_point
    return _of_one if likelihood.offers(AverageLogDensity) and not likelihood.has_parameters else None


def has_point_averages(likelihood: Likelihood) -> bool:
    """Whether there are any."""
    return _terms(likelihood) is not None


def point_averages(likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> PointAverages:
    """The averages of the log likelihoods of all points of c functions.

    Raises
    ------
    ValueError
        If the likelihood offers no such averages.
    """
    terms = _terms(likelihood)
    if terms is None:
        raise ValueError(
            f"A {likelihood.name} likelihood has no average of its logarithm under several independent latent values, "
            f"which a variational bound needs. Take another method, such as {likelihood.method!r}."
        )
    if likelihood.offers(PointAverage):
        check_label_noise(likelihood)
    return PointAverages(
        np.tile(np.arange(c), (labels.size, 1)),
        lambda rows, mean, variance: terms(likelihood.at(rows), mean, variance, labels[rows]),
    )


def check_label_noise(likelihood: Likelihood) -> None:
    """Raise a ValueError if a likelihood that may have label noise has none, so that the average is −∞."""
    if likelihood.has_parameters and (likelihood.parameters <= 0.0).any():
        raise ValueError(
            f"A variational bound of a {likelihood.name} likelihood needs label noise, but epsilon is 0: the average "
            'logarithm of a step is −∞. Give it a small one, such as epsilon=1e-3, or use method="sparse_ep".'
        )
