"""The run of an approximation by `pm.fit`: read the model, optimise the hyperparameters, report."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.progress_bar import default_progress_theme
from pymc.variational.inference import Inference

from pymc_gpep.approximations import approximator
from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.hyper import Maximum, hyper_method
from pymc_gpep.hyper.ends import interrupted, looked_at
from pymc_gpep.hyper.hyperparameters import check_start
from pymc_gpep.hyper.log_posterior import Evaluation, LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.several_starts import maximise_from
from pymc_gpep.hyper.starts import starting_points
from pymc_gpep.structure import read_classifier
from pymc_gpep.structure.assembly import evaluate
from pymc_gpep.structure.backends import compile_options
from pymc_gpep.structure.memory import check_memory
from pymc_gpep.variational.approximation import GPApproximation, warn_if_nothing_learned, warn_unless_converged
from pymc_gpep.variational.argument_checks import taken, whole_seed
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.single_class import warn_of_single_class

__all__ = ["GPInference"]

_OF_FIT = (
    ", hyper, hyper_options, starts and likelihood, besides pm.fit's own: n, the limit on iterations of the optimiser, "
    "start, random_seed, callbacks and progressbar"
)

_log = logging.getLogger(__name__)


class GPInference(Inference):
    """Fit a Gaussian process classifier: latent values integrated out, hyperparameters at their maximum or as well.

    `pm.fit(method="nested_ep", ...)` is this with `method` and the keyword arguments below.

    Parameters
    ----------
    method : str
        Name of the approximation.
    model : pm.Model, optional
    random_seed : int, optional
        For the initial point, and for draws that are given no seed of their own.
    start : dict, optional
        Initial values of hyperparameters, by name.
    starts : int
        From how many points the maximum of the hyperparameters is looked for; the best is kept. The first is the
        model's initial point, or `start`. Others have length scales and magnitudes that the covariances of the data
        suggest, and after four of these are draws from the prior. Searches from these share the processors that BLAS
        may use; what they find does not depend on how many that are.
    likelihood : str, optional
        Name of the likelihood, if the model has several.
    hyper : {"map", "laplace", "ccd", "importance", "mean_field", "nuts"}
        What is done about the hyperparameters once their maximum is found. `"map"`: they stay there. The others
        integrate over them: `"laplace"` by points from the Gaussian at the maximum, `"ccd"` by a central composite
        design, `"importance"` by weighted draws, `"mean_field"`, which is for `"vb"` alone, by variational Bayes,
        `"nuts"` by Markov chains. See `pymc_gpep.hyper`.
    hyper_options : dict, optional
        Options of `hyper` by name.
    **options
        Of the approximation: the parameters of its class, `NestedEP` and so on.

    Raises
    ------
    StructureError
        If the model is no Gaussian process classifier.
    ValueError
        If the method does not fit the model's likelihood, or if there is no such `hyper`.
    TypeError
        If an option is not one of the approximation's, or not one of `hyper`'s.
    """

    def __init__(
        self,
        method: str,
        model: pm.Model | None = None,
        random_seed: Any = None,
        start: Mapping[str, Any] | None = None,
        starts: int = 1,
        likelihood: str | None = None,
        hyper: str = "map",
        hyper_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        model = pm.modelcontext(model)
        self._classifier = read_classifier(model, likelihood)
        self._approximator = approximator(
            method, self._classifier.likelihood_model, options, _OF_FIT, taken(type(self))
        )
        check_memory(self._classifier, f"method={self._approximator.name!r}", learned=True)
        self._hyper = hyper_method(hyper, hyper_options)
        self._hyper.check(self._approximator)
        check_start(start)
        self._start = dict(start or {})
        check_whole("starts", starts, 1)
        self._starts = starts
        self._seed = whole_seed(random_seed)
        self._approx = GPApproximation(model=model, random_seed=self._seed)
        self._log_posterior: LogPosterior | None = None
        self._kwargs: dict[str, Any] = {}
        self._include_transformed = False
        self.hist: Array = np.empty(0)
        self.state = None

    @property
    def approx(self) -> GPApproximation:
        """The approximation that is being fitted."""
        return self._approx

    def fit(
        self,
        n: int = 10000,
        score: bool | None = None,
        callbacks: Sequence[Callable[[GPApproximation, np.ndarray, int], None]] | None = None,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
        *,
        backend: str | None = None,
        include_transformed: bool = False,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> GPApproximation:
        """Optimise the hyperparameters, and integrate over them where that is wanted.

        Parameters
        ----------
        n : int
            Limit on iterations of the optimiser, from each start.
        score : bool, optional
            Taken for compatibility: the loss, the negative log posterior, is always recorded.
        callbacks : list of functions of (approximation, losses, iteration), optional
            Called after each iteration; StopIteration ends the fit and keeps the best point so far. With several starts
            the losses are those of the search that has come a step further, of which the later ones run side by side,
            and iterations are counted on. Callbacks are always called in the thread of the fit, one at a time.
        progressbar : bool
        progressbar_theme : rich.theme.Theme
        backend : str, optional
            PyTensor backend to compile the graph of the log posterior with: "numba", "c", "jax". Without one the graph
            is interpreted, since compiling takes longer than the few dozen evaluations that a fit needs.
        include_transformed : bool
            Whether `state` includes unconstrained values.
        compile_kwargs : dict, optional
            For `pytensor.function`, such as another `mode`.

        Raises
        ------
        TypeError
            If `n` is no whole number.
        ModuleNotFoundError
            If the backend is JAX, and JAX is not installed.

        Notes
        -----
        An interrupt (Ctrl-C) ends the optimisation, or the integration over hyperparameters, and keeps the best point
        so far; the posterior there is computed when it is first asked for.
        """
        check_whole("n, the limit on iterations of the optimiser,", n)
        self._include_transformed = include_transformed
        self._kwargs = compile_options(backend, compile_kwargs)
        self._log_posterior = None  # the model may have other data than in an earlier fit
        warn_of_single_class(self._classifier, *evaluate([self._classifier.labels]))
        return self._run(n, callbacks or (), progressbar, progressbar_theme)

    def refine(self, n: int, progressbar: bool = True, progressbar_theme: Any = default_progress_theme) -> None:
        """Go on from the hyperparameters and sites reached, for at most `n` more iterations.

        With the data, the backend and the other options of `fit`.

        Raises
        ------
        TypeError
            If `n` is no whole number.
        ValueError
            If there was no fit yet.
        """
        check_whole("n, the limit on iterations of the optimiser,", n)
        self._run(n, (), progressbar, progressbar_theme, self._approx.optimum.best)

    def _run(
        self,
        n: int,
        callbacks: Sequence[Callable[[GPApproximation, np.ndarray, int], None]],
        progressbar: bool,
        theme: Any,
        begin: Evaluation | None = None,
    ) -> GPApproximation:
        """Fit, from the model's initial point or from an earlier evaluation."""
        with FitRun(self._approximator.name, callbacks, progressbar, theme) as run:
            if self._log_posterior is None:
                run.stage("making the graph of the log posterior")
                self._log_posterior = LogPosterior(self._classifier, self._approximator, self._kwargs)
                self._log_posterior.prepare()
            log_posterior = self._log_posterior
            of_graph, _ = run.seconds()
            run.stage("first solve")

            iterations = 0

            def report(history: tuple[Evaluation, ...], which: int) -> None:
                nonlocal iterations
                last = history[-1]
                iterations += 1
                state = f"log posterior {last.log_posterior:.4f}, log evidence {last.evidence:.4f}"
                reached = Optimum(last, False, "Still running.", history)

                def so_far() -> GPApproximation:
                    return self._approx.showing(
                        Fit(log_posterior, reached, Maximum().integrate(log_posterior, reached))
                    )

                if len(points) > 1:
                    state = f"start {which + 1}: {state}"
                run.iteration(iterations, state, so_far, reached.losses)

            if begin is None:
                first = log_posterior.initial_point(self._start, self._seed)
                points = starting_points(log_posterior, first, self._starts, self._seed)
            else:
                points = begin.theta[None]
            optimum = maximise_from(log_posterior, points, n, report, None if begin is None else begin.start)
            optimum = looked_at(optimum, log_posterior, log_posterior)
            # With nothing to integrate over, all ways to do it are the same.
            hyper = self._hyper if log_posterior.value_vars and not optimum.interrupted else Maximum()
            if optimum.interrupted:
                run.stage("interrupted: keeping the best point so far")
            elif not isinstance(hyper, Maximum):
                run.stage(f"integrating over hyperparameters (hyper={hyper.name!r})")
            try:
                nodes = hyper.integrate(log_posterior, optimum, self._seed, progressbar)
            except KeyboardInterrupt:
                run.stage("interrupted: hyperparameters stay at their maximum")
                why = f"the maximum was reached, but hyper={hyper.name!r} was interrupted"
                optimum = replace(optimum, converged=False, message=why, interrupted=True)
                nodes = Maximum().integrate(log_posterior, optimum)
            fit = Fit(log_posterior, optimum, nodes)
            self._approx.show(fit)
            if not optimum.interrupted:  # then nobody waits for what takes work until it is asked for
                try:
                    self._approx.groups[0].settle()
                except KeyboardInterrupt:
                    fit = replace(fit, optimum=interrupted(optimum, "in a last solve"))
                    self._approx.show(fit)
            run.finish(self._approx)
        seconds, compiling = run.seconds()
        self._approx.show(replace(fit, seconds=seconds - of_graph, compile_seconds=compiling + of_graph))
        self.hist = optimum.losses
        for group in self._approx.groups:
            group.include_transformed = self._include_transformed
        _log.info("%s", self._approx)
        warn_unless_converged(self._approx)
        warn_if_nothing_learned(self._approx)
        return self._approx
