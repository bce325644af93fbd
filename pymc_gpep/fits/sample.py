"""Draws from a fit, and checks of the fit against the exact posterior."""

import logging
import warnings
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

from pymc_gpep.argument_types import check_switches
from pymc_gpep.array_types import Array
from pymc_gpep.checks.corrected_evidence import CorrectedEvidence
from pymc_gpep.checks.corrected_evidence import corrected_evidence as evidence_corrected
from pymc_gpep.checks.importance import ImportanceCheck, ResampledDraws, importance_check, resampled_draws
from pymc_gpep.evidence.memory_check import available_memory
from pymc_gpep.fits import datasets
from pymc_gpep.fits.cross_validation import loo
from pymc_gpep.fits.datasets import plain_dims
from pymc_gpep.fits.fitted import Fitted, Gp
from pymc_gpep.fits.marginals import END, NORMAL_LEVELS, AffineEntries, Conditional, entries_of
from pymc_gpep.graphs.interpreted import graph_function
from pymc_gpep.hyper import HyperPosterior
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.log_posterior import Gps
from pymc_gpep.log_posteriors.sparse_log_posterior import BlockFunctions
from pymc_gpep.prior_moments.prior_functions import as_it_was
from pymc_gpep.reading import GPClassifier
from pymc_gpep.solvers.team import one_blas_thread
from pymc_gpep.user_warnings import warn


@one_blas_thread()
def importance(fit: Fitted, draws: int = 1000, *, random_seed: Any = None) -> ImportanceCheck:
    """Compare the fit with the exact posterior of the latent values, by Pareto-smoothed importance sampling.

    Draws from the Gaussian are weighted by the ratio of the exact joint density to the Gaussian density. The tail of
    the weights is smoothed (Vehtari, Simpson, Gelman, Yao and Gabry 2024). The Pareto k shows whether weighted draws
    represent the posterior. If they do, compare their evidence and means with the fit (Yao, Vehtari, Simpson
    and Gelman 2018). Hyperparameters stay at their maximum, and are not checked.

    With many latent values the joint weights often fail, even for an accurate fit. Therefore the fit is also judged
    by weights on blocks of correlated points. If the fit is inaccurate, they change the probabilities of labels.

    Parameters
    ----------
    draws : int
        Number of draws, at least 100. The weights need one evaluation of the likelihood for each draw.
    random_seed : int, Generator or None

    Returns
    -------
    ImportanceCheck
        Result of the check. Its text has a sentence on the weighted draws, and a sentence on the fit.

    Raises
    ------
    NotImplementedError
        If the fit has no joint posterior of all latent values.
    ValueError
        If there are too few draws, or the approximation failed.
    """
    fit.log_posterior.check_joint("importance")
    return checked(fit, draw_at_maximum(fit, draws, fit._generator(random_seed)))


def checked(fit: Fitted, values: Mapping[str, Array]) -> ImportanceCheck:
    """Compare draws of a fit at its maximum with the exact posterior. `values` are draws by name of variable."""
    classifier, groups = fit.classifier, fit.classifier.groups
    moments = fit.latent_moments()
    mean = datasets.of_points(classifier, *moments, named=fit.rows is None)["mean"]
    f = fit.log_posterior.space.variables.latent_values(values)
    if groups is None and len(mean) == len(moments[0]):
        return importance_check(fit.name, fit.solution, f, mean)
    # All rows of a group have the result of their common latent value. Weights of draws include prior factors.
    every = xr.DataArray(moments[0].reshape(-1, *mean.shape[1:]), dims=mean.dims)
    found = importance_check(fit.name, fit.solution, f, every if groups is None else every[groups.first])
    rows = np.arange(len(every)) if groups is None else groups.of
    shift = mean.copy(data=found.mean_shift.values[rows[classifier.seen]]).rename("mean_shift")
    points = found.points.drop_vars(list(found.points.coords)).isel({mean.dims[0]: rows[classifier.seen]})
    return replace(found, mean_shift=shift, points=points.assign_coords(mean.coords))


@one_blas_thread()
def corrected_evidence(fit: Fitted, *, max_size: int = 3000) -> CorrectedEvidence:
    """Correct the log evidence of an EP at the maximum (Opper, Paquet and Winther 2013).

    The correction is of second order in the third cumulants of the tilted distributions, and the next order estimates
    its error. Class-independent EP and EP by quadrature differ notably from nested EP. For these two methods the result
    is the corrected evidence of nested EP.

    Parameters
    ----------
    max_size : int
        Largest accepted number of latent values. Time grows with the cube of their number, memory with the square.

    Returns
    -------
    CorrectedEvidence
        `evidence`, the `correction` in it, its estimated `error`, and whether it is `reliable`. Its text is one
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
    """Compute the variables that `pm.sample` records, from value variables and latent values.

    Draws of f are inputs even if f is deterministic in the model. Computing f would factorise the prior covariance for
    each draw, in O(n³).

    Parameters
    ----------
    classifier : GPClassifier
    free : sequence of TensorVariable
        Recorded free variables in their order. Standard normals of latent values may be left out.
    deterministics : sequence of TensorVariable
    data : dict
        Constants that replace the data of the model.
    seed : int
        Seed of variables that are drawn anew, such as missing responses.
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
            draws=True,  # A Deterministic may contain random draws, as in PyMC's sampling.
            random_seed=seed,
        )

    def trace(self, values: Mapping[str, Array], chain: int) -> Trace:
        """Return the trace of a chain from draws (s, ...) of value variables and latent values, by name."""
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


