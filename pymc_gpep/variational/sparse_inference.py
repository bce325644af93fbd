"""The run of EP with inducing inputs by `pm.fit`: read the model, learn, report."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.progress_bar import default_progress_theme
from pymc.variational.inference import Inference

from pymc_gpep.approximations.number import Number
from pymc_gpep.approximations.registry import SPARSE_APPROXIMATIONS, check_fits, with_options
from pymc_gpep.argument_types import check_switches, check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.sparse_fit import SparseFit
from pymc_gpep.hyper.ends import interrupted, looked_at
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.hyper.inner_updates import Direction, OptimiserSteps, SignedSteps, climb
from pymc_gpep.hyper.log_posterior import Evaluation
from pymc_gpep.hyper.optimum import FLAT, Optimum, maximise
from pymc_gpep.hyper.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.rows.registry import rows_of
from pymc_gpep.streaming.methods import STREAMING_METHODS
from pymc_gpep.structure import read_classifier
from pymc_gpep.structure.backends import compile_options
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.prior_functions import as_gps, functions_of
from pymc_gpep.user_warnings import warn
from pymc_gpep.variational.argument_checks import check_optimiser, check_there, taken, whole_seed
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.free_magnitude import warn_of_free_magnitude
from pymc_gpep.variational.jitter_left_out import warn_of_jitter
from pymc_gpep.variational.single_class import warn_of_single_class

__all__ = ["SPARSE_METHODS", "SparseInference"]

SPARSE_METHODS = {kind.name: kind for kind in SPARSE_APPROXIMATIONS}
"""Names for `pm.fit(method=...)`, and what they stand for."""

_FLAT = 1e-6  # inducing inputs have many directions in which hardly anything changes
_UPDATES = ("outer", "inner")
_RATE, _MOST = 0.03, 10.0  # of Adam, for a bound, and how many times as long steps may become
_OF_FIT = (
    ", gp, inducing, learn_inducing, shared_inducing, likelihood, update, data, client and batch_size (with it warmup "
    "and decay), besides pm.fit's own"
)
_NOT_YET = {
    "hyper": "hyperparameters stay at their maximum, which is what hyper='map' means for other methods",
    "hyper_options": "hyperparameters stay at their maximum",
    "starts": "the search begins at one point, the model's initial one or start=...",
}

_log = logging.getLogger(__name__)


class SparseInference(Inference):
    """Fit a Gaussian process classifier by way of inducing values, whose inputs stay or are learned.

    `pm.fit(method="sparse_ep", ...)` is this with `method` and the keyword arguments below.

    Parameters
    ----------
    method : str
        Name of the approximation.
    model : pm.Model, optional
    random_seed : int, optional
        For the rows that are inducing inputs.
    start : dict, optional
        Initial values of hyperparameters, by name.
    gp : pm.gp.Latent or sequence of them, optional
        What made the latent values. If not given, the covariance between any inputs is read from the graph of the
        model, which has that of its own.
    inducing : int or array (M, d) or (c, M, d), optional
        How many inducing inputs each function has, rows of the data (k-means++); or these themselves. 50 if not given,
        or as many as rows.
    learn_inducing : bool
        Whether inducing inputs are learned with the hyperparameters, from there. If not given they stay: nothing keeps
        those of EP from fitting the labels, so that its evidence comes out too high, and its predictions too sure.
    shared_inducing : bool
        Whether all functions have the same inducing inputs. With a covariance that they share too, time does not grow
        with the number of functions but for the algebra of the sites.
    likelihood : str, optional
        Name of the likelihood, if the model has several.
    update : {"outer", "inner"}
        When hyperparameters and inducing inputs move: after EP has converged, by L-BFGS, or after each of its sweeps,
        by `obj_optimizer` of `fit`, as in the paper; of `"sparse_vi"` after each step along the natural gradient.
    data : pair of array_like, or path, or Rows, optional
        Rows to fit in place of those of the model, which may then have few or none; as `rows_of` takes them. They are
        read block by block, in every sweep, and never held together.
    client : distributed.Client, optional
        Of a Dask cluster whose workers share the rows out, read them themselves, and keep their sites. The result is
        that of this process alone, up to the order of sums.
    **options
        Of the approximation: the parameters of `SparseEP`, `SparseVI` or `GFITC`.

    Raises
    ------
    StructureError
        If the model is no Gaussian process classifier; if `gp` is missing, and the graph of the model does not say what
        the prior is at other inputs.
    ValueError
        If the method does not fit the model's likelihood, or `inducing` or `data` not its inputs; if inputs are not
        finite. A `RowError` has what had been learned when the row was met in its attribute `fit`.
    TypeError
        If `gp` is something else, or if there is no such option.
    """

    def __init__(
        self,
        method: str,
        model: pm.Model | None = None,
        random_seed: Any = None,
        start: Mapping[str, Any] | None = None,
        gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
        inducing: Any = None,
        learn_inducing: bool = False,
        shared_inducing: bool = False,
        likelihood: str | None = None,
        update: str = "outer",
        data: Any = None,
        client: Any = None,
        **options: Any,
    ) -> None:
        kind = SPARSE_METHODS[method]
        check_there(method, options, _NOT_YET)
        if "batch_size" in options:  # of a method that has them this is another inference
            raise TypeError(f'{method} has no batches. Leave batch_size out, or take method="sparse_ep".')
        _check_memory(method, options.get("memory"))
        check_switches(learn_inducing=learn_inducing, shared_inducing=shared_inducing)
        self._approximator = with_options(kind, options, _OF_FIT, {*taken(type(self)), "batch_size", "warmup", "decay"})
        classifier = read_classifier(pm.modelcontext(model), likelihood)
        check_fits(method, kind.approximates, classifier.likelihood_model)
        self._approximator.named(classifier.likelihood_model, classifier.n_functions, 1)
        self._space = Hyperparameters(classifier)
        self._gps = as_gps(gp)
        functions_of(classifier, self._gps)  # what cannot be had is refused before any work
        self._rows = None if data is None else rows_of(data)
        if data is not None and classifier.likelihood_model.has_parameters:
            raise NotImplementedError(
                f"A {classifier.likelihood_model.name} likelihood is given more than latent values at each row, which "
                "data=(inputs, labels) do not have. Put the rows into the model."
            )
        if update not in _UPDATES:
            raise ValueError(f"update is {update!r}, but must be {' or '.join(map(repr, _UPDATES))}.")
        self._update = update
        if client is not None and update == "inner":
            raise NotImplementedError('update="inner" is not there with client=... yet. Leave one of them out.')
        self._client = client
        self._seed = whole_seed(random_seed)
        self._first = self._space.initial_point(start, self._seed)
        self._given = inducing
        self._learn = learn_inducing
        self._shared = shared_inducing
        self.hist: Array = np.empty(0)
        self.state = None

    def fit(
        self,
        n: int = 10000,
        score: bool | None = None,
        callbacks: Sequence[Callable[[SparseFit, Array, int], None]] | None = None,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
        *,
        backend: str | None = None,
        include_transformed: bool = False,
        compile_kwargs: dict[str, Any] | None = None,
        obj_optimizer: Callable[..., Any] | None = None,
    ) -> SparseFit:
        """Learn hyperparameters, and inducing inputs where these do not stay, with exact gradients.

        With `update="outer"` EP goes to its fixed point at each step of L-BFGS; with `"inner"` one sweep of EP and one
        step of the optimiser take turns.

        Parameters
        ----------
        n : int
            Limit on iterations of the optimiser.
        score : bool, optional
            Taken for compatibility: the loss, the negative log posterior, is always recorded.
        callbacks : list of functions of (fit, losses, iteration), optional
            Called after each iteration; StopIteration ends the fit and keeps the best point so far.
        progressbar : bool
        progressbar_theme : rich.theme.Theme
        backend : str, optional
            PyTensor backend to compile covariances with; without one graphs are interpreted.
        include_transformed : bool
            Taken for compatibility.
        compile_kwargs : dict, optional
            For `pytensor.function`, such as another `mode`.
        obj_optimizer : function, optional
            For `update="inner"`, an optimiser of PyMC such as `pm.adam(learning_rate=0.02)`. Without one each parameter
            has a length of steps of its own, which grows while its slope keeps its sign (Riedmiller and Braun 1993). Of
            `"sparse_vi"` no step may lower the bound; without an optimiser they are Adam's at a rate that begins at
            0.03, grows by 3 % with each step, tenfold at most, and is halved where one was refused.

        Raises
        ------
        ValueError
            If there is an `obj_optimizer` with `update="outer"`; if EP fails at the initial hyperparameters.

        Notes
        -----
        An interrupt (Ctrl-C) ends the optimisation and keeps the best point so far.
        """
        check_whole("n, the limit on iterations of the optimiser,", n)
        check_optimiser(obj_optimizer)
        if obj_optimizer is not None and self._update == "outer":
            raise ValueError('obj_optimizer is for update="inner"; update="outer" takes L-BFGS.')
        kwargs = compile_options(backend, compile_kwargs)
        with FitRun(self._approximator.name, callbacks, progressbar, progressbar_theme) as run:
            run.stage("making the graphs of the covariances")
            blocks = InducingBlocks(self._space.classifier, self._gps, self._space.data, kwargs, self._rows)
            warn_of_free_magnitude(self._space, blocks, self._first)
            warn_of_jitter(self._space, blocks, self._first)
            inducing = initial_inducing(self._given, blocks.rows, blocks.n_functions, self._shared, self._seed)
            of_model = self._space.classifier.likelihood_model, blocks.n_functions, inducing.shape[1]
            approximator = self._approximator.named(*of_model)
            bounded = approximator.number(*of_model) is Number.BOUND
            log_posterior = self._log_posterior(approximator, blocks, inducing)
            warn_of_single_class(self._space.classifier, log_posterior.labels)
            first = log_posterior.flat(self._first)
            run.stage("first solve")

            def report(history: tuple[Evaluation, ...]) -> None:
                reached = Optimum(history[-1], False, "Still running.", history)
                run.iteration(
                    len(history) - 1,
                    f"log posterior {history[-1].log_posterior:.4f}",
                    lambda: self._result(log_posterior, reached),
                    reached.losses,
                )

            flat = _FLAT if self._learn else FLAT
            if self._update == "inner":
                optimum = climb(log_posterior, first, n, report, _direction(obj_optimizer, bounded), flat, bounded)
            else:
                optimum = maximise(log_posterior, first, n, report, flat=flat)
            optimum = looked_at(optimum, self._space, log_posterior)
            if optimum.interrupted:
                run.stage("interrupted: keeping the best point so far")
            fit = self._result(log_posterior, optimum, *run.seconds())
            if not optimum.interrupted or self._client is not None:  # a client may be closed when it is asked for
                try:
                    _ = fit.solution
                except KeyboardInterrupt:
                    fit = self._result(log_posterior, interrupted(optimum, "in a last solve"), *run.seconds())
            run.finish(fit)
        self.hist = fit.hist
        _log.info("%s", fit)
        if not fit.converged:
            warn(fit.message, RuntimeWarning)
        return fit

    def _log_posterior(self, approximator: Any, blocks: InducingBlocks, inducing: Array) -> SparseLogPosterior:
        given = self._space, approximator, blocks, inducing, self._learn
        if self._client is None:
            return SparseLogPosterior(*given)
        from pymc_gpep.cluster.log_posterior import ClusterLogPosterior

        return ClusterLogPosterior(*given, self._client)

    def _result(
        self,
        log_posterior: SparseLogPosterior,
        optimum: Optimum,
        seconds: float = np.nan,
        compile_seconds: float = np.nan,
    ) -> SparseFit:
        best = optimum.best
        theta, inducing = log_posterior.split(best.theta)
        return SparseFit(
            self._space,
            log_posterior.approximator,
            theta,
            inducing,
            optimum,
            lambda: log_posterior.solve(best.theta, best.start),
            seconds,
            compile_seconds,
            self._rows,
            log_posterior.blocks,
        )


def _direction(optimiser: Callable[..., Any] | None, bounded: bool) -> Direction:
    """Steps of `update="inner"`. On a bound those by signs alone are refused too often."""
    if optimiser is not None:
        return OptimiserSteps(optimiser)
    return OptimiserSteps(pm.adam(learning_rate=_RATE), _MOST) if bounded else SignedSteps()


def _check_memory(method: str, memory: Any) -> None:
    """Raise a TypeError if `memory` is what the option of this name is of fits by batches."""
    if isinstance(memory, str) and any(memory == each.name for each in STREAMING_METHODS.get(method, ())):
        raise TypeError(
            f"memory={memory!r} is for fits by batches: give batch_size. Without batches memory is a number, of past "
            "steps that are combined."
        )
