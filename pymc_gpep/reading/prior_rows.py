"""Priors of effects that are not normal, rewritten as observed variables with one row for each effect.

An effect u with an independent prior p is replaced by a normal variable. Its distribution is called the base, and does
not depend on hyperparameters. An observed variable 'u_prior' has the density p(u) / N(u | base). So the rewritten model
has the density of the original model, apart from changes of variables.

Some methods ignore bounds. They integrate out a uniform effect with the density 1 / (upper − lower) everywhere.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import AsymmetricLaplaceRV, FlatRV, HalfFlatRV
from pymc.distributions.mixture import MixtureRV
from pymc.logprob.transforms import IntervalTransform, LogOddsTransform, LogTransform
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LaplaceRV, NormalRV, UniformRV
from pytensor.tensor.random.op import RandomVariable, RNGConsumerOp
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import ModelFunctions, initial_point
from pymc_gpep.graphs.private_names import support_point
from pymc_gpep.latent.lowered_dims import rebuilt, variables_of
from pymc_gpep.likelihoods.log_probabilities import log_probability
from pymc_gpep.likelihoods.observed import known_shape
from pymc_gpep.likelihoods.standard_density import no_bounds
from pymc_gpep.reading.classifier import GPClassifier
from pymc_gpep.reading.likelihood_search import find_likelihoods
from pymc_gpep.reading.local_scales import with_local_scales
from pymc_gpep.reading.rewritten_models import row_density
from pymc_gpep.recipes import recipe
from pymc_gpep.recipes.normals import wide_uniform
from pymc_gpep.recipes.recipe import is_random, parameters, shape_of
from pymc_gpep.sums.latent_sum import LatentSum
from pymc_gpep.univariate.prior_factor import PRIOR, SUFFIX

WIDTH = 4.0
"""Standard deviation of the base, in units of the spread of the prior at the initial point."""
_STEPS = 2.0 ** np.arange(-30.0, 31.0)  # A prior density is evaluated at these distances from its centre.

LOGARITHM = "_log"
"""Suffix of the name of the logarithm of an effect. It follows the name of the effect."""

type _Bounds = tuple[TensorVariable, TensorVariable]


class _Prior(NamedTuple):
    """A prior that is not normal, with the variables from which its rows are made."""

    variable: TensorVariable
    value: TensorVariable
    log_density: TensorVariable
    """Log density of the prior as a function of `value`."""
    bounds: _Bounds
    centres: list[TensorVariable]
    smooth: bool


def read_with_priors(
    model: pm.Model,
    read: Callable[[pm.Model], GPClassifier],
    likelihood: str | None,
    hyperparameters: Sequence[str],
    bounds: bool,
) -> GPClassifier:
    """Return the classifier of a model. Its effects may have priors that are not normal.

    Parameters
    ----------
    model : pm.Model
    read : callable
        Function that reads a model with normal effects.
    likelihood : str or None
        Name of the observed variable to read.
    hyperparameters : sequence of str
        Names of variables that must be hyperparameters.
    bounds : bool
        Whether priors with bounds become rows, and local scales are integrated out. Otherwise uniform effects have a
        flat prior without bounds, and local scales are hyperparameters.
    """
    if not bounds:
        return _read_effects(model, read, likelihood, hyperparameters, bounds=False)
    refused: StructureError | None = None
    try:
        found = _read_sums(model, read, likelihood, hyperparameters)
        left, base = list(found.hyperparameters), found.model
    except StructureError as error:
        left, base, refused = model.free_RVs, model, error
    factors = [rv for rv in left if rv.name not in hyperparameters and _may_multiply(rv, base)]
    while factors:
        other = with_prior_rows(base, factors, logarithms=True)
        try:
            product = read(other)
        except StructureError:
            break
        kept = {str(rv.name) for rv in product.prior.integrated}
        if left_out := [rv for rv in factors if f"{rv.name}{LOGARITHM}" not in kept]:
            factors = [rv for rv in factors if rv not in left_out]
        elif all(_is_open(each) for each in product.each):
            return product
        else:
            break
    if refused is not None:
        raise refused
    return found


def _may_multiply(rv: TensorVariable, model: pm.Model) -> bool:
    """Return whether a variable may be a factor of rates: a positive vector, used only by observed variables."""
    if rv.ndim != 1 or known_shape(rv)[0] in (None, 1) or not isinstance(model.rvs_to_transforms[rv], LogTransform):
        return False
    beyond = [*_inputs(model, model.observed_RVs), *model.potentials]
    return _may_be(rv, model) and rv not in ancestors(beyond)


def _read_sums(
    model: pm.Model,
    read: Callable[[pm.Model], GPClassifier],
    likelihood: str | None,
    hyperparameters: Sequence[str],
) -> GPClassifier:
    """Return the classifier of a model with additive effects. Priors that are not normal become factors."""
    scaled = with_local_scales(model, hyperparameters) if _have_one_shape(model) else model
    if scaled is not model:
        with suppress(StructureError):
            found = _read_effects(scaled, read, likelihood, hyperparameters, bounds=True)
            if all(_is_open(each) for each in found.each):
                return found
    return _read_effects(model, read, likelihood, hyperparameters, bounds=True)


def _have_one_shape(model: pm.Model) -> bool:
    """Return whether local scales are possible: a normal variable has the shape of another vector or indicator."""
    every = [(rv, known_shape(rv)) for rv in model.free_RVs if rv.ndim < 2]
    others = [shape for rv, shape in every if rv.ndim or np.dtype(rv.dtype).kind != "f"]
    return any(others.count(shape) > (rv.ndim > 0) for rv, shape in every if isinstance(rv.owner.op, NormalRV))


def _read_effects(
    model: pm.Model,
    read: Callable[[pm.Model], GPClassifier],
    likelihood: str | None,
    hyperparameters: Sequence[str],
    bounds: bool,
) -> GPClassifier:
    """Return the classifier of a model without local scales. Priors that are not normal become factors."""
    left = set(hyperparameters)
    try:
        plain = read(model)
    except StructureError as error:
        plain, refused = None, error
    while True:
        effects = effects_alone(model, likelihood, left) if plain is None else effects_of(plain, likelihood, left)
        other = with_prior_rows(
            model, [model[str(rv.name)] for rv in effects.variables], bounds and not effects.by_class
        )
        if other is model:
            break
        try:
            found = read(other)
        except StructureError:
            break
        if not all(_is_open(each) for each in found.each):
            break
        kept = {str(rv.name) for rv in effects.variables}.intersection(str(rv.name) for rv in found.hyperparameters)
        if not kept:
            return found
        left |= kept
    if plain is None:
        raise refused
    return plain


_FAR = np.array([-10.0, -1.0, 1.0, 10.0])  # Likelihoods with a link have a density at these latent values.


def _is_open(read: GPClassifier) -> bool:
    """Return whether the likelihood has a density at latent values of both signs, for initial hyperparameters."""
    parameters, labels = read.parameters, read.labels
    values = ModelFunctions(read.model, read.hyperparameters)([parameters, labels])(initial_point(read.model))
    likelihood = read.likelihood_model.given(np.asarray(values[0], np.float64))
    c, n = read.n_functions, read.rows.stop - read.rows.start
    observed = likelihood.check(values[1], c, n)
    f = np.broadcast_to(_FAR[:, None, None], (len(_FAR), c, n))
    with np.errstate(all="ignore"):
        return not bool(np.isnan(likelihood.log_densities(f, observed)).any())


class _Effects(NamedTuple):
    """Effects with priors that are not normal."""

    variables: list[TensorVariable]
    by_class: bool = False
    """Whether the likelihood has several latent functions. Rows of priors then cannot be added to its rows."""


def effects_of(read: GPClassifier, likelihood: str | None, asked: Collection[str]) -> _Effects:
    """Return the effects of a model with priors that are not normal. They are hyperparameters of `read`.

    Parameters
    ----------
    read : GPClassifier
        Classifier of the model in which these variables are hyperparameters.
    likelihood : str or None
        Name of the observed variable to read.
    asked : collection of str
        Names of variables that must be hyperparameters.
    """
    prior, model = read.prior, read.model
    if not isinstance(prior, LatentSum):
        return _Effects([])
    # If the intercept is integrated out, the reader may treat another factor exp(effect) of a rate as exposure.
    behind = set(ancestors([*prior.predictor, read.parameters], blockers=prior.integrated))
    found = [rv for rv in prior.hyperparameters if rv in behind and rv.name not in asked and _may_be(rv, model)]
    scales = [scale for each in prior.recipes.values() for scale in each.scales]
    scales += [*(latent.cov for latent in prior.processes), *model.potentials]
    own = {*prior.integrated, *read.observed, *read.unobserved}
    found = _affine(found, prior.integrated, [], [*scales, *_inputs(model, own)])
    return _read_in(model, likelihood, found, prior.sources)


def effects_alone(model: pm.Model, likelihood: str | None, asked: Collection[str]) -> _Effects:
    """Return the effects as in `effects_of`, for a model without normal effects.

    Parameters
    ----------
    model : pm.Model
    likelihood : str or None
        Name of the observed variable to read.
    asked : collection of str
        Names of variables that must be hyperparameters.
    """
    found = [rv for rv in model.free_RVs if rv.name not in asked and _may_be(rv, model)]
    found = _affine(found, [], [], [*model.potentials, *_inputs(model, model.observed_RVs)])
    return _read_in(model, likelihood, found, frozenset())


def _read_in(
    model: pm.Model, likelihood: str | None, found: list[TensorVariable], sources: Collection[Variable]
) -> _Effects:
    """Return the variables of `found` that are effects: likelihood arguments are affine in these and in `sources`."""
    by_class = False
    while found:
        try:
            readings = [each.reading for each in find_likelihoods(model, likelihood, frozenset({*found, *sources}))]
        except StructureError:
            return _Effects([])
        by_class = any(each.likelihood is not None and each.likelihood.function_axis for each in readings)
        if by_class and (wide := [rv for rv in found if _has_known_bounds(rv)]) != found:
            found = wide
            continue
        needed = [each.parameters for each in readings if each.parameters is not None]
        left = _affine(found, sources, [each.argument for each in readings], needed)
        if left == found:
            break
        found = left
    return _Effects(found, by_class)


def _has_known_bounds(rv: TensorVariable) -> bool:
    """Return whether a variable is uniform between constant bounds."""
    return type(rv.owner.op) is UniformRV and not any(map(is_random, parameters(rv)))


def _inputs(model: pm.Model, own: Collection[Variable]) -> Iterable[Variable]:
    """Yield the parameters of all random variables of a model that are not in `own`."""
    for rv in model.basic_RVs:
        if rv not in own:
            yield from rv.owner.inputs


def _affine(
    found: Sequence[TensorVariable],
    others: Collection[Variable],
    arguments: Sequence[Variable],
    needed: Sequence[Variable],
) -> list[TensorVariable]:
    """Return the variables of `found` in which `arguments` are affine, and on which `needed` does not depend."""
    left = set(found)
    while left:
        affinity = Affinity(frozenset({*left, *others}))
        if reached := affinity.reached(needed) & left:
            left -= reached
            continue
        try:
            for each in arguments:
                affinity.behind(each)
        except NotAffineError as error:
            sides = [side & left for side in error.sides if side & left]
            if not sides:
                return []
            left -= min(sides, key=lambda side: (sum(_size(each) for each in side), len(side)))
            continue
        break
    return [each for each in found if each in left]


def _size(variable: Variable) -> int:
    return int(np.prod([1 if n is None else n for n in cast(TensorVariable, variable).type.shape]))


def _may_be(rv: TensorVariable, model: pm.Model) -> bool:
    """Return whether a free variable has an independent univariate prior with a density that is not normal."""
    op = rv.owner.op
    univariate = getattr(op, "ndim_supp", 1) == 0 and np.dtype(rv.dtype).kind == "f"
    if not univariate or isinstance(op, FlatRV | HalfFlatRV) or recipe(rv, model) is not None:
        return False
    return _bounds(rv, model) is not None


def _bounds(rv: TensorVariable, model: pm.Model) -> _Bounds | None:
    """Return the bounds of the support of a free variable; None if they do not follow from its transform."""
    match model.rvs_to_transforms[rv]:
        case None:
            ends: tuple[Variable | float | None, ...] = None, None
        case LogTransform():
            ends = 0.0, None
        case LogOddsTransform():
            ends = 0.0, 1.0
        case IntervalTransform() as transform:
            ends = transform.args_fn(*rv.owner.inputs)
        case _:
            return None
    lower, upper = (
        pt.as_tensor(value if end is None else end).astype("float64")
        for end, value in zip(ends, (-np.inf, np.inf), strict=True)
    )
    return lower, upper


def with_prior_rows(
    model: pm.Model, effects: Sequence[TensorVariable], bounds: bool = True, logarithms: bool = False
) -> pm.Model:
    """Return a model in which effects are normal. The priors of effects become rows of observed variables.

    With `logarithms` the logarithms of effects are normal. The logarithm of 'w' is the variable 'w_log'.

    Parameters
    ----------
    model : pm.Model
    effects : sequence of TensorVariable
        Free variables of the model. A variable stays as it is if its entries have no separate densities.
    bounds : bool
        Whether priors of uniform effects become rows. Otherwise their bounds are ignored.
    """
    wide = [] if bounds else [rv for rv in effects if type(rv.owner.op) is UniformRV]
    found = [each for rv in effects if rv not in wide and (each := _prior(rv, model, logarithms)) is not None]
    bases = _bases(model, found)
    normal: dict[TensorVariable, TensorVariable] = {}
    for each, (mean, deviation) in zip(found, bases, strict=True):
        rv = each.variable
        normal[rv] = pm.Normal.dist(mean.astype(rv.dtype), deviation.astype(rv.dtype)).astype(rv.dtype)
    rows = {
        each.variable: own
        for each, base in zip(found, bases, strict=True)
        if (own := _rows(each, base, model)) is not None
    }
    flat = {rv: _without_bounds(rv) for rv in wide if _has_known_bounds(rv)}
    if not (rows or flat):
        return model
    return _rebuilt(model, {rv: normal[rv] for rv in rows} | flat, rows, logarithms)


def _without_bounds(rv: TensorVariable) -> TensorVariable:
    """Return a variable with the density of a uniform variable, but without its bounds."""
    rng, size, *bounds = rv.owner.inputs
    return wide_uniform.make_node(rng, size, *(each.astype("float64") for each in bounds)).outputs[1].astype(rv.dtype)


def _prior(rv: TensorVariable, model: pm.Model, logarithm: bool) -> _Prior | None:
    alone = _by_one_axis(rv)
    if alone is None or not {f"{rv.name}{SUFFIX}", f"{rv.name}{LOGARITHM}"}.isdisjoint(model.named_vars):
        return None
    value = alone.type()
    try:
        log_density = log_probability(alone, pt.exp(value)) + value if logarithm else log_probability(alone, value)
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None
    drawn = {each for each in ancestors([log_density]) if each.owner and isinstance(each.owner.op, RNGConsumerOp)}
    if not drawn <= set(model.basic_RVs):
        return None  # The density contains random variables that are not in the model.
    bounds = _bounds(rv, model)
    assert bounds is not None
    op = rv.owner.op
    try:
        centres = _centres(rv)
    except NotImplementedError:
        return None
    if logarithm:
        whole = cast(_Bounds, tuple(pt.constant(end) for end in (-np.inf, np.inf)))
        return _Prior(rv, value, log_density, whole, [pt.log(each) for each in centres], smooth=True)
    kinked = isinstance(op, LaplaceRV | AsymmetricLaplaceRV)
    return _Prior(rv, value, log_density, bounds, centres, smooth=not kinked)


def _centres(rv: TensorVariable) -> list[TensorVariable]:
    """Return centres of a distribution: its kinks, the centres of mixture components, or else its support point."""
    op = rv.owner.op
    if isinstance(op, LaplaceRV | AsymmetricLaplaceRV):
        return [parameters(rv)[0 if isinstance(op, LaplaceRV) else -1]]
    if not isinstance(op, MixtureRV):
        return [support_point(op, rv, *rv.owner.inputs)]
    parts = [each for each in parameters(rv) if each.owner and isinstance(each.owner.op, RNGConsumerOp)]
    if not parts or not all(isinstance(each.owner.op, RandomVariable) for each in parts):
        raise NotImplementedError
    found = [each.owner.op.dist_params(each.owner)[0] for each in parts]
    count = known_shape(parts[0])[-1] if len(parts) == 1 else None
    return found if count is None else [found[0][..., k if found[0].type.shape[-1] != 1 else 0] for k in range(count)]


def _by_one_axis(rv: TensorVariable) -> TensorVariable | None:
    """Return a random variable with the same entries along one axis; None if this is impossible."""
    op, shape = rv.owner.op, known_shape(rv)
    if not isinstance(op, RandomVariable) or any(op.ndims_params):
        return rv if rv.ndim < 2 else None
    if rv.ndim > 1 and None in shape:
        return None
    # Parameters become floats, since differences of small integers overflow: 100 − (−100) in int8.
    given = [each.astype("float64") if each.dtype.startswith("int") else each for each in op.dist_params(rv.owner)]
    if rv.ndim > 1:
        given = [each if each.ndim == 0 else pt.broadcast_to(each, shape).ravel() for each in given]
    size = op.size_param(rv.owner) if rv.ndim < 2 else None
    return cast(TensorVariable, op(*given, size=size, rng=op.rng_param(rv.owner), return_next_rng=True)[1])


def _bases(model: pm.Model, found: Sequence[_Prior]) -> list[tuple[Array, Array]]:
    """Return mean and standard deviation of the base of each prior: its median and spread at the initial point."""
    outputs: list[Variable] = []
    for each in found:
        steps = np.r_[-_STEPS[::-1], 0.0, _STEPS].reshape(-1, *[1] * each.variable.ndim)
        centre = pt.clip(each.centres[0], *each.bounds).astype("float64") + np.zeros(shape_of(each.variable))
        ends = [pt.switch(pt.isinf(bound), centre, bound) for bound in each.bounds]
        places = pt.concatenate([start + steps for start in (centre, *ends)], axis=0)
        places = pt.sort(pt.clip(places, *each.bounds), axis=0).astype(each.variable.dtype)
        # The density of an array with several axes has its entries along one axis.
        flat = places.reshape((places.shape[0], -1)) if each.value.ndim == 1 else places
        density = vectorize_graph(each.log_density, {each.value: flat}).reshape(places.shape)
        outputs += [places, density]
    values = ModelFunctions(model, model.free_RVs)(outputs)(initial_point(model)) if outputs else []
    return [_spread(*pair) for pair in zip(values[::2], values[1::2], strict=True)]


def _spread(places: Array, log_density: Array) -> tuple[Array, Array]:
    """Return median and WIDTH × spread of a density, given its logarithm at places (k, ...)."""
    height = np.where(np.isfinite(log_density), log_density, -np.inf)
    with np.errstate(all="ignore"):
        density = np.exp(height - height.max(axis=0))
        mass = 0.5 * (density[1:] + density[:-1]) * np.diff(places, axis=0)
        below = np.cumsum(mass, axis=0) / mass.sum(axis=0)
        middle = 0.5 * (places[1:] + places[:-1])
        quantiles = [
            np.take_along_axis(middle, np.argmax(below >= p, axis=0)[None], axis=0)[0] for p in (0.16, 0.5, 0.84)
        ]
    low, median, high = (np.asarray(each, np.float64) for each in quantiles)
    spread = WIDTH * 0.5 * (high - low)
    return np.where(np.isfinite(median), median, 0.0), np.where(spread > 0.0, spread, WIDTH)


class _Rows(NamedTuple):
    """Rows of a prior: log density, parameters and number of rows of an observed variable."""

    density: "_FactorDensity"
    parameters: list[TensorVariable]
    size: int


class _FactorDensity:
    """Log density of effects as a function of the parameters of a factor; see `pymc_gpep.univariate.prior_factor`.

    Parameters
    ----------
    own : callable
        Log density as a function of effects and its own parameters.
    given : int
        Number of parameters of the factor that precede the parameters of `own`.
    """

    def __init__(self, own: Callable[..., TensorVariable], given: int) -> None:
        self._own, self._given = own, given

    def __call__(self, value: TensorVariable, effect: TensorVariable, *parameters: TensorVariable) -> TensorVariable:
        return self._own(value, effect, *parameters[self._given :])


def _rows(prior: _Prior, base: tuple[Array, Array], model: pm.Model) -> _Rows | None:
    """Return the rows of a prior; None if its density cannot be computed row by row."""
    shape = shape_of(prior.variable)
    own = row_density(prior.log_density, [prior.value], model.basic_RVs)
    if own is None:
        return None

    def rows(value: TensorVariable) -> TensorVariable:
        return value if value.ndim == 0 else pt.broadcast_to(value, shape).ravel()

    density, parts = own
    given = [pt.constant(len(prior.centres)), pt.constant(int(prior.smooth))]
    given += [pt.constant(np.ravel(each)) for each in base]
    bounds = [pt.clip(each, *no_bounds()) for each in prior.bounds]
    given += [rows(each.astype("float64")) for each in (*bounds, *prior.centres)]
    return _Rows(_FactorDensity(density, len(given)), [*given, *parts], int(np.prod(shape)))


def _rebuilt(
    model: pm.Model,
    normal: Mapping[TensorVariable, TensorVariable],
    rows: Mapping[TensorVariable, _Rows],
    logarithms: bool,
) -> pm.Model:
    given = variables_of(model)
    made_of = [each for own in rows.values() for each in own.parameters]
    # PyTensor copies a random variable if its size is used in a graph. A copy is not a variable of the model.
    same = {rv: rv for rv in model.basic_RVs if set(normal).isdisjoint(ancestors([rv]))}
    values = {rv: pt.exp(own) if logarithms else own for rv, own in normal.items()}
    replaced = graph_replace([*given, *made_of], {**same, **values}, strict=False)
    parameters = iter(replaced[len(given) :])
    new = dict(zip(given, replaced, strict=False))
    if logarithms:
        for rv, own in normal.items():
            own.name = f"{rv.name}{LOGARITHM}"
        made = rebuilt(model, new, normal, kinds=dict.fromkeys(normal, "deterministics"))
    else:
        made = rebuilt(model, new, plain=list(normal))
    for rv, own in rows.items():
        name = f"{rv.name}{LOGARITHM * logarithms}"
        with made:
            pm.CustomDist(
                f"{name}{SUFFIX}",
                pt.atleast_1d(made[name]) if made[name].ndim < 2 else made[name].ravel(),
                *[next(parameters) for _ in own.parameters],
                logp=own.density,
                observed=np.zeros(own.size),
                class_name=PRIOR,
            )
    return made
