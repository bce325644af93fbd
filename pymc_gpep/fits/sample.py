"""Draws from a fit, and checks of the fit against the exact posterior."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from numpy.typing import ArrayLike
from pymc.backends.base import MultiTrace
from pymc.backends.ndarray import NDArray as Trace
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.checks.corrected_evidence import CorrectedEvidence
from pymc_gpep.checks.corrected_evidence import corrected_evidence as evidence_corrected
from pymc_gpep.checks.importance import ImportanceCheck, ResampledDraws, importance_check, resampled_draws
from pymc_gpep.evidence.memory import available_memory
from pymc_gpep.fits import datasets
from pymc_gpep.fits.datasets import plain_dims
from pymc_gpep.fits.effects import draw, draw_at_maximum
from pymc_gpep.fits.fitted import Fitted, Gp
from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.log_posteriors.log_posterior import Gps
from pymc_gpep.log_posteriors.sparse_log_posterior import BlockFunctions
from pymc_gpep.prior_moments.prior_functions import as_it_was
from pymc_gpep.processes.cross_covariance import as_gps
from pymc_gpep.reading import GPClassifier
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.user_warnings import warn


@one_blas_thread()
def importance(fit: Fitted, draws: int = 1000, *, random_seed: Any = None) -> ImportanceCheck:
    """Hold the fit against the exact posterior of the latent values, by Pareto-smoothed importance sampling.

    Draws from the Gaussian are weighted by the exact joint density over their own, and the tail of the weights is
    smoothed (Vehtari, Simpson, Gelman, Yao and Gabry 2024). Its Pareto k says whether weighted draws stand for the
    posterior. If they do, the evidence and means that come with them can be held against the fit's own (Yao,
    Vehtari, Simpson and Gelman 2018). Hyperparameters are held at the fit's values: nothing is said about these.

    All latent values are weighted together. The more there are, the more easily that fails, for fits that are fair
    for each of them. The check describes the fit apart from this, by weights on blocks of points that move
    together. These show how much the probability of each point's label changes.

    Parameters
    ----------
    draws : int
        At least 100. The weights of 1000 draws take about as long as 1000 evaluations of the likelihood.
    random_seed : int, Generator or None

    Returns
    -------
    ImportanceCheck
        It prints as two sentences, one on weighted draws and one on the fit.

    Raises
    ------
    NotImplementedError
        If the fit has no joint posterior of all latent values.
    ValueError
        If there are too few draws, or if the approximation failed, so that its draws have no density.
    """
    fit.log_posterior.check_joint("importance")
    return checked(fit, draw_at_maximum(fit, draws, fit._generator(random_seed)))


def checked(fit: Fitted, values: Mapping[str, Array]) -> ImportanceCheck:
    """Hold draws of a fit at its maximum, by name, against the exact posterior."""
    mean, groups = fit.latent["mean"], fit.classifier.groups
    f = fit.log_posterior.space.variables.latent_values(values)
    if groups is None:
        return importance_check(fit.name, fit.solution, f, mean)
    # One latent value of each group, whose result is that of all its rows.
    found = importance_check(fit.name, fit.solution, f, mean[groups.first])
    shift = mean.copy(data=found.mean_shift.values[groups.of]).rename("mean_shift")
    points = found.points.drop_vars(list(found.points.coords)).isel({mean.dims[0]: groups.of})
    return replace(found, mean_shift=shift, points=points.assign_coords(mean.coords))


@one_blas_thread()
def corrected_evidence(fit: Fitted, *, max_size: int = 3000) -> CorrectedEvidence:
    """Correct the log evidence of an EP by what that neglects (Opper, Paquet and Winther 2013), at the maximum.

    The correction is of second order in the third cumulants of the tilted distributions, and what the next order
    has to add is its error. Class-independent EP and EP by quadrature are corrected by way of nested EP, from which
    they differ by more than a small correction.

    Parameters
    ----------
    max_size : int
        Largest number of latent values to accept: time grows with its cube, memory with its square.

    Returns
    -------
    CorrectedEvidence
        `evidence`, the `correction` in it, its estimated `error`, and whether it is `reliable`. It prints as one
        sentence.

    Raises
    ------
    NotImplementedError
        If the fit has no joint posterior of all latent values.
    TypeError
        If the approximation is not an EP.
    ValueError
        If there are more latent values than `max_size`.
    """
    fit.log_posterior.check_joint("corrected_evidence")
    return evidence_corrected(fit.log_posterior.approximator, fit.solution, max_size=max_size)


class Recorder:
    """Compute what `pm.sample` records, from value variables and latent values.

    Latent values are taken as given, also where they are deterministic: to factorise the prior covariance for every
    draw would cost O(n³) each.

    Parameters
    ----------
    classifier : GPClassifier
    free : sequence of TensorVariable
        Free variables, in the order in which they are recorded; those of the latent values may be missing.
    deterministics : sequence of TensorVariable
    data : dict
        Data of the model → constants that take their place.
    seed : int
        For what the model draws anew, such as responses that are missing.
    """

    def __init__(
        self,
        classifier: GPClassifier,
        free: Sequence[TensorVariable],
        deterministics: Sequence[TensorVariable],
        data: Mapping[Variable, Variable],
        seed: int,
    ) -> None:
        self._model = model = classifier.model
        value_vars = [model.rvs_to_values[rv] for rv in free]
        given = {f: f.type(f.name) for f in classifier.prior.held}
        self._given = [v.name for v in (*value_vars, *given)]
        transformed = [rv for rv in free if model.rvs_to_transforms[rv] is not None]
        missing = classifier.unobserved
        drawn = [each.missing.drawn() for each in classifier.each if each.missing is not None]
        computed = graph_replace([*drawn, *transformed, *missing, *deterministics], given, strict=False)
        computed = graph_replace(model.replace_rvs_by_values(computed), data, strict=False)
        if missing:
            first, computed = computed[: len(missing)], computed[len(missing) :]
            places = [model.rvs_to_values[each] for each in missing]
            computed = graph_replace(computed, dict(zip(places, first, strict=True)), strict=False)
        self._recorded = [*value_vars, *transformed, *missing, *deterministics]
        self._compute = graph_function(
            model,
            [pytensor.In(v, borrow=True) for v in [*value_vars, *given.values()]],
            [pytensor.Out(v, borrow=True) for v in [*value_vars, *computed]],
            draws=True,  # a Deterministic may be made of draws of its own, as PyMC's sampling makes it
            random_seed=seed,
        )

    def trace(self, values: Mapping[str, Array], chain: int) -> Trace:
        """Trace of a chain, from draws (s, ...) of value variables and of deterministic latent values, by name."""
        values = {name: values[name] for name in self._given}
        first = self._compute(*(value[0] for value in values.values()))
        trace = Trace(
            model=self._model,
            vars=self._recorded,
            fn=self._compute,
            var_shapes={v.name: np.shape(x) for v, x in zip(self._recorded, first, strict=True)},
            var_dtypes={v.name: np.asarray(x).dtype for v, x in zip(self._recorded, first, strict=True)},
        )
        draws = len(next(iter(values.values())))
        trace.setup(draws=draws, chain=chain)
        for i in range(draws):
            trace.record({name: value[i] for name, value in values.items()}, in_warmup=False)
        trace.close()
        return trace


_NEW = "new_point"
_WITH_NORMALS = 1000  # most rows for which a factorisation of their covariance is no matter
_GIGABYTE = 1e9
_OF_WEIGHTS = ("pareto_k", "effective_size", "log_evidence")  # numbers that describe weights as a whole
_ENOUGH = 1000  # draws to weight where fewer are asked for

_log = logging.getLogger("pymc")  # where pm.sample says what it does; what silences that silences this


@one_blas_thread()
def sample(
    fit: Fitted,
    draws: int = 500,
    *,
    chains: int = 1,
    Xnew: ArrayLike | None = None,
    gp: Gp = None,
    importance: bool = False,
    random_seed: Any = None,
    return_inferencedata: bool = True,
    **kwargs: Any,
) -> Any:
    """Draw independent samples from the approximate posterior, or by way of it from the exact one.

    Parameters
    ----------
    draws : int
        Number of draws in each chain, as in `pm.sample`. Hyperparameters are those of a node, drawn by its weight:
        at their maximum, the same in every draw, unless the fit was given another `hyper`.
    chains : int
        Number of chains to arrange them in; ArviZ compares results only where draws and chains agree.
    Xnew : array (m, d), optional
        Inputs at which to draw the latent functions, in place of the rows that were fitted. Draws with the same
        seed are of the same functions at any inputs: many rows can be drawn in parts. The part of a function
        between points that inducing inputs or rows do not determine is independent noise.
    gp : pm.gp.Latent or sequence of them, optional
        Processes that made the latent values, for `Xnew` or many rows, where the graph of the model does not say
        it.
    importance : bool
        Whether to resample draws by their Pareto-smoothed importance weights, see the method of this name. They
        then follow the exact posterior of the latent values at these hyperparameters. As many draws as are asked
        for, but at least 1000, are weighted. Each is then repeated or left out as its weight has it, in random
        order. Draws have equal weights again, but repeats add nothing, and ArviZ does not know of them: they are
        worth no more than `effective_size`. The result has a group `sample_stats`, with the `log_weight` that each
        draw had, not to be used again, and `pareto_k`, `effective_size` and `log_evidence` as `attrs`.
    random_seed : int, Generator or None
    return_inferencedata : bool
        Whether to return a DataTree like that of `pm.sample`, or a MultiTrace.
    **kwargs
        For `pm.to_inference_data`.

    Returns
    -------
    DataTree or MultiTrace
        Hyperparameters, latent values, and what the model makes of them. Responses that are missing are drawn from
        the likelihood, given the latent values of each draw. A model may declare latent values by standard normals.
        For leave-one-out, `fit.loo()` is more accurate than `az.loo` of such draws: it does not weight them.
        Where the posterior is known by inducing inputs or active rows, these are left out of models of more than
        1000 rows. Without them `pm.sample_posterior_predictive` draws latent values from their prior, unless the
        model has `gp.prior(..., reparameterize=False)`. Where rows came from `data=...`, or with `Xnew`, latent
        values have a dim `new_point`, and what depends on them is left out.

    Raises
    ------
    MemoryError
        If the draws would not fit into memory; the message says how many rows would.
    NotImplementedError
        If there is `importance`, and the fit has no joint posterior of all latent values.

    Warns
    -----
    UserWarning
        If the verdict on the weights is "do not use": the draws then follow neither posterior.
    """
    if draws < 1 or chains < 1:
        raise ValueError(f"draws and chains must be at least 1, but are {draws} and {chains}.")
    rng, hyper = fit._generator(random_seed), fit.hyper_posterior
    if importance:
        fit.log_posterior.check_joint("sample(importance=True)")
    _tell_of_points(fit)
    if Xnew is not None and (fit.classifier.prior.implicit or fit.classifier.parts):
        raise TypeError(
            "sample draws effects by name here, and no latent functions at other inputs: leave Xnew out, or "
            "average over them by fit.predict(Xnew, data={...})."
        )
    if Xnew is not None or (fit.rows is not None and not fit.classifier.prior.implicit):
        if not return_inferencedata:
            raise ValueError("A MultiTrace has no place for latent functions at other inputs than the model's.")
        inputs = None if Xnew is None else next(fit.functions(gp)).new_rows(Xnew, {})
        data = _sampled_functions(hyper, draws, chains, rng, inputs, as_gps(gp))
        return _noted(fit, data)
    weighted = _weighted(fit, (chains, draws), rng) if importance else None
    seed = int(rng.spawn(1)[0].integers(2**30))
    recorder, drawn_by = _recording(fit, as_gps(gp), seed)
    traces = [
        recorder.trace(weighted.chain(chain) if weighted else drawn_by(draws, rng), chain) for chain in range(chains)
    ]
    if not return_inferencedata:
        return MultiTrace(traces)
    return _noted(fit, _labelled(hyper, traces, weighted, kwargs))


def _noted(fit: Fitted, data: xr.DataTree) -> xr.DataTree:
    """Note the log evidence on draws, but by batches, where it takes passes over all rows."""
    if fit.trace.unit != "step":
        data["posterior"].attrs["log_evidence"] = fit.log_evidence
    return data


def _weighted(fit: Fitted, shape: tuple[int, int], rng: np.random.Generator) -> ResampledDraws:
    """Draws of the fit at its maximum, resampled by their importance weights."""
    pool = draw_at_maximum(fit, max(shape[0] * shape[1], _ENOUGH), rng)
    check = checked(fit, pool)
    if not check.usable:
        warn(check.about_draws)
    return resampled_draws(check, pool, shape, rng)


def _tell_of_points(fit: Fitted) -> None:
    """Say once of a fit whose hyperparameters are the same in every draw that trace plots of them will be flat."""
    names = ", ".join(rv.name for rv in fit.classifier.hyperparameters)
    if names and len(fit.hyper_posterior) == 1 and not fit._told:
        _log.info(
            "Hyperparameters stay at their maximum: draws of %s are all the same, and traces of them flat lines. "
            "pm.fit(..., hyper='adaptive') integrates over them.",
            names,
        )
    fit._told = True


def _draw_functions(
    hyper: HyperPosterior, draws: int, rng: np.random.Generator, inputs: Array | None, gps: Gps, normals: bool = False
) -> tuple[Array, Array, Array]:
    """Draw hyperparameters (draws, d), and latent functions (draws, c, m) given these, at inputs or the fitted rows.

    The same generator gives the same functions at any inputs. With `normals` the third array is not empty. It has the
    standard normals of latent values at the model's own points, in the shape of the second.

    Raises
    ------
    MemoryError
        If they would not fit into memory.
    """
    log_posterior = hyper.log_posterior
    thetas, found, z = np.empty((draws, log_posterior.space.size)), np.empty(0), np.empty(0)
    for rows, theta, solution, at in hyper.drawn(draws, rng):
        functions = log_posterior.latent(theta, solution, gps)
        if not found.size:
            m = functions.n_points if inputs is None else len(inputs)
            _check_memory(draws, functions.n_functions, m)
            found = np.empty((draws, functions.n_functions, m))
            z = np.empty_like(found) if normals else z
        thetas[rows] = at[:, : thetas.shape[1]]
        (own,) = rng.spawn(1)  # the draws at one θ do not depend on how many rows were asked for
        for some, drawn in functions.draw_at(own, rows.size, inputs):
            found[rows[:, None], :, np.arange(some.start, some.stop)] = drawn.transpose(0, 2, 1)
        if normals:
            assert isinstance(functions, BlockFunctions)
            z[rows] = functions.standard_normals(found[rows])
    return thetas, found, z


def _check_memory(draws: int, functions: int, rows: int) -> None:
    needed, there = 8.0 * draws * functions * rows, available_memory()
    if needed > there:
        raise MemoryError(
            f"{draws} draws of {functions} latent function{'s' * (functions > 1)} at {rows} rows take "
            f"{needed / _GIGABYTE:.1f} GB, and {there / _GIGABYTE:.1f} GB of memory are free. Draw fewer, or some rows "
            "at a time: fit.sample(Xnew=X[:1000], random_seed=1), with the same seed for all parts."
        )


def _labelled(
    hyper: HyperPosterior, traces: list[Trace], weighted: ResampledDraws | None, kwargs: dict[str, Any]
) -> xr.DataTree:
    """A DataTree of traces, with the weights by which draws were resampled, if they were."""
    classifier = hyper.log_posterior.classifier
    model = classifier.model
    kwargs["log_likelihood"] = False
    kwargs["dims"] = plain_dims(model, traces[0].var_shapes, classifier.coords) | dict(kwargs.get("dims") or {})
    with as_it_was(model, hyper.log_posterior.space.data, classifier.coords):
        data = pm.to_inference_data(MultiTrace(traces), model=model, **kwargs)
    data["posterior"].attrs |= _attrs(hyper)
    if weighted:
        own = {dim: data["posterior"].coords[dim] for dim in ("chain", "draw")}
        data["sample_stats/log_weight"] = xr.DataArray(weighted.log_weights, own, dims=("chain", "draw"))
        data["sample_stats"].attrs |= {name: getattr(weighted.check, name) for name in _OF_WEIGHTS}
    return data


def _recording(
    fit: Fitted, gps: Gps, seed: int
) -> tuple[Recorder, Callable[[int, np.random.Generator], Mapping[str, Array]]]:
    """A recorder of draws, and a function that draws what it is given.

    The recorder draws by the seed what the model draws anew.
    """
    hyper, free, deterministics = fit.hyper_posterior, fit._free, fit._deterministics
    log_posterior = hyper.log_posterior
    classifier, space = log_posterior.classifier, log_posterior.space
    if log_posterior.joint or classifier.prior.implicit:
        return Recorder(classifier, free, deterministics, space.data, seed), partial(draw, fit)
    rotated = any(latent.rotated for latent in classifier.latents)
    whole = rotated and classifier.n_points <= _WITH_NORMALS
    if not whole:
        free, deterministics = _without_latents(classifier, free, deterministics)

    def by_functions(draws: int, rng: np.random.Generator) -> dict[str, Array]:
        thetas, f, z = _draw_functions(hyper, draws, rng, None, gps, normals=whole)
        points = [log_posterior.point(theta) for theta in thetas]
        values = {name: np.array([point[name] for point in points]) for name in points[0]}
        if not whole:
            return values | {latent.f.name: f[:, latent.rows] for latent in classifier.latents}
        return values | space.variables.draws(points[0], f, z)

    return Recorder(classifier, free, deterministics, space.data, seed), by_functions


def _without_latents(
    classifier: GPClassifier, free: Sequence[TensorVariable], deterministics: Sequence[TensorVariable]
) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Free variables without the standard normals of latent values, and deterministics that do not need these."""
    rotated = {latent.free: latent.f for latent in classifier.latents if latent.rotated}
    others = [rv for rv in free if rv not in rotated]
    known = [d for d in deterministics if not set(rotated) & set(ancestors([d], blockers=list(rotated.values())))]
    return others, known


