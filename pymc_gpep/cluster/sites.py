"""Sites that stay on the workers, as the vector space in which the EP iteration moves."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.cluster.rounds import Begin, Rounds, Sums, Task, WorkerPart
from pymc_gpep.kernels.schemes.anderson import combination
from pymc_gpep.solvers.sparse_sweeps import SiteSweeps
from pymc_gpep.solvers.whitened_posterior import Whitened


class SitesOnCluster:
    """Sites of many parts at one prior, as a `SiteSpace`.

    Parts send S and h, what their points add to the evidence, and inner products. Sites do not travel. Sites of parts
    whose worker is gone are computed from the posterior again: at a fixed point it implies them.

    Parameters
    ----------
    rounds : Rounds
    begin : Begin
    sweeps : SiteSweeps
        Sweeps over no rows at all, for what is done with sums.
    """

    def __init__(self, rounds: Rounds, begin: Begin, sweeps: SiteSweeps[Any]) -> None:
        self._rounds = rounds
        self._begin = begin
        self._sweeps = sweeps
        self._posterior: Whitened | None = None
        self._norm = np.nan
        self._slot: int | None = None
        self._start()

    def _start(self) -> None:
        begin, rounds = self._begin, self._rounds
        number = rounds.number + 1
        # What was begun once can be begun again, with parts that were lost.
        rounds.number = number
        everyone = range(rounds.count)
        self._natural = rounds.until_done(lambda: rounds.tell(everyone, _begin(number, begin)), lambda lost: None).added

    def _mend(self, lost: tuple[int, ...]) -> None:
        """Parts that were made anew get the prior, and sites; then all are asked for what has to be added again."""
        number = self._rounds.number
        self._rounds.tell(lost, _begin(number, self._begin, self._posterior))
        self._natural = self._rounds.ask(WorkerPart.natural).added

    def _ask(self, task: Task) -> Sums:
        found: Sums = self._rounds.until_done(lambda: self._rounds.ask(task), self._mend)
        return found

    def sweep(self) -> tuple[bool, float, float]:
        ok, evidence, residual = self._rounds.until_done(self._sweep, self._mend)
        return ok, evidence, residual

    def _sweep(self) -> tuple[bool, float, float]:
        try:
            precision, location = self._natural
            posterior, shift = self._sweeps.shifted(precision, location, self._over_blocks)
        except LinAlgError:
            return False, np.nan, np.nan
        found = self._rounds.ask(lambda part: part.match(posterior, shift))
        self._posterior = posterior
        terms, self._norm = found.added
        return not np.isnan(found.largest), self._sweeps.of_posterior(posterior) + terms, found.largest

    def _over_blocks(self, work: Callable[[Any], tuple[Array, ...]]) -> Iterable[tuple[Array, ...]]:
        """The sum over all blocks, which is one block for who adds."""
        return [self._rounds.ask(lambda part: part.over_blocks(work)).added]

    def norm(self) -> float:
        return self._norm

    def remember(self, slot: int) -> None:
        """See `SiteSpace`. It is done together with what comes next."""
        self._slot = slot

    def _move(self, task: Task) -> None:
        """Let all sites take a step.

        Sites of parts that are lost meanwhile are computed anew, and the others move once.
        """
        moved = False

        def move() -> None:
            nonlocal moved
            if not moved:
                moved = True
                self._natural = self._rounds.ask(task).added

        self._rounds.until_done(move, self._mend)

    def damp(self, damping: float) -> None:
        self._slot = None
        self._move(lambda part: part.damp(damping))

    def accelerate(self, used: int, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        slot, self._slot = self._slot, None
        gamma = combination(*self._ask(lambda part: part.products(slot, used)).added)
        self._move(lambda part: part.combine(gamma, mixing, damping, interval))

    def clear(self) -> None:
        self._posterior = None
        self._natural = self._ask(WorkerPart.clear).added

    def end(self, number: int) -> Whitened:
        """Have the sites kept under a number, and return the posterior that they imply."""
        self._natural = self._ask(lambda part: part.end(number)).added
        return self._sweeps.implied(*self._natural)

    def slopes(self, posterior: Whitened) -> tuple[Array, Array, Array]:
        """Derivatives in hyperparameters and inducing inputs, and what `Whitening.pull_factor` wants."""
        of_theta, of_inducing, product = self._ask(lambda part: part.slopes(posterior)).added
        return of_theta, of_inducing, product


def _begin(number: int, what: Begin, posterior: Whitened | None = None) -> Task:
    return lambda part: part.begin(number, what, posterior)
