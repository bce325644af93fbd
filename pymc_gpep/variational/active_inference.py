"""The run of the informative vector machine by `pm.fit`: read the model, choose rows, learn hyperparameters, report."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.progress_bar import default_progress_theme
from pymc.variational.inference import Inference

from pymc_gpep.approximations.ivm import IVM, ActiveSolution
from pymc_gpep.approximations.registry import check_fits, with_options
from pymc_gpep.argument_types import check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.active_fit import ActiveFit
from pymc_gpep.hyper.active_log_posterior import ActiveLogPosterior, HeldActive
from pymc_gpep.hyper.ends import looked_at
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import Evaluation
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.rounds import climb_in_rounds
from pymc_gpep.hyper.row_labels import checked_labels
from pymc_gpep.rows.registry import rows_of
from pymc_gpep.structure import read_classifier
from pymc_gpep.structure.backends import compile_options
from pymc_gpep.structure.inducing_blocks import InducingBlocks
from pymc_gpep.structure.model_rows import RowInputs
from pymc_gpep.structure.prior_functions import as_gps, functions_of
from pymc_gpep.user_warnings import warn
from pymc_gpep.variational.argument_checks import check_there, taken, whole_seed
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.single_class import warn_of_single_class

__all__ = ["ACTIVE_METHODS", "ActiveInference"]

ACTIVE_METHODS = {IVM.name: IVM}
"""Names for `pm.fit(method=...)`, and what they stand for."""

_ROUNDS = 10
_OF_FIT = ", gp, data, majors and likelihood, besides pm.fit's own"
_NOT_YET = {
    "hyper": "sites that are held make the bound narrower in the hyperparameters than their posterior is",
    "hyper_options": "hyperparameters stay at their maximum",
    "starts": "the search begins at one point, the model's initial one or start=...",
}

_log = logging.getLogger(__name__)


class ActiveInference(Inference):
    """Fit a Gaussian process classifier by the labels of a few rows that are chosen among all.

    `pm.fit(method="ivm", ...)` is this with the keyword arguments below.

    Parameters
    ----------
    method : str
        `"ivm"`.
    model : pm.Model, optional
    random_seed : int, optional
        For the first rows, for candidates and for the sample that the bound is over. Fits with the same seed are the
        same.
    start : dict, optional
        Initial values of hyperparameters, by name.
    gp : pm.gp.Latent or sequence of them, optional
        What made the latent values. If not given, the covariance between any inputs is read from the graph of the
        model, which has that of its own.
    data : pair of arrays, path or Rows, optional
        Inputs and labels in place of those of the model, which is declared on a few of them; inputs of all are held in
        memory. See `pymc_gpep.rows.registry.rows_of`.
    majors : int
        How often active rows are chosen anew while hyperparameters are learned, at most. With 0 these stay at their
        initial values.
    likelihood : str, optional
        Name of the likelihood, if the model has several.
    **options
        Of the approximation: the parameters of `IVM`.

    Raises
    ------
    StructureError
        If the model is no Gaussian process classifier; if `gp` is missing, and the graph of the model does not say what
        the prior is at other inputs.
    ValueError
        If the method does not fit the model's likelihood, or an option has a value that makes no sense.
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
        data: Any = None,
        majors: int = _ROUNDS,
        likelihood: str | None = None,
        **options: Any,
    ) -> None:
        check_there(method, options, _NOT_YET)
        check_whole("majors, the limit on rounds of choosing rows,", majors)
        approximator = with_options(ACTIVE_METHODS[method], options, _OF_FIT, taken(type(self)))
        classifier = read_classifier(pm.modelcontext(model), likelihood)
        check_fits(method, approximator.approximates, classifier.likelihood_model)
        self._approximator = approximator.named(classifier.likelihood_model)
        self._space = Hyperparameters(classifier)
        self._gps = as_gps(gp)
        functions_of(classifier, self._gps)  # what cannot be had is refused before any work
        self._rows = None if data is None else rows_of(data)
        self._seed = whole_seed(random_seed)
        self._first = self._space.initial_point(start, self._seed)
        self._majors = majors
        self.hist: Array = np.empty(0)
        self.state = None

    def fit(
        self,
        n: int = 10000,
        score: bool | str | None = None,
        callbacks: Sequence[Callable[[ActiveFit, Array, int], None]] | None = None,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
        *,
        backend: str | None = None,
        include_transformed: bool = False,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> ActiveFit:
        """Choose active rows and learn hyperparameters in turns, with exact gradients while rows and sites are held.

        Parameters
        ----------
        n : int
            Limit on iterations of the optimiser, of all rounds together.
        score : str or bool, optional
            What rows are chosen by, see `IVM`. True and False, which PyMC means by it, change nothing: the loss, the
            negative log posterior, is always recorded.
        callbacks : list of functions of (fit, losses, iteration), optional
            Called after each iteration, with the sites of the active rows at the hyperparameters reached; StopIteration
            ends the search.
        progressbar : bool
        progressbar_theme : rich.theme.Theme
        backend : str, optional
            PyTensor backend to compile covariances with; without one graphs are interpreted.
        include_transformed : bool
            Taken for compatibility.
        compile_kwargs : dict, optional
            For `pytensor.function`, such as another `mode`.

        Raises
        ------
        ValueError
            If the bound is not finite at the initial hyperparameters.

        Notes
        -----
        An interrupt (Ctrl-C) ends the optimisation; the rows are chosen once more where it was.
        """
        check_whole("n, the limit on iterations of the optimiser,", n)
        approximator = replace(self._approximator, score=score) if isinstance(score, str) else self._approximator
        kwargs = compile_options(backend, compile_kwargs)
        with FitRun(approximator.name, callbacks, progressbar, progressbar_theme) as run:
            run.stage("making the graphs of the covariances")
            classifier = self._space.classifier
            blocks = InducingBlocks(classifier, self._gps, self._space.data, kwargs, self._rows)
            labels = checked_labels(blocks.rows, classifier.likelihood_model, blocks.n_functions)
            warn_of_single_class(classifier, labels)
            rows = RowInputs.of(classifier, blocks)
            log_posterior = ActiveLogPosterior(self._space, approximator, rows, labels, self._seed)
            run.stage("choosing rows")

            def report(history: tuple[Evaluation, ...], held: HeldActive) -> None:
                reached = Optimum(history[-1], False, "Still running.", history)
                run.iteration(
                    len(history) - 1,
                    f"log posterior {history[-1].log_posterior:.4f}",
                    lambda: self._result(approximator, reached, held.solution_at(reached.best), rows),
                    reached.losses,
                )

            optimum, solution = climb_in_rounds(log_posterior, self._first, n, self._majors, report)
            optimum = looked_at(optimum, self._space)
            fit = self._result(approximator, optimum, solution, rows, *run.seconds())
            run.finish(fit)
        self.hist = fit.hist
        _log.info("%s", fit)
        if not fit.converged and self._majors and n:
            warn(fit.message, RuntimeWarning)
        return fit

    def _result(
        self,
        approximator: IVM,
        optimum: Optimum,
        solution: ActiveSolution,
        rows: RowInputs,
        seconds: float = np.nan,
        compile_seconds: float = np.nan,
    ) -> ActiveFit:
        inputs = rows.inputs[solution.selection.rows][None]
        theta = optimum.best.theta
        return ActiveFit(
            self._space, approximator, theta, inputs, optimum, solution, seconds, compile_seconds, self._rows,
            rows.blocks,
        )  # fmt: skip
