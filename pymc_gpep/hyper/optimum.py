"""The maximum of the hyperparameters' log posterior, and how it was found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import xarray as xr
from scipy.optimize import minimize

from pymc_gpep.approximations.neighbours import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation, evaluation_table
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.saddle import defined_beside, higher_beside
from pymc_gpep.kernels.status import (
    CONVERGED,
    MESSAGES,
    NOT_CONCAVE,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
)
from pymc_gpep.structure.improper import why_improper

__all__ = ["AGREE", "FLAT", "Optimum", "how_many", "maximise", "off_start", "refuse", "why_stopped"]

AGREE = 0.1
"""Largest difference of the log posterior at which two ends are one."""

FLAT = 1e-8
"""Relative change of the log posterior that counts as none."""


def why_stopped(stopped: BaseException) -> str:
    """The reason that an interrupt, or the StopIteration of a callback, gives for the end of a search."""
    return str(stopped) or ("Interrupted." if isinstance(stopped, KeyboardInterrupt) else "Stopped by a callback.")


@dataclass(frozen=True)
class Optimum:
    """Where an optimisation ended: the best point seen, whether it is a maximum, and how it went."""

    best: Evaluation
    converged: bool
    message: str
    history: tuple[Evaluation, ...]
    """One for every iteration of the optimiser, the initial point first."""
    interrupted: bool = False
    """Whether it was by Ctrl-C, then or while hyperparameters were integrated over."""
    ends: tuple[Evaluation, ...] = ()
    """Where searches from several points ended, in their order; NaN where one could not begin."""
    remark: str = ""
    """What else there is to say of a search, in words that its outcome begins."""
    stopped: bool = False
    """Whether Ctrl-C or a callback ended the search before its end."""

    def stopped_by(self, ended_by: BaseException) -> Self:
        """Return the same, as one that an interrupt or the StopIteration of a callback ended."""
        why, interrupted = why_stopped(ended_by), isinstance(ended_by, KeyboardInterrupt)
        return replace(self, converged=False, message=why, interrupted=interrupted, stopped=True)

    @property
    def ended_by(self) -> BaseException | None:
        """An exception like that which ended the search before its end; None where it came to its end."""
        kind = KeyboardInterrupt if self.interrupted else StopIteration
        return kind(self.message) if self.stopped else None

    @property
    def first(self) -> Evaluation:
        """See `Trace`."""
        return self.history[0]

    unit: ClassVar[str] = "iteration"
    per_epoch: ClassVar[int] = 1

    @property
    def slopes(self) -> Array:
        """See `Trace`."""
        return np.array([np.abs(each.gradient).max(initial=0.0) for each in self.history])

    @property
    def units(self) -> Array | None:
        """See `Trace`: as far as the steps of BFGS know; None where no iteration tells it."""
        steps = [(b.theta - a.theta, a.gradient - b.gradient) for a, b in pairwise(self.history)]
        far = [(step, fall) for step, fall in steps if np.abs(step).max(initial=0.0) > _FAR]
        curved = [(step, fall) for step, fall in far if step @ fall > _CURVED * (step @ step)]
        if not curved:
            return None
        curvature = min(step @ fall / (step @ step) for step, fall in curved) * np.eye(curved[0][0].size)
        for step, fall in curved:
            image = curvature @ step
            curvature += np.outer(fall, fall) / (step @ fall) - np.outer(image, image) / (step @ image)
        curvatures, directions = np.linalg.eigh(curvature)
        found: Array = directions / np.sqrt(np.maximum(curvatures, curvatures.max() / _UNLIKE))
        return found

    def stored(self) -> xr.Dataset:
        """See `Trace`."""
        return evaluation_table(self.history, "iteration")

    def described(self) -> dict[str, Any]:
        """See `Trace`."""
        return {
            "trace_converged": int(self.converged),
            "trace_interrupted": int(self.interrupted),
            "trace_message": self.message,
            "trace_remark": self.remark,
        }

    def broken_off(self, why: str) -> Self:
        """See `Trace`."""
        return replace(self, converged=False, message=why, interrupted=True)

    def ended_as(self, why: str) -> Self:
        """See `Trace`."""
        return replace(self, message=why)

    @property
    def columns(self) -> dict[str, Array]:
        """See `Trace`."""
        return {
            name: np.array([getattr(each, name) for each in self.history])
            for name in ("evidence", "log_posterior", "iterations")
        }

    @property
    def losses(self) -> Array:
        """Negative log posterior at each iteration, what PyMC's other methods call the loss."""
        return -np.array([each.log_posterior for each in self.history])

    @property
    def outcome(self) -> str:
        """Whether it converged, after how many iterations, and why not, in words that what was sought begins."""
        steps = len(self.history) - 1
        after = f"after {steps} iteration{'' if steps == 1 else 's'}"
        ended = f"converged {after}" if self.converged else f"did not converge {after} ({self.message.strip('. ')})"
        return f"{ended}, {self.remark}" if self.remark else ended

    @property
    def agreement(self) -> str:
        """How many of several searches ended here, in words; empty if there was one."""
        if len(self.ends) < 2:
            return ""
        below = self.best.log_posterior - np.array([end.log_posterior for end in self.ends])
        failed, others = int(np.isnan(below).sum()), below[below > AGREE]
        many = len(below)
        same = many - failed - others.size
        everyone = "both" if many == 2 else f"all {many}"
        words = [f"{everyone if same == many else f'{same} of {many}'} starts ended there"]
        if others.size:
            words.append(f"the other{'' if others.size == 1 else 's up to'} {others.max():.2f} below")
        if failed:
            words.append(f"{failed} failed")
        return ", ".join(words)


