"""Methods that use the covariance of all latent values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations import METHODS, approximator
from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.checks.converged_fits import mirror_image, nothing_learned, other_mode
from pymc_gpep.evidence.memory_check import check_memory
from pymc_gpep.fits.fit import Fit
from pymc_gpep.gaussians.place_prior import PlacePrior
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.log_posteriors.dense_log_posterior import (
    DenseLogPosterior,
    InducingRowsLogPosterior,
    NeighbourLogPosterior,
    suited,
)
from pymc_gpep.log_posteriors.evaluation import Trace
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.prior_moments.inducing_sum import as_sum, by_inducing_rows, process_inputs
from pymc_gpep.prior_moments.neighbour_sum import by_neighbours, takes_neighbours
from pymc_gpep.prior_moments.prior_functions import by_groups, prior_type_of
from pymc_gpep.reading import GPClassifier, StructureError
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.model_warnings import warn_of_offset, warn_of_single_class
from pymc_gpep.variational.plans.plan import Climb, FitTask, Optimiser, Plan

# Largest probability beyond bounds without a warning. Cutting off this mass moves a mean by 0.003 sd.
_BEYOND = 1e-3
_SPARSE = 1e5  # Largest assumed number of operations for each row with neighbours.
_CHOICES = 4  # Largest number of searches with newly chosen neighbours.
_LITTLE = 0.1  # Smallest change of the log posterior by newly chosen neighbours for which the search is repeated.


@dataclass(frozen=True)
class AllRows(Plan):
    """Options of methods on all latent values together, in addition to options of the approximation.

    Parameters
    ----------
    inducing : int or array (M, d), optional
        Fixed inducing inputs of the only Gaussian process: an array, or the number of centres that k-means computes
        from the inputs. Memory and time are then linear in the number of rows. `"ep"` and `"laplace"` integrate over
        the residuals given inducing values (FITC). `"kl"` maximises the variational bound.
    neighbours : int, optional
        Number of nearest neighbours, for example 20, by which `"ep"` and `"laplace"` approximate the only Gaussian
        process at its distinct inputs. The precision is then sparse. Half as many further neighbours are added, if the
        factor of the precision has an entry for each of their pairs. At the end of a search, neighbours are chosen
        again, until they no longer change or hardly change the log posterior.
    """

    inducing: Any = None
    neighbours: Any = None

    takes: ClassVar[tuple[str, ...]] = ("starts",)
    sums: ClassVar[bool] = True

    @classmethod
    def methods(cls) -> Iterable[str]:
        return METHODS

    def __post_init__(self) -> None:
        if self.neighbours is not None:
            check_whole("neighbours", self.neighbours, 1)
        if self.neighbours is not None and self.inducing is not None:
            raise ValueError("neighbours and inducing are two approximations of one process. Leave one of them out.")

    def approximation(self, method: str, classifier: GPClassifier, options: dict[str, Any], others: list[str]) -> Any:
        return approximator(
            method, classifier.likelihood_model, options, self.besides(), others, classifier.prior.singular
        )

    @property
    def centres(self) -> bool:  # type: ignore[override]  # a constant of other plans
        """See `Plan`."""
        return self.neighbours is not None

    def read(self, classifier: GPClassifier) -> GPClassifier:
        """See `Plan`: with inducing inputs or neighbours, a sum with the process as its term."""
        if self.neighbours is not None:
            return as_sum(classifier, "neighbours")
        return classifier if self.inducing is None else as_sum(classifier)

    def work(self, classifier: GPClassifier) -> float:
        """See `Plan`: n M² with M inducing inputs; with neighbours at most 10⁵ n."""
        if self.neighbours is not None:
            return classifier.n_points * min(_SPARSE, float(classifier.n_points) ** 2)
        if self.inducing is None:
            return super().work(classifier)
        size = self.inducing if np.ndim(self.inducing) == 0 else np.shape(self.inducing)[-2]
        return classifier.n_points * float(size) ** 2

    def check(self, given: FitTask) -> None:
        if self.inducing is not None and not given.approximator.takes(PlacePrior):
            raise ValueError(
                f"method={given.method!r} works on the covariance of all rows, without inducing inputs. "
                'Take method="ep", "laplace" or "kl", or leave inducing out.'
            )
        if self.neighbours is not None and not takes_neighbours(given.approximator):
            raise ValueError(
                f"method={given.method!r} works on the covariance of all rows, without neighbours. "
                'Take method="ep" or "laplace", or leave neighbours out.'
            )
        if given.classifier.prior.singular and given.approximator.inverts_prior:
            raise StructureError(
                f"method={given.method!r} needs the inverse of the prior covariance, which is singular with fewer "
                "effects than rows. Use method='kl', which does not need the inverse."
            )
        grouped = by_groups(given.classifier, given.approximator)
        if self.neighbours is not None:
            grouped = by_neighbours(grouped, self.neighbours, given.space.point(given.first))
            if not grouped.prior.centre.any():  # type: ignore[attr-defined]  # a `NeighbourSum`
                warn_of_offset(given.classifier)
        elif self.inducing is None:
            grouped = suited(grouped, given.approximator)
        else:
            grouped = by_inducing_rows(grouped, self._inducing_inputs(given), given.approximator)
        self._check_memory(given, grouped)

    def _inducing_inputs(self, given: FitTask) -> Array:
        """Return the inducing inputs (M, d): an array of the user, or centres of the distinct inputs of the process."""
        assert isinstance(given.classifier.prior, LatentSum)
        inputs = np.unique(process_inputs(given.classifier.prior, given.space.data), axis=0)
        rows = InMemory(inputs, np.zeros(len(inputs), np.int64))
        if np.ndim(self.inducing) == 0 and self.inducing == len(inputs):
            return inputs
        deviations = inputs.std(axis=0)
        scales = 1.0 / np.where(deviations > 0.0, deviations, 1.0)
        (found,) = initial_inducing(self.inducing, rows, 1, True, given.seed, centre_scales=scales)
        return np.asarray(found)

    def _check_memory(self, given: FitTask, classifier: GPClassifier) -> None:
        prior_type = prior_type_of(classifier, given.approximator)
        check_memory(classifier, f"method={given.method!r}", learned=True, prior_type=prior_type)

    def doubt(self, fit: Fit) -> str:
        if why := _bounds_with_effect(fit):
            return why
        if why := other_mode(fit.log_posterior.approximator, fit.solution, fit.classifier.groups):
            return why
        if why := mirror_image(fit.solution, fit.classifier.class_names):
            return why
        if fit.classifier.prior.effects:  # Sums have no common length scales.
            return ""
        return nothing_learned(fit.log_posterior, fit.theta, fit.solution)  # type: ignore[arg-type]  # its own

    def begin(self, given: FitTask, run: FitRun, kwargs: dict[str, Any], optimiser: Optimiser | None) -> Climb:
        if (self.inducing is not None or self.neighbours is not None) and "mode" in kwargs:
            raise NotImplementedError(
                "Inducing inputs and neighbours of this method have no compiled form. Leave backend out."
            )
        run.stage("making the graph of the log posterior")
        if "mode" in kwargs:  # Compiled code does not support sparse precisions.
            self._check_memory(given, by_groups(given.classifier, given.approximator))
        log_posterior = self._log_posterior(given, kwargs)
        log_posterior.prepare()
        log_posterior.check_proper(given.first)
        for each in given.classifier.each:
            warn_of_single_class(each, *evaluate([each.labels]))
        run.graphs_are_made()
        return Climb(given, log_posterior) if self.neighbours is None else _ByNeighbours(given, log_posterior)

    def _log_posterior(self, given: FitTask, kwargs: dict[str, Any]) -> DenseLogPosterior:
        parts = given.classifier, given.approximator, kwargs
        if self.neighbours is not None:
            return NeighbourLogPosterior(*parts, neighbours=self.neighbours, at=given.first)
        if self.inducing is None:
            return DenseLogPosterior(*parts)
        return InducingRowsLogPosterior(*parts, inducing=self._inducing_inputs(given))


class _ByNeighbours(Climb):
    """A search that chooses neighbours again at its maximum, and is then repeated."""

    def run(self, n: int, run: FitRun, fit_of: Callable[[LogPosterior, Trace], Fit], begin: Fit | None) -> None:
        """See `Search`; each search begins at the end of the previous search."""
        super().run(n, run, fit_of, begin)
        for _ in range(_CHOICES):
            found = self.trace
            there = self.log_posterior.chosen_at(found.best.theta)
            if there is self.log_posterior or found.stopped or not found.best.usable:
                return
            moved = there(found.best.theta)
            change = abs(moved.log_posterior - found.best.log_posterior)
            if not change >= _LITTLE:
                return
            run.stage("neighbours differ at the maximum: searching again from there")
            self.log_posterior = there
            super().run(n, run, fit_of, fit_of(there, Optimum(moved, False, "", (moved,))))


def _bounds_with_effect(fit: Fit) -> str:
    """Return a warning about uniform variables whose bounds cut off posterior mass; empty without such variables."""
    cut = {name: p for name, p in fit.beyond_bounds.items() if p > _BEYOND}
    if not cut:
        return ""
    several = fit.classifier.likelihood_model.function_axis
    instead = "pm.sample() draws from the model with them" if several else "method='ep' takes them into account"
    return (
        f"The fit ignores the bounds of {', '.join(map(repr, cut))}, and its posterior has a probability of up to "
        f"{max(cut.values()):.2g} beyond them: {instead}."
    )
