"""The run of `pm.fit` by a method of this package: read the model, search, integrate, report."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from inspect import signature
from numbers import Real
from os import PathLike
from typing import Any

import numpy as np
import pymc as pm
from pymc.progress_bar import default_progress_theme
from pymc.variational.inference import Inference

from pymc_gpep.approximations.methods import takes_bounds, takes_predictors
from pymc_gpep.argument_types import check_switches, check_whole
from pymc_gpep.array_types import Array
from pymc_gpep.fits.callbacks import check_callbacks, read_checkpoint
from pymc_gpep.fits.datasets import check_dims
from pymc_gpep.fits.fit import Fit
from pymc_gpep.graphs.interpreted import compile_options
from pymc_gpep.hyper import HyperPosterior, Maximum, hyper_method
from pymc_gpep.hyper.adaptive import Adaptive
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.tails import check_ends, check_rises
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.rewritten_models import with_bambi_intercept
from pymc_gpep.rows.storage import open_rows
from pymc_gpep.streaming.batch_log_posterior import StepTrace
from pymc_gpep.streaming.state import LeftOff
from pymc_gpep.user_warnings import warn
from pymc_gpep.variational.fit_run import FitRun
from pymc_gpep.variational.model_warnings import warn_of_joint_maximum, warn_of_offset
from pymc_gpep.variational.plans.plan import FitTask, Optimiser, Plan, Search
from pymc_gpep.variational.plans.plans import PLANS, plan_for

_log = logging.getLogger(__name__)
_told = logging.getLogger("pymc")  # Logger that shows the choices of pm.fit.
# Largest number of hyperparameters that are integrated out by default, if latent functions are processes alone.
_MOST_OF_PROCESSES = 4
_WORK = 2e8  # Largest c n³ for which a fit takes seconds.
_AGAIN = 2  # Largest number of searches that start at a node of the integral.
# Difference of the log posterior of a node from the maximum above which the search starts again at the node.
_ABOVE = 0.5
_MANY = 15  # Number of hyperparameters above which a maximum represents their posterior poorly.


class GPInference(Inference):
    """Fit of a Gaussian latent model: latent functions are integrated out, hyperparameters maximised or integrated out.

    `pm.fit(method="nested_ep", ...)` creates an instance with these arguments.

    Parameters
    ----------
    method : str
        Name of the method.
    model : pm.Model, optional
    random_seed : int, optional
        Seed of the initial point, of the choice and order of rows and inducing inputs, and of draws without a seed.
        Fits with the same seed are equal.
    start : dict, Fit or path, optional
        Initial values of hyperparameters by name, or a fit to continue, for example a fit of some of the rows. The
        search then has the step units of that fit. A fit by batches continues a fit with the same arguments, or the
        file of that fit from `gpep.Checkpoint`.
    starts : int
        Number of points at which searches for the maximum start; the best result is returned. The first is the model's
        initial point, or `start`. The next four have length scales and magnitudes from the covariances of the data, and
        further points are draws from the prior. Searches from these points run in parallel on the processors that BLAS
        may use. Results do not depend on the number of processors. Batches have one start.
    likelihood : str, optional
        Name of the observed variable to fit. Other observed variables are then terms of the model. By default all
        observed variables that share Gaussian variables are fitted together.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values. By default the covariance between any inputs is read from the graph of the
        model. Methods on all latent values together do not need processes.
    data : pair of arrays, path or Rows, optional
        Inputs and labels that replace the rows of the model, which may then be declared with a few rows. Methods with
        inducing inputs read these rows block by block, so rows may exceed the memory. Methods with active rows keep the
        inputs in memory. See `pymc_gpep.rows.storage.open_rows`.
    hyper : {"map", "adaptive", "laplace", "grid", "ccd", "importance", "mean_field", "nuts"}, optional
        Treatment of the hyperparameters after the search for their maximum. The default is `"adaptive"` for sums of
        effects, also in means of processes, with up to fifteen hyperparameters. It is `"adaptive"` as well for Gaussian
        processes alone with up to four hyperparameters, if a method on all rows takes seconds. Otherwise it is `"map"`,
        which keeps hyperparameters at the maximum. All other rules integrate over them, at fixed inducing inputs and
        active rows. `"adaptive"` interpolates the log posterior, and adds evaluations until the interpolant is
        accurate. `"laplace"` uses points from the Gaussian at the maximum. `"grid"`, for up to three hyperparameters,
        uses a grid that follows the density. `"ccd"` uses a central composite design, `"importance"` weighted draws.
        `"mean_field"`, for `"vb"` alone, is variational Bayes. `"nuts"`, for methods on all latent values together,
        runs Markov chains. After batches the integral needs sweeps over all rows. See `pymc_gpep.hyper`.
    hyperparameters : str or sequence of str, optional
        Names of Gaussian variables that are hyperparameters. All other Gaussian variables are integrated out if the
        likelihood's argument is affine in them.
    hyper_options : dict, optional
        Options of `hyper` by name.
    **options
        Options of the method, listed by `pymc_gpep.methods`. The page "Options of methods for many rows" of the
        documentation lists options of inducing inputs, active rows and batches.

    Raises
    ------
    StructureError
        If the model cannot be read, or if a required `gp` is missing.
    ValueError
        If the method does not fit the likelihood of the model, if `hyper` is unknown, or if an option has an invalid
        value. A `RowError` has an attribute `fit`: the fit before the invalid row was read.
    TypeError
        If an option is unknown, or has a wrong type.
    MemoryError
        If matrices of all latent values do not fit into memory.
    """

    def __init__(
        self,
        method: str,
        model: pm.Model | None = None,
        random_seed: Any = None,
        start: Mapping[str, Any] | Fit | str | PathLike[str] | None = None,
        starts: int = 1,
        likelihood: str | None = None,
        gp: pm.gp.Latent | Sequence[pm.gp.Latent] | None = None,
        data: Any = None,
        hyper: str | None = None,
        hyperparameters: str | Sequence[str] | None = None,
        hyper_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        kind = plan_for(method, options)
        optional = {"gp": gp, "data": data, "starts": starts if starts != 1 else None}
        refused = {name: value for name, value in optional.items() if value is not None and name not in kind.takes}
        own = {field.name for field in fields(kind)}
        self._plan = kind(**{name: options.pop(name) for name in own & set(options)})
        check_whole("starts", starts, 1)
        read_from = with_bambi_intercept(pm.modelcontext(model))
        read = partial(read_classifier, read_from, likelihood, hyperparameters, starts=True)
        read = partial(read, predictors=takes_predictors(method), priors=kind.sums, bounds=takes_bounds(method))
        classifier = read(means=kind.sums)
        if not kind.sums:
            classifier.check_one()
        check_dims(classifier)
        approximator = self._plan.approximation(method, classifier, {**options, **refused}, taken())
        if kind.sums and approximator.inverts_prior and not classifier.prior.singular:
            classifier = read()
        space = Hyperparameters(self._plan.read(classifier))
        if not self._plan.centres:
            warn_of_offset(classifier)
        gps, rows = as_gps(gp), None if data is None else open_rows(data)
        left_off, values, self._plan = _begun(start, self._plan, kind.by_steps)
        seed = 0 if random_seed is None else int(np.random.default_rng(random_seed).integers(2**30))
        first = space.initial_point(values, seed)
        self._why_maximum = _why_maximum(space, kind.by_steps, asked=hyper is not None)
        hyper = hyper or (Maximum.name if kind.by_steps else _default_hyper(space, self._plan, dense=kind.sums))
        self._hyper = hyper_method(hyper, hyper_options)
        self._hyper.check(approximator, method)
        units = start.trace.units if isinstance(start, Fit) and _same_parameters(start, space) else None
        self._given = FitTask(method, space, approximator, gps, rows, seed, first, left_off, starts, units)
        self._plan.check(self._given)
        self._search: Search | None = None
        self._fit: Fit | None = None
        self.hist: Array = np.empty(0)
        self.state = None

    @property
    def approx(self) -> Fit | None:
        """The latest fit; None before the first."""
        return self._fit

    def fit(
        self,
        n: int = 10000,
        score: bool | None = None,
        callbacks: Sequence[Callable[[Fit, Array, int], None]] | None = None,
        progressbar: bool = True,
        progressbar_theme: Any = default_progress_theme,
        *,
        obj_optimizer: Optimiser | None = None,
        backend: str | None = None,
        include_transformed: bool = False,
        compile_kwargs: dict[str, Any] | None = None,
    ) -> Fit:
        """Search for the maximum of the hyperparameters, and integrate over them unless `hyper="map"`.

        Parameters
        ----------
        n : int
            Largest number of iterations of the optimiser, from each start; with active rows, in all rounds together.
            For batches it is the number of steps.
        score : bool, optional
            Argument of PyMC without effect. Losses, which are negative log posteriors, are always recorded.
        callbacks : list of functions of (fit, losses, iteration), optional
            Functions that are called after each iteration or step, with a fit that later iterations do not change.
            `StopIteration` ends the fit at the best point so far. With several starts, `losses` belong to the search
            with the latest step, and `iteration` counts iterations of all searches. All searches except the first run
            in parallel, but callbacks are called one at a time, in the thread of the fit.
        progressbar : bool
        progressbar_theme : rich.theme.Theme
        obj_optimizer : function or float, optional
            Optimiser of PyMC, for gradient steps. For batches a number is the rate of Adam (default 0.03), which falls
            to 0 within the `n` steps (Loshchilov and Hutter 2017, equation 5). For `update="inner"` the default has a
            separate step length for each parameter, which grows while the sign of its slope is constant (Riedmiller and
            Braun 1993). For `"sparse_vi"` a step that lowers the bound is rejected. The default is then Adam with an
            initial rate of 0.03. The rate grows by 3 % in each step, at most tenfold, and is halved after a rejected
            step.
        backend : str, optional
            PyTensor backend that compiles graphs: "numba", "c" or "jax". By default graphs are interpreted, since
            compilation takes longer than most fits.
        include_transformed : bool
            Whether `state` includes unconstrained values.
        compile_kwargs : dict, optional
            Arguments of `pytensor.function`, such as `mode`.

        Raises
        ------
        TypeError
            If `n` is not a whole number, or `obj_optimizer` has a wrong type.
        ValueError
            If the approximation fails at the first point, or if the method does not use `obj_optimizer`.
        ModuleNotFoundError
            If the backend is JAX, and JAX is not installed.

        Notes
        -----
        An interrupt (Ctrl-C) ends the search, or the integral over hyperparameters. The fit is then at the best point
        so far, and its posterior is computed when it is first used.
        """
        check_whole(f"n, {self._plan.limit}", n)
        if score is not None:
            check_switches(score=score)
        _check_optimiser(obj_optimizer, self._given.method, self._plan)
        given = self._given
        kwargs = compile_options(backend, compile_kwargs)
        with FitRun(given.method, callbacks, progressbar, progressbar_theme) as run:
            # Make a new search: the data of the model may have changed since an earlier fit.
            self._search = self._plan.begin(given, run, kwargs, obj_optimizer)
            fit = self._run(run, self._search, n, include_transformed, progressbar)
        fit = self._reported(fit, n)
        warn_of_joint_maximum(fit)
        return fit

    def refine(self, n: int, progressbar: bool = True, progressbar_theme: Any = default_progress_theme) -> Fit:
        """Continue the latest fit for at most `n` more iterations or steps; see `Fit.refine`.

        Raises
        ------
        TypeError
            If `n` is not a whole number.
        ValueError
            If `fit` was not called before.
        """
        if self._fit is None:
            raise ValueError("refine() needs a fit: call fit() first.")
        return self._refined(self._fit, n, None, progressbar, progressbar_theme)

    def _refined(
        self,
        fit: Fit,
        n: int,
        callbacks: Sequence[Any] | None,
        progressbar: bool,
        progressbar_theme: Any = default_progress_theme,
    ) -> Fit:
        check_whole(f"n, {self._plan.limit}", n)
        check_callbacks(callbacks, self._given.method, self._plan.by_steps)
        assert self._search is not None
        with FitRun(self._given.method, callbacks, progressbar, progressbar_theme) as run:
            refined = self._run(run, self._search, n, fit.include_transformed, progressbar, fit)
        return self._reported(refined, n)

    def _run(
        self, run: FitRun, search: Search, n: int, transformed: bool, progressbar: bool, begin: Fit | None = None
    ) -> Fit:
        """Search from the first point, or from an earlier fit."""

        def fit_of(log_posterior: LogPosterior, trace: Trace, **parts: Any) -> Fit:
            own = partial(Fit, seed=self._given.seed, again=self._refined, why_maximum=self._why_maximum)
            fit = own(log_posterior, trace, **parts)
            fit.include_transformed = transformed
            return fit

        if self._hyper.name != Maximum.name and not self._plan.by_steps and begin is None:
            check_rises(search.log_posterior, self._given.first)
        search.run(n, run, fit_of, begin)
        log_posterior, trace = search.log_posterior, search.trace
        hyper, trace = self._integrated(run, log_posterior, trace, progressbar)
        for _ in range(_AGAIN):
            if (node := _higher(hyper, trace)) is None:
                break
            run.stage("a node of the integral is above the maximum: searching again from there")
            search.run(n, run, fit_of, fit_of(log_posterior, Optimum(node, False, "", (node,))))
            assert isinstance(trace, Optimum)
            assert isinstance(search.trace, Optimum)
            trace = trace.followed_by(search.trace)
            hyper, trace = self._integrated(run, log_posterior, trace, progressbar)
        if hyper is not None and hyper.settles and hyper.converged and isinstance(trace, Optimum):
            trace = trace.settled()
        seconds, compiling = run.seconds()
        fit = fit_of(log_posterior, trace, hyper_posterior=hyper, seconds=seconds, compile_seconds=compiling)
        if not trace.interrupted or search.settles:  # Skip the solve after an interrupt.
            try:
                _ = fit.solution
                fit.seconds, fit.compile_seconds = run.seconds()
            except KeyboardInterrupt:
                trace = trace.broken_off("the search ended, and its last solve was interrupted")
                fit = fit_of(log_posterior, trace, seconds=seconds, compile_seconds=compiling)
        run.finish(fit)
        return fit

    def _integrated(
        self, run: FitRun, log_posterior: LogPosterior, trace: Trace, progressbar: bool
    ) -> tuple[HyperPosterior | None, Trace]:
        """Return the nodes of the hyperparameters (None for the maximum), and the trace of the search."""
        # No integral is computed after an interrupt, or without hyperparameters.
        if trace.interrupted:
            run.stage("interrupted: keeping the best point so far")
            return None, trace
        if self._hyper.name == Maximum.name or not log_posterior.space.size:
            return None, trace
        run.stage(f"integrating over hyperparameters (hyper={self._hyper.name!r})")
        try:
            held = log_posterior.held(trace.best)
            at = trace if held is log_posterior else _evaluated(held, trace)
            if isinstance(at, Optimum):
                check_ends(held, at.best, at.deviations)
            return self._hyper.integrate(held, at, self._given.seed, progressbar), trace  # type: ignore[arg-type]
        except ValueError as error:
            vars(error)["fit"] = Fit(log_posterior, trace, seed=self._given.seed, again=self._refined)
            error.add_note("The attribute fit of this error is the fit with hyperparameters at their maximum.")
            raise
        except KeyboardInterrupt:
            run.stage("interrupted: hyperparameters stay at their maximum")
            why = f"the maximum was reached, but hyper={self._hyper.name!r} was interrupted"
            return None, trace.broken_off(why)

    def _reported(self, fit: Fit, n: int) -> Fit:
        self._fit, self.hist = fit, fit.hist
        recipes = fit.classifier.prior.recipes if fit.classifier.prior.flat else {}
        if flat := tuple(str(v.name) for v, each in recipes.items() if each.flat and not each.bounded):
            _tell_of_flat(flat)
        _log.info("%s", fit.message if fit.trace.unit == "step" else fit)
        assert self._search is not None
        if self._search.alarming(fit, n):
            warn(fit.message, RuntimeWarning)
        if fit.converged and (why := self._plan.doubt(fit)):
            warn(why)
        return fit


def taken() -> list[str]:
    """Return the names of all arguments of `pm.fit` that are not options of approximations."""
    of_plans = [field.name for plan in PLANS for field in fields(plan)]
    names = [*signature(GPInference).parameters, *signature(GPInference.fit).parameters, *of_plans]
    return [name for name in dict.fromkeys(names) if name not in {"self", "method", "options"}]


def _higher(hyper: HyperPosterior | None, trace: Trace) -> Evaluation | None:
    """Return the node of highest log posterior if it is clearly above the maximum and can be the start of a search."""
    if hyper is None or not isinstance(trace, Optimum):
        return None
    top = max(hyper.nodes, key=lambda node: node.log_posterior)
    same = top.theta.size == trace.best.theta.size
    return top if same and top.log_posterior > trace.best.log_posterior + _ABOVE else None


def _same_parameters(fit: Fit, space: Hyperparameters) -> bool:
    return fit.log_posterior.space.parameters == space.parameters


def _evaluated(log_posterior: LogPosterior, trace: Trace) -> Optimum:
    """Return the maximum of a search as evaluated by another log posterior."""
    best = log_posterior(log_posterior.theta(trace.best.theta))
    return Optimum(best, trace.converged, "", (best,))


def _begun(start: Any, plan: Any, batches: bool) -> tuple[LeftOff | None, Mapping[str, Any] | None, Any]:
    """Return the state of the fit `start`, initial values, and the plan with the inducing inputs of that fit."""
    if isinstance(start, Fit):
        if batches and isinstance(start.trace, StepTrace):
            return start.trace.left_off, None, plan
        # Without inducing inputs all rows are fitted exactly, and only hyperparameters are learned.
        anchored = "inducing" in plan.names() and not plan.sums
        if anchored and plan.inducing is None and hasattr(start, "inducing_inputs"):
            rows = start.classifier.n_points if start.rows is None else start.rows.n_rows
            # By default, batch fits of few rows use all rows as inducing inputs.
            if not (batches and start.inducing_inputs.shape[-2] == rows):
                plan = replace(plan, inducing=start.inducing_inputs)
        return None, {str(name): value for name, value in start.hyperparameters.items()}, plan
    if batches and isinstance(start, str | PathLike):
        return read_checkpoint(start), None, plan
    return None, start, plan


def _default_hyper(space: Hyperparameters, plan: Plan, dense: bool) -> str:
    """Return the default treatment of hyperparameters. Warn if there are many of them."""
    size, classifier = space.size, space.classifier
    if not size:
        return Maximum.name
    if not classifier.prior.effects:
        work = plan.work(classifier)
        return Adaptive.name if dense and size <= _MOST_OF_PROCESSES and work <= _WORK else Maximum.name
    if size <= _MANY:
        return Adaptive.name
    names = ", ".join(dict.fromkeys(space.owners))
    warn(
        f"{size} hyperparameters, {names}, stay at their maximum, which ignores their uncertainty. "
        "To integrate over them, sample the marginal model: pm.sample(model=gpep.marginalize(model))."
    )
    return Maximum.name


def _why_maximum(space: Hyperparameters, by_steps: bool, *, asked: bool) -> str:
    """Return for messages the reason why hyperparameters are at their maximum."""
    if asked:
        return "hyper='map' was asked for"
    if by_steps:
        return "the default for batches is hyper='map'"
    if not space.classifier.prior.effects:
        return f"the default of {space.size} hyperparameters of a Gaussian process of this size is hyper='map'"
    return f"the default for {space.size} hyperparameters is hyper='map'"


def _check_optimiser(obj_optimizer: Any, method: str, plan: Plan) -> None:
    """Raise an error unless `obj_optimizer` is None, a function like `pm.adam(...)`, or the rate for batches."""
    if obj_optimizer is None:
        return
    if "obj_optimizer" not in plan.takes:
        raise TypeError(f"{method} has no option obj_optimizer: it uses L-BFGS. Leave obj_optimizer out.")
    if callable(obj_optimizer):
        return
    optimisers = f"an optimiser of PyMC, such as pm.adam(learning_rate=0.01), but is {obj_optimizer!r}"
    if isinstance(obj_optimizer, bool) or not isinstance(obj_optimizer, Real):
        rate = "a learning rate of Adam or " if plan.by_steps else ""
        raise TypeError(f"obj_optimizer must be {rate}{optimisers}.")
    if not plan.by_steps:
        raise TypeError(f"obj_optimizer must be {optimisers}. Learning rates are for fits with batch_size=...")
    if not 0.0 < float(obj_optimizer) < np.inf:
        raise ValueError(f"obj_optimizer as a learning rate must be positive and finite, but is {obj_optimizer}.")


@cache
def _tell_of_flat(names: tuple[str, ...]) -> None:
    """Log that variables with a flat prior are integrated out, once in each Python process."""
    _told.info(
        "Flat coefficients %s are integrated, as by restricted maximum likelihood (REML). Maximum likelihood keeps "
        "them at their maximum: pm.fit(..., hyperparameters=%s).",
        ", ".join(map(repr, names)), list(names),
    )  # fmt: skip
