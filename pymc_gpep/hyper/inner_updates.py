"""Hyperparameters and inducing inputs learned while EP runs: one sweep, then one step along the gradient.

The scheme is that of Villacampa-Calvo and Hernández-Lobato (2017, section 2.3). The gradient is that of the evidence
with the sites held, as natural parameters of whitened inducing values. It is exact wherever the iteration has got to. A
variational bound is climbed in the same way, with a step along its natural gradient for a sweep. It is a bound wherever
the sites are, so that no step has to be taken which lowers it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.optimum import Optimum, how_many, maximise, off_start, refuse
from pymc_gpep.hyper.sparse_log_posterior import SparseLogPosterior


class Direction(Protocol):
    """Makes steps of gradients, one after the other."""

    def __call__(self, gradient: Array) -> Array:
        """Return the step to add to the parameters."""

    def shorten(self) -> None:
        """Go on with shorter steps, since the last one led down, or where nothing can be computed."""

    def forget(self) -> None:
        """Let steps before have no part in the next one, which then goes up if it is short enough."""


class SignedSteps:
    """Steps of a length that each parameter has for itself, by the sign of its slope (Riedmiller and Braun 1993).

    A length grows while the slope keeps its sign, and is halved when that changes.
    """

    def __init__(self) -> None:
        self._length: Array = np.empty(0)
        self._before: Array = np.empty(0)

    def __call__(self, gradient: Array) -> Array:
        if self._length.size != gradient.size:
            self._length, self._before = np.full(gradient.size, _FIRST), np.zeros(gradient.size)
        agreed = gradient * self._before
        factor = np.where(agreed > 0.0, _LONGER, np.where(agreed < 0.0, _SHORTER, 1.0))
        self._length = np.clip(self._length * factor, _LEAST, _MOST)
        self._before = gradient
        return self._length * np.sign(gradient)

    def shorten(self) -> None:
        self._length *= _SHORTER

    def forget(self) -> None:
        self._before = np.zeros_like(self._before)  # what is there belongs to an evaluation


class OptimiserSteps:
    """Steps of an optimiser of PyMC, such as `pm.adam(learning_rate=0.02)`.

    They grow a little with every one, and are halved where one was refused.

    Parameters
    ----------
    optimiser : function of ([gradient], [shared variable])
        Optimiser, which makes updates that minimise.
    most : float
        Limit on the factor by which steps are longer than the optimiser makes them. The factor begins at 1.
    """

    def __init__(self, optimiser: Callable[..., Any], most: float = 1.0) -> None:
        self._optimiser = optimiser
        self._scale, self._most = 1.0, most
        self._function: Any = None
        self._begun: dict[Any, Any] = {}

    def __call__(self, gradient: Array) -> Array:
        if self._function is None:
            slope = pt.dvector("gradient")
            place = pytensor.shared(np.zeros(gradient.size), "place")
            updates = dict(self._optimiser([-slope], [place]))
            self._begun = {state: state.get_value() for state in updates}
            moved = updates[place] - place
            self._function = pytensor.function([slope], moved, updates=updates, mode="FAST_COMPILE")
        step = self._scale * self._function(gradient)
        self._scale = min(_GROWTH * self._scale, self._most)
        return np.asarray(step)

    def shorten(self) -> None:
        self._scale *= _SHORTER

    def forget(self) -> None:
        for state, value in self._begun.items():
            state.set_value(value)


def climb(
    log_posterior: SparseLogPosterior,
    theta: Array,
    max_iterations: int,
    callback: Callable[[tuple[Evaluation, ...]], None],
    direction: Direction,
    flat: float,
    bounded: bool = False,
) -> Optimum:
    """Go up by a sweep and a step in turns, and solve at the end.

    Parameters
    ----------
    log_posterior : SparseLogPosterior
    theta : array
        Where to begin; EP is solved there first.
    max_iterations : int
    callback : callable
        Called with the history after each iteration; StopIteration or KeyboardInterrupt from it ends the climb.
    direction : Direction
    flat : float
        Relative change of the log posterior in ten steps that counts as none.
    bounded : bool
        Whether unconverged log posteriors can be compared, since each is a lower bound. A step that lowers it is
        refused then.

    Raises
    ------
    ValueError
        If EP fails at the beginning.
    """
    if not theta.size or not max_iterations:
        return maximise(log_posterior, theta, 0)
    here, remark = off_start(log_posterior, log_posterior(theta), how_many(log_posterior, theta))
    if not np.isfinite(here.log_posterior):
        refuse(log_posterior, here)
    if not np.isfinite(here.gradient).all():  # of sites that are no fixed point the gradient is had after a sweep
        here = log_posterior.after_one_sweep(here.theta, here.start)
    if not np.isfinite(here.gradient).all():
        refuse(log_posterior, here)
    history, taken = [here], [here.log_posterior]
    step = direction(here.gradient)
    refused = 0
    converged, message = False, f"Limit of {max_iterations} iterations reached."
    ended_by: BaseException | None = None
    try:
        for _ in range(max_iterations):
            found = log_posterior.after_one_sweep(here.theta + step, here.start)
            there = bool(np.isfinite(found.log_posterior) and np.isfinite(found.gradient).all())
            if there and not (bounded and found.log_posterior < here.log_posterior):
                here, refused = found, 0
                step = direction(here.gradient)
                taken.append(here.log_posterior)
            else:
                refused += 1
                direction.shorten()
                step = _SHORTER * step
                if refused % _SEVERAL == 0:
                    direction.forget()
                    step = direction(here.gradient)
                if np.abs(step).max() < _LEAST:  # a maximum, unless nothing can be computed beside it
                    converged, message = there, "No step leads on from here."
                    break
            history[-1:] = [history[-1]._replace(start=_NO_START), here]
            callback(tuple(history))
            if _is_flat(taken, flat):
                converged, message = True, "The log posterior does not change any more."
                break
    except (KeyboardInterrupt, StopIteration) as stopped:
        ended_by = stopped
    best = here
    if not isinstance(ended_by, KeyboardInterrupt):
        try:
            exact = log_posterior(here.theta, here.start)
            if exact.usable or (bounded and exact.log_posterior >= here.log_posterior):
                best = exact
        except KeyboardInterrupt as stopped:
            ended_by = stopped
    optimum = Optimum(best, converged, message, tuple(history), remark=remark)
    return optimum if ended_by is None else optimum.stopped_by(ended_by)


def _is_flat(values: Sequence[float], flat: float) -> bool:
    """Whether the last ten steps gained nothing."""
    last = values[-_PATIENCE - 1 :]
    return len(last) > _PATIENCE and bool(np.ptp(last) < flat * (1.0 + abs(last[-1])))


_NO_START = np.empty(0)
_PATIENCE = 10
_FIRST, _LEAST, _MOST = 0.02, 1e-6, 0.3  # in the unconstrained space, and in deviations of a column of inputs
_LONGER, _SHORTER = 1.1, 0.5
_GROWTH = 1.03  # of all steps of an optimiser
_SEVERAL = 4  # steps refused one after the other, half as long each: the direction is to blame
