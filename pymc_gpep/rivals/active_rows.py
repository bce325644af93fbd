"""The plan of fits that use the labels of a few active rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pymc_gpep.approximations.methods import check_fits, with_options
from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.hyper.optimum import Optimum, looked_at
from pymc_gpep.hyper.several_starts import Follow
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.processes.cross_covariance import functions_of
from pymc_gpep.reading import GPClassifier
from pymc_gpep.rivals.active_log_posterior import ActiveLogPosterior, HeldActive, climb_in_rounds
from pymc_gpep.rivals.ivm import IVM, ActiveSolution
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.model_warnings import warn_of_single_class
from pymc_gpep.variational.plans.plan import Climb, FitTask, Optimiser, Plan


@dataclass(frozen=True)
class ActiveRows(Plan):
    """Options of `"ivm"`.

    Parameters
    ----------
    rounds : int
        How often active rows are chosen anew while hyperparameters are learned, at most. With 0 these stay at their
        initial values.
    """

    rounds: int = 10

    takes: ClassVar[tuple[str, ...]] = ("gp", "data", "starts")

    def __post_init__(self) -> None:
        check_whole("rounds, the limit on rounds of choosing rows,", self.rounds)

    @classmethod
    def methods(cls) -> Iterable[str]:
        return (IVM.name,)

    def approximation(self, method: str, classifier: GPClassifier, options: dict[str, Any], others: list[str]) -> Any:
        made = with_options(IVM, options, self.besides(), others)
        check_fits(method, made.approximates, classifier.likelihood_model, classifier.prior.singular)
        return made.named(classifier.likelihood_model)

    def check(self, given: FitTask) -> None:
        functions_of(given.classifier.prior, given.gps)

    def begin(self, given: FitTask, run: FitRun, kwargs: dict[str, Any], optimiser: Optimiser | None) -> Climb:
        run.stage("making the graphs of the covariances")
        blocks = InducingBlocks(given.classifier, given.gps, given.space.data, kwargs, given.rows)
        log_posterior = ActiveLogPosterior(given.space, given.approximator, blocks, given.seed, given.rows)
        warn_of_single_class(given.classifier, log_posterior.labels)
        run.stage("choosing rows")
        return _Rounds(given, log_posterior, self.rounds)


class _Rounds(Climb):
    """A search in rounds, at whose end the log posterior has active rows."""

    def __init__(self, given: FitTask, log_posterior: ActiveLogPosterior, rounds: int) -> None:
        super().__init__(given, log_posterior, whole=self._one)
        self._limit = rounds
        self._held: HeldActive | None = None
        self._solutions: dict[bytes, ActiveSolution] = {}

    def _one(self, x: Array, n: int, follow: Follow) -> Optimum:
        def tell(history: tuple[Evaluation, ...], held: HeldActive) -> None:
            self._held = held
            follow(history)

        optimum, solution = climb_in_rounds(self.log_posterior, x, n, self._limit, tell)
        self._solutions[optimum.best.theta.tobytes()] = solution
        return optimum

    def so_far(self, reached: Optimum) -> LogPosterior:
        assert self._held is not None
        return self._ending(reached.best, self._held.solution_at(reached.best))

    def judged(self, found: Optimum) -> Optimum:
        """See `Climb`; the last minor step leaves a slope."""
        best = found.best
        self.log_posterior = self._ending(best, self._solutions[best.theta.tobytes()])
        return looked_at(found, self._given.space)

    def alarming(self, fit: Fit, n: int) -> bool:
        return bool(self._limit and n) and super().alarming(fit, n)

    def _ending(self, best: Evaluation, solution: ActiveSolution) -> ActiveLogPosterior:
        log_posterior: ActiveLogPosterior = self.log_posterior
        return log_posterior.ending_with(best.theta, solution)