def maximise(
    log_posterior: LogPosterior,
    theta: Array,
    max_iterations: int,
    callback: Callable[[tuple[Evaluation, ...]], None] = lambda history: None,
    start: Array | None = None,
    search: LogPosterior | None = None,
    flat: float = FLAT,
    units: Array | None = None,
) -> Optimum:
    """Find the maximum of the log posterior by L-BFGS, with exact gradients (type-II maximum a posteriori).

    A point without a slope need be no maximum: what is symmetric about its start has none there. Where a point beside
    the end is higher, the search goes on from that.

    Parameters
    ----------
    log_posterior : LogPosterior
    theta : array
        Where to begin, unconstrained.
    max_iterations : int
    callback : callable
        Called with the history after each iteration; StopIteration or KeyboardInterrupt from it ends the search, and
        the best point so far is kept.
    start : array, optional
        `Evaluation.start` of a point near `theta`.
    search : LogPosterior, optional
        What is evaluated on the way; the log posterior, loosely, if not given.
    flat : float
        Relative change of the log posterior in an iteration that counts as none.
    units : array (d, d), optional
        Units in which L-BFGS takes its steps, such as `Optimum.units`.

    Raises
    ------
    ValueError
        If the approximation fails at the initial point.
    """
    searching = theta.size > 0 and max_iterations > 0
    evaluate = search or (log_posterior.loosely() if searching else log_posterior)
    rough = evaluate.roughly() if searching and not search else evaluate
    best = rough(theta, start)
    if not theta.size and best.status in (OUT_OF_ITERATIONS, OUT_OF_DIGITS):
        return Optimum(best, True, _NOTHING, (best,))  # and the solution says how far it got
    if searching and best.status == OUT_OF_ITERATIONS:
        best = rough(theta, best.start)  # a first solve has the longest way
    size, remark = how_many(log_posterior, theta), ""
    if searching and not np.isfinite(best.log_posterior):
        best, remark = off_start(evaluate, best, size)
        theta = best.theta
    if not (np.isfinite(best.log_posterior) and (not searching or np.isfinite(best.gradient).all())):
        refuse(log_posterior, best)
    history = [best]
    near = Neighbours((theta,), (best.start,))
    evaluated = {theta.tobytes(): best}
    roughly = set() if rough is evaluate else {theta.tobytes()}  # points evaluated so
    if roughly:
        flat = max(flat, _NOISE)
    ended_by: list[BaseException] = []

    def highest() -> Evaluation:
        return max(history, key=lambda evaluation: evaluation.log_posterior)

    def highest_of_fine() -> Evaluation:
        # One that was evaluated roughly may be higher than what is near it.
        while (top := highest()).theta.tobytes() in roughly:
            at = next(i for i, each in enumerate(history) if each is top)
            history[at] = evaluated[top.theta.tobytes()] = evaluate(top.theta, near)
            roughly.discard(top.theta.tobytes())
        return top

    def rises() -> bool:
        # Two points of one line search that differ by little are told apart by what is accurate alone.
        gain = history[-1].log_posterior - history[-2].log_posterior if len(history) > 1 else np.inf
        return gain > _GAIN and len(evaluated) < _TRIALS

    def negative(x: Array) -> tuple[float, Array]:
        nonlocal near
        result = evaluated.get(x.tobytes())
        if result is None:
            how = rough if rises() else evaluate
            result = how(x, near)
            (roughly.discard if how is evaluate else roughly.add)(x.tobytes())
        if result.status == CONVERGED and x.tobytes() not in evaluated:
            near = near.joined(x.copy(), result.start, _NEIGHBOURS)
        evaluated[x.tobytes()] = result
        if not (np.isfinite(result.log_posterior) and np.isfinite(result.gradient).all()):
            # A wall, low enough for the line search to interpolate to the near side of it.
            return -history[-1].log_posterior + _WALL * (1.0 + abs(history[-1].log_posterior)), np.zeros_like(x)
        return -result.log_posterior, -result.gradient

    def record(x: Array) -> None:
        history.append(evaluated.get(x.tobytes()) or evaluate(x, near))
        top = highest()  # starts can be long: that of the last one is kept, and of the highest
        history[:-1] = [each if each is top else each._replace(start=_NO_START) for each in history[:-1]]
        evaluated.clear()
        try:
            callback(tuple(history))
        except StopIteration as stop:  # which the optimiser takes for its end, without what it says
            ended_by.append(stop)
            raise

    if not searching:
        return Optimum(best, not theta.size, "No iteration was allowed" if theta.size else _NOTHING, (best,))
    try:
        begin, began = theta, best.log_posterior
        for _ in range(_SADDLES):
            options = {"maxiter": max_iterations - len(history) + 1, "maxfun": 20 * max_iterations, "ftol": flat}
            result = _minimised(negative, begin, record, units, {**options, "gtol": _SLOPE})
            unsure = not roughly.isdisjoint({history[-1].theta.tobytes(), *evaluated})
            best = highest_of_fine()
            # L-BFGS may stop on a slope: in units that are not those of this search, or after a step in vain.
            slope, gained = float(np.abs(best.gradient).max()), best.log_posterior - began
            steep = slope > _STEEP if units is not None else slope > _STEEPER and gained > 0.0
            if (unsure or steep) and not ended_by and len(history) <= max_iterations:
                rough, units, begin, began = evaluate, None if steep else units, best.theta, best.log_posterior
                evaluated.clear()
                evaluated[begin.tobytes()] = best
                continue
            if ended_by or not result.success:
                break
            higher = higher_beside(evaluate, history, size)
            if higher is None:
                break
            remark = _SADDLE
            begin = higher.theta
            evaluated[begin.tobytes()] = higher
            record(begin)
            evaluated[begin.tobytes()] = higher
        converged, message = bool(result.success), str(result.message)
        exact = best if evaluate is log_posterior else log_posterior(best.theta, best.start)
        if exact.status == NOT_POSITIVE_DEFINITE and search is None and not ended_by:
            # On the way nobody looked whether the covariances were any.
            return maximise(log_posterior, theta, max_iterations, callback, start, log_posterior, flat, units)
    except (KeyboardInterrupt, StopIteration) as stopped:
        converged, message = False, ""
        ended_by.append(stopped)
        best = exact = highest()  # the solution is found to the tolerance when somebody asks for it
    found = Optimum(exact if exact.usable else best, converged, message, tuple(history), remark=remark)
    return found.stopped_by(ended_by[-1]) if ended_by else found


