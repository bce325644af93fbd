"""Methods with inducing inputs, by batches of rows."""

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.approximations.methods import SPARSE_APPROXIMATIONS, check_fits
from pymc_gpep.approximations.site_rules import Nested
from pymc_gpep.approximations.sparse_ep import SparseEP
from pymc_gpep.argument_types import check_name, check_number, check_switches, check_whole, did_you_mean, plain
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.graphs.interpreted import INTERPRETED, runs_in_jax
from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.hyper.optimum import ran_away, why_stopped
from pymc_gpep.log_posteriors.evaluation import Trace
from pymc_gpep.log_posteriors.hyperparameters import checked_chunks
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.processes.processes import functions_of
from pymc_gpep.reading import GPClassifier
from pymc_gpep.reading.classifier import LikelihoodAtNewRows
from pymc_gpep.rows.fingerprint import fingerprint
from pymc_gpep.rows.rows import RowError, Rows, column_deviations
from pymc_gpep.solvers.step_algebra import StepBlocks
from pymc_gpep.streaming.batch_log_posterior import BatchLogPosterior, StepTrace, average_loss
from pymc_gpep.streaming.features import first_scales, model_blocks
from pymc_gpep.streaming.memories import STREAMING_METHODS, Memory
from pymc_gpep.streaming.rules import RULES, Rule, rule_for
from pymc_gpep.streaming.run import Batches as BatchOrder
from pymc_gpep.streaming.run import Run, lost_steps, one_batch, step_of
from pymc_gpep.streaming.state import LeftOff, State
from pymc_gpep.streaming.step import BatchProblem, FallingAdam
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.model_warnings import (
    off_symmetry,
    warn_of_free_magnitude,
    warn_of_jitter,
    warn_of_single_class,
    warn_of_single_count,
)
from pymc_gpep.variational.plans.plan import Climb, FitTask, Optimiser, Plan, Search

_AVERAGES = 100  # Largest number of averaged losses in an epoch that the progress bar shows.
_RATE = 0.03  # Initial learning rate of Adam. The rate falls to 0.
_LEARNED = 10  # Smallest ratio of all steps to steps of the default warm-up.
# Smallest and largest default number of inducing inputs, and number of rows for each inducing input.
_FEWEST, _MOST, _PART = 50, 150, 10
_COUPLED = 2000  # Largest number of latent values for sites that couple classes: sweeps use a matrix of this size.
_MOST_HELD = 2**28  # Largest number of stored inputs (2 GB).
_SETS = 3  # Number of axes of an array with separate inducing inputs of each function.
_TAKES_NO = {  # Options of other plans → the reason why batches reject the option.
    "update": "with batches each step updates the hyperparameters. Leave out update",
    "client": "batches are computed in one process. Leave out client",
    "starts": "with batches steps begin at one point, the initial point of the model or start=... Leave out starts",
    "max_iterations": "with batches n is the number of steps. Leave out max_iterations",
    "tolerance": "with batches n is the number of steps. Leave out tolerance",
}


