"""The best of several optimisations of the hyperparameters' log posterior."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.log_posterior import Evaluation, LogPosterior
from pymc_gpep.hyper.optimum import AGREE, Optimum, maximise
from pymc_gpep.kernels.status import NOT_FINITE

__all__ = ["maximise_from"]

_CLOSE = 0.2  # largest difference of a hyperparameter at which a search has come to the end of an earlier one


def maximise_from(
    log_posterior: LogPosterior,
    points: Sequence[Array] | Array,
    max_iterations: int,
    callback: Callable[[tuple[Evaluation, ...], int], None] = lambda history, which: None,
    start: Array | None = None,
) -> Optimum:
    """Find the maximum from each of several points, one after the other; the best is kept, and where all of them ended.

    A search that comes near the end of an earlier one is over, and counts as ended there.

    Parameters
    ----------
    log_posterior : LogPosterior
    points : array (k, d)
        Where to begin, unconstrained.
    max_iterations : int
        Of each search.
    callback : callable
        Called with the history of a search and its number after each iteration; StopIteration or KeyboardInterrupt from
        it end all of them, and the best point so far is kept.
    start : array, optional
        `Evaluation.start` of a point near the first of `points`.

    Raises
    ------
    ValueError
        If the approximation fails at the first point. Others at which it does count as failed searches.
    """
    optima: list[Optimum] = []
    ends: list[Evaluation] = []
    ended: Optimum | None = None  # by what ended one search and so all
    for which, theta in enumerate(points):
        stopped = False
        arrived: Evaluation | None = None

        def follow(history: tuple[Evaluation, ...], which: int = which) -> None:
            nonlocal stopped, arrived
            try:
                callback(history, which)
            except StopIteration:
                stopped = True
                raise
            arrived = next((end for end in ends if _near(history[-1], end)), None)
            if arrived is not None:
                raise StopIteration

        try:
            found = maximise(log_posterior, theta, max_iterations, follow, None if which else start)
        except ValueError:
            if not which:
                raise
            ends.append(_failed(theta))
            continue
        except KeyboardInterrupt:  # before the search had anything to keep
            if not which:
                raise
            ended = replace(optima[-1], message="Interrupted.", interrupted=True)
            break
        optima.append(found)
        ends.append(arrived or found.best)
        if stopped or found.interrupted:
            ended = found
            break
    best = max(optima, key=lambda optimum: optimum.best.log_posterior)
    if ended is not None:
        best = replace(best, converged=False, message=ended.message, interrupted=ended.interrupted)
    return replace(best, ends=tuple(ends))


def _near(here: Evaluation, end: Evaluation) -> bool:
    below = end.log_posterior - here.log_posterior
    return bool(0 <= below < AGREE and np.abs(here.theta - end.theta).max() < _CLOSE)


def _failed(theta: Array) -> Evaluation:
    gradient = np.full(np.size(theta), np.nan)
    return Evaluation(np.asarray(theta), np.nan, gradient, np.nan, 0, NOT_FINITE, np.empty(0))
