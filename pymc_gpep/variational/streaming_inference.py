"""The run of a fit batch by batch by `pm.fit`: read model and data, take steps, report."""

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from typing import Any

import numpy as np
import pymc as pm
from pymc.progress_bar import default_progress_theme
from pymc.variational.inference import Inference
from pymc.variational.updates import adam

from pymc_gpep.approximations.registry import check_fits
from pymc_gpep.approximations.suggestion import did_you_mean
from pymc_gpep.argument_types import check_number, check_switches, check_whole, plain
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.ends import ran_away
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.hyper.optimum import why_stopped
from pymc_gpep.hyper.row_labels import checked_chunks
from pymc_gpep.rows.chunks import column_deviations
from pymc_gpep.rows.contract import Rows
from pymc_gpep.rows.errors import RowError
from pymc_gpep.rows.fingerprint import fingerprint
from pymc_gpep.rows.registry import rows_of
from pymc_gpep.streaming.batches import Batches
from pymc_gpep.streaming.checkpoint import read_checkpoint
from pymc_gpep.streaming.fit import StreamedFit
from pymc_gpep.streaming.methods import STREAMING_METHODS
from pymc_gpep.streaming.rules.registry import RULES, rule_for
from pymc_gpep.streaming.run import Run
from pymc_gpep.streaming.saving import Saved
from pymc_gpep.streaming.state import State
from pymc_gpep.streaming.step import Problem, make_step
from pymc_gpep.structure import GPClassifier, read_classifier
from pymc_gpep.structure.backends import compile_options
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.interpreted import INTERPRETED
from pymc_gpep.structure.likelihood_elsewhere import LikelihoodElsewhere
from pymc_gpep.structure.prior_functions import as_gps, functions_of
from pymc_gpep.user_warnings import warn
from pymc_gpep.variational.argument_checks import check_optimiser, taken, whole_seed
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.free_magnitude import warn_of_free_magnitude
from pymc_gpep.variational.jitter_left_out import warn_of_jitter
from pymc_gpep.variational.single_class import warn_of_single_count
from pymc_gpep.variational.symmetric_start import off_symmetry

__all__ = ["StreamingInference"]

_SMOOTHING = 0.98  # of the objective that progress shows

_OF_ALL_ROWS = {
    "update": "with batches hyperparameters move at each step. Leave it out",
    "client": "batches are taken in one process. Leave it out",
    "hyper": "with batches hyperparameters stay where their steps end. Leave it out",
    "starts": "with batches steps begin at one point, the model's initial one or start=... Leave it out",
    "max_iterations": "with batches n is the number of steps. Leave it out",
    "tolerance": "with batches n is the number of steps. Leave it out",
}
"""Options, and why there are none with batches."""

_log = logging.getLogger(__name__)


