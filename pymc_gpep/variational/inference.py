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
from pymc_gpep.hyper.tails import check_ends
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
_told = logging.getLogger("pymc")  # logger that shows the choices of pm.fit
_MOST_OF_PROCESSES = 4  # Largest number of hyperparameters, of processes only, that are integrated by default.
_WORK = 2e8  # Largest c n³ for which a fit takes seconds.
_AGAIN = 2  # Largest number of searches that start at a node.
_ABOVE = 0.5  # Smallest excess of such a node's log posterior over the previous end.
_MANY = 15  # With more hyperparameters a maximum represents their posterior poorly.


class GPInference(Inference):
    """Fit a Gaussian process model: latent functions integrated out, hyperparameters at their maximum or as well.

    `pm.fit(method="nested_ep", ...)` is this with `method` and the keyword arguments below.

    Parameters
    ----------
    method : str
        Name of the method.
    model : pm.Model, optional
    random_seed : int, optional
        For the initial point, rows that are chosen or inducing inputs, their order, and for draws that are given no
        seed of their own. Fits with the same seed are the same.
    start : dict, Fit or path, optional
        Initial values of hyperparameters, by name; or a fit to continue, such as a fit of some of the rows. Its search
        gives the units of the first steps. A fit by batches continues a fit with the same arguments, or its file, as
        `gpep.Checkpoint` writes.
    starts : int
        Number of points from which the maximum of the hyperparameters is searched; the best is kept. The first is the
        model's initial point, or `start`. The next four points have length scales and magnitudes that the covariances
        of the data suggest, and further points are draws from the prior. Searches from these share the processors that
        BLAS may use; their results do not depend on the number of processors. Batches have one start.
    likelihood : str, optional
        Name of the observed variable to fit, if further observed variables stay terms of the model. If not given, all
        observed variables that share Gaussian variables are fitted together.
    gp : pm.gp.Latent or sequence of them, optional
        The processes that made the latent values. If not given, the covariance between any inputs is read from the
        graph of the model. Methods that work on all latent values together need neither.
    data : pair of arrays, path or Rows, optional
        Inputs and labels in place of the model's, which is then declared on a few rows. Methods with inducing inputs
        read them block by block, so that they need not fit in memory. Active rows hold the inputs. See
        `pymc_gpep.rows.storage.open_rows`.
    hyper : {"map", "adaptive", "laplace", "grid", "ccd", "importance", "mean_field", "nuts"}, optional
        Treatment of the hyperparameters once their maximum is found. The default is `"adaptive"` for sums of effects,
        also in means of processes, with up to fifteen hyperparameters. So it is for Gaussian processes alone with up
        to four, if the fit takes seconds by a method on all rows together. Otherwise it is `"map"`, which keeps
        hyperparameters at the maximum. All other rules integrate over them, at fixed inducing inputs and active rows.
        `"adaptive"` interpolates the log posterior, and evaluates it again until the interpolant is accurate.
        `"laplace"` takes points from the Gaussian at the maximum. `"grid"`, for up to three, takes a grid that follows
        the density. `"ccd"` takes a central composite design, and `"importance"` weighted draws. `"mean_field"`, which
        is for `"vb"` alone, is variational Bayes. `"nuts"`, for methods that work on all latent values together, runs
        Markov chains. After batches the integral takes sweeps over all rows. See `pymc_gpep.hyper`.
    hyperparameters : sequence of str, optional
        Names of Gaussian variables that stay hyperparameters. Other Gaussian variables are integrated out if the
        likelihood's argument is affine in them.
    hyper_options : dict, optional
        Options of `hyper` by name.
    **options
        Options of the method, as `pymc_gpep.methods` lists them. The page "Options of methods for many rows" of the
        documentation lists options of inducing inputs, active rows and batches.

    Raises
    ------
    StructureError
        If the model is not a Gaussian process classifier; if `gp` is missing where it is needed.
    ValueError
        If the method does not suit the model's likelihood, or if `hyper` is unknown. It is raised as well if an option
        has an invalid value. The attribute `fit` of a `RowError` holds the fit as it was when the row was met.
    TypeError
        If an option is unknown, or has a wrong type.
    MemoryError
        If a method that works on all latent values together cannot fit into memory.
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
        hyperparameters: Sequence[str] = (),
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
        """The fit that was made; None before there is one."""
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
        """Search for hyperparameters, and integrate over them unless `hyper="map"`.

        Parameters
        ----------
        n : int
            Limit on iterations of the optimiser, from each start; with active rows of all rounds together. By batches
            it is the number of steps, of one batch each.
        score : bool, optional
            Whether losses are recorded, as PyMC has it. It changes nothing: the loss, the negative log posterior, is
            always recorded.
        callbacks : list of functions of (fit, losses, iteration), optional
            Functions called after each iteration or step, with a fit that never changes; StopIteration ends the fit and
            keeps the best point so far. With several starts the losses belong to the search that made the last step,
            and iterations are counted together. All searches but the first run side by side. Callbacks are always
            called in the thread of the fit, one at a time.
        progressbar : bool
        progressbar_theme : rich.theme.Theme
        obj_optimizer : function or float, optional
            Optimiser of PyMC, for steps by a gradient. Batches take a number as the rate of Adam, 0.03 if not given.
            The rate falls to 0 in the `n` steps (Loshchilov and Hutter 2017, equation 5). With `update="inner"`:
            without one each parameter has a length of steps of its own, which grows while its slope keeps its sign
            (Riedmiller and Braun 1993). With `"sparse_vi"` no step may lower the bound. Without an optimiser its steps
            are Adam's at a rate that begins at 0.03. The rate grows by 3 % with each step, tenfold at most, and is
            halved where a step was refused.
        backend : str, optional
            PyTensor backend to compile graphs with: "numba", "c", "jax". Without one graphs are interpreted, since
            compiling takes longer than most fits.
        include_transformed : bool
            Whether `state` includes unconstrained values.
        compile_kwargs : dict, optional
            For `pytensor.function`, such as another `mode`.

        Raises
        ------
        TypeError
            If `n` is not a whole number, or `obj_optimizer` something else.
        ValueError
            If the approximation fails at the first point, or if there is an `obj_optimizer` that is not needed.
        ModuleNotFoundError
            If the backend is JAX, and JAX is not installed.

        Notes
        -----
        An interrupt (Ctrl-C) ends the search, or the integral over hyperparameters, and keeps the best point so far.
        The posterior there is computed when it is first asked for.
        """
        check_whole(f"n, {self._plan.limit}", n)
        if score is not None:
            check_switches(score=score)
        _check_optimiser(obj_optimizer, self._given.method, self._plan)
        given = self._given
        kwargs = compile_options(backend, compile_kwargs)
        with FitRun(given.method, callbacks, progressbar, progressbar_theme) as run:
            # The model may have other data than in an earlier fit.
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
        if not trace.interrupted or search.settles:  # a user who interrupts does not wait for another solve
            try:
                _ = fit.solution
                fit.seconds, fit.compile_seconds = run.seconds()
            except KeyboardInterrupt:
                trace = trace.broken_off("the search ended, and was interrupted in a last solve")
                fit = fit_of(log_posterior, trace, seconds=seconds, compile_seconds=compiling)
        run.finish(fit)
        return fit

    def _integrated(
        self, run: FitRun, log_posterior: LogPosterior, trace: Trace, progressbar: bool
    ) -> tuple[HyperPosterior | None, Trace]:
        """The nodes that stand for the hyperparameters; None for one at the maximum."""
        # Without hyperparameters all methods of integration agree.
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
    """Names of all that `pm.fit` takes, besides the options of approximations."""
    of_plans = [field.name for plan in PLANS for field in fields(plan)]
    names = [*signature(GPInference).parameters, *signature(GPInference.fit).parameters, *of_plans]
    return [name for name in dict.fromkeys(names) if name not in {"self", "method", "options"}]


def _higher(hyper: HyperPosterior | None, trace: Trace) -> Evaluation | None:
    """Return the highest node if it is clearly above the end of a search that can go on from there, else None."""
    if hyper is None or not isinstance(trace, Optimum):
        return None
    top = max(hyper.nodes, key=lambda node: node.log_posterior)
    same = top.theta.size == trace.best.theta.size
    return top if same and top.log_posterior > trace.best.log_posterior + _ABOVE else None


def _same_parameters(fit: Fit, space: Hyperparameters) -> bool:
    return fit.log_posterior.space.parameters == space.parameters


def _evaluated(log_posterior: LogPosterior, trace: Trace) -> Optimum:
    """An end of a search as another log posterior sees it."""
    best = log_posterior(log_posterior.theta(trace.best.theta))
    return Optimum(best, trace.converged, "", (best,))


def _begun(start: Any, plan: Any, batches: bool) -> tuple[LeftOff | None, Mapping[str, Any] | None, Any]:
    """Where another fit stands that is to be gone on from, initial values, and the plan with its inducing inputs."""
    if isinstance(start, Fit):
        if batches and isinstance(start.trace, StepTrace):
            return start.trace.left_off, None, plan
        # Without inducing inputs all rows are fitted exactly: only hyperparameters are learned.
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
    """Return how hyperparameters are treated where a user does not say it, and warn of many."""
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
        "gpep.marginalize(model) and pm.sample integrate over so many."
    )
    return Maximum.name


def _why_maximum(space: Hyperparameters, by_steps: bool, *, asked: bool) -> str:
    """Return why hyperparameters are at their maximum, if they are, in words."""
    if asked:
        return "hyper='map' was asked for"
    if by_steps:
        return "the default of batches is hyper='map'"
    if not space.classifier.prior.effects:
        return f"the default of {space.size} hyperparameters of a Gaussian process of so many rows is hyper='map'"
    return f"the default for {space.size} hyperparameters is hyper='map'"


def _check_optimiser(obj_optimizer: Any, method: str, plan: Plan) -> None:
    """Raise unless it is None, a function as `pm.adam` returns them, or the rate of steps over batches."""
    if obj_optimizer is None:
        return
    if "obj_optimizer" not in plan.takes:
        raise TypeError(f"{method} has no option obj_optimizer: it takes L-BFGS. Leave it out.")
    if callable(obj_optimizer):
        return
    optimisers = f"one of PyMC's, such as pm.adam(learning_rate=0.01), but is {obj_optimizer!r}"
    if isinstance(obj_optimizer, bool) or not isinstance(obj_optimizer, Real):
        rate = "a rate of Adam or " if plan.by_steps else ""
        raise TypeError(f"obj_optimizer must be {rate}{optimisers}.")
    if not plan.by_steps:
        raise TypeError(f"obj_optimizer must be {optimisers}. A number is a rate for batches, batch_size=...")
    if not 0.0 < float(obj_optimizer) < np.inf:
        raise ValueError(f"obj_optimizer as a learning rate must be positive and finite, but is {obj_optimizer}.")


@cache
def _tell_of_flat(names: tuple[str, ...]) -> None:
    """Log, once in a process, that variables with a flat prior are integrated."""
    _told.info(
        "Flat coefficients %s are integrated, as by restricted maximum likelihood (REML). Maximum likelihood keeps "
        "them at their maximum: pm.fit(..., hyperparameters=%s).",
        ", ".join(map(repr, names)), list(names),
    )  # fmt: skip
