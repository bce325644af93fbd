"""The maximum of the hyperparameters' log posterior, and how it was found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.ascent import FLAT, Curve, HyperAscent, no_curvature
from pymc_gpep.hyper.evaluation import Evaluation, evaluation_table
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.quasi_newton import units_of
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
from pymc_gpep.reading.improper import why_improper

AGREE = 0.1
"""Largest difference of the log posterior at which two ends are one."""


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
    decrement: float = np.nan
    """What the log posterior would gain by a step of Newton's method from the end; NaN if the curvature is unknown."""
    deviations: Array | None = None
    """Standard deviations (d,) by the same curvature; None for many parameters or if it is unknown."""

    def settled(self) -> Self:
        """Return the search as converged, if it ended at a border that the coordinates of the integral lack."""
        if self.converged or _BORDER not in self.message:
            return self
        return replace(self, converged=True, message="", remark=_AT_A_BORDER)

    def stopped_by(self, ended_by: BaseException) -> Self:
        """Return the same, as one that an interrupt or the StopIteration of a callback ended."""
        why, interrupted = why_stopped(ended_by), isinstance(ended_by, KeyboardInterrupt)
        return replace(self, converged=False, message=why, interrupted=interrupted, stopped=True)

    def followed_by(self, later: "Optimum") -> "Optimum":
        """Return the better of two searches, with both histories; the later one began above the end of this one."""
        better = later if later.best.log_posterior > self.best.log_posterior else self
        return replace(better, history=(*self.history, *later.history), remark=_AGAIN, ends=self.ends)

    @property
    def ended_by(self) -> BaseException | None:
        """An exception like that which ended the search before its end; None where it came to its end."""
        kind = KeyboardInterrupt if self.interrupted else StopIteration
        return kind(self.message) if self.stopped else None

    @property
    def first(self) -> Evaluation:
        return self.history[0]

    unit: ClassVar[str] = "iteration"
    per_epoch: ClassVar[int] = 1

    @property
    def slopes(self) -> Array:
        return np.array([np.abs(each.gradient).max(initial=0.0) for each in self.history])

    @property
    def units(self) -> Array | None:
        """See `Trace`: as far as the steps of BFGS know; None where no iteration tells it."""
        steps = [(b.theta - a.theta, a.gradient - b.gradient) for a, b in pairwise(self.history)]
        return units_of([(step, fall) for step, fall in steps if step @ fall > _SHOWN])

    def stored(self) -> xr.Dataset:
        return evaluation_table(self.history, "iteration")

    def described(self) -> dict[str, Any]:
        return {
            "trace_converged": int(self.converged),
            "trace_interrupted": int(self.interrupted),
            "trace_message": self.message,
            "trace_remark": self.remark,
        }

    def broken_off(self, why: str) -> Self:
        return replace(self, converged=False, message=why, interrupted=True)

    def ended_as(self, why: str) -> Self:
        return replace(self, message=why)

    @property
    def columns(self) -> dict[str, Array]:
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
    curvature: Curve = no_curvature,
) -> Optimum:
    """Find the maximum of the log posterior by BFGS, with exact gradients (type-II maximum a posteriori).

    The search ends where ½ gᵀH g is small, with the gradient g and the estimate H of the inverse curvature. This is the
    rise that is left of the log posterior, in any units. If curvatures in some hyperparameters are known, the search
    begins with Newton's method in these.

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
        Units in which the search takes its first steps, such as `Optimum.units`.
    curvature : function of an Evaluation
        Curvature of the log posterior there in some hyperparameters, or None; see `LogPosterior.curvature`.

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
    if not (np.isfinite(best.log_posterior) and (not searching or np.isfinite(best.gradient).all())):
        refuse(log_posterior, best)
    if not searching:
        return Optimum(best, not theta.size, "No iteration was allowed" if theta.size else _NOTHING, (best,))
    climb = HyperAscent(evaluate, rough, best, max_iterations, callback, flat)
    ended_by: BaseException | None = None
    converged, message = False, ""
    try:
        climb.begin(curvature, units)
        for _ in range(_SADDLES):
            converged, message = climb.run()
            if not converged or (higher := higher_beside(evaluate, climb.history, size)) is None:
                break
            remark = _SADDLE
            climb.go_to(higher)
        best = climb.highest()
        exact = best if evaluate is log_posterior else log_posterior(best.theta, best.start)
        if converged:
            exact = climb.polished(exact, log_posterior)
        if exact.status == NOT_POSITIVE_DEFINITE and search is None:
            # On the way nobody looked whether the covariances were any.
            return maximise(
                log_posterior, theta, max_iterations, callback, start, log_posterior, flat, units, curvature
            )
    except (KeyboardInterrupt, StopIteration) as stopped:
        converged, message, ended_by = False, "", stopped
        best = exact = climb.highest()  # the solution is found to the tolerance when somebody asks for it
    found = Optimum(
        exact if exact.usable else best, converged, message, tuple(climb.history), remark=remark, **climb.judgement()
    )
    return found if ended_by is None else found.stopped_by(ended_by)


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


def too_wide(log_posterior: LogPosterior, x: Array) -> str:
    """Advice where prior variances are too large for the digits of a covariance matrix; empty if they are not."""
    covariance = getattr(log_posterior, "covariance", None)  # a function of θ alone has none
    largest = 0.0 if covariance is None else float(np.max(covariance(x)[0], initial=0.0))
    if not largest > _LARGE:
        return ""
    return (
        f"The largest prior variance is {largest:.2g}, and rounding hides the others beside it. Divide covariates by "
        "their standard deviations, (x - x.mean()) / x.std(), or give their coefficients narrower priors."
    )


def refuse(log_posterior: LogPosterior, best: Evaluation) -> NoReturn:
    """Raise a ValueError that says why a search cannot start where it was evaluated."""
    theta = best.theta
    size = how_many(log_posterior, theta)
    values = log_posterior.point(theta)
    point = {key: value.tolist() for key, value in values.items()}
    at = f"at the initial hyperparameters, unconstrained {point}" if size else "at the prior"
    if best.status in (NOT_POSITIVE_DEFINITE, NOT_FINITE):
        covariance = partial(log_posterior.covariance, theta) if best.status == NOT_POSITIVE_DEFINITE else None
        if why := why_improper(log_posterior.classifier.prior, values, covariance):
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
        advice = too_wide(log_posterior, theta) or (
            "Check the covariance function, and the matrices that Gaussian variables are given."
        )
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
_LARGE = 1e9  # prior variance, beside which rounding hides variances of the order of 1e-6
_SADDLES = 5  # stationary points that are left, at most
_SADDLE = "having left a point that is stationary and no maximum"
_AGAIN = "having begun again at a higher node of the integral over hyperparameters"
_BORDER = " ran to "  # in a message of `ends.py`
_AT_A_BORDER = "at a border, which the density has not in the coordinates of the integral"
_UNDEFINED = "having left the start, at which nothing can be computed"
_BESIDE = 0.1
_NO_SLOPE = 1e-7
_NOTHING = "There is nothing to optimise."
_SHOWN = 1e-4  # log posterior that a step gains, above which it shows a curvature
