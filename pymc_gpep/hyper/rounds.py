"""The maximum of a log posterior whose active rows are chosen anew from time to time.

A major round chooses active rows and their sites at the present hyperparameters; minor steps climb with both held
(Seeger and Jordan 2004, section 5). As the choice is not part of what is climbed, this is no ascent: the best round is
kept.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.approximations.ivm import ActiveSolution
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.active_log_posterior import ActiveLogPosterior, HeldActive
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.optimum import Optimum, maximise, refuse

_MINOR = 10  # steps with the same active rows
_STILL = 0.05  # largest move of a round, per unit of the unconstrained space, that counts as none
_QUIET = 2  # of such rounds in a row
_FLAT = 1e-6

_HOW = {
    "nothing": "There is nothing to optimise.",
    "held": "Hyperparameters were not to be learned.",
    "settled": "Rounds no longer move hyperparameters.",
    "lost": "With rows chosen anew the bound was not finite; the best round before is kept.",
    "rounds": "The limit of {rounds} rounds was reached, rounds={rounds}.",
    "iterations": "The limit of n={iterations} iterations was reached.",
}
_WELL = ("nothing", "held", "settled")

type Progress = Callable[[tuple[Evaluation, ...], HeldActive], None]


def climb_in_rounds(
    log_posterior: ActiveLogPosterior, theta: Array, max_iterations: int, rounds: int, callback: Progress
) -> tuple[Optimum, ActiveSolution]:
    """Climb from one point.

    Parameters
    ----------
    log_posterior : ActiveLogPosterior
    theta : array
        Where to begin, unconstrained.
    max_iterations : int
        Limit on minor steps, of all rounds together.
    rounds : int
        Limit on major rounds after the first choice. With 0 hyperparameters stay where they are.
    callback : callable
        Called with the history, and the rows and sites that are held, after each minor step; StopIteration or
        KeyboardInterrupt from it ends the search.

    Returns
    -------
    Optimum
        Its history has the minor steps of all rounds.
    ActiveSolution
        Of the best round.
    """
    history: tuple[Evaluation, ...] = ()
    best: tuple[Evaluation, ActiveSolution] | None = None
    still, ended, remark = 0, "", ""
    ended_by: BaseException | None = None

    def report(seen: tuple[Evaluation, ...]) -> None:
        callback((*history, *seen[bool(history) :]), held)

    chosen: set[int] = set()
    for major in range(rounds + 1):
        try:
            solution = log_posterior.choose(theta)
            held = log_posterior.holding(solution)
            here = held(theta)
        except KeyboardInterrupt as interrupt:
            if best is None:
                raise
            ended_by = interrupt
            break
        if not (np.isfinite(here.log_posterior) and (not rounds or np.isfinite(here.gradient).all())):
            if best is None:
                refuse(held, here)
            ended = "lost"
            break
        if best is None or here.log_posterior > best[0].log_posterior:
            best = here, solution
        before, chosen = chosen, set(solution.selection.rows.tolist())
        if still and chosen == before:  # the same rows, at the same hyperparameters
            still = _QUIET
        left = max_iterations - max(len(history) - 1, 0)
        if not theta.size:
            ended = "nothing"
        elif not rounds:
            ended = "held"
        elif still == _QUIET:
            ended = "settled"
        elif major == rounds:
            ended = "rounds"
        elif left <= 0:
            ended = "iterations"
        if ended or ended_by:
            break
        found = maximise(held, theta, min(_MINOR, left), report, flat=_FLAT)
        history = (*history, *found.history[bool(history) :])
        moved = float(np.abs(found.best.theta - theta).max())
        still = still + 1 if moved < _STILL else 0
        theta, remark = found.best.theta, remark or found.remark
        ended_by = found.ended_by
    assert best is not None
    evaluation, solution = best
    message = "" if ended_by else _HOW[ended].format(rounds=rounds, iterations=max_iterations)
    optimum = Optimum(evaluation, ended in _WELL, message, history or (evaluation,), remark=remark)
    return optimum if ended_by is None else optimum.stopped_by(ended_by), solution
