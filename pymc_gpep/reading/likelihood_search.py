"""Search for likelihoods among the observed variables. Arrays and several observed variables are read as rows."""

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.distributions.shape_utils import change_dist_size
from pymc.distributions.truncated import TruncatedRV
from pymc.pytensorf import get_symbolic_rv_shapes
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.random.basic import BernoulliRV, LogNormalRV
from pytensor.tensor.random.op import RandomVariable, RNGConsumerOp
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.graphs.affine import Affinity, Lifted, is_elementwise
from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import SEED, evaluate
from pymc_gpep.graphs.rows_apart import check_entries_apart
from pymc_gpep.latent.gp_latent import as_it_is, instead_of_likelihood, latents_among
from pymc_gpep.latent.latent_prior import known_data
from pymc_gpep.latent.lowered_dims import MissingResponses, missing_responses, rebuilt, variables_of
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.observed import known_shape, to_one_axis
from pymc_gpep.likelihoods.stacked import StackedLikelihood
from pymc_gpep.reading.classifier import MARGINAL, GPClassifier, ObservedAxes
from pymc_gpep.reading.integrated import gaussians_of
from pymc_gpep.recipes import why_no_recipes
from pymc_gpep.sums.affine_map import kept_random
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.sums.new_data import DataBehind
from pymc_gpep.univariate.likelihood import ANY_UNIVARIATE
from pymc_gpep.univariate.local_scales import LOCAL_SCALE_FACTOR
from pymc_gpep.univariate.predictors import ANY_PREDICTORS, SEVERAL_PREDICTORS, StackedPredictors, of_common_functions
from pymc_gpep.univariate.prior_factor import PRIOR_FACTOR, is_factor

type _Made = tuple[TensorVariable, TensorVariable]


class _NotMadeError(Exception):
    """Raised if the parameters of a distribution cannot be replaced."""


def with_rows(model: pm.Model) -> pm.Model:
    """Return a model in which observed variables have one axis of rows, and links are functions of these rows.

    Returns
    -------
    pm.Model
        The model itself if it needs no change. Otherwise a new model with the same log density. Both share data and
        coords.
    """
    sources = gaussians_of(model).sources
    missing = missing_responses(model)
    made: dict[Variable, _Made] = {}
    for rv in model.observed_RVs:
        lifted = Lifted(sources, known_shape)
        value = cast(TensorVariable, model.rvs_to_values[rv])
        try:
            own = _partial(missing[rv], lifted) if rv in missing else _as_rows(rv, value, lifted)
        except _NotMadeError:
            continue
        if own is not None:
            own.name = rv.name
            made[rv] = own, value if value.ndim == 1 else _rows_of_values(rv, value)
    if not made:
        return model
    given = variables_of(model)
    # Variables that depend on an observed array use the rows in the shape of the array.
    arrays = {
        rv: own if own.ndim == rv.ndim else own.reshape(model.rvs_to_values[rv].shape) for rv, (own, _) in made.items()
    }
    same = {v: v for v in model.named_vars.values() if set(made).isdisjoint(ancestors([v]))}
    new = dict(zip(given, graph_replace(given, {**same, **arrays}, strict=False), strict=True))
    for rv, (own, value) in made.items():
        new[rv], new[model.rvs_to_values[rv]] = own, value
    return rebuilt(model, new, flat=[rv for rv, (own, _) in made.items() if own.ndim != rv.ndim])


