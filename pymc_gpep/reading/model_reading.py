"""Reading of a whole model: its likelihood, latent functions and hyperparameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import as_names, rows_text
from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import in_double_precision, own_constants, own_constants_of_model
from pymc_gpep.graphs.errors import NotProcessesAloneError, StructureError, listing
from pymc_gpep.graphs.interpreted import EVALUATION_TOLERANCE, SEED, evaluate, initial_point
from pymc_gpep.latent.gp_latent import Dims, as_it_is, read_assembly, refuse_what_was_made
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.latent.lowered_dims import MissingResponses, lower_dims, missing_responses, unobserved_responses
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.processes.processes import GPModel, check_priors, with_functions
from pymc_gpep.reading.classifier import (
    GPClassifier,
    ObservedAxes,
    check_labels,
    check_missing,
    check_parameters,
    check_totals,
)
from pymc_gpep.reading.integrated import Gaussians, gaussians_of, quoted, why_improper
from pymc_gpep.reading.likelihood_search import (
    FoundLikelihood,
    StackedResponses,
    axes_of,
    find_likelihoods,
    parameters_at_points,
    read_response,
    with_rows,
)
from pymc_gpep.reading.prior_rows import read_with_priors
from pymc_gpep.reading.rewritten_models import as_fits_read
from pymc_gpep.recipes import unprojected
from pymc_gpep.sums.affine_map import AffineMap, probes
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.row_parts import ProcessTerm
from pymc_gpep.univariate.likelihood import MOST_NUMBERS
from pymc_gpep.univariate.predictors import ANY_PREDICTORS, SEVERAL_PREDICTORS
from pymc_gpep.univariate.prior_factor import is_factor


def read_classifier(
    model: pm.Model,
    likelihood: str | None = None,
    hyperparameters: str | Sequence[str] | None = None,
    *,
    means: bool = False,
    starts: bool = False,
    predictors: bool = False,
    priors: bool = False,
    bounds: bool = True,
) -> GPClassifier:
    """Read the likelihood of a model, and the Gaussian prior of its latent functions, from the graph of the model.

    Parameters
    ----------
    model : pm.Model
        Model with a likelihood. The argument of the likelihood is affine in Gaussian variables, for example
        `pm.gp.Latent` priors. A model of `pymc.dims` is converted by `lower_dims`.
    likelihood : str, optional
        Name of the observed variable to read. Other observed variables are then ordinary terms of the model. By default
        all observed variables that share Gaussian variables are read together, each with one latent function.
    hyperparameters : str or sequence of str, optional
        Names of Gaussian variables that stay hyperparameters instead of being integrated out.
    means : bool
        Whether Gaussian variables in the means of Gaussian processes are integrated out, if latent functions are
        processes without other terms. In sums with other effects these variables are always integrated out.
    starts : bool
        Whether a non-Gaussian start of a series becomes a hyperparameter. All later values are then integrated out;
        see `with_starts`.
    predictors : bool
        Whether a likelihood may have several latent functions with Gaussian variables, such as a mean and a log scale.
        Otherwise only one function is integrated out.
    priors : bool
        Whether effects with priors that are not normal are integrated out; see `with_prior_rows`.
    bounds : bool
        Whether `priors` also applies to priors with bounds. Otherwise uniform effects have a flat prior without bounds.

    Returns
    -------
    GPClassifier
        The prior, the likelihood and the observations.

    Raises
    ------
    StructureError
        If the model cannot be read. The message states the expected structure, the structure found, and the change to
        make.

    Examples
    --------
    >>> read_classifier(model).n_points
    30
    """
    hyperparameters = as_names("hyperparameters", hyperparameters)
    refuse_what_was_made(model)
    own_constants_of_model(model)
    model = lower_dims(model)
    rewritten = partial(as_fits_read, model, hyperparameters)
    read = partial(_read, likelihood=likelihood, hyperparameters=hyperparameters, means=means, predictors=predictors)
    if starts:
        made = rewritten()
        return read_with_priors(made, read, likelihood, hyperparameters, bounds) if priors else read(made)
    try:
        return read(model)
    except StructureError as error:
        try:
            other = rewritten()
            readable = other is not model and read(other)
        except StructureError:
            readable = False
        if not readable:
            raise
        raise StructureError(
            "pm.fit and gpep.marginalize read this model in another form. Samplers and checks cannot use "
            "that form. Sample gpep.marginalize(model) by pm.sample(), or take draws of a fit: fit.sample()."
        ) from error


def _read(
    model: pm.Model, likelihood: str | None, hyperparameters: Sequence[str], means: bool, predictors: bool
) -> GPClassifier:
    """Return the classifier of a model that is already rewritten."""
    axes = axes_of(model)
    model = with_rows(model)
    gaussians = gaussians_of(model, hyperparameters)
    missing = missing_responses(model)
    refused: StructureError | None = None
    try:
        found = find_likelihoods(model, likelihood, gaussians.sources)
    except StructureError as error:
        found, refused = [], error
    if predictors:
        several = _read_predictors(model, likelihood, hyperparameters, found)
        if several is not None:
            return _with_axes(several, axes)
    if refused is not None:
        raise refused
    gaussians, stack = _settled(model, hyperparameters, found, missing)
    if stack is not None:
        return _with_axes(_read_several(model, gaussians, stack, tuple(hyperparameters)), axes)
    likelihood_model, rv, reading = found[0]
    prior, reading, dims = _read_prior(model, gaussians, likelihood_model, rv, reading, means, missing.get(rv))
    _check_hyperparameters(prior, [rv])
    whole = slice(0, prior.n_points)
    own = _classifier(prior, likelihood_model, rv, reading, dims, whole, tuple(hyperparameters), missing.get(rv))
    return replace(own, axes=axes.get(own.response))


def _with_axes(found: GPClassifier, axes: Mapping[str, ObservedAxes]) -> GPClassifier:
    """Return the classifier with the `ObservedAxes` of its observed arrays."""
    if not found.parts:
        return replace(found, axes=axes.get(found.response))
    found = replace(found, parts=tuple(replace(each, axes=axes.get(each.response)) for each in found.parts))
    return replace(found, axes=found.each[0].axes) if len(found.each) == 1 else found


def _settled(
    model: pm.Model,
    hyperparameters: Sequence[str],
    found: list[FoundLikelihood],
    missing: Mapping[TensorVariable, MissingResponses],
) -> tuple[Gaussians, StackedResponses | None]:
    """Return the Gaussian variables, and the observed variables that are read together (None for a single variable).

    Variables without integrated variables are removed from `found`, since they are ordinary terms of the model.
    """
    gaussians, stack = gaussians_of(model, hyperparameters), None
    while len(found) > 1:
        stack = StackedResponses(model, found, missing)
        gaussians.settle(stack.read, stack.variables)
        alone = stack.apart(gaussians.sources)
        if not alone:
            break
        found[:] = [each for each in found if each not in alone]
        gaussians = gaussians_of(model, hyperparameters)
    check_missing(model, [missing[each.variable] for each in found if each.variable in missing])
    return gaussians, stack if len(found) > 1 else None


def _read_several(
    model: pm.Model, gaussians: Gaussians, stack: StackedResponses, asked: tuple[str, ...]
) -> GPClassifier:
    """Return the joint classifier of several observed variables. It contains the classifier of each variable."""
    readings = [each for each in stack.readings(gaussians.sources) if each is not None]
    whole = stack.together(readings)
    assert whole.likelihood is not None
    by_class = whole.likelihood.function_axis
    prior = read_sum(model, gaussians, whole.argument, stack.variables, by_class=by_class)
    prior = replace(prior, many=0) if by_class else prior
    _check_hyperparameters(prior, stack.variables)
    missing, parts, begin = missing_responses(model), [], 0
    for each, reading, n in zip(stack.found, readings, stack.sizes, strict=True):
        own, rows = missing.get(each.variable), slice(begin, begin + n)
        dims = _dims_of(model, "", reading) if by_class else Dims()
        parts.append(_classifier(prior, each.likelihood, each.variable, reading, dims, rows, asked, own))
        begin += n
    assert whole.parameters is not None
    seen = [part for part in parts if not part.is_prior]
    only = seen[0] if len(seen) == 1 else None
    return GPClassifier(
        prior=prior,
        likelihood_model=whole.likelihood,
        observed=tuple(stack.variables),
        labels=stack.observed(),
        parameters=whole.parameters,
        given=None,
        unbounded=None,
        class_dim=parts[0].class_dim if by_class else None if only is None else only.class_dim,
        point_dim=None if only is None else only.point_dim,
        class_labels=tuple(range(prior.n_functions)) if by_class else None if only is None else only.class_labels,
        coords=dict(model.coords),
        rows=slice(0, begin),
        asked=asked,
        missing=None if only is None else only.missing,
        argument=None if only is None else only.argument,
        parts=tuple(parts),
    )


def _read_predictors(
    model: pm.Model, likelihood: str | None, hyperparameters: Sequence[str], found: Sequence[FoundLikelihood]
) -> GPClassifier | None:
    """Return the classifier of observed variables with several linear predictors in at least one variable.

    Return None if no variable has several predictors. Return None also if several predictors would integrate out only
    few more Gaussian entries than a single predictor.
    """
    gaussians = gaussians_of(model, hyperparameters)
    sources = gaussians.sources
    variables = [
        rv for rv in model.observed_RVs if likelihood in (None, rv.name) and not sources.isdisjoint(ancestors([rv]))
    ]
    each_missing = missing_responses(model)
    if len(variables) != 1:
        return _read_joint(model, hyperparameters, found, variables, each_missing)
    (rv,), missing = variables, each_missing.get(variables[0])
    alone = _settled_alone(model, hyperparameters, found, each_missing)
    if alone is not None and _few_more(gaussians, alone):
        return None
    try:
        reading = gaussians.settle(lambda known: read_response(SEVERAL_PREDICTORS, rv, frozenset(known), missing), [rv])
    except StructureError:
        return None
    if alone is not None and _few_more(gaussians, alone):
        return None
    assert reading.likelihood is not None
    # `many` = 0 prefers coefficients of rows: a dense form would factorise a matrix over all points and predictors.
    prior = replace(read_sum(model, gaussians, reading.argument, [rv], by_class=True), many=0)
    if missing is not None and reading.everywhere is not None:
        check_missing(model, [missing])
        prior = replace(prior, everywhere=reading.everywhere.argument, fitted=missing.fitted, n_rows=missing.n_rows)
    _check_hyperparameters(prior, [rv])
    dims, rows = _dims_of(model, f"{rv.name}_", reading), slice(0, prior.n_points)
    return _classifier(prior, reading.likelihood, rv, reading, dims, rows, tuple(hyperparameters), missing)


def _dims_of(model: pm.Model, prefix: str, reading: Reading) -> Dims:
    """Return the dim of the linear predictors. Its labels are the names of the predictors."""
    return Dims(_PREDICTOR if _PREDICTOR not in model.coords else f"{prefix}{_PREDICTOR}", None, reading.names)


def _read_joint(
    model: pm.Model,
    hyperparameters: Sequence[str],
    found: Sequence[FoundLikelihood],
    variables: Sequence[TensorVariable],
    missing: Mapping[TensorVariable, MissingResponses],
) -> GPClassifier | None:
    """Return the joint classifier of observed variables with several linear predictors; None if this is impossible."""
    gaussians = gaussians_of(model, hyperparameters)
    if any(is_factor(rv) for rv in variables):
        return None
    alone = _settled_alone(model, hyperparameters, found, missing) if len(found) == len(variables) else None
    if alone is not None and _few_more(gaussians, alone):
        return None
    several = [
        FoundLikelihood(ANY_PREDICTORS, rv, reading)
        for rv in variables
        if (reading := read_response(ANY_PREDICTORS, rv, frozenset(gaussians.sources), missing.get(rv)))
    ]
    if len(several) < len(variables):
        return None
    try:
        gaussians, stack = _settled(model, hyperparameters, several, missing)
    except StructureError:
        return None
    if stack is None or (alone is not None and _few_more(gaussians, alone)):
        return None
    readings = [each for each in stack.readings(gaussians.sources) if each is not None]
    if len(readings[0].names) < 2:
        return None
    return _read_several(model, gaussians, stack, tuple(hyperparameters))


def _settled_alone(
    model: pm.Model,
    hyperparameters: Sequence[str],
    found: Sequence[FoundLikelihood],
    missing: Mapping[TensorVariable, MissingResponses],
) -> Gaussians | None:
    """Return the Gaussian variables of a reading with one predictor for each variable; None if this is impossible."""
    if not found:
        return None
    alone, stack = gaussians_of(model, hyperparameters), StackedResponses(model, found, missing)
    read = stack.read if len(found) > 1 else lambda known: stack.readings(known)[0]
    try:
        alone.settle(read, stack.variables)
    except StructureError:
        return None
    return alone


def _few_more(several: Gaussians, alone: Gaussians) -> bool:
    """Return whether several predictors integrate out only few more entries than a single predictor."""
    more = [each.size for v, each in several.recipes.items() if v not in alone.recipes]
    return alone.processes.keys() >= several.processes.keys() and sum(more) <= MOST_NUMBERS


_PREDICTOR = "predictor"


def _classifier(
    prior: LatentPrior,
    likelihood_model: Likelihood,
    rv: TensorVariable,
    reading: Reading,
    dims: Dims,
    rows: slice,
    asked: tuple[str, ...],
    missing: MissingResponses | None,
) -> GPClassifier:
    """Return the classifier of an observed variable. `rows` is its range among all rows of the prior."""
    model, n = prior.model, rows.stop - rows.start
    likelihood_model = reading.likelihood or likelihood_model
    _check_apart(prior, rv, reading)
    own_constants([each for each in (reading.argument, reading.parameters) if each is not None])
    parameters, count = parameters_at_points(reading, n)
    # Only the number of parameters is available here, so their values are NaN.
    likelihood_model = likelihood_model.given(np.full((count, n), np.nan))
    labels = model.rvs_to_values[rv]
    check_labels(likelihood_model, rv, labels, prior.n_functions, n)
    check_totals(reading, rv, labels)
    if count and set(model.free_RVs).isdisjoint(ancestors([parameters])):
        check_parameters(likelihood_model, rv, *evaluate([parameters, labels]))
    name = rv.name if missing is None else missing.name
    point_dim, *_ = model.named_vars_to_dims.get(name) or (dims.point_dim,)
    if missing is not None and missing.mask.ndim > 1:
        point_dim = None
    everywhere = reading.everywhere or reading
    return GPClassifier(
        prior=prior,
        likelihood_model=likelihood_model,
        observed=(rv,),
        labels=labels,
        parameters=parameters,
        given=everywhere.parameters,
        unbounded=everywhere.unbounded,
        class_dim=dims.class_dim,
        point_dim=point_dim,
        class_labels=dims.class_labels,
        coords=dict(model.coords),
        rows=rows,
        asked=asked,
        missing=missing,
        argument=everywhere.argument,
    )


def _read_prior(
    model: pm.Model,
    gaussians: Gaussians,
    likelihood_model: Likelihood,
    rv: TensorVariable,
    reading: Reading,
    means: bool,
    missing: MissingResponses | None,
) -> tuple[LatentPrior, Reading, Dims]:
    """Return the prior of the latent functions, the reading of the likelihood, and dims.

    If latent functions are Gaussian processes without other terms, the prior consists of processes. Such a prior has
    predictions at new inputs.
    """
    try:
        assembly = read_assembly(_by_functions(likelihood_model, reading.argument, rv), rv, model)
        check_priors(assembly.latents, model)
        if any(latent.free in gaussians.kept for latent in assembly.latents):
            raise NotProcessesAloneError("Some latent values stay hyperparameters.")
    except NotProcessesAloneError:
        return _read_sum(model, gaussians, likelihood_model, rv, missing)
    except StructureError as error:
        try:
            found_sum = _read_sum(model, gaussians, likelihood_model, rv, missing)
        except StructureError:
            raise error from None  # This error names the Gaussian processes.
        if found_sum[0].shared:
            raise error from None
        return found_sum
    each = zip(assembly.latents, assembly.classes, strict=True)
    latents = tuple(with_functions(*pair, model) for pair in each)
    in_means = frozenset(gaussians.recipes).intersection(ancestors([latent.mean for latent in latents]))
    kept = {v: why for v, why in gaussians.kept.items() if v in ancestors([latent.mean for latent in latents])}
    if means and in_means:
        try:
            found, reading_of_sum, _ = _read_sum(model, gaussians, likelihood_model, rv, missing)
        except StructureError:
            kept |= gaussians.kept
            kept |= dict.fromkeys(in_means - set(kept), "a mean depends on it in a way that is not integrated")
        else:
            if found.recipes:
                return replace(found, alone=latents), reading_of_sum, assembly.dims
            kept |= found.kept
    elif in_means:
        kept |= dict.fromkeys(in_means, "this method does not integrate means of Gaussian processes")
    return GPModel(model, latents, assembly.n_points, kept=kept), reading, assembly.dims


def _read_sum(
    model: pm.Model,
    gaussians: Gaussians,
    likelihood_model: Likelihood,
    rv: TensorVariable,
    missing: MissingResponses | None,
) -> tuple[LatentSum, Reading, Dims]:
    """Return the prior, the reading of the likelihood, and dims, for latent functions that are sums."""
    reading = gaussians.settle(lambda sources: read_response(likelihood_model, rv, frozenset(sources), missing), [rv])
    by_class, sees_common = likelihood_model.function_axis, likelihood_model.sees_common
    found = read_sum(model, gaussians, reading.argument, [rv], by_class, sees_common)
    if missing is not None and reading.everywhere is not None:
        found = replace(found, everywhere=reading.everywhere.argument, fitted=missing.fitted, n_rows=missing.n_rows)
    return found, reading, found.dims()


_NUMBERS = 4_000_000  # Largest number of coefficients in memory: 32 MB.


def read_sum(
    model: pm.Model,
    gaussians: Gaussians,
    argument: TensorVariable,
    observed: Sequence[TensorVariable],
    by_class: bool,
    sees_common: bool = True,
) -> LatentSum:
    """Return the prior of latent functions that are affine in Gaussian variables.

    Parameters
    ----------
    model : pm.Model
    gaussians : Gaussians
        Gaussian variables in which the argument is affine.
    argument : TensorVariable
        Argument of the likelihood.
    observed : sequence of TensorVariable
        Observed variables. Their rows are concatenated.
    by_class : bool
        Whether the argument has an axis for functions.
    sees_common : bool
        Whether the likelihood depends on a shift common to all functions of a point.

    Raises
    ------
    StructureError
        If numbers of functions or of points do not match.
    """
    stop = [*model.basic_RVs, *gaussians.processes]
    labels = [model.rvs_to_values[each] for each in observed]
    if any(each.ndim == 0 for each in labels):
        raise StructureError(f"{quoted(observed)} must be observed with an axis for points, but has none.")
    (argument,) = in_double_precision([argument.astype("float64")], stop)
    latents = tuple(gaussians.processes.values())
    shapes = evaluate(get_symbolic_rv_shapes([latent.free for latent in latents])) if latents else []
    sizes = tuple(tuple(map(int, shape)) for shape in shapes)
    outputs = [tuple(range(shape[0])) if len(shape) > 1 else (0,) for shape in sizes]
    processes = tuple(with_functions(*each, model, stop) for each in zip(latents, outputs, strict=True))
    n = sum(int(each) for each in evaluate([each.shape[0] for each in labels]))
    if n == 0:
        raise StructureError(f"{quoted(observed)} has no points. Declare the model with one row at least.")
    part = LatentSum(
        model, n, 1, argument, by_class, dict(gaussians.recipes), processes, sizes, dict(gaussians.kept),
        np.zeros(0, np.int64),
    )  # fmt: skip
    found = _Numbers(part, quoted(observed))
    if shared := found.shared():
        own = {v: unprojected(v, part.recipes[v]) for v in shared if v in part.recipes and not sees_common}
        apart = {v: each for v, each in own.items() if each is not None}
        again = _Numbers(replace(part, seen=apart), quoted(observed)) if len(apart) == len(shared) else found
        if not again.shared() and again.differs_by_common(found):
            found = again
    return found.completed()


class _Numbers:
    """Coefficients of a sum near the initial point. Nonzero coefficients show which normals each function contains.

    Parameters
    ----------
    part : LatentSum
        The sum, before its functions and terms are computed.
    name : str
        Quoted name of the observed variable.
    """

    def __init__(self, part: LatentSum, name: str) -> None:
        self.part, self._name = part, name
        by_class = part.by_class
        if not by_class:  # The precision form (`Field`) needs no matrix root.
            part = replace(part, recipes={v: each.by_field() for v, each in part.recipes.items()})

        def by(z: TensorVariable, g: Mapping[TensorVariable, TensorVariable]) -> list[TensorVariable]:
            return part.by_parts([part.argument], z, list(g.values()), seen=True)

        self._affine = AffineMap(part, {"argument": part.argument}, {}, part.processes, by=by, size=part.n_plain)
        start = initial_point(part.model)
        self._nothing = [np.zeros(shape) for shape in part.sizes]
        rng = np.random.default_rng(SEED)
        self._noise = rng.standard_normal(part.n_plain)
        begun = [self._affine.at(start, normals, self._nothing) for normals in (np.zeros(part.n_plain), self._noise)]
        # A coefficient that is 0 at this random point is almost surely 0 at all points.
        self._point = self._affine.functions.nearby(rng)
        (self._centre,) = self._affine.at(self._point, np.zeros(part.n_plain), self._nothing)
        columns = np.shape(self._centre)[-1] if np.ndim(self._centre) else 1
        self._shape = (part.n_points, columns)[: 1 + by_class]
        self.c = columns if by_class else 1
        self._check_finite([argument for argument, *_ in begun])

    def slopes(self) -> Iterator[Array]:
        """Yield coefficients (s, c, n) of consecutive blocks of s standard normals. Blocks save memory."""
        q, step = self.part.n_plain, max(1, _NUMBERS // (self.c * self.part.n_points))
        for start in range(0, q, step):
            units = np.zeros((min(step, q - start), q))
            units[range(len(units)), range(start, start + len(units))] = 1.0
            found = self.part.plain_map(self._point, units=units).slopes["argument"]
            yield np.array([self._by_function(each) for each in found])

    def _by_function(self, found: Array) -> Array:
        """Return values of the argument, broadcast to its shape, as an array (c, n)."""
        try:
            spread = np.broadcast_to(found, self._shape)
        except ValueError:
            raise StructureError(
                f"The argument of {self._name} has the shape {np.shape(found)}, but there are {self.part.n_points} "
                "observations. Give it a value for each."
            ) from None
        return spread.T if self.part.by_class else spread[None]

    def _check_finite(self, arguments: Sequence[Array]) -> None:
        """Raise an error if the argument is not finite at the initial point."""
        n = self.part.n_points
        finite = np.all([np.isfinite(self._by_function(each)).all(axis=0) for each in arguments], axis=0)
        if not finite.any():
            why = why_improper(self.part, initial_point(self.part.model))
            raise StructureError(
                f"The argument of {self._name} is not finite at the initial point of the model. "
                f"{why or 'Give hyperparameters other initial values, initval=....'}"
            )
        if not finite.all():
            raise StructureError(
                f"The argument of {self._name} is not finite in {rows_text(~finite)} of {n}. Look for missing values "
                "in the data that it is computed from, and in the parameters of its Gaussian variables."
            )

    def _change(self, i: int, values: Array) -> Array:
        """Return the change of the latent functions, (c, n), if process i has these values."""
        given = [*self._nothing[:i], values, *self._nothing[i + 1 :]]
        (moved,) = self._affine.at(self._point, np.zeros(self.part.n_plain), given)
        return self._by_function(moved) - self._by_function(self._centre)

    @cached_property
    def _outputs(self) -> list[NDArray[np.bool_]]:
        """Masks (outputs, c), one for each process: whether an output contributes to a latent function."""
        found = []
        for i, shape in enumerate(self.part.sizes):
            noise = probes(shape)[2]
            count = shape[0] if len(shape) > 1 else 1
            masked = [noise * (np.arange(count) == o)[:, None] if len(shape) > 1 else noise for o in range(count)]
            found.append(np.array([self._change(i, each).any(axis=1) for each in masked]))
        return found

    @cached_property
    def _taken(self) -> NDArray[np.bool_]:
        """Mask (q, c): whether a standard normal contributes to a latent function."""
        of_processes = [
            np.repeat(own, shape[-1], axis=0) for own, shape in zip(self._outputs, self.part.sizes, strict=True)
        ]
        if self.part.by_class:
            plain = [np.zeros((0, self.c), bool), *(each.any(axis=2) for each in self.slopes())]
        else:
            plain = [np.ones((self.part.n_plain, 1), bool)]
        return np.concatenate([*plain, *of_processes])

    def shared(self) -> list[TensorVariable]:
        """Return the variables with a standard normal that contributes to several functions."""
        several = self._taken.sum(axis=1) > 1
        return [variable for variable, own in self.part.places.items() if several[own].any()]

    def differs_by_common(self, other: "_Numbers") -> bool:
        """Return whether both sums differ only by a shift that is common to all functions of a point."""
        largest = unequal = 0.0
        for ours, theirs in zip(self.slopes(), other.slopes(), strict=True):
            apart = ours - theirs
            unequal = max(unequal, float(np.abs(apart - apart[:, :1]).max()))
            largest = max(largest, float(np.abs(ours).max()))
        return unequal <= EVALUATION_TOLERANCE * (1.0 + largest)

    def completed(self) -> LatentSum:
        """Return the sum with its number of functions, and with Gaussian processes as terms."""
        owner = np.asarray(self._taken.argmax(axis=1), dtype=np.int64)
        whole = replace(self.part, n_functions=self.c, owner=owner, shared=bool(self.shared()))
        if whole.shared:
            self._check()
            return whole
        given = [[self._change(i, probe) for probe in probes(shape)] for i, shape in enumerate(self.part.sizes)]
        terms = [_term(whole, i, *each) for i, each in enumerate(zip(given, self._outputs, strict=True))]
        self._check()
        return replace(whole, terms=tuple(terms))

    def _check(self) -> None:
        """Raise an error if the argument is not affine: if all normals double, its change must double, too."""
        arguments = [self._affine.at(self._point, t * self._noise, self._nothing)[0] for t in (1.0, 2.0)]
        once, twice = (self._by_function(each) - self._by_function(self._centre) for each in arguments)
        size = 1.0 + np.abs(self._by_function(self._centre)).max() + np.abs(twice).max()
        if not np.allclose(2.0 * once, twice, rtol=0.0, atol=EVALUATION_TOLERANCE * size):
            raise StructureError(
                f"The argument of {self._name} was read as affine in Gaussian variables, and is not. Please report "
                "this model."
            )


def _term(prior: LatentSum, i: int, given: list[Array], taken: NDArray[np.bool_]) -> ProcessTerm:
    return ProcessTerm.read(prior.processes[i], prior.sizes[i], partial(prior.of_process, i), given, taken.T)


def _check_apart(prior: LatentPrior, rv: TensorVariable, reading: Reading) -> None:
    """Raise an error if parameters of the likelihood depend on integrated variables."""
    if reading.parameters is None:
        return
    behind = set(ancestors([reading.parameters]))
    values = {latent.free: latent.f for latent in prior.processes}
    if found := [values.get(free, free) for free in prior.integrated if free in behind]:
        raise StructureError(
            f"A parameter of {rv.name!r} other than its argument depends on {listing(found)}. It may depend on "
            f"hyperparameters only. {as_it_is(prior.model)}"
        )


def _by_functions(likelihood: Likelihood, argument: TensorVariable, rv: TensorVariable) -> TensorVariable:
    """Return the argument of a likelihood as (n, c)."""
    if likelihood.function_axis:
        if argument.ndim != 2:
            raise StructureError(
                f"The argument of {rv.name!r} must have two axes, (points, classes), but its number of axes is "
                f"{argument.ndim}. Give it f.T, where f has one row per class. Two classes by one function are "
                "pm.Bernoulli(logit_p=f)."
            )
        return argument
    if argument.ndim != 1:
        raise NotProcessesAloneError(f"The argument of {rv.name!r} must have one axis, but has {argument.ndim}.")
    return argument[:, None]


def _check_hyperparameters(prior: LatentPrior, observed: Sequence[TensorVariable]) -> None:
    """Raise an error for discrete hyperparameters, and for other terms that depend on integrated variables."""
    model = prior.model
    values = {latent.free: latent.f for latent in prior.processes}
    own = {*observed, *prior.integrated, *unobserved_responses(model)}
    for free in prior.integrated:
        dependent = [
            term for term in (*model.basic_RVs, *model.potentials) if term not in own and free in ancestors([term])
        ]
        if dependent:
            raise StructureError(
                f"{listing(dependent)} depends on the latent values {values.get(free, free).name!r} of "
                f"{quoted(observed)}. Hyperparameters, potentials and other likelihoods must not depend on latent "
                "values (a Deterministic may). Remove these terms from the model."
            )
    discrete = [variable for variable in prior.hyperparameters if np.dtype(variable.dtype).kind != "f"]
    if discrete:
        raise StructureError(
            f"The model has discrete hyperparameters: {listing(discrete)}. All free variables must be continuous. Sum "
            "over discrete variables, or fix them with pm.do."
        )