def _minimised(
    function: Callable[[Array], tuple[float, Array]],
    begin: Array,
    callback: Callable[[Array], None],
    units: Array | None,
    options: dict[str, Any],
) -> Any:
    """The result of L-BFGS, which steps in these units."""
    if units is None:
        return minimize(function, begin, jac=True, method="L-BFGS-B", callback=callback, options=options)

    options = options | {"gtol": options["gtol"] * float(np.linalg.svd(units, compute_uv=False).min(initial=1.0))}

    def there(steps: Array) -> Array:
        moved: Array = begin + units @ steps
        return moved

    def in_units(steps: Array) -> tuple[float, Array]:
        value, slope = function(there(steps))
        return value, slope @ units

    return minimize(
        in_units, np.zeros(begin.size), jac=True, method="L-BFGS-B", callback=lambda steps: callback(there(steps)),
        options=options,
    )  # fmt: skip


def how_many(log_posterior: LogPosterior, theta: Array) -> int:
    """How many elements of a flat vector are hyperparameters: the first ones."""
    return sum(np.size(value) for value in log_posterior.point(theta).values())


def off_start(evaluate: Callable[..., Evaluation], here: Evaluation, size: int) -> tuple[Evaluation, str]:
    """A point beside a start at which nothing can be computed or from which no slope leads, and what to say of it.

    The start itself, and nothing to say, where there is no such point or a slope.
    """
    if not np.isfinite(here.log_posterior):
        beside = defined_beside(evaluate, here.theta, size)
        return (here, "") if beside is None else (beside, _UNDEFINED)
    # Where the gradient is not known yet, or there are no hyperparameters, it is not flat.
    flat = np.abs(here.gradient[:size]).min(initial=np.inf) < _NO_SLOPE
    higher = higher_beside(evaluate, (here,), size) if flat else None
    return (here, "") if higher is None else (higher, _SADDLE)


