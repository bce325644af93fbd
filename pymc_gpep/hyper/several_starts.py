"""Starting points that depend on the data, and the best of several searches for the maximum."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.ascent import FLAT, Curve, no_curvature
from pymc_gpep.hyper.optimum import AGREE, Optimum, maximise
from pymc_gpep.kernels.status import NOT_FINITE
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.solvers.problem import watching

_STEPS = (1.0, 4.0)  # Unconstrained steps that test an effect; the second is used if the first has no effect.
_ROWS = 200  # Number of points whose pairs suffice for a median correlation.
_EFFECT = 1e-6  # Smallest change of a log standard deviation or correlation that counts as an effect.


class PriorView(NamedTuple):
    """Summary of the prior of the latent functions."""

    log_sd: float
    """Logarithm of the median standard deviation of latent values."""
    correlation: dict[str, float]
    """Median correlation of each kind of pairs of points."""


def pairs_by_kind(labels: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Return masks (n, n) of pairs of different points, by kind of pair."""
    different = ~np.eye(labels.size, dtype=bool)
    same = labels[:, None] == labels
    return {"all": different, "within": different & same, "between": different & ~same}


def correlations(k: Array, rows: slice = slice(None)) -> Array:
    """Return correlations (1 or c, k, n) for selected rows of covariances (1 or c, n, n); 0 where undefined."""
    with np.errstate(all="ignore"):
        sd = np.sqrt(k.diagonal(axis1=1, axis2=2))
        return np.nan_to_num(k[:, rows] / (sd[:, rows, None] * sd[:, None, :]))


