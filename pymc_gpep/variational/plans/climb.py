"""The search by an optimiser of a log posterior: from one start or several, with the fit so far at each iteration."""

from collections.abc import Callable
from typing import Any

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.hyper.ascent import FLAT
from pymc_gpep.hyper.ends import looked_at
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.several_starts import Follow, maximise_from, one_after_another
from pymc_gpep.hyper.starts import starting_points
from pymc_gpep.hyper.trace import Trace
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.plans.plan import FitTask, Search


class Climb(Search):
    """A search by iterations of an optimiser.

    Parameters
    ----------
    given : FitTask
    log_posterior : LogPosterior
    flat : float
        Relative change of the log posterior that counts as none.
    whole : function of (x, n, follow), optional
        A search of another kind from one flat vector; by L-BFGS if not given.
    settles : bool
        See `Search`.
    """

    def __init__(
        self,
        given: FitTask,
        log_posterior: Any,
        flat: float = FLAT,
        whole: Callable[[Array, int, Follow], Optimum] | None = None,
        settles: bool = False,
    ) -> None:
        self.log_posterior: Any = log_posterior
        self.settles = settles
        self._given, self._flat, self._whole = given, flat, whole
        self._found: Optimum | None = None

    @property
    def trace(self) -> Optimum:
        assert self._found is not None
        return self._found

    def run(self, n: int, run: FitRun, fit_of: Callable[[LogPosterior, Trace], Fit], begin: Fit | None) -> None:
        log_posterior, given = self.log_posterior, self._given
        run.stage("first solve")
        if begin is None:
            thetas = starting_points(log_posterior, given.first, given.starts, given.seed)
            points = [log_posterior.flat(theta) for theta in thetas]
        else:
            points = [begin.trace.best.theta]
        iterations = 0

        def report(history: tuple[Evaluation, ...], which: int) -> None:
            nonlocal iterations
            iterations += 1
            last = history[-1]
            state = f"log posterior {last.log_posterior:.4f}, {log_posterior.number} {last.evidence:.4f}"
            reached = Optimum(last, False, "Still running.", history)
            run.iteration(
                iterations,
                f"start {which + 1}: {state}" if len(points) > 1 else state,
                lambda: fit_of(self.so_far(reached), reached),
                reached.losses,
            )

        start = None if begin is None else begin.trace.best.start
        if self._whole is None:
            curvature = log_posterior.curvature
            found = maximise_from(log_posterior, points, n, report, start, self._flat, given.units, curvature)
        else:
            found = one_after_another(self._whole, points, n, report)
        self._found = self.judged(found)

    def so_far(self, reached: Optimum) -> LogPosterior:
        """Return the log posterior of the fit at an iteration."""
        return self.log_posterior

    def judged(self, found: Optimum) -> Optimum:
        """Return what was found, not converged and with a reason where its end is not a maximum."""
        return looked_at(found, self._given.space, self.log_posterior)
