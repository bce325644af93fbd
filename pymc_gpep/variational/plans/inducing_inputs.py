"""Methods with inducing inputs, by sweeps over all rows."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pymc as pm

from pymc_gpep.approximations.methods import SPARSE_APPROXIMATIONS, check_fits, with_options
from pymc_gpep.approximations.sparse_ep import Number
from pymc_gpep.argument_types import check_name, check_switches
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.ascent import FLAT
from pymc_gpep.hyper.inducing_inputs import Direction, OptimiserSteps, SignedSteps, alternate_updates, initial_inducing
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.several_starts import Follow
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.processes.processes import functions_of
from pymc_gpep.reading import GPClassifier
from pymc_gpep.streaming.memories import STREAMING_METHODS
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.model_warnings import warn_of_free_magnitude, warn_of_jitter, warn_of_single_class
from pymc_gpep.variational.plans.batches import ByBatches
from pymc_gpep.variational.plans.plan import Climb, FitTask, Optimiser, Plan

# Relative change of the log posterior that counts as 0. With inducing inputs many directions are nearly flat.
_FLAT = 1e-6
_UPDATES = ("outer", "inner")
_RATE, _MOST = 0.03, 10.0  # Learning rate of Adam for a bound, and largest factor by which its steps grow.


@dataclass(frozen=True)
class InducingInputs(Plan):
    """Options of `"sparse_ep"`, `"sparse_vi"` and `"gfitc"` without batches.

    Parameters
    ----------
    inducing : int or array (M, d) or (c, M, d), optional
        Number of inducing inputs of each function, which are selected among the rows (k-means++); or the inducing
        inputs. The default is 50, but at most the number of rows.
    learn_inducing : bool
        Whether inducing inputs are learned with the hyperparameters. By default they are fixed. With EP, learned
        inducing inputs may overfit the labels. The evidence is then too high, and predictions are too certain.
    shared_inducing : bool
        Whether all functions have the same inducing inputs. If they also have the same covariance, only the time for
        the algebra of sites grows with the number of functions.
    update : {"outer", "inner"}
        Order of updates. With "outer", L-BFGS updates hyperparameters and inducing inputs after EP converged. With
        "inner", `obj_optimizer` of `fit` updates them after each sweep of EP, as in the paper. For `"sparse_vi"`, steps
        along the natural gradient take the place of sweeps.
    client : distributed.Client, optional
        Client of a Dask cluster. Each worker reads a part of the rows, and stores its sites. The result is that of a
        single process, up to rounding in sums.
    """

    inducing: Any = None
    learn_inducing: bool = False
    shared_inducing: bool = False
    update: str = "outer"
    client: Any = None

    takes: ClassVar[tuple[str, ...]] = ("gp", "data", "starts", "obj_optimizer")

    def __post_init__(self) -> None:
        check_switches(learn_inducing=self.learn_inducing, shared_inducing=self.shared_inducing)
        check_name("update", self.update, _UPDATES)
        if self.client is not None and not hasattr(self.client, "nthreads"):
            raise TypeError(f"client must be a dask.distributed.Client, but is {self.client!r}. Leave client out.")
        if self.client is not None and self.update == "inner":
            raise NotImplementedError('update="inner" does not work with client=... yet. Leave out update or client.')

    @classmethod
    def methods(cls) -> Iterable[str]:
        return SPARSE_APPROXIMATIONS.names

    def approximation(self, method: str, classifier: GPClassifier, options: dict[str, Any], others: list[str]) -> Any:
        kind = SPARSE_APPROXIMATIONS[method]
        if "batch_size" in options:  # Methods with batches belong to another plan.
            raise TypeError(f'{method} has no batches. Leave batch_size out, or take method="sparse_ep".')
        own = {*self.names(), *(option.name for option in fields(kind))}
        of_batches = sorted(options.keys() & {option.name for option in fields(ByBatches)} - own)
        if method in STREAMING_METHODS and of_batches:
            raise TypeError(
                f"Options of batches were given, {', '.join(of_batches)}: give batch_size, or leave them out."
            )
        with_batches = [*others, "batch_size", "warmup", "decay"] if method in STREAMING_METHODS else others
        made = with_options(kind, options, self.besides(), with_batches)
        check_fits(method, kind.approximates, classifier.likelihood_model, classifier.prior.singular)
        made.named(classifier.likelihood_model, classifier.n_functions, 1)
        return made

    def read(self, classifier: GPClassifier) -> GPClassifier:
        """See `Plan`: effects are added to the process."""
        return by_inducing(classifier)

    def check(self, given: FitTask) -> None:
        functions_of(given.classifier.prior, given.gps)
        self.check_numbers(given)
        likelihood = given.classifier.likelihood_model
        if given.rows is not None and likelihood.has_parameters:
            raise NotImplementedError(
                f"data=(inputs, labels) does not contain the parameters of a {likelihood.name} likelihood at each row. "
                "Put the rows into the model."
            )

    def begin(self, given: FitTask, run: FitRun, kwargs: dict[str, Any], optimiser: Optimiser | None) -> Climb:
        if optimiser is not None and self.update == "outer":
            raise ValueError('obj_optimizer is for update="inner"; update="outer" takes L-BFGS.')
        run.stage("making the graphs of the covariances")
        classifier = given.classifier
        blocks = InducingBlocks(classifier, given.gps, given.space.data, kwargs, given.rows)
        warn_of_free_magnitude(given.space, blocks, given.first)
        warn_of_jitter(given.space, blocks, given.first)
        inducing = initial_inducing(self.inducing, blocks.places, blocks.n_functions, self.shared_inducing, given.seed)
        of_model = classifier.likelihood_model, blocks.n_functions, inducing.shape[1] + blocks.n_effects
        approximator = given.approximator.named(*of_model)
        bounded = approximator.number(*of_model) is Number.BOUND
        log_posterior = self._log_posterior(given, approximator, blocks, inducing)
        warn_of_single_class(classifier, log_posterior.labels)
        flat = _FLAT if self.learn_inducing else FLAT

        def in_turns(x: Array, n: int, follow: Follow) -> Optimum:
            return alternate_updates(log_posterior, x, n, follow, _direction(optimiser, bounded), flat, bounded)

        whole = in_turns if self.update == "inner" else None
        return Climb(given, log_posterior, flat, whole, settles=self.client is not None)

    def _log_posterior(
        self, given: FitTask, approximator: Any, blocks: InducingBlocks, inducing: Array
    ) -> SparseLogPosterior:
        parts = given.space, approximator, blocks, inducing, self.learn_inducing
        if self.client is None:
            return SparseLogPosterior(*parts, given.rows)
        from pymc_gpep.cluster.cluster_log_posterior import ClusterLogPosterior

        return ClusterLogPosterior(*parts, self.client, rows=given.rows)


def _direction(optimiser: Optimiser | None, bounded: bool) -> Direction:
    """Return the steps for `update="inner"`. For a bound, steps by signs alone would be rejected too often."""
    if callable(optimiser):
        return OptimiserSteps(optimiser)
    return OptimiserSteps(pm.adam(learning_rate=_RATE), _MOST) if bounded else SignedSteps()