def refuse(log_posterior: LogPosterior, best: Evaluation) -> NoReturn:
    """Raise a ValueError that says why a search cannot start where it was evaluated."""
    theta = best.theta
    size = how_many(log_posterior, theta)
    values = log_posterior.point(theta)
    point = {key: value.tolist() for key, value in values.items()}
    at = f"at the initial hyperparameters, unconstrained {point}" if size else "at the prior"
    if best.status in (NOT_POSITIVE_DEFINITE, NOT_FINITE):
        covariance = partial(log_posterior.covariance, theta) if best.status == NOT_POSITIVE_DEFINITE else None
        if why := why_improper(log_posterior.classifier, values, covariance):
            raise ValueError(f"{log_posterior.name} cannot start {at}. {why}")
    log_posterior.check_moments(theta)
    name = log_posterior.name
    if best.status == CONVERGED and np.isfinite(best.log_posterior):
        names = [key for key, value in values.items() for _ in range(np.size(value))]
        bad = np.flatnonzero(~np.isfinite(best.gradient))
        of = ", ".join(dict.fromkeys(names[i] if i < len(names) else "the inducing inputs" for i in bad))
        beside = log_posterior(theta + _BESIDE, best.start)
        everywhere = "" if np.isfinite(beside.gradient).all() else ", nor beside them, so that no other start helps"
        raise ValueError(
            f"{name} cannot start: the log posterior is {best.log_posterior} {at}, but its derivatives with respect to "
            f"{of} are not finite there{everywhere}. A covariance function, a mean or a prior takes the root, a power "
            "or the logarithm of 0. The squared distance between a point and itself is 0, for example. Add a small "
            "number to what is under it: pm.math.sqrt(squared + 1e-12)."
        )
    advice = (
        "Numbers that have no square or no exponential overflow. Look at the magnitudes of the covariance, of the mean "
        f"and of what the likelihood is given, such as exposures{'; or give another start=...' if size else '.'}"
    )
    if best.status == CONVERGED and np.isfinite(best.evidence) and best.log_posterior == -np.inf:
        advice = "The prior density is 0 there. Give a start within the support of the priors: initval=... or start=..."
    if best.status == NOT_POSITIVE_DEFINITE:
        advice = "Check the covariance function, and the matrices that Gaussian variables are given."
    if best.status == OUT_OF_ITERATIONS:
        another = "; or give another start=..." if size else "."
        advice = f"Raise max_iterations, or a tolerance that rounding does not allow{another}"
    if best.status == NOT_CONCAVE:
        advice = f"Take method='ep', which needs no concavity{'; or give another start=...' if size else '.'}"
    raise ValueError(
        f"{name} cannot start: it {MESSAGES[best.status]} {at}, where the log posterior is {best.log_posterior}. "
        f"{advice}"
    )


_NO_START = np.empty(0)
_SADDLES = 5  # stationary points that are left, at most
_SADDLE = "having left a point that is stationary and no maximum"
_UNDEFINED = "having left the start, at which nothing can be computed"
_BESIDE = 0.1
_NO_SLOPE = 1e-7
_NOTHING = "There is nothing to optimise."
_WALL = 10.0
_GAIN = 0.1  # log posterior that an iteration gains, above which the next one is evaluated roughly
_NOISE = 1e-7  # relative error of a log posterior of many rows in a search
_TRIALS = 2  # points of a line search that are evaluated roughly at most
# Steps and curvatures along them that say nothing: slopes have an error at the end of a search.
_FAR, _CURVED = 1e-2, 1e-6
_UNLIKE = 1e4  # times that curvatures of one search may differ to say what the units of another are
_STEEP, _STEEPER = 0.1, 1.0  # slope on which a search does not end, in the units of another one and without
_NEIGHBOURS = 3  # that a start is predicted from
_SLOPE = 1e-3  # largest slope, per unit of the unconstrained space, that counts as none