def draw(fit: Fitted, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return draws (draws, ...) of all value variables and of deterministic latent values, by name.

    If the marginal of an effect is far from normal, draws of all effects are transformed to the marginals of `summary`.
    The results have the ranks of the Gaussian draws. This is a Gaussian copula (Chiuchiolo and others 2023).
    """
    hyper, marginals = fit.hyper_posterior, fit._marginals_of_draws
    entries = entries_of(hyper, list(marginals)) if marginals else None
    values: dict[str, Array] = {}
    for rows, theta, solution, own in hyper.drawn(draws, rng):
        conditional = Conditional(hyper.log_posterior, theta, solution)
        found = conditional.draw(rows.size, rng)
        found |= conditional.with_quantiles_of_priors(found)
        if entries is not None:
            found |= _with_marginals(found, entries(conditional), marginals)
        points = [hyper.log_posterior.point(each) for each in own]
        found |= {name: np.array([point[name] for point in points]) for name in points[0]}
        for name, drawn in found.items():
            values.setdefault(name, np.empty((draws, *drawn.shape[1:])))[rows] = drawn
    return values


def _with_marginals(
    values: Mapping[str, Array], own: AffineEntries, marginals: Mapping[str, Array]
) -> dict[str, Array]:
    """Transform Gaussian draws (draws, ...) of effects at a node to draws with the given `marginals`, by name."""
    found, start = {}, 0
    for name, quantiles in marginals.items():
        at = slice(start, start := start + len(quantiles))
        mean, sd = own.mean[at], np.sqrt(own.variance[at])
        drawn = values[name].reshape(-1, len(quantiles))
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.nan_to_num((drawn - mean) / sd)
        ends = np.clip(z, -END, END)
        moved = np.column_stack([np.interp(each, NORMAL_LEVELS, q) for each, q in zip(ends.T, quantiles, strict=True)])
        found[name] = np.where(sd > 0.0, mean + sd * (moved + z - ends), drawn).reshape(values[name].shape)
    return found


def draw_at_maximum(fit: Fitted, draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return draws like `draw`, with the hyperparameters at their maximum."""
    return Conditional(fit.log_posterior, fit.trace.best.theta, fit.solution).draw(draws, rng)


_NEW = "new_point"
_WITH_NORMALS = 1000  # Standard normals of latent values are drawn up to this number of rows.
_GIGABYTE = 1e9
_OF_WEIGHTS = ("pareto_k", "effective_size", "log_evidence")  # Attributes of the importance weights in the results.
_MISLEADING = 1.0  # A fit warns if the elpd of its draws and of `loo` differ by more.
_ENOUGH = 1000  # At least this number of draws is weighted.

_log = logging.getLogger("pymc")  # This is the logger of `pm.sample`. Users can silence both together.


@one_blas_thread()
def sample(
    fit: Fitted,
    draws: int = 500,
    *,
    chains: int = 1,
    Xnew: ArrayLike | None = None,
    gp: Gp = None,
    importance: bool = False,
    log_likelihood: bool = False,
    random_seed: Any = None,
    return_inferencedata: bool = True,
    **kwargs: Any,
) -> Any:
    """Draw independent samples from the approximate posterior, or resample them to follow the exact posterior.

    Parameters
    ----------
    draws : int
        Number of draws in each chain, as in `pm.sample`. Hyperparameters are drawn from their approximate density, or
        from the weighted nodes. With `hyper="map"` they are equal in all draws.
    chains : int
        Number of chains, with `draws` draws each. ArviZ compares results with equal numbers of draws and chains.
    Xnew : array (m, d), optional
        Inputs at which latent functions are drawn, in place of the fitted rows. Calls with the same seed draw the same
        functions, so a long `Xnew` can be drawn in parts. The residuals of a function given inducing inputs or active
        rows are drawn independently.
    gp : pm.gp.Latent or sequence of them, optional
        Processes of the latent values, for `Xnew` or many rows, if their prior cannot be read from the graph of the
        model.
    importance : bool
        Whether to resample draws by their Pareto-smoothed importance weights, see the method `importance`. The result
        then follows the exact posterior of the latent values given the maximum of the hyperparameters. At least 1000
        draws are weighted. The result has repeated draws in random order, as accurate as `effective_size` independent
        draws; ArviZ does not compute this size. The group `sample_stats` has the `log_weight` of each draw, and the
        `attrs` `pareto_k`, `effective_size` and `log_evidence`. Do not apply the weights again.
    log_likelihood : bool
        Whether to add the group `log_likelihood`, as `pm.compute_log_likelihood` does. Log densities of an observed
        array have the dims of the array. A vector of correlated entries has one log density. `az.loo` of the draws is
        then compared with `fit.loo()`, with a warning if they differ.
    random_seed : int, Generator or None
    return_inferencedata : bool
        Whether to return a DataTree, as `pm.sample` does. Otherwise a MultiTrace is returned.
    **kwargs
        Options of `pm.to_inference_data`.

    Returns
    -------
    DataTree or MultiTrace
        Hyperparameters, latent values, and the variables that depend on them. Missing responses are drawn from the
        likelihood. For leave-one-out use `fit.loo()`: it is more accurate than `az.loo` of these draws. With
        inducing inputs or active rows and more than 1000 rows, the standard normals of latent values are omitted.
        `pm.sample_posterior_predictive` then draws latent values from their prior, unless the model has `gp.prior(...,
        reparameterize=False)`. If rows came from `data=...` or `Xnew`, latent values have a dim `new_point`, and
        dependent variables are omitted.

    Raises
    ------
    MemoryError
        If the draws do not fit into memory.
    NotImplementedError
        If `importance` is True, and the fit has no joint posterior of all latent values.
    TypeError
        If `log_likelihood` is True, and the draws do not include all variables of the model.

    Warns
    -----
    UserWarning
        If the verdict on the weights is "do not use": the draws do not follow the exact posterior. If `az.loo` of the
        draws differs from `fit.loo()` by more than 1.
    """
    if draws < 1 or chains < 1:
        raise ValueError(f"draws and chains must be at least 1, but are {draws} and {chains}.")
    rng, hyper = fit._generator(random_seed), fit.hyper_posterior
    if importance:
        fit.log_posterior.check_joint("sample(importance=True)")
    _log_constant_hyperparameters(fit)
    prior = fit.classifier.prior
    if Xnew is not None and ((prior.implicit and prior.effects) or fit.classifier.parts):
        raise TypeError(
            "For this model, fit.sample draws effects by name, but not latent functions at new inputs. Leave Xnew "
            "out, or use fit.predict(Xnew, data={...})."
        )
    check_switches(log_likelihood=log_likelihood)
    outside = Xnew is not None or (fit.rows is not None and not fit.classifier.prior.implicit)
    if log_likelihood and (outside or not return_inferencedata):
        raise TypeError(
            "log_likelihood=True is for a DataTree of draws at the rows of the model. Leave log_likelihood out."
        )
    if outside:
        if not return_inferencedata:
            raise ValueError("A MultiTrace cannot hold latent functions at other inputs than the inputs of the model.")
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
    data = _noted(fit, _labelled(hyper, traces, weighted, kwargs))
    return _with_log_likelihood(fit, data) if log_likelihood else data


def _noted(fit: Fitted, data: xr.DataTree) -> xr.DataTree:
    """Store the log evidence with the draws. A fit by batches stores none, since it would need passes over all rows."""
    if fit.trace.unit != "step":
        data["posterior"].attrs["log_evidence"] = fit.log_evidence
    return data


def _with_log_likelihood(fit: Fitted, data: xr.DataTree) -> xr.DataTree:
    """Add log densities of observations. Warn if leave-one-out scores of the draws and of the fit differ."""
    import arviz as az

    classifier, space = fit.classifier, fit.log_posterior.space
    if absent := [str(rv.name) for rv in classifier.model.free_RVs if rv.name not in data["posterior"]]:
        raise TypeError(
            f"log_likelihood=True needs draws of {absent[0]!r}, which this fit lacks. Leave log_likelihood out."
        )
    names = {part.response: str(part.observed[0].name) for part in classifier.each}
    with as_it_was(classifier.model, space.data, classifier.coords):
        found = pm.compute_log_likelihood(
            data, var_names=[*names.values()], extend_inferencedata=False, model=classifier.model, progressbar=False
        )
    for part in classifier.each:
        name = names[part.response]
        if part.axes is not None and part.missing is None:
            own = part.in_axes(found[name], str(found[name].dims[-1])).transpose("chain", "draw", ...)
            found = found.drop_vars(name).assign({name: own.sum(own.dims[own.ndim - _vectors(part) :])})
    data["log_likelihood"] = xr.DataTree(found)
    for part in classifier.each if len(classifier.each) == 1 or not any(map(_vectors, classifier.each)) else ():
        own = loo(fit, response=part.response if classifier.parts else None, progressbar=False).elpd
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = az.loo(data, var_name=names[part.response]).elpd
        if not abs(drawn - own) < _MISLEADING:
            warn(
                f"az.loo of these draws has an elpd of {drawn:.1f} for {part.response!r}, and fit.loo() has {own:.1f}. "
                "Leave-one-out weights of these draws are concentrated on few draws. Compare models by the fits, "
                "az.compare({'a': fit_a.loo(), 'b': fit_b.loo()})."
            )
    return data


def _vectors(part: GPClassifier) -> int:
    """Return the number of axes along which entries of an observed array have correlated noise."""
    return 0 if part.axes is None else part.axes.vectors


def _weighted(fit: Fitted, shape: tuple[int, int], rng: np.random.Generator) -> ResampledDraws:
    """Return draws of the fit at its maximum, resampled by their importance weights."""
    pool = draw_at_maximum(fit, max(shape[0] * shape[1], _ENOUGH), rng)
    check = checked(fit, pool)
    if not check.usable:
        warn(check.about_draws)
    return resampled_draws(check, pool, shape, rng)


def _log_constant_hyperparameters(fit: Fitted) -> None:
    """Log a message that the hyperparameters are equal in all draws."""
    names = ", ".join(rv.name for rv in fit.classifier.hyperparameters)
    if names and len(fit.hyper_posterior) == 1 and not fit._told:
        _log.info(
            "Hyperparameters stay at their maximum: all draws of %s are equal, and their trace plots are flat lines. "
            "pm.fit(..., hyper='adaptive') integrates over them.",
            names,
        )
    fit._told = True


def _draw_functions(
    hyper: HyperPosterior, draws: int, rng: np.random.Generator, inputs: Array | None, gps: Gps, normals: bool = False
) -> tuple[Array, Array, Array]:
    """Draw hyperparameters (draws, d), and latent functions (draws, c, m) at inputs or at the fitted rows.

    Generators with the same state draw the same functions at any inputs. The third returned array is empty without
    `normals`. With `normals` it contains the standard normals of the latent values at the points of the model.

    Raises
    ------
    MemoryError
        If the draws do not fit into memory.
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
        (own,) = rng.spawn(1)  # With a generator for each θ, draws at the next θ do not depend on the number of rows.
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
    """Return a DataTree of traces. Resampled draws have their importance weights."""
    classifier = hyper.log_posterior.classifier
    model = classifier.model
    kwargs["log_likelihood"] = False
    kwargs["dims"] = plain_dims(model, traces[0].var_shapes, classifier.coords) | dict(kwargs.get("dims") or {})
    with as_it_was(model, hyper.log_posterior.space.data, classifier.coords):
        data = pm.to_inference_data(MultiTrace(traces), model=model, **kwargs)
    for part in classifier.each:
        if part.axes is not None and part.missing is None:
            own = data["observed_data"].to_dataset()
            rows, *classes = own[part.response].dims
            own = own.rename({dim: f"{part.response}_dim_{len(part.axes.dims)}" for dim in classes})
            data["observed_data"] = part.in_axes(own, str(rows))
    data["posterior"].attrs |= _attrs(hyper)
    if weighted:
        own = {dim: data["posterior"].coords[dim] for dim in ("chain", "draw")}
        data["sample_stats/log_weight"] = xr.DataArray(weighted.log_weights, own, dims=("chain", "draw"))
        data["sample_stats"].attrs |= {name: getattr(weighted.check, name) for name in _OF_WEIGHTS}
    return data


def _recording(
    fit: Fitted, gps: Gps, seed: int
) -> tuple[Recorder, Callable[[int, np.random.Generator], Mapping[str, Array]]]:
    """Return a recorder, and a function that draws the values that it records.

    `seed` is the seed of variables that the recorder draws anew.
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
    """Remove the standard normals of latent values, and deterministics that depend on them."""
    rotated = {latent.free: latent.f for latent in classifier.latents if latent.rotated}
    others = [rv for rv in free if rv not in rotated]
    known = [d for d in deterministics if not set(rotated) & set(ancestors([d], blockers=list(rotated.values())))]
    return others, known


def _sampled_functions(
    hyper: HyperPosterior, draws: int, chains: int, rng: np.random.Generator, inputs: Array | None, gps: Gps
) -> xr.DataTree:
    """Draw hyperparameters, and latent functions at inputs or at the fitted rows, as a DataTree."""
    classifier, space = hyper.log_posterior.classifier, hyper.log_posterior.space
    parts = [_draw_functions(hyper, draws, own, inputs, gps) for own in rng.spawn(chains)]
    thetas = np.array([drawn for drawn, _, _ in parts])
    natural = datasets.natural(space, thetas.reshape(chains * draws, space.size), "draw")
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