@dataclass(frozen=True)
class ByBatches(Plan):
    """Options of `"sparse_ep"`, `"sparse_sep"` and `"sparse_vi"` with batches, in addition to options of the memory.

    Parameters
    ----------
    inducing : int or array (M, d) or (c, M, d), optional
        Number of inducing inputs of each function, or the inducing inputs. The default number is a tenth of the rows,
        at least 50 and at most 150. They start at centres of the classes if all functions share them, otherwise at rows
        of the data (k-means++). Up to 300 rows in at most one and a half batches form one batch, and all of these rows
        are inducing inputs. Learned inducing inputs would overfit so few rows. Without options of steps, `"sparse_ep"`
        makes sweeps over such rows. Sites then couple the classes, and `n` limits the iterations of the optimiser. This
        needs at most 2000 latent values and a shared covariance.
    learn_inducing : bool, optional
        Whether inducing inputs are learned with the hyperparameters, or fixed. By default they are learned, except if
        the model adds effects to the process, or if all rows are inducing inputs. The joint posterior of process and
        effects is valid for fixed inducing inputs only.
    shared_inducing : bool, optional
        Whether all functions have the same inducing inputs. By default they do if they have the same covariance: a step
        with ten classes then takes a fifth of the time.
    batch_size : int, optional
        Largest number of rows in a batch; the default is all rows. An epoch consists of the smallest possible number of
        batches, which differ by at most one row. See `inducing` for few rows.
    sites : str, optional
        Factors of a point's likelihood, as for fits of all rows at once: "quadrature" (a single factor) or "pairwise"
        (the paper's product). The default is the first that the method supports for the likelihood.
    memory : str, optional
        Values of rows that are stored between batches. `"sparse_ep"` stores nothing ("stateless"), or the "sites" of
        all rows. Stored sites avoid the noise of batches. They take n (4 M + 18 d) bytes for n rows with d sites each,
        or n (4 c M + 18 d) bytes if functions differ in covariance or inducing inputs.
    warmup : int, optional
        Number of epochs with fixed hyperparameters and inducing inputs, in which q adapts. The default is one epoch,
        but at most a tenth of all steps.
    decay : float, optional
        The step size of q after e epochs is 1 / (1 + decay e) of its value in the first epoch.
    jitter : float
        Jitter on the diagonal of the covariance of the inducing values, relative to the mean of the diagonal. If the
        Cholesky factorisation fails, the jitter is multiplied by 100, at most twice.
    """

    inducing: Any = None
    learn_inducing: bool | None = None
    shared_inducing: bool | None = None
    batch_size: int | None = None
    sites: str | None = None
    memory: str | None = None
    warmup: int | None = None
    decay: float | None = None
    jitter: float = 1e-6

    by_steps: ClassVar[bool] = True
    limit: ClassVar[str] = "the number of steps,"
    takes: ClassVar[tuple[str, ...]] = ("gp", "data", "obj_optimizer")

    def __post_init__(self) -> None:
        for name in ("learn_inducing", "shared_inducing"):
            if (value := getattr(self, name)) is not None:
                check_switches(**{name: value})
        if self.warmup is not None:
            check_whole("warmup, the number of epochs with fixed hyperparameters,", self.warmup)
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        for name, value, least in (("decay", self.decay, 0.0), ("jitter", self.jitter, 1e-15)):
            if value is None:
                continue
            check_number(name, value)
            if not (np.isfinite(value) and value >= least):
                raise ValueError(f"{name} must be a finite number and at least {least:g}, but is {value!r}.")

    @classmethod
    def methods(cls) -> Iterable[str]:
        return STREAMING_METHODS

    @classmethod
    def serves(cls, method: str, options: Mapping[str, Any]) -> bool:
        """Return whether a `batch_size` is given, or the method has batches only."""
        batches = options.get("batch_size") is not None
        return method in STREAMING_METHODS and (batches or method not in SPARSE_APPROXIMATIONS.names)

    def _memory(self, method: str, options: Mapping[str, Any]) -> Memory:
        """Return the memory of rows between batches, with its options."""
        memories = {each.name: each for each in STREAMING_METHODS[method]}
        if self.memory is not None:
            check_name("memory", self.memory, memories, f" for {method}")
        chosen = memories[self.memory] if self.memory else STREAMING_METHODS[method][0]
        known = [each.name for each in fields(chosen)]
        if unknown := sorted(set(options) - set(known)):
            for name in _TAKES_NO.keys() & set(unknown):
                instead = "" if self.batch_size is None else ", or batch_size"
                raise TypeError(f"{name} is for fits of all rows at once: {_TAKES_NO[name]}{instead}.")
            listed = ", ".join([*self.names(), *known])
            raise TypeError(
                f"{method} with batches has no option {', '.join(unknown)}. Options: {listed}, likelihood, and "
                f"options of pm.fit.{did_you_mean(unknown, [*known, *self.names()])}"
            )
        return chosen(**plain(options))

    def approximation(self, method: str, classifier: GPClassifier, options: dict[str, Any], others: list[str]) -> Any:
        """See `Plan`: the `Memory` that computes and stores the sites of batches."""
        memory = self._memory(method, options)
        likelihood = classifier.likelihood_model
        check_fits(method, lambda each: any(rule.fits(each) for rule in RULES), likelihood, classifier.prior.singular)
        return memory

    def read(self, classifier: GPClassifier) -> GPClassifier:
        """See `Plan`: effects are added to the process."""
        return by_inducing(classifier)

    def check(self, given: FitTask) -> None:
        self.check_numbers(given)
        self._rule(given)
        functions_of(given.classifier.prior, given.gps)

    def _rule(self, given: FitTask) -> Rule:
        space = given.space
        at_a_row = LikelihoodAtNewRows(given.classifier, 1, space.data)(space.point(space.initial_point()))
        return rule_for(given.approximator.functional, self.sites, at_a_row)

    def begin(self, given: FitTask, run: FitRun, kwargs: dict[str, Any], optimiser: Optimiser | None) -> Search:
        run.stage("reading the data")
        blocks = InducingBlocks(given.classifier, given.gps, given.space.data, rows=given.rows)
        first = given.first if given.left_off is not None else off_symmetry(given.space, blocks, given.first)
        warn_of_free_magnitude(given.space, blocks, first)
        warn_of_jitter(given.space, blocks, first)
        if optimiser is None and not (kwargs or run.checkpoints) and self._couples(given, blocks):
            return self._sweeping(given, blocks, first)
        made = {"mode": INTERPRETED} | kwargs
        return _Stepping(self, given, self._rule(given), blocks, first, optimiser, made)

    def shares(self, blocks: InducingBlocks) -> bool:
        """Return whether all functions have the same inducing inputs."""
        if self.shared_inducing is not None:
            return bool(self.shared_inducing)
        return blocks.n_covariances == 1 and np.ndim(self.inducing) != _SETS

    def takes_all(self, blocks: InducingBlocks) -> bool:
        """Return whether there are so few rows that all rows form one batch and are the fixed inducing inputs."""
        n = blocks.rows.n_rows
        free = self.inducing is None and not self.learn_inducing and not blocks.n_effects
        return free and one_batch(n, self.batch_size or n)

    def _couples(self, given: FitTask, blocks: InducingBlocks) -> bool:
        """Return whether few rows are fitted by sweeps with coupled sites, if no option requires steps.

        Sites of separate functions underestimate the evidence of large magnitudes. See the page "Many rows: time,
        memory and scores" of the documentation.
        """
        of_steps = self.sites, self.memory, self.warmup, self.decay, given.left_off
        plain_ep = given.method == SparseEP.name and given.approximator == type(given.approximator)()
        return (
            plain_ep
            and all(each is None for each in of_steps)
            and self.takes_all(blocks)
            and blocks.n_covariances == 1
            and self.shares(blocks)
            and blocks.n_functions * blocks.rows.n_rows <= _COUPLED
            and Nested.fits(given.classifier.likelihood_model)
        )

    def _sweeping(self, given: FitTask, blocks: InducingBlocks, first: Array) -> Climb:
        """Return a search by EP with sweeps over the rows, all of which are inducing inputs."""
        rows = blocks.places
        inducing = initial_inducing(rows.inputs(slice(0, rows.n_rows)), rows, blocks.n_functions, True, given.seed)
        approximator = SparseEP(sites=Nested.name, jitter=self.jitter)
        log_posterior = SparseLogPosterior(given.space, approximator, blocks, inducing, False, given.rows)
        warn_of_single_class(given.classifier, log_posterior.labels)
        begins = _with_scales(given, blocks, first, model_blocks(given.space, blocks))
        return Climb(replace(given, first=begins), log_posterior)