def _sampled_functions(
    hyper: HyperPosterior, draws: int, chains: int, rng: np.random.Generator, inputs: Array | None, gps: Gps
) -> xr.DataTree:
    """A DataTree of hyperparameters, and of latent functions at inputs, or at the rows that were fitted."""
    classifier, space = hyper.log_posterior.classifier, hyper.log_posterior.space
    parts = [_draw_functions(hyper, draws, own, inputs, gps) for own in rng.spawn(chains)]
    thetas = np.array([drawn for drawn, _, _ in parts])
    natural = datasets.natural(space, thetas.reshape(-1, space.size), "draw")
    found = {
        name: (("chain", "draw", *map(str, value.dims[1:])), value.values.reshape(chains, draws, *value.shape[1:]))
        for name, value in natural.data_vars.items()
    }
    posterior = xr.Dataset(found, coords={name: at for name, at in natural.coords.items() if name != "draw"})
    posterior = posterior.assign_coords(chain=np.arange(chains), draw=np.arange(draws))
    for latent in classifier.latents:
        values = np.array([f[:, latent.rows] for _, f, _ in parts])
        named = classifier.model.named_vars_to_dims.get(str(latent.f.name)) or [f"{latent.f.name}_dim_0"]
        functions = [str(named[0])] if latent.f.ndim > 1 else []
        posterior[latent.f.name] = (["chain", "draw", *functions, _NEW], values)
    posterior.attrs = _attrs(hyper)
    return xr.DataTree.from_dict({"posterior": posterior})


def _attrs(hyper: HyperPosterior) -> dict[str, Any]:
    return {
        "approximation": hyper.log_posterior.name,
        "hyper": hyper.name,
        "pymc_gpep_version": version("pymc_gpep"),
    }