def _rows_of_values(rv: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Return observed values with one axis of rows. PyMC's cast to integers is kept."""
    if is_elementwise(value, Cast):
        return cast(TensorVariable, value.owner.op(_rows_of_values(rv, value.owner.inputs[0])))
    core = range(value.ndim - getattr(rv.owner.op, "ndim_supp", 0), value.ndim)
    return cast(TensorVariable, value.reshape((-1, *(value.shape[i] for i in core))))


def _as_rows(rv: TensorVariable, value: TensorVariable, lifted: Lifted) -> TensorVariable | None:
    """Return an observed variable with one axis of rows and links of rows; None if it needs no change."""
    support = getattr(rv.owner.op, "ndim_supp", 0)
    if rv.ndim < support + (support > 0) or (rv.ndim == 0 and any(getattr(rv.owner.op, "ndims_params", ()))):
        return None
    # A scalar is one row.
    parameters = _Parameters(lifted, value, rv.ndim - support) if rv.ndim else _Parameters(lifted, value[None], 1, True)
    own = parameters.remade(rv)
    return parameters.sized(own, support) if parameters.changed else None


def _partial(missing: MissingResponses, lifted: Lifted) -> TensorVariable | None:
    """Return the observed variable of the rows with a response. Its parameters are selected from all rows."""
    node = missing.observed.owner
    parameters = _Parameters(lifted, pt.constant(missing.mask), missing.mask.ndim)
    if not isinstance(node.op, RandomVariable) or missing.whole is missing.observed:
        raise _NotMadeError
    whole = parameters.remade(missing.whole).owner
    if not parameters.changed:
        return None
    keep = pt.constant(~missing.missing)
    cut = [
        each if each.ndim == core or each.type.broadcastable[0] else each[keep]
        for each, core in zip(node.op.dist_params(whole), node.op.ndims_params, strict=True)
    ]
    size = None if any(not each.type.broadcastable[0] for each in cut if each.ndim) else [int((~missing.missing).sum())]
    return cast(TensorVariable, node.op(*cut, size=size, rng=node.op.rng_param(node), return_next_rng=True)[1])


class _Parameters:
    """Rewriter of parameters of observed variables. They get one axis of rows, and links are applied after selections.

    Parameters
    ----------
    lifted : Lifted
    value : TensorVariable
        Observed values. Their shape determines axes along which no parameter varies.
    axes : int
        Number of axes of rows.
    single : bool
        Whether the variable is a scalar, without an axis of rows.
    """

    def __init__(self, lifted: Lifted, value: TensorVariable, axes: int, single: bool = False) -> None:
        self._lifted, self._value, self._axes = lifted, value, axes
        self._shape = known_shape(value) if axes > 1 else ()
        self.changed = single or axes > 1

    def remade(self, rv: TensorVariable, inner: int = 0) -> TensorVariable:
        """Return a random variable with rewritten parameters.

        `inner` is the number of trailing batch axes that are not axes of rows.
        """
        node = rv.owner
        while isinstance(node.op, SpecifyShape):
            node = node.inputs[0].owner
        op = node.op
        if isinstance(op, RandomVariable):
            found = self._all(op.dist_params(node), [core + inner for core in op.ndims_params])
            made = op(*found, size=None, rng=op.rng_param(node), return_next_rng=True)[1]
            if made.ndim < inner + op.ndim_supp:
                raise _NotMadeError
            return cast(TensorVariable, made)
        match op:
            case CensoredRV():
                distribution, lower, upper = node.inputs[:3]
                bounds = [None if _infinite(each) else each for each in (lower, upper)]
                below, above = (each if each is None else self._one(each, inner) for each in bounds)
                return cast(TensorVariable, pm.Censored.dist(self.remade(distribution, inner), below, above))
            case TruncatedRV():
                *inputs, lower, upper = node.inputs
                base = self.remade(op.base_rv_op.make_node(*inputs).default_output(), inner)
                ends = [None if _infinite(each) else self._one(each, inner) for each in (lower, upper)]
                return cast(TensorVariable, pm.Truncated.dist(base, *ends, max_n_steps=op.max_n_steps))
            case _BaseMixtureRV():
                weights, *components = [each for each in node.inputs if not isinstance(each.type, RandomType)]
                deeper = inner + (len(components) == 1)
                parts = [self.remade(each, deeper) for each in components]
                return cast(TensorVariable, type(op).rv_op(self._one(weights, inner + 1), *parts))
            case SymbolicRandomVariable() if op.extended_signature is not None and not inner:
                try:
                    return cast(TensorVariable, type(op).rv_op(*self._all(op.dist_params(node), op.ndims_params)))
                except (AttributeError, TypeError, ValueError):  # A class of another package may have no `dist`.
                    raise _NotMadeError from None
        raise _NotMadeError

    def _all(self, given: Sequence[TensorVariable], cores: Sequence[int]) -> list[TensorVariable]:
        return [self._one(each, core) for each, core in zip(given, cores, strict=True)]

    def _one(self, variable: TensorVariable, core: int) -> TensorVariable:
        """Return a rewritten parameter. Its last `core` axes are not axes of rows."""
        if self._axes == 1 and core:
            own = self._lifted.softmax(variable)
            self.changed |= own is not variable
            return own
        own = variable if core else self._lifted(variable)
        self.changed |= own is not variable
        if self._axes == 1:
            return own
        rows = own.ndim - core
        lengths = [self._length(i, own, rows) for i in range(self._axes)]
        merged = self._lifted.rows(own, lengths, core)
        return merged if merged.ndim == core or not merged.type.broadcastable[0] else merged[0]

    def _length(self, axis: int, variable: TensorVariable, rows: int) -> Any:
        """Return the length of an axis of rows, from the observed values."""
        own = axis - self._axes + rows
        if own >= 0 and not variable.type.broadcastable[own]:
            known = known_shape(variable)[own]
            if None not in (known, self._shape[axis]) and known != self._shape[axis]:
                raise _NotMadeError  # PyMC would broadcast the observed values to the shape of the parameter.
        return self._value.shape[axis] if self._shape[axis] is None else self._shape[axis]

    def sized(self, made: TensorVariable, support: int) -> TensorVariable:
        """Return a random variable with an axis of rows, also if no parameter has such an axis."""
        known = known_shape(self._value)[: self._axes]
        if made.ndim > support and (not made.type.broadcastable[0] or set(known) == {1}):
            return made
        lengths = [self._value.shape[i] if own is None else own for i, own in enumerate(known)]
        size = math.prod(lengths) if None not in known else pt.prod(pt.stack(lengths))
        return cast(TensorVariable, change_dist_size(made, [size]))


def _infinite(bound: Variable) -> bool:
    return isinstance(bound, Constant) and bool(np.isinf(bound.data).all())


def axes_of(model: pm.Model) -> dict[str, ObservedAxes]:
    """Return the `ObservedAxes` of observed arrays, by their names in the model of the user."""
    missing = missing_responses(model)
    found = {}
    for rv in model.observed_RVs:
        if rv in missing:
            name, shape, array, vectors = missing[rv].name, missing[rv].mask.shape, missing[rv].whole, 0
            axes = len(shape)
        else:
            core = getattr(rv.owner.op, "ndim_supp", 0)
            name, axes = str(rv.name), rv.ndim - core
            array, vectors = getattr(rv.tag, MARGINAL, (rv, 0))
            shape = () if axes == 1 and not vectors else evaluate([model.rvs_to_values[rv]])[0].shape[:axes]
        if axes != 1 or vectors:
            given = model.named_vars_to_dims.get(name) or ()
            dims = [given[i] if i < len(given) and given[i] else f"{name}_dim_{i}" for i in range(len(shape))]
            found[name] = ObservedAxes(tuple(map(str, dims)), tuple(map(int, shape)), array, vectors)
    return found


def array_at_new_rows(
    classifier: GPClassifier, new: Mapping[str, ArrayLike], data: Mapping[Variable, Variable]
) -> GPClassifier:
    """Return the classifier of an observed array at new data. Its prior has the rows of the new array.

    The new array has the shape of the likelihood parameters at the new data. An axis keeps its length if no parameter
    varies along this axis.

    Parameters
    ----------
    classifier : GPClassifier
        Classifier of an observed array. Its prior is a sum of effects.
    new : dict of str to array_like
        New data by name. The number of axes is as in the model, but lengths may differ.
    data : mapping
        Data of the model → constants with their values in the fit.

    Raises
    ------
    ValueError
        If the array does not depend on these data, or if the data do not match the model.
    """
    axes, model, prior = classifier.axes, classifier.model, classifier.prior
    assert axes is not None
    name, outputs = classifier.response, [v for v in axes.array.owner.inputs if isinstance(v, TensorVariable)]
    inputs = [latent.cov for latent in prior.processes]
    known = known_data(model, outputs) | {k: v for k, v in known_data(model, inputs).items() if k in new}
    if unknown := [each for each in new if each not in known]:
        depends = f"the data {', '.join(map(repr, known))}" if known else "no data: declare them as pm.Data"
        raise ValueError(
            f"data names {', '.join(map(repr, unknown))}, but {name!r} depends on {depends}."
            f"{did_you_mean(unknown, known)}"
        )
    if moved := [each for each in new if known[each] in ancestors(inputs)]:
        raise ValueError(
            f"{moved[0]!r} is an input of a Gaussian process, and an observed array cannot be predicted at new inputs. "
            "Include new inputs when the model is fitted, and give the new index: f[pm.Data('week', ...)]."
        )
    behind = DataBehind(model, outputs, known, data, classifier.n_rows, free=True)
    x = behind.read(new)
    for each, (outside, count) in behind.outside(x).items():
        raise ValueError(
            f"data[{each!r}] has {x.by_row[each][outside][0]}, but its levels are 0 to {count - 1}. To predict a new "
            "level, write the model with one row for each entry of the array, and use new_levels=True."
        )
    constants = {known[each]: pt.constant(value, name=each) for each, value in x.by_row.items()}
    try:
        was, array = (_with_data(axes.array, made) for made in (data, {**data, **constants}))
    except ValueError:
        shapes = [f"{each!r} {own.shape}" for each, own in (behind.fitted | dict(x.by_row)).items() if own.ndim]
        raise ValueError(
            f"The shapes of data do not match: {', '.join(shapes)}. If new data change the length of an axis, give new "
            "values of all data along this axis."
        ) from None
    _check_apart(classifier, {known[each]: value for each, value in x.by_row.items()}, data)
    before, after = (_lengths(each, prior.sources) for each in (was, array))
    shape = tuple(own if (a, b) == (1, 1) else b for own, a, b in zip(axes.shape, before, after, strict=True))
    core = getattr(array.owner.op, "ndim_supp", 0)
    value = pt.zeros((*shape, *(1,) * core), dtype=array.dtype)
    try:
        rows = _as_rows(array, value, Lifted(prior.sources, known_shape))
        own = array if rows is None else rows
    except _NotMadeError:
        own = None
    reading = None if own is None else classifier.likelihood_model.read(own, prior.sources)
    if reading is None or not isinstance(prior, LatentSum):
        raise ValueError(
            f"Predictions of {name!r} at new data have no formula. Draw them: pm.set_data({{...}}) and "
            "pm.sample_posterior_predictive(fit.sample())."
        )
    assert own is not None
    own.name = name
    n_rows, labels = math.prod(shape), _labels_at(axes, new, shape)
    return replace(
        classifier,
        prior=replace(prior, everywhere=reading.argument, fitted=None, n_rows=n_rows),
        observed=(own,),
        given=reading.parameters,
        unbounded=reading.unbounded,
        rows=slice(0, n_rows),
        missing=None,
        coords={**classifier.coords, **labels},
        axes=axes._replace(shape=shape, array=array),
    )


def _check_apart(
    classifier: GPClassifier, new: Mapping[TensorVariable, NDArray[Any]], data: Mapping[Variable, Variable]
) -> None:
    """Raise an error if entries of an observed array depend on new data at other positions."""
    model, axes, rng = classifier.model, classifier.axes, np.random.default_rng(SEED)
    assert axes is not None
    parameters = _arrays_of(axes.array, model)
    random = [rv for rv in model.basic_RVs if rv in ancestors(parameters)]
    shapes = evaluate(get_symbolic_rv_shapes(random)) if random else []
    given = {rv: 0.5 + np.abs(rng.standard_normal(shape)) for rv, shape in zip(random, shapes, strict=True)}

    def at(place: int, values: Mapping[TensorVariable, NDArray[Any]]) -> NDArray[np.float64]:
        constants = {variable: pt.constant(value, name=variable.name) for variable, value in values.items()}
        made = _with_data(axes.array, {**data, **constants})
        return np.asarray(evaluate([_arrays_of(made, model)[place]], given)[0])

    what = f"Entries of {classifier.response!r}"
    for place, parameter in enumerate(parameters):
        for axis in range(parameter.type.ndim):
            check_entries_apart(what, parameter, axis, new, partial(at, place), model.basic_RVs)


def _arrays_of(variable: TensorVariable, model: pm.Model) -> list[TensorVariable]:
    """Return the parameters of a distribution that are arrays, also of inner distributions."""
    found: list[TensorVariable] = []
    node = variable.owner
    inputs = node.op.dist_params(node) if isinstance(node.op, RandomVariable) else node.inputs
    for each in inputs:
        if not isinstance(each, TensorVariable):
            continue
        made = each.owner is not None and isinstance(each.owner.op, RandomVariable | SymbolicRandomVariable)
        found += _arrays_of(each, model) if made and each not in model.basic_RVs else [each] * bool(each.type.ndim)
    return found


def _with_data(array: TensorVariable, data: Mapping[Variable, Variable]) -> TensorVariable:
    """Return a random variable with replaced data in its parameters. Other random variables do not change.

    Raise a ValueError if lengths of the data do not match.
    """
    random = kept_random(array.owner.inputs)
    made: dict[Variable, Variable] = {**random, **data}
    for node in io_toposort([*made], [array]):
        inputs = [made.get(each, each) for each in node.inputs]
        sized = isinstance(node.op, RNGConsumerOp)  # The size is the length in the fit, so it is not used.
        new = node.clone_with_new_inputs(inputs, strict=False) if sized else node.op.make_node(*inputs)
        made |= zip(node.outputs, new.outputs, strict=True)
    return cast(TensorVariable, made[array])


def _lengths(array: TensorVariable, sources: frozenset[Variable]) -> list[int]:
    """Return the lengths of the axes of an array, from its parameters; 1 if no parameter varies along an axis."""
    try:
        parameters = _Parameters(Lifted(sources, known_shape), array, 1).remade(array)
    except _NotMadeError:
        parameters = array
    core = getattr(array.owner.op, "ndim_supp", 0)
    (shape,) = evaluate(get_symbolic_rv_shapes([parameters]))
    rows = [int(length) for length in shape[: len(shape) - core]]
    return [1] * (array.ndim - core - len(rows)) + rows


def _labels_at(
    axes: ObservedAxes, new: Mapping[str, ArrayLike], shape: Sequence[int]
) -> dict[str, tuple[Any, ...] | None]:
    """Return new coordinates by dim: coordinates of a DataArray, or None if an axis has another length."""
    found: dict[str, tuple[Any, ...] | None] = {
        dim: None for dim, before, after in zip(axes.dims, axes.shape, shape, strict=True) if before != after
    }
    given = [coords for each in new.values() if (coords := getattr(each, "coords", None)) is not None]
    return found | {dim: tuple(coords[dim].values) for coords in given for dim in axes.dims if dim in coords}


class FoundLikelihood(NamedTuple):
    """Observed variable, and the likelihood that reads it."""

    likelihood: Likelihood
    variable: TensorVariable
    reading: Reading


def find_likelihoods(model: pm.Model, name: str | None, gaussian: Set[Variable]) -> list[FoundLikelihood]:
    """Return all likelihoods that can be read, or the likelihood `name`. Variables in `gaussian` may be integrated out.

    Raises
    ------
    StructureError
        If no likelihood can be read, or if several likelihoods can be read but not fitted together.
    """
    missing = missing_responses(model)
    if name not in {None, *(rv.name for rv in model.basic_RVs), *(each.name for each in missing.values())}:
        raise StructureError(
            f"likelihood={name!r} is not a variable of the model. Observed variables are "
            f"{listing(model.observed_RVs)}.{did_you_mean([name], [rv.name for rv in model.observed_RVs])}"
        )
    found: dict[str, FoundLikelihood] = {}
    processes = {latent.f for latent in latents_among([*model.free_RVs, *model.deterministics], model)}
    latents = processes | gaussian
    unobserved = []
    refused: list[TensorVariable] = []
    apart = {each.unobserved for each in missing.values()}
    for rv in model.basic_RVs:
        if rv in apart:
            continue
        read = _first_reading(rv, latents, missing) or _first_reading(rv, processes, missing)
        if read is None:
            refused += [rv] * (rv in model.observed_RVs)
        elif rv in model.observed_RVs:
            found[rv.name] = read
        else:
            unobserved.append(rv)
    if name is not None:
        called = {each.observed.name: each.name for each in missing.values()}
        found = {key: each for key, each in found.items() if name in (key, called.get(key))}
        of_priors = [rv for rv in refused if is_factor(rv)]
        refused = [rv for rv in refused if name in (rv.name, called.get(rv.name))] or refused
        found |= _other_readings(of_priors, latents, processes, missing) if found else {}
    by_class = [each for each in found.values() if each.likelihood.function_axis]
    if not found or (name is None and not by_class):
        found |= _other_readings(refused, latents, processes, missing)
    if not found:
        raise StructureError(_no_likelihood(model, name, latents, unobserved, refused))
    if by_class and len(found) > 1:
        names = ", ".join(map(repr, found))
        raise StructureError(
            f"The model has several observed variables that can be read, {names}. In a joint fit each needs a "
            f"single latent function, but {listing(each.variable for each in by_class)} has several. Choose a "
            f"variable, likelihood={next(iter(found))!r}, or remove the other variables. {as_it_is(model)}"
        )
    return [found[rv.name] for rv in model.basic_RVs if rv.name in found]


_FACTORS = PRIOR_FACTOR, LOCAL_SCALE_FACTOR


def _other_readings(
    variables: Sequence[TensorVariable],
    latents: Set[Variable],
    processes: Set[Variable],
    missing: Mapping[TensorVariable, MissingResponses],
) -> dict[str, FoundLikelihood]:
    """Return readings of observed variables by their log density. Variables with more than two classes are left out."""
    found = {}
    for rv in variables:
        whole = missing[rv].whole if rv in missing else rv
        several = [each.n_classes(2 if each.function_axis else 1) for each in LIKELIHOODS if each.may_be(whole)]
        # A Bernoulli variable is read as a number of successes, not as classes.
        if any(several) and not isinstance(whole.owner.op, BernoulliRV):
            continue
        if _truncates(whole, latents | processes):  # Its density has no derivative in Gaussian variables.
            continue
        likelihood = next((each for each in _FACTORS if each.may_be(whole)), ANY_UNIVARIATE)
        for sources in (latents, processes):
            reading = read_response(likelihood, rv, frozenset(sources), missing.get(rv))
            if reading is not None:
                found[rv.name] = FoundLikelihood(reading.likelihood or likelihood, rv, reading)
                break
    return found


def _first_reading(
    rv: TensorVariable, latents: Set[Variable], missing: Mapping[TensorVariable, MissingResponses]
) -> FoundLikelihood | None:
    """Return the first likelihood that can read a random variable; None if no likelihood can."""
    for likelihood in LIKELIHOODS:
        # PyMC may broadcast parameters to more axes than the likelihood can read.
        if rv.ndim > likelihood.observed_axes:
            continue
        if (reading := read_response(likelihood, rv, frozenset(latents), missing.get(rv))) is not None:
            return _by_argument(rv, reading, latents, missing) or FoundLikelihood(likelihood, rv, reading)
    return None


def _by_argument(
    rv: TensorVariable, reading: Reading, latents: Set[Variable], missing: Mapping[TensorVariable, MissingResponses]
) -> FoundLikelihood | None:
    """Return a reading of the log density if all parameters depend only on the argument, as in N(f, exp f)."""
    affinity = Affinity(frozenset(latents))
    if reading.parameters is None or not affinity.reached([reading.parameters]):
        return None
    whole = read_response(ANY_UNIVARIATE, rv, frozenset(latents), missing.get(rv))
    if whole is None or (whole.parameters is not None and affinity.reached([whole.parameters])):
        return None
    return FoundLikelihood(whole.likelihood or ANY_UNIVARIATE, rv, whole)


def read_response(
    likelihood: Likelihood, rv: TensorVariable, latents: frozenset[Variable], missing: MissingResponses | None
) -> Reading | None:
    """Return the reading of the rows with a response by a likelihood; None if the likelihood cannot read them."""
    return likelihood.read(rv, latents) if missing is None else missing.read(likelihood, latents)


def _no_likelihood(
    model: pm.Model,
    name: str | None,
    latents: Set[Variable],
    unobserved: Sequence[TensorVariable],
    refused: Sequence[TensorVariable],
) -> str:
    """Return the reason why no observed variable can be read as a likelihood."""
    near: dict[str, None] = {}
    for rv in sorted(refused, key=lambda rv: latents.isdisjoint(ancestors([rv]))):
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            return (
                f"The density of {rv.name!r} is scaled by total_size=, as for pm.Minibatch. Observe all rows without "
                f"total_size: observed=y. For many rows of a process "
                'pm.fit(method="sparse_vi", batch_size=...) makes the batches.'
            )
        likely = [likelihood for likelihood in LIKELIHOODS if likelihood.may_be(rv)]
        random = [each for each in ancestors([rv]) if each in model.basic_RVs and each is not rv]
        if likely and rv.ndim > likely[0].observed_axes and not near:
            (labels,) = evaluate([model.rvs_to_values[rv]])
            values = "" if likely[0].function_axis else ", and latent values of one axis, f as gp.prior(...) returns it"
            return (
                f"{rv.name!r} is observed with shape {labels.shape}, but must have one label for each point, in one "
                f"axis{values}.{to_one_axis(labels.shape, likely[0].n_classes(1) > 0)}"
            )
        if likely and random and latents.isdisjoint(ancestors([rv])) and not near:
            return (
                f"The argument of {rv.name!r} must depend on Gaussian variables, but depends on {listing(random)}. "
                f"{why_no_recipes(random, model)} {as_it_is(model)}"
            )
        each = [*likely, ANY_UNIVARIATE]
        whys = [why for likelihood in each if (why := likelihood.why_not(rv, latents))] or [instead_of_likelihood(rv)]
        if SEVERAL_PREDICTORS.read(rv, latents) is not None:
            whys[0] += " pm.fit(..., method='ep') fits several linear predictors."
        near |= dict.fromkeys(whys[:1])
    named = "" if name is None else f" named {name!r}"
    advice, observed = " ".join(filter(None, near)), listing(model.observed_RVs)
    sentences = [
        f"The model has no likelihood to read{named}: "
        + (f"its observed variables are {observed}." if model.observed_RVs else "no variable is observed."),
        "" if model.observed_RVs else _in_potential(model, latents) or _unobserved(unobserved),
        advice,
        *_log_normals(model, refused),
        as_it_is(model) if near else "",
    ]
    if model.observed_RVs and not advice:
        sentences.append(f"Likelihoods are {', '.join(each.written for each in (*LIKELIHOODS, ANY_UNIVARIATE))}.")
    return " ".join(filter(None, sentences))


def _in_potential(model: pm.Model, latents: Set[Variable]) -> str:
    """Return the reason why a potential of Gaussian variables cannot be read as rows; or an empty text."""
    for each in model.potentials:
        if not latents.isdisjoint(ancestors([each])):
            return (
                f"The Potential {each.name!r} is not a sum of terms that each depend on one affine function of "
                f"Gaussian variables. Write a density of rows as pm.CustomDist({each.name!r}, *parameters, "
                "logp=logp, observed=y)."
            )
    return ""


def _unobserved(variables: Sequence[TensorVariable]) -> str:
    """Return a sentence on variables that may be the response, for a model without observed variables."""
    if variables:
        return f"{listing(variables)} is not observed: give it the labels, observed=y."
    return "Give the response to its distribution: observed=y."


def _truncates(rv: TensorVariable, latents: Set[Variable]) -> bool:
    """Return whether a parameter of a random variable casts Gaussian variables to integers."""
    casts = [v for v in ancestors(rv.owner.inputs) if is_elementwise(v, Cast) and v.dtype.startswith("int")]
    return any(not latents.isdisjoint(ancestors([v])) for v in casts)


def _log_normals(model: pm.Model, refused: Sequence[TensorVariable]) -> list[str]:
    """Return advice for log-normal variables on which a refused response depends: write them as exp of normals."""
    behind = set(ancestors(refused))
    return [
        f"{rv.name!r} is not Gaussian, but its logarithm is. Write the variable as pm.math.exp(mu + tau * z) with z = "
        "pm.Normal('z', shape=...)."
        for rv in model.free_RVs
        if rv in behind and isinstance(rv.owner.op, LogNormalRV)
    ]


class StackedResponses:
    """Several observed variables that are fitted together.

    Parameters
    ----------
    model : pm.Model
    found : sequence of FoundLikelihood
        Likelihoods, each of one latent function.
    missing : mapping
        Missing responses, by observed variable.

    Attributes
    ----------
    found : sequence of FoundLikelihood
        The likelihoods.
    variables : list of TensorVariable
        The observed variables.
    values : list of TensorVariable
        Observations of each observed variable.
    sizes : list of int
        Number of rows with a response, for each variable.
    """

    def __init__(
        self, model: pm.Model, found: Sequence[FoundLikelihood], missing: Mapping[TensorVariable, MissingResponses]
    ) -> None:
        self.found, self._missing = found, missing
        self._several = all(each.likelihood is ANY_PREDICTORS for each in found)
        self.variables = [each.variable for each in found]
        self.values = [model.rvs_to_values[each] for each in self.variables]
        self.sizes = [int(n) for n in evaluate([v.size for v in self.values])]

    def readings(self, sources: Collection[Variable]) -> list[Reading | None]:
        """Return the reading of each observed variable; None if the argument is not separable from other parameters."""
        known = frozenset(sources)
        found = [
            read_response(each.likelihood, each.variable, known, self._missing.get(each.variable))
            for each in self.found
        ]
        return of_common_functions(found) if self._several else found

    def read(self, sources: Collection[Variable]) -> Reading | None:
        """Return the joint reading of all observed variables with a reading; None if no variable has a reading."""
        readings = self.readings(sources)
        return self.together(readings) if any(readings) else None

    def together(self, readings: Sequence[Reading | None]) -> Reading:
        """Return a joint reading of several observed variables, given the reading of each variable."""
        told = [each for each in zip(readings, self.found, self.sizes, strict=True) if each[0] is not None]
        made = [parameters_at_points(reading, n) for reading, _, n in told if reading is not None]
        arguments = [
            reading.argument.astype("float64") + pt.zeros((n, 1) if self._several else n)
            for reading, _, n in told
            if reading is not None
        ]
        kind: type[StackedLikelihood] = StackedPredictors if self._several else StackedLikelihood
        likelihood = kind(
            parts=tuple((reading and reading.likelihood) or each.likelihood for reading, each, _ in told),
            counts=tuple(count for _, count in made),
        )
        parameters = likelihood.together([each for each, _ in made])
        return Reading(pt.concatenate(arguments), parameters, likelihood=likelihood.at_rows([n for *_, n in told]))

    def observed(self) -> TensorVariable:
        """Return the observations of all variables, (n,)."""
        return pt.concatenate([each.astype("float64") for each in self.values])

    def apart(self, sources: frozenset[Variable]) -> list[FoundLikelihood]:
        """Return the observed variables without a reading, or with an argument without integrated variables."""
        affinity = Affinity(sources)
        pairs = zip(self.found, self.readings(sources), strict=True)
        return [each for each, reading in pairs if reading is None or not affinity.behind(reading.argument)]


def parameters_at_points(reading: Reading, n_points: int) -> tuple[TensorVariable, int]:
    """Return the parameters of a likelihood at each of n points, (p, n), and their number p."""
    if reading.parameters is None:
        return pt.zeros((0, n_points)), 0
    (shape,) = evaluate(get_symbolic_rv_shapes([reading.parameters]))
    count = int(shape[0])
    return pt.broadcast_to(reading.parameters, (count, n_points)).astype("float64"), count