class _Stepping(Search):
    """Search by steps over batches of rows."""

    def __init__(
        self,
        plan: ByBatches,
        given: FitTask,
        rule: Rule,
        blocks: InducingBlocks,
        first: Array,
        optimiser: Optimiser | None,
        kwargs: dict[str, Any],
    ) -> None:
        self._plan, self._given, self._rule, self._blocks = plan, given, rule, blocks
        self._first, self._optimiser, self._kwargs = first, optimiser, kwargs
        self._found: BatchLogPosterior | None = None
        self._alarming = False

    @property
    def log_posterior(self) -> BatchLogPosterior:  # type: ignore[override]  # Set at the end.
        assert self._found is not None
        return self._found

    @property
    def trace(self) -> StepTrace:
        return self.log_posterior.steps

    def alarming(self, fit: Fit, n: int) -> bool:
        """See `Search`: whether steps were skipped, or diverged."""
        return self._alarming

    def run(self, n: int, run: FitRun, fit_of: Callable[[LogPosterior, Trace], Fit], begin: Fit | None) -> None:
        problem, state, batches = self._prepare()
        settings = self._settings(batches)
        before = begin.trace.left_off if begin is not None else self._given.left_off  # type: ignore[attr-defined]
        known = before or LeftOff({}, {}, np.empty(0), np.empty(0))
        known.check(settings, state.inducing_inputs())
        run.stage("preparing steps")
        steps_in_all = len(known.losses) + n
        warmup = self._warmup(batches.per_epoch, steps_in_all)
        optimiser = _RATE if self._optimiser is None else self._optimiser
        if not callable(optimiser):
            optimiser = FallingAdam(max(1, steps_in_all - warmup), optimiser)
        step = step_of(problem, state, optimiser, self._kwargs)
        if before is not None:
            state.set_values(before.values)
        memory = self._given.approximator
        decay = memory.decay if self._plan.decay is None else float(self._plan.decay)
        schedule = memory.schedule(batches.per_epoch, decay)
        steps = Run(step, state, batches, schedule, warmup, len(known.losses))
        record = np.concatenate([np.stack([known.losses, known.floored]), np.empty((2, n))], axis=1)

        def now(ended: str, read: Callable[[], Mapping[str, Array]], interrupted: bool = False) -> BatchLogPosterior:
            losses, floored = record[:, : steps.done]
            done = StepTrace(read, settings, losses, floored, ended, self._given.space, interrupted)
            given = self._given
            return BatchLogPosterior(given.space, given.method, memory, self._rule, done, self._blocks, given.rows)

        def nothing() -> StepTrace | None:
            return None

        shown: Callable[[], StepTrace | None] = nothing

        def so_far() -> Fit:
            nonlocal shown
            found = now("Still running", state.values)
            shown = weakref.ref(found.steps)
            return fit_of(found, found.steps)

        ended, interrupted, first = "Ended", False, steps.done
        every = max(1, batches.per_epoch // _AVERAGES)
        steps_began = time.perf_counter()
        try:
            for i in range(first, first + n):
                if (kept := shown()) is not None:
                    _ = kept.values  # Freeze the values of a fit that a callback stores.
                taken = steps.advance()
                record[:, i] = -taken.log_posterior, taken.floored
                if (i - first) % every == 0:
                    shown_loss = average_loss(record[0, max(steps.done - batches.per_epoch, 0) : steps.done])
                left = (time.perf_counter() - steps_began) / (i + 1 - first) * (first + n - i - 1)
                held_back = f", {100 * taken.floored:.0f} % held back" if taken.floored else ""
                run.iteration(
                    i + 1,
                    f"epoch {(i + 1) / batches.per_epoch:.2f}, {memory.objective} and log prior "
                    f"{-shown_loss:.5g}{held_back}, {_clock(left)} left",
                    so_far,
                    record[0, : steps.done],
                )
        except RowError as error:
            values = state.held()
            stopped_at = now("Stopped at an invalid row", lambda: values)
            error.fit = fit_of(stopped_at, stopped_at.steps)
            raise
        except (StopIteration, KeyboardInterrupt) as stopped:
            ended, interrupted = why_stopped(stopped).rstrip("."), isinstance(stopped, KeyboardInterrupt)
        except FloatingPointError as error:
            ended, self._alarming = f"Stopped ({str(error).rstrip('.')})", True
        values = state.held()
        trouble = lost_steps(record[0, first : steps.done]) or ran_away(self._given.space, self._first, values["theta"])
        if trouble and not self._alarming:
            ended, self._alarming = f"{ended} ({trouble})", True
        self._found = now(ended, lambda: values, interrupted)

    def _warmup(self, per_epoch: int, steps: int) -> int:
        """Return the number of steps with fixed hyperparameters and inducing inputs."""
        warmup = self._plan.warmup
        return min(per_epoch, steps // _LEARNED) if warmup is None else int(warmup) * per_epoch

    def _settings(self, batches: BatchOrder) -> dict[str, Any]:
        given, plan, rows = self._given, self._plan, self._blocks.rows
        memory = given.approximator
        return {
            "batch_size": batches.size,
            "per_epoch": batches.per_epoch,
            "seed": given.seed,
            "rows": rows.n_rows,
            "checksum": fingerprint(rows),
            "likelihood": given.classifier.likelihood_model.name,
            "method": given.method,
            "memory": repr(memory),
            "sites": self._rule.expresses.name,
            "warmup": None if plan.warmup is None else int(plan.warmup),
            "decay": float(memory.decay if plan.decay is None else plan.decay),
            "learn_inducing": self._learns(),
            "parameters": ", ".join(given.space.parameters),
        }

    def _learns(self) -> bool:
        """Return whether inducing inputs are learned."""
        if self._plan.learn_inducing is not None:
            return bool(self._plan.learn_inducing)
        return not self._blocks.n_effects and not self._plan.takes_all(self._blocks)

    def _prepare(self) -> tuple[BatchProblem, State, BatchOrder]:
        """Return the problem, its initial state, and the order of the rows."""
        given, plan = self._given, self._plan
        rows, places, c = self._blocks.rows, self._blocks.places, self._blocks.n_functions
        held = _held(rows, self._kwargs)
        every = plan.takes_all(self._blocks)
        size = rows.n_rows if every else min(int(plan.batch_size or rows.n_rows), rows.n_rows)
        batches = BatchOrder(rows, size, given.seed, gathers=held is None)
        # Read all rows, so that errors of rows are raised before the first step.
        deviations = column_deviations(places)
        units = np.where(deviations > 0.0, deviations, 1.0)
        prior = model_blocks(given.space, self._blocks)
        self._first = _with_scales(given, self._blocks, self._first, prior)
        scales = prior.same_scales(self._first)
        given_inputs = places.inputs(slice(0, rows.n_rows)) if every else plan.inducing
        inducing = initial_inducing(
            given_inputs, places, c, plan.shares(self._blocks), given.seed, default=_inducing(rows.n_rows),
            centre_scales=1.0 / units if scales is None else scales,
        )  # fmt: skip
        effects = self._blocks.n_effects
        state = State(self._first, inducing, units, c, float(plan.jitter), self._learns(), effects)
        counts = _label_counts(given.classifier, rows)
        warn_of_single_count(given.classifier, counts)
        problem = BatchProblem(
            given.space,
            given.gps,
            self._rule,
            given.approximator,
            self._rule.counts(counts, c),
            batches.per_epoch,
            batches.size,
            rows.n_rows,
            prior,
            self._blocks.effect_rows,
            held,
        )
        return problem, state, batches


def _held(rows: Rows, compile_kwargs: Mapping[str, Any]) -> Array | None:
    """Return all inputs if they fit into the memory of the device, to which they are copied once; else None."""
    fit = rows.chunk >= rows.n_rows and rows.n_rows * rows.n_inputs <= _MOST_HELD
    return rows.inputs(slice(0, rows.n_rows)) if fit and runs_in_jax(compile_kwargs) else None


def _with_scales(given: FitTask, blocks: InducingBlocks, first: Array, prior: StepBlocks) -> Array:
    """Return initial hyperparameters. Length scales without an initial value of the user are computed from the data."""
    model = given.classifier.model
    functions = prior.scale_functions()
    started = given.left_off is not None or not np.array_equal(given.first, given.space.initial_point())
    if functions is None or started:
        return first
    free = {each.name for each in given.classifier.hyperparameters if model.rvs_to_initial_values[each] is None}
    return first_scales(given.space, functions, first, free, blocks.places, given.seed)


def _inducing(rows: int) -> int:
    """Return the default number of inducing inputs."""
    return min(max(_FEWEST, rows // _PART), _MOST)


def _label_counts(classifier: GPClassifier, rows: Rows) -> Array:
    """Return the number of rows with each label (number of labels,), or of all rows (1,) without classes."""
    likelihood, c = classifier.likelihood_model, classifier.n_functions
    counts = np.zeros(max(likelihood.n_classes(c), 1))
    for _, observed in checked_chunks(rows, likelihood, c):
        counts += np.bincount(observed, minlength=len(counts)) if likelihood.n_classes(c) else len(observed)
    return counts


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