def view(k: Array, pairs: dict[str, NDArray[np.bool_]]) -> PriorView:
    """Summarise covariances (1 or c, n, n) over all functions. With many points, a subset of pairs is used."""
    rows = slice(None, None, -(-k.shape[1] // _ROWS))
    r = correlations(k, rows)
    chosen = {kind: which[rows] for kind, which in pairs.items()}
    medians = {kind: float(np.median(r[:, which])) for kind, which in chosen.items() if which.any()}
    medians["neighbours"] = float(np.median(np.where(chosen["all"], r, -1).max(axis=2)))
    with np.errstate(all="ignore"):
        return PriorView(float(np.nan_to_num(np.log(np.median(k.diagonal(axis1=1, axis2=2))) / 2)), medians)


def roles(look: Callable[[Array], PriorView], first: Array) -> tuple[Array, Array]:
    """Return two directions (d,) with entries 1, −1 or 0: to raise variances, and to raise correlations only."""
    magnitudes, scales = np.zeros(first.size), np.zeros(first.size)
    for i, direction in enumerate(np.eye(first.size)):
        for step in _STEPS:
            ahead, behind = look(first + step * direction), look(first - step * direction)
            louder = ahead.log_sd - behind.log_sd
            closer = sum(ahead.correlation.values()) - sum(behind.correlation.values())
            if abs(louder) > _EFFECT:
                magnitudes[i] = np.sign(louder)
            elif abs(closer) > _EFFECT:
                scales[i] = np.sign(closer)
            else:
                continue
            break
    return magnitudes, scales


_SUGGESTED = (("neighbours", 0.5), ("between", 0.9), ("between", 0.5), ("within", 0.1))
"""Suggested starts, each by a kind of pairs of points and the median correlation of these pairs."""

_MAGNITUDE = 3.0  # Standard deviation of the latent functions at suggested starts, in units of the probit noise.
_PATH = np.linspace(-9, 9, 37)  # Unconstrained steps at which correlations are computed.
_CORRELATED = 0.5  # Correlation at tiny length scales above which points are duplicates.


def starting_points(log_posterior: LogPosterior, first: Array, count: int, random_seed: int = 0) -> Array:
    """Return starting points (count, d) in the unconstrained space, beginning with `first`.

    The next points have a magnitude above the noise, and length scales with the median correlations of `_SUGGESTED`.
    These are correlations between nearest neighbours, or between points of different or of the same class. Further
    points, and points for which such a length scale does not exist, are draws from the prior.

    Parameters
    ----------
    log_posterior : LogPosterior
    first : array (d,)
    count : int
    random_seed : int
        Seed of the draws.
    """
    if count == 1 or not first.size:
        return first[None]
    suggested = _suggested(log_posterior, first)[: count - 1]
    drawn = log_posterior.space.draw_prior(count - 1 - len(suggested), random_seed)
    return np.array([first, *suggested, *drawn])


def _suggested(log_posterior: LogPosterior, first: Array) -> list[Array]:
    _, labels = log_posterior.covariance(first)
    pairs = pairs_by_kind(labels)

    def look(theta: Array) -> PriorView:
        return view(log_posterior.covariance(theta)[0], pairs)

    magnitudes, scales = roles(look, first)
    if not scales.any():
        return []
    # Duplicate points are excluded: they are correlated at every length scale.
    same = correlations(log_posterior.covariance(first + _PATH[0] * scales)[0]).max(axis=0) > _CORRELATED
    pairs = {kind: which & ~same for kind, which in pairs.items()}
    seen = [look(first + step * scales) for step in _PATH]
    points = []
    for kind, target in _SUGGESTED:
        step = _crossing(np.array([prior.correlation.get(kind, 0.0) for prior in seen]), target)
        if step is None:
            continue
        point = first + step * scales
        if magnitudes.any():
            # Exact if unconstrained magnitudes are logarithms. Otherwise the start is still valid.
            slope = look(point + magnitudes).log_sd - (here := look(point).log_sd)
            point = point + np.clip((np.log(_MAGNITUDE) - here) / slope, -9, 9) * magnitudes if slope else point
        points.append(point)
    return points


def _crossing(correlation: Array, target: float) -> float | None:
    """Return the step along `_PATH`, nearest to 0, at which a correlation crosses the target, or None."""
    above = correlation > target
    places = np.flatnonzero(above[1:] != above[:-1])
    if not places.size:
        return None
    i = places[np.abs(_PATH[places]).argmin()]
    share = (target - correlation[i]) / (correlation[i + 1] - correlation[i])
    return float(_PATH[i] + share * (_PATH[i + 1] - _PATH[i]))


_MOMENT = 0.5  # Seconds between checks of a waiting thread.


class Listener:
    """Thread that executes calls for worker threads until their work is done.

    An exception of a call ends the work, as does an interrupt (Ctrl-C), which only the main thread receives.

    Parameters
    ----------
    answer : callable
        Function that runs in the listening thread for each call, one call at a time.

    Attributes
    ----------
    ended_by : BaseException or None
        Exception that ended the work before it was done.
    """

    def __init__(self, answer: Callable[..., None]) -> None:
        self._answer = answer
        self._calls: SimpleQueue[tuple[tuple[Any, ...], Future[None]] | None] = SimpleQueue()
        self._over = Event()
        self.ended_by: BaseException | None = None

    def check(self) -> None:
        """Raise a KeyboardInterrupt if the work has been ended. Any thread may call this method."""
        if self._over.is_set():
            raise KeyboardInterrupt

    def call(self, *arguments: Any) -> None:
        """Run `answer` in the listening thread. Raise its StopIteration, or a KeyboardInterrupt if the work ended."""
        answered: Future[None] = Future()
        self.check()
        self._calls.put((arguments, answered))
        while not answered.done():
            self.check()
            wait([answered], _MOMENT)
        answered.result()

    def during[R](self, work: Callable[[], R]) -> R:
        """Run `work` in another thread, which may start further threads, and answer their calls.

        Returns
        -------
        Return value of `work`. The work must end if a call or `check` raises an exception.

        Raises
        ------
        BaseException
            If `work` or `answer` raises an exception. StopIteration and KeyboardInterrupt of `answer` are not raised:
            they end the work like an interrupt.
        """
        with ThreadPoolExecutor(1) as thread:
            try:
                done = thread.submit(copy_context().run, work)
                done.add_done_callback(lambda _: self._calls.put(None))
            except BaseException as error:  # The work may have begun, and its calls would wait for an answer.
                self.end(error)
                raise
            while True:
                # An interrupt may arrive between any two statements, so a call may stay unanswered. `call` handles
                # this.
                try:
                    while not done.done():
                        self._listen()
                    break
                except KeyboardInterrupt as interrupt:
                    self.end(interrupt)
        if self.ended_by is not None and not isinstance(self.ended_by, StopIteration | KeyboardInterrupt):
            raise self.ended_by
        return done.result()

    def end(self, by: BaseException) -> None:
        """End the work, unless it has ended. Any thread may call this method."""
        if self.ended_by is None:
            self.ended_by = by
        self._over.set()

    def _listen(self) -> None:
        try:
            call = self._calls.get(timeout=_MOMENT)
        except Empty:
            return
        if call is None:
            return
        arguments, answered = call
        if self._over.is_set():
            answered.set_exception(KeyboardInterrupt())
            return
        try:
            self._answer(*arguments)
        except BaseException as error:
            self.end(error)
            answered.set_exception(error if isinstance(error, StopIteration) else KeyboardInterrupt())
        else:
            answered.set_result(None)


_CLOSE = 0.2  # Distance from the end of an earlier search within which a search stops.
_TOGETHER = 8  # Number of parallel searches, fixed so that results do not depend on the number of processors.

type Callback = Callable[[tuple[Evaluation, ...], int], None]
type Follow = Callable[[tuple[Evaluation, ...]], None]


class _Search(NamedTuple):
    optimum: Optimum | None
    """Result of the search; None if the search could not begin."""
    end: Evaluation


def maximise_from(
    log_posterior: LogPosterior,
    points: Sequence[Array] | Array,
    max_iterations: int,
    callback: Callback = lambda history, which: None,
    start: Array | None = None,
    flat: float = FLAT,
    units: Array | None = None,
    curvature: Curve = no_curvature,
) -> Optimum:
    """Search for the maximum from each of several points. Return the best search, with the ends of all searches.

    The first search runs alone. The other searches run in parallel, in groups of eight, on the available threads. A
    search that comes near the end of a search of an earlier group stops, and shares this end. So the result does not
    depend on the number of threads.

    Parameters
    ----------
    log_posterior : LogPosterior
    points : array (k, d)
        First points, unconstrained.
    max_iterations : int
        Limit on iterations of each search.
    callback : callable
        Function that is called with the history of a search and its number after each iteration, in this thread.
        StopIteration or KeyboardInterrupt from it, or Ctrl-C, ends all searches, and the best point so far is returned.
    start, flat, units, curvature
        See `maximise`. Only the first search uses `start` and `units`.

    Raises
    ------
    ValueError
        If the approximation fails at the first point. Failures at further points count as failed searches.
    """
    first = maximise(
        log_posterior, points[0], max_iterations, lambda history: callback(history, 0), start, flat=flat, units=units,
        curvature=curvature,
    )  # fmt: skip
    searches, ended_by = [_Search(first, first.best)], first.ended_by
    for batch in range(1, len(points), _TOGETHER):
        if ended_by is not None:
            break
        together = range(batch, min(batch + _TOGETHER, len(points)))
        how = {"flat": flat, "curvature": curvature}
        found, ended_by = _side_by_side(log_posterior, points, together, max_iterations, callback, searches, how)
        searches += found
    return _best(searches, ended_by)


def one_after_another(
    search: Callable[[Array, int, Follow], Optimum],
    points: Sequence[Array] | Array,
    max_iterations: int,
    callback: Callback = lambda history, which: None,
) -> Optimum:
    """Search from each of several points in turn. Return the best search, with the ends of all searches.

    Parameters
    ----------
    search : function of (x, max_iterations, callback)
    points, max_iterations, callback
        Arguments of `maximise_from`.

    Raises
    ------
    ValueError
        If the first search cannot begin. Later searches that cannot begin count as failed.
    """
    searches: list[_Search] = []
    for which, point in enumerate(points):

        def follow(history: tuple[Evaluation, ...], which: int = which) -> None:
            callback(history, which)

        try:
            found = search(point, max_iterations, follow)
        except ValueError:
            if not which:
                raise
            searches.append(_Search(None, Evaluation.failed(point, NOT_FINITE)))
            continue
        searches.append(_Search(found, found.best))
        if found.stopped:
            break
    return _best(searches, found.ended_by)


def _best(searches: Sequence[_Search], ended_by: BaseException | None) -> Optimum:
    """Return the best of several searches, with the ends of all, marked as stopped if an exception ended them."""
    best = max((search.optimum for search in searches if search.optimum), key=lambda each: each.best.log_posterior)
    best = best if ended_by is None else best.stopped_by(ended_by)
    return replace(best, ends=tuple(search.end for search in searches))


def _side_by_side(
    log_posterior: LogPosterior,
    points: Sequence[Array] | Array,
    which: Sequence[int],
    max_iterations: int,
    callback: Callback,
    before: Sequence[_Search],
    how: dict[str, Any],
) -> tuple[list[_Search], BaseException | None]:
    """Search in parallel from the points `which`. Return the searches, and the exception that stopped them."""
    listener = Listener(callback)

    def search(number: int) -> _Search | None:
        arrived: Evaluation | None = None

        def follow(history: tuple[Evaluation, ...]) -> None:
            nonlocal arrived
            listener.call(history, number)
            arrived = next((each.end for each in before if _near(history[-1], each.end)), None)
            if arrived is not None:
                raise StopIteration

        def watch(*_: object) -> None:
            if not log_posterior.compiled:  # Compiled code cannot raise exceptions.
                listener.check()

        try:
            listener.check()
            with watching(watch):
                found = maximise(log_posterior, points[number], max_iterations, follow, **how)
        except ValueError:
            return _Search(None, Evaluation.failed(points[number], NOT_FINITE))
        except KeyboardInterrupt as interrupt:  # The interrupt came before the first evaluation.
            listener.end(interrupt)
            return None
        if found.interrupted:
            listener.end(KeyboardInterrupt())
        return _Search(found, arrived or found.best)

    found = listener.during(lambda: log_posterior.each(search, which))
    return [each for each in found if each is not None], listener.ended_by


def _near(here: Evaluation, end: Evaluation) -> bool:
    below = end.log_posterior - here.log_posterior
    return bool(0 <= below < AGREE and np.abs(here.theta - end.theta).max() < _CLOSE)
