"""Methods that use the covariance of all latent values."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pymc_gpep.approximations import METHODS, approximator
from pymc_gpep.checks.doubts import nothing_learned, other_mode
from pymc_gpep.evidence.memory import check_memory
from pymc_gpep.fits.fit import Fit
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.prior_moments.precision_sum import suited
from pymc_gpep.prior_moments.prior_functions import by_groups, prior_type_of
from pymc_gpep.reading import GPClassifier, StructureError
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.model_warnings import warn_of_single_class
from pymc_gpep.variational.plans.plan import Climb, FitTask, Optimiser, Plan


@dataclass(frozen=True)
class AllRows(Plan):
    """Methods that work on all latent values together have no options but those of their approximation."""

    takes: ClassVar[tuple[str, ...]] = ("starts",)
    sums: ClassVar[bool] = True

    @classmethod
    def methods(cls) -> Iterable[str]:
        return METHODS

    def approximation(self, method: str, classifier: GPClassifier, options: dict[str, Any], others: list[str]) -> Any:
        return approximator(
            method, classifier.likelihood_model, options, self.besides(), others, classifier.prior.singular
        )

    def check(self, given: FitTask) -> None:
        if given.classifier.prior.singular and given.approximator.inverts_prior:
            raise StructureError(
                f"method={given.method!r} needs the inverse of the prior covariance, and a sum of fewer effects than "
                "rows has a singular one. Take method='kl', which has a lower bound as well."
            )
        grouped = by_groups(given.classifier, given.approximator)
        self._check_memory(given, suited(grouped, given.approximator))

    def _check_memory(self, given: FitTask, classifier: GPClassifier) -> None:
        prior_type = prior_type_of(classifier, given.approximator)
        check_memory(classifier, f"method={given.method!r}", learned=True, prior_type=prior_type)

    def doubt(self, fit: Fit) -> str:
        if why := other_mode(fit.log_posterior.approximator, fit.solution, fit.classifier.groups):
            return why
        if fit.classifier.prior.effects:  # covariances of sums have no length scales to speak of
            return ""
        return nothing_learned(fit.log_posterior, fit.theta, fit.solution)  # type: ignore[arg-type]  # its own

    def begin(self, given: FitTask, run: FitRun, kwargs: dict[str, Any], optimiser: Optimiser | None) -> Climb:
        for each in given.classifier.each:
            warn_of_single_class(each, *evaluate([each.labels]))
        run.stage("making the graph of the log posterior")
        if "mode" in kwargs:  # compiled code knows no sparse precision
            self._check_memory(given, by_groups(given.classifier, given.approximator))
        log_posterior = DenseLogPosterior(given.classifier, given.approximator, kwargs)
        log_posterior.prepare()
        run.graphs_are_made()
        return Climb(given, log_posterior)