class StreamingInference(Inference):
    """Fit a Gaussian process classifier by way of inducing values, a batch of rows at a time.

    `pm.fit(method="sparse_ep", batch_size=..., ...)` is this with `method` and the keyword arguments below.

    Parameters
    ----------
    method : str
        Name of the approximation.
    model : pm.Model, optional
    random_seed : int, optional
        For the inducing inputs to begin with, and the order of the rows.
    start : dict, path or StreamedFit, optional
        Initial values of hyperparameters, by name; or a fit like this one to go on from, or a file of it, as
        `gpep.Checkpoint` writes.
    gp : pm.gp.Latent or sequence of them, optional
        What made the latent values. If not given, the covariance is read from the graph of the model.
    data : pair of arrays, path or Rows, optional
        Inputs and labels in place of those of the model, which is declared on a few of them; they need not fit in
        memory. See `pymc_gpep.rows.registry.rows_of`.
    inducing : int or array (M, d) or (c, M, d), optional
        How many inducing inputs each function has, rows of the data to begin with (k-means++); or these themselves.
    learn_inducing : bool
        Whether inducing inputs are learned with the hyperparameters, or stay where they are.
    shared_inducing : bool
        Whether all functions have the same inducing inputs.
    likelihood : str, optional
        Name of the likelihood, if the model has several.
    batch_size : int, optional
        Most rows of a batch; all if not given. An epoch has as few batches as can be, alike up to a row.
    sites : str, optional
        How the likelihood of a point is taken apart: "quadrature" (not at all) or "pairwise" (the paper's product),
        as for a fit of all rows at once. The first that the method has with the likelihood if not given.
    memory : str, optional
        What is remembered of rows between batches. For `"sparse_ep"` nothing, "stateless", or their "sites", which
        leaves no noise of batches and takes n (4 M + 18 d) bytes for n rows of d sites, with each function's own
        covariance or inducing inputs 4 c M in place of 4 M.
    warmup : int
        Epochs in which hyperparameters and inducing inputs stay, while q is found.
    decay : float, optional
        The step size of q after e epochs is 1 / (1 + decay e) of what it is in the first one.
    jitter : float
        Added to the diagonal of the covariance of the inducing values, relative to its mean. It is raised a
        hundredfold, and once more, where that has no Cholesky factor.
    **options
        Of the memory.

    Raises
    ------
    StructureError
        If the model is no Gaussian process classifier.
    ValueError
        If the method does not fit the model's likelihood, `inducing` not its inputs, or a checkpoint not the fit; if
        inputs are not finite.
    TypeError
        If there is no such option, or if one is something else.
    """

    def __init__(
        self,
        method: str,
        model: pm.Model | None = None,
        random_seed: Any = None,
        start: Mapping[str, Any] | str | PathLike[str] | StreamedFit | None = None,
        gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
        data: Any = None,
        inducing: Any = None,
        learn_inducing: bool = True,
        shared_inducing: bool = False,
        likelihood: str | None = None,
        batch_size: int | None = None,
        sites: str | None = None,
        memory: str | None = None,
        warmup: int = 1,
        decay: float | None = None,
        jitter: float = 1e-6,
        **options: Any,
    ) -> None:
        self._method = method
        memories = {each.name: each for each in STREAMING_METHODS[method]}
        if memory is not None and memory not in memories:
            raise ValueError(f"memory is {memory!r}, but {method} has {' and '.join(map(repr, memories))}.")
        chosen = memories[memory] if memory else STREAMING_METHODS[method][0]
        known = [each.name for each in fields(chosen)]
        if unknown := sorted(set(options) - set(known)):
            for name in _OF_ALL_ROWS.keys() & set(unknown):
                instead = "" if batch_size is None else ", or batch_size"
                raise TypeError(f"{name} is for fits of all rows at once: {_OF_ALL_ROWS[name]}{instead}.")
            raise TypeError(
                f"{method} with batches has no option {', '.join(unknown)}; it has sites, memory, warmup, decay, "
                f"jitter{''.join(f', {name}' for name in known)}, gp, data, inducing, learn_inducing, shared_inducing, "
                "batch_size and likelihood, besides pm.fit's own."
                f"{did_you_mean(unknown, [*known, *taken(type(self))])}"
            )
        self._memory = chosen(**plain(options))
        check_switches(learn_inducing=learn_inducing, shared_inducing=shared_inducing)
        check_whole("warmup, the epochs in which hyperparameters stay,", warmup)
        if batch_size is not None:
            check_whole("batch_size", batch_size, 1)
        decay = chosen.decay if decay is None else decay
        for name, value, least in (("decay", decay, 0.0), ("jitter", jitter, 1e-15)):
            check_number(name, value)
            if not (np.isfinite(value) and value >= least):
                raise ValueError(f"{name} must be a finite number and at least {least:g}, but is {value!r}.")
        classifier = read_classifier(pm.modelcontext(model), likelihood)
        check_fits(method, lambda each: any(rule.fits(each) for rule in RULES), classifier.likelihood_model)
        self._space = Hyperparameters(classifier)
        at_a_row = LikelihoodElsewhere(classifier, 1, self._space.data)(self._space.point(self._space.initial_point()))
        self._rule = rule_for(self._memory.functional, sites, at_a_row)
        self._gps = as_gps(gp)
        functions_of(classifier, self._gps)  # what cannot be had is refused before any work
        self._seed = whole_seed(random_seed)
        self._saved, values = _left_off(start)
        self._first = self._space.initial_point(values, self._seed)
        self._rows = None if data is None else rows_of(data)
        self._given = inducing
        self._learn = bool(learn_inducing)
        self._shared = bool(shared_inducing)
        self._batch_size = None if batch_size is None else int(batch_size)
        self._warmup = int(warmup)
        self._decay = float(decay)
        self._jitter = float(jitter)
        self.hist: Array = np.empty(0)
        self.state = None

    def fit(
        self,
        n: int = 10000,
        score: bool | None = None,
        callbacks: Sequence[Callable[[StreamedFit, Array, int], None]] | None = None,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
        *,
        obj_optimizer: Callable[..., Any] | None = None,
        backend: str | None = None,
        include_transformed: bool = False,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> StreamedFit:
        """Take steps: sites of a batch, then q, then hyperparameters and inducing inputs by a stochastic gradient.

        Parameters
        ----------
        n : int
            Number of steps, of one batch each.
        score : bool, optional
            Taken for compatibility: the loss, an estimate of the negative log posterior, is always recorded.
        callbacks : list of functions of (fit, losses, step), optional
            Called after each step; StopIteration ends the fit and keeps what was learned.
        progressbar : bool
        progressbar_theme : rich.theme.Theme
        obj_optimizer : function, optional
            One of PyMC's, `pm.adam(learning_rate=1e-3)` if not given, or `gpep.falling_adam(...)`.
        backend : str, optional
            PyTensor backend to compile a step with. If not given, and if `compile_kwargs` have no `mode`, its
            operations are worked off one after the other: nothing is compiled.
        include_transformed : bool
            Taken for compatibility.
        compile_kwargs : dict, optional
            For `pytensor.function`, such as another `mode`.

        Notes
        -----
        An interrupt (Ctrl-C) ends the fit and keeps what was learned.
        """
        check_whole("n, the number of steps,", n)
        check_optimiser(obj_optimizer)
        kwargs = {"mode": INTERPRETED} | compile_options(backend, compile_kwargs)
        with FitRun(self._method, callbacks, progressbar, progressbar_theme) as run:
            run.stage("reading the data")
            prior = InducingBlocks(self._space.classifier, self._gps, self._space.data, rows=self._rows)
            if self._saved is None:
                self._first = off_symmetry(self._space, prior, self._first)
            warn_of_free_magnitude(self._space, prior, self._first)
            warn_of_jitter(self._space, prior, self._first)
            problem, state, batches = self._prepare(prior)
            settings = {
                "batch_size": batches.size,
                "per_epoch": batches.per_epoch,
                "seed": self._seed,
                "rows": prior.rows.n_rows,
                "checksum": fingerprint(prior.rows),
                "likelihood": self._space.classifier.likelihood_model.name,
                "method": self._method,
                "memory": repr(self._memory),
                "sites": self._rule.expresses.name,
                "warmup": self._warmup,
                "decay": self._decay,
                "learn_inducing": self._learn,
                "parameters": ", ".join(self._space.parameters),
            }
            before = self._saved or Saved({}, {}, np.empty(0), np.empty(0))
            before.check(settings, state.inducing_inputs())
            run.stage("making the graph of a step")
            step = make_step(problem, state, obj_optimizer or adam(learning_rate=1e-3), kwargs)
            if self._saved is not None:
                state.set_values(self._saved.values)
            schedule = self._memory.schedule(batches.per_epoch, self._decay)
            steps = Run(step, state, batches, schedule, self._warmup * batches.per_epoch, len(before.losses))
            record = np.concatenate([np.stack([before.losses, before.floored]), np.empty((2, n))], axis=1)

            def fit_now(
                ended: str,
                read: Callable[[], Mapping[str, Array]],
                seconds: float = np.nan,
                compile_seconds: float = np.nan,
            ) -> StreamedFit:
                losses, floored = record[:, : steps.done]
                return StreamedFit(
                    self._space, self._method, self._memory, self._rule, prior, settings, losses, floored, ended, read,
                    seconds, compile_seconds, self._rows,
                )  # fmt: skip

            def nothing() -> StreamedFit | None:
                return None

            shown: Callable[[], StreamedFit | None] = nothing

            def so_far() -> StreamedFit:
                nonlocal shown
                fit = fit_now("Still running", state.values)
                shown = weakref.ref(fit)
                return fit

            ended, given_up, smooth, first = "Ended", False, np.nan, steps.done
            steps_began = time.perf_counter()
            try:
                for i in range(first, first + n):
                    if (kept := shown()) is not None:
                        _ = kept.values  # a callback has kept the fit, which does not change with the state
                    taken = steps.advance()
                    record[:, i] = -taken.log_posterior, taken.floored
                    if taken.went_well:
                        smooth = (
                            taken.log_posterior
                            if np.isnan(smooth)
                            else _SMOOTHING * smooth + (1.0 - _SMOOTHING) * taken.log_posterior
                        )
                    left = (time.perf_counter() - steps_began) / (i + 1 - first) * (first + n - i - 1)
                    held_back = f", {100 * taken.floored:.0f} % held back" if taken.floored else ""
                    run.iteration(
                        i + 1,
                        f"epoch {(i + 1) / batches.per_epoch:.2f}, {self._memory.objective} and log prior "
                        f"{smooth:.5g}{held_back}, {_clock(left)} left",
                        so_far,
                        record[0, : steps.done],
                    )
            except RowError as error:
                values = state.held()
                error.fit = fit_now("Stopped at a row that cannot be used", lambda: values)
                raise
            except (StopIteration, KeyboardInterrupt) as stopped:
                ended = why_stopped(stopped).rstrip(".")
            except FloatingPointError as error:
                ended, given_up = f"Given up ({str(error).rstrip('.')})", True
            values = state.held()
            ran = "" if given_up else ran_away(self._space, self._first, values["theta"])
            fit = fit_now(f"{ended} ({ran})" if ran else ended, lambda: values, *run.seconds())
            run.finish(fit)
        self.hist = fit.hist
        _log.info("%s", fit.message)
        if given_up or ran:
            warn(fit.message, RuntimeWarning)
        return fit

    def _prepare(self, prior: InducingBlocks) -> tuple[Problem, State, Batches]:
        """What is fitted, where it begins, and the order of the rows."""
        rows, c = prior.rows, prior.n_functions
        batches = Batches(rows, min(self._batch_size or rows.n_rows, rows.n_rows), self._seed)
        inducing = initial_inducing(self._given, rows, c, self._shared, self._seed)
        deviations = column_deviations(rows)
        units = np.where(deviations > 0.0, deviations, 1.0)
        state = State(self._first, inducing, units, c, self._jitter, self._learn)
        counts = _label_counts(self._space.classifier, rows)
        warn_of_single_count(self._space.classifier, counts)
        problem = Problem(
            self._space,
            self._gps,
            self._rule,
            self._memory,
            self._rule.counts(counts, c),
            batches.per_epoch,
            batches.size,
            rows.n_rows,
        )
        return problem, state, batches


def _left_off(
    start: Mapping[str, Any] | str | PathLike[str] | StreamedFit | None,
) -> tuple[Saved | None, Mapping[str, Any] | None]:
    """Where another fit stands that is to be gone on from, or initial values."""
    if isinstance(start, StreamedFit):
        return start.saved, None
    return (read_checkpoint(start), None) if isinstance(start, str | PathLike) else (None, start)


def _label_counts(classifier: GPClassifier, rows: Rows) -> Array:
    """How many rows have each label, (number of labels,)."""
    likelihood, c = classifier.likelihood_model, classifier.n_functions
    counts = np.zeros(likelihood.n_classes(c))
    for _, observed in checked_chunks(rows, likelihood, c):
        counts += np.bincount(observed, minlength=len(counts))
    return counts


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
