"""Effects with local scales, rewritten as normal effects and an observed variable with one row for each effect.

An effect is u = a + c z with z ~ N(μ, σ). Its local variables λ have one value for each effect, and only u depends on z
and λ. Examples are u = z τ λ of a horseshoe, u ~ N(0, τ λ), and u = z λ with an indicator λ. Given λ the effect is
normal, so its prior is a mixture of normals. In the rewritten model u is normal, and its distribution is called the
base. A factor replaces the prior; see `pymc_gpep.univariate.local_scales`. Draws of z and λ are computed given u.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.transforms import SimplexTransform
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Identity
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import BernoulliRV, NormalRV
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import ModelFunctions, initial_point
from pymc_gpep.latent.lowered_dims import rebuilt, variables_of
from pymc_gpep.likelihoods.log_probabilities import log_probability
from pymc_gpep.likelihoods.observed import known_shape
from pymc_gpep.likelihoods.standard_density import no_bounds
from pymc_gpep.reading.rewritten_models import row_density
from pymc_gpep.recipes.recipe import parameters
from pymc_gpep.univariate.density import RowGraph
from pymc_gpep.univariate.likelihood import depends_on_draws
from pymc_gpep.univariate.local_scales import ON_A_SCALE, ON_THE_LINE, WITH_STATES, LocalVariables, ScaleDensity
from pymc_gpep.univariate.prior_factor import MIXTURE, SUFFIX

WIDTH = 4.0
"""Standard deviation of the base, in units of a standard deviation that few components of the mixture exceed."""
# An effect has at most these numbers of local variables: continuous variables, and all variables.
_WITH_A_DENSITY, _AT_ALL = 2, 3
_SHARE = 0.8  # This unit is the quantile at this level of the standard deviations of the components.


class _Scaled(NamedTuple):
    """An effect u, with its normal variable z and its local variables. Only u depends on z and on local variables."""

    effect: TensorVariable
    normal: TensorVariable
    """The normal variable z, or u itself if its parameters depend on the local variables."""
    locals: list[TensorVariable]


class _Made(NamedTuple):
    """New variables for an effect: a normal variable, and observed rows that replace its prior."""

    given: _Scaled
    name: str
    effect: TensorVariable
    """The effect as a normal variable. Its distribution is the base."""
    replaced: dict[Variable, TensorVariable]
    rows: list[TensorVariable]
    density: object
    size: int


def with_local_scales(model: pm.Model, asked: Collection[str]) -> pm.Model:
    """Return a model in which effects with local scales are normal. Observed rows replace the priors of these effects.

    Parameters
    ----------
    model : pm.Model
    asked : collection of str
        Names of variables that must stay hyperparameters.

    Returns
    -------
    pm.Model
        The model itself if it has no such effect.

    Raises
    ------
    StructureError
        If the scales of effects are shares of one total, for example Dirichlet.
    """
    found = [made for each in _scaled_effects(model, asked) if (made := _made(each, model)) is not None]
    return _rebuilt(model, found) if found else model


def _scaled_effects(model: pm.Model, asked: Collection[str]) -> Iterator[_Scaled]:
    """Yield the effects that have local variables."""
    used: set[Variable] = set()
    for z in model.free_RVs:
        if type(z.owner.op) is not NormalRV or z in used or z.name in asked or z.ndim > 1:
            continue
        shape = known_shape(z)
        if None in shape or model.rvs_to_transforms[z] is not None:
            continue
        best: _Scaled | None = None
        for u in _elementwise(z, model):
            _refuse_shares(u, z, model, asked)
            found = _locals_of(u, z, model, asked, used)
            if found and (best is None or len(found) > len(best.locals) or _is_named(u, best, model)):
                best = _Scaled(u, z, found)
        if best is None:
            continue
        used |= {z, *best.locals}
        yield best


def _is_named(u: TensorVariable, best: _Scaled, model: pm.Model) -> bool:
    """Return whether u has a name, the effect of `best` has no name, and u depends on no other normal variable."""
    if _name_of(u, model) is None or _name_of(best.effect, model) is not None:
        return False
    behind = set(ancestors([u])) - {best.normal, *best.locals}
    return not any(type(rv.owner.op) is NormalRV for rv in behind.intersection(model.free_RVs))


def _elementwise(z: TensorVariable, model: pm.Model) -> list[TensorVariable]:
    """Return z and elementwise functions of z with the same shape, in the order of computation."""
    shape, found = known_shape(z), [z]
    inside = {z}
    outputs = [*_terms(model, ()), *model.deterministics]
    for node in pytensor.graph.traversal.toposort(outputs):
        (out,) = node.outputs if len(node.outputs) == 1 else (None,)
        if out is None or not isinstance(node.op, Elemwise | SpecifyShape | ViewOp) or inside.isdisjoint(node.inputs):
            continue
        if out.ndim == z.ndim and known_shape(out) == shape:
            found.append(out)
            inside.add(out)
    return found


def _terms(model: pm.Model, group: Collection[Variable]) -> list[Variable]:
    """Return the inputs of all terms of the log density, except terms of variables in `group`."""
    inputs = [each for rv in model.basic_RVs if rv not in group for each in rv.owner.inputs]
    return [*(each for each in inputs if not isinstance(each.type, RandomType)), *model.potentials]


def _locals_of(
    u: TensorVariable, z: TensorVariable, model: pm.Model, asked: Collection[str], used: Collection[Variable]
) -> list[TensorVariable]:
    """Return the local variables of an effect u of z: free variables on which only u depends."""
    shape, size = known_shape(z), int(np.prod(cast(tuple[int, ...], known_shape(z))))
    behind = set(ancestors([u]))
    group = [
        rv
        for rv in model.free_RVs
        if rv is not z and rv in behind and rv not in used and rv.name not in asked and _may_be_local(rv, model, size)
    ]
    group = [rv for rv in group if known_shape(rv) == shape]
    while group:
        own = {z, *group}
        reached = own.intersection(ancestors(_terms(model, own), blockers=[u]))
        if u in own:
            reached.discard(u)
        if z in reached:
            return []
        if not reached:
            break
        group = [rv for rv in group if rv not in reached]
    densities = sum(np.dtype(rv.dtype).kind == "f" for rv in group)
    if not group or densities > _WITH_A_DENSITY or len(group) > _AT_ALL:
        return []
    if set(group).isdisjoint(ancestors([u])):
        return []
    try:
        Affinity(frozenset([z])).behind(u)
    except NotAffineError:
        return []
    return group


def _may_be_local(rv: TensorVariable, model: pm.Model, size: int) -> bool:
    """Return whether the distribution of a free variable allows it to be a local variable of `size` effects."""
    op = rv.owner.op
    if not isinstance(op, RNGConsumerOp) or getattr(op, "ndim_supp", True) or isinstance(op, FlatRV | HalfFlatRV):
        return False
    return isinstance(op, BernoulliRV) or (np.dtype(rv.dtype).kind == "f" and size > 1)


def _refuse_shares(u: TensorVariable, z: TensorVariable, model: pm.Model, asked: Collection[str]) -> None:
    """Raise a StructureError if the scales of effects are shares of one total, since shares are dependent."""
    every = set(ancestors([u], blockers=[rv for rv in model.basic_RVs if rv is not z]))
    for rv in model.free_RVs:
        if rv not in every or rv.name in asked or not isinstance(model.rvs_to_transforms[rv], SimplexTransform):
            continue
        if rv.ndim == z.ndim == 1 and known_shape(rv) == known_shape(z):
            kind = type(rv.owner.op).__name__.removesuffix("RV")
            raise StructureError(
                f"The scales of {z.name!r} depend on {rv.name!r}, a {kind} variable. Its entries are shares of one "
                "total and not independent, and EP integrates independent local scales alone. Sample the model by "
                f"pm.sample(), give each effect a scale of its own such as pm.HalfCauchy({rv.name!r}, 1, shape=...), "
                f"or keep the shares at their maximum: hyperparameters=[{rv.name!r}]."
            )


def _made(given: _Scaled, model: pm.Model) -> _Made | None:
    """Return the new variables for an effect; None if the entries of the effect have no separate priors."""
    u, z, every = given
    shape = cast(tuple[int, ...], known_shape(z))
    mean, deviation = (each.astype("float64") for each in parameters(z))
    if u is z:
        a, c = pt.constant(0.0, dtype="float64"), pt.constant(1.0, dtype="float64")
    else:
        (a,), (above,) = (
            graph_replace([u], {z: pt.constant(np.full(shape, value, z.dtype))}, strict=False) for value in (0.0, 1.0)
        )
        c = above - a
    a, c = (cast(TensorVariable, each).astype("float64") for each in (a, c))
    m, v = a + c * mean, (c * deviation) ** 2
    of_mean = set(ancestors([m], blockers=model.free_RVs)).intersection(model.free_RVs)
    shift = None
    if u is z and not of_mean <= set(every):
        if not of_mean.isdisjoint(every):
            return None
        shift, m = m, cast(TensorVariable, pt.constant(0.0, dtype="float64"))
    size, f = int(np.prod(shape)), pt.tensor("effect", dtype="float64", shape=shape)
    values = [pt.tensor(f"local_{j}", dtype="float64", shape=shape) for j in range(len(every))]
    natural = {rv: _natural(rv, t, model) for rv, t in zip(every, values, strict=True)}
    try:
        terms = [log_probability(rv, natural[rv]).astype("float64") for rv in every]
    except (NotImplementedError, TypeError, ValueError):
        return None
    for rv, t in zip(every, values, strict=True):
        if (transform := model.rvs_to_transforms[rv]) is not None:
            terms.append(transform.log_jac_det(t, *rv.owner.inputs))
    log_density = sum(terms[1:], terms[0]) + m * f + 0.5 * v * f**2
    (log_density,) = _replaced([log_density], natural)
    cut = row_density(log_density, [f, *values], model.basic_RVs)
    if cut is None:
        return None
    density, parts = cut
    count = 1 + len(values)
    graph = RowGraph(
        output=density.output,
        allowed=None,
        cumulative=None,
        f=density.inputs[0],
        y=pt.dvector("y"),
        rows=list(density.inputs[count:]),
        others=list(density.inputs[1:count]),
    )
    states = tuple(_kind(rv, model) for rv in every)
    scales = ScaleDensity(graph, [depends_on_draws(part) for part in parts], states)
    stacked = pt.zeros((0, size))
    if parts:
        stacked = pt.stack([pt.broadcast_to(part.astype("float64"), (size,)) for part in parts])
    base_mean, base = _base(scales, stacked, model)
    new = pm.Normal.dist(base_mean.reshape(shape), base.reshape(shape))
    rng = pytensor.shared(np.random.default_rng(0))
    again = pt.broadcast_to(pt.reshape(new, (size,)), (len(every), size))
    drawn = LocalVariables(scales)(again, stacked, rng=rng, return_next_rng=True)[1]
    replaced: dict[Variable, TensorVariable] = {}
    for j, rv in enumerate(every):
        replaced[rv] = _natural(rv, cast(TensorVariable, drawn[j].reshape(shape)), model).astype(rv.dtype)
    for rv in every:
        (replaced[rv],) = _replaced([replaced[rv]], {other: replaced[other] for other in every if other is not rv})
    value = cast(TensorVariable, new.astype(u.dtype))
    if shift is not None:
        value = cast(TensorVariable, (new + shift).astype(u.dtype))
    elif u is not z:
        a, c = _replaced([a, c], {rv: replaced[rv] for rv in every})
        fresh = pm.Normal.dist(*parameters(z), shape=shape)
        inside = pt.switch(pt.eq(c, 0.0), 1.0, c)
        replaced[z] = pt.switch(pt.eq(c, 0.0), fresh, (new - a) / inside).astype(z.dtype)
    replaced[u] = value
    numbers = [pt.constant(each) for each in states]
    places = [pt.constant(np.full(size, float(j))) for j in range(len(every))]
    bounds = no_bounds()
    middle = pt.zeros(size)
    rows = [pt.constant(len(every)), *numbers, *places, pt.constant(base_mean), pt.constant(base), *bounds, middle]
    own_density = _MixtureDensity(density, len(rows), len(every))
    return _Made(given, _name(given, shift is not None, model), new, replaced, [*rows, *parts], own_density, size)


def _kind(rv: TensorVariable, model: pm.Model) -> int:
    if np.dtype(rv.dtype).kind != "f":
        return WITH_STATES
    return ON_THE_LINE if model.rvs_to_transforms[rv] is None else ON_A_SCALE


class _MixtureDensity:
    """Log density of effects and local variables as a function of the parameters of a factor.

    Parameters
    ----------
    own : callable
        Log density as a function of effects, local variables and its own parameters.
    given : int
        Number of parameters of the factor that precede the parameters of `own`.
    count : int
        Number of local variables.
    """

    def __init__(self, own: object, given: int, count: int) -> None:
        self._own, self._given, self._count = own, given, count

    def __call__(self, value: TensorVariable, effect: TensorVariable, *parameters: TensorVariable) -> TensorVariable:
        local = parameters[1 + self._count : 1 + 2 * self._count]
        return self._own(value, effect, *local, *parameters[self._given :])  # type: ignore[operator]


def _natural(rv: TensorVariable, value: TensorVariable, model: pm.Model) -> TensorVariable:
    """Return a local variable as a function of its unconstrained value."""
    transform = model.rvs_to_transforms[rv]
    found = value if transform is None else transform.backward(value, *rv.owner.inputs)
    return cast(TensorVariable, found.astype(rv.dtype))


def _replaced(outputs: Sequence[Variable], by: dict[TensorVariable, TensorVariable]) -> list[TensorVariable]:
    """Return graphs with local variables replaced by functions. A function may contain other local variables."""
    found = list(outputs)
    for _ in range(len(by)):
        found = graph_replace(found, by, strict=False)
    return found


def _base(density: ScaleDensity, parts: TensorVariable, model: pm.Model) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of the base of each effect, from the mixture at the initial point."""
    (given,) = ModelFunctions(model, model.free_RVs)([parts])(initial_point(model))
    own = density.components(np.ascontiguousarray(given, np.float64))
    weights = np.exp(own.log_weights - own.log_weights.max(axis=0))
    weights = np.where(own.variances > 0.0, weights, 0.0)
    order = np.argsort(own.variances, axis=0, kind="stable")
    below = np.cumsum(np.take_along_axis(weights, order, 0), axis=0)
    place = np.argmax(below >= _SHARE * below[-1], axis=0)
    variance = np.take_along_axis(np.take_along_axis(own.variances, order, 0), place[None], 0)[0]
    mean = (weights * own.means).sum(axis=0) / weights.sum(axis=0)
    spread = WIDTH * np.sqrt(variance)
    usable = np.isfinite(mean) & np.isfinite(spread) & (spread > 0.0)
    return np.where(usable, mean, 0.0)[own.of], np.where(usable, spread, WIDTH)[own.of]


def _name(given: _Scaled, moved: bool, model: pm.Model) -> str:
    """Return the name of the new effect, from the name of z or of a Deterministic equal to u (see the module)."""
    u, z, _ = given
    if moved:
        return f"{z.name}_deviation"
    if u is z:
        return str(z.name)
    return _name_of(u, model) or f"{z.name}_scaled"


def _name_of(u: TensorVariable, model: pm.Model) -> str | None:
    """Return the name of a Deterministic that is a copy of u; None without such a Deterministic."""
    found = [each for each in model.deterministics if each is u or _copied(each) is u]
    return str(found[0].name) if found else None


def _copied(variable: Variable) -> Variable:
    """Return the original variable of a copy, for example of a Deterministic."""
    node = variable.owner
    while node is not None and (
        isinstance(node.op, ViewOp) or (isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Identity))
    ):
        variable = node.inputs[0]
        node = variable.owner
    return variable


def _rebuilt(model: pm.Model, found: Sequence[_Made]) -> pm.Model:
    given = variables_of(model)
    by = {old: new for each in found for old, new in each.replaced.items()}
    made_of = [row for each in found for row in each.rows]
    same = {rv: rv for rv in model.basic_RVs if set(by).isdisjoint(ancestors([rv]))}
    replaced = graph_replace([*given, *made_of], {**same, **by}, strict=False)
    parts = iter(replaced[len(given) :])
    new = dict(zip(given, replaced, strict=False))
    new |= {old: value for old, value in by.items() if old in new}
    kinds: dict[Variable, str] = {}
    added = {}
    for each in found:
        kinds |= {rv: "deterministics" for rv in each.replaced if rv in model.free_RVs}
        known = model.named_vars.get(each.name)
        if known is None:
            added[each.given.normal] = each.effect
        else:
            new[known] = each.effect
            kinds[known] = "free_RVs"
        each.effect.name = each.name
    made = rebuilt(model, new, added, plain=[v for v, kind in kinds.items() if kind == "free_RVs"], kinds=kinds)
    for each in found:
        with made:
            rv = pm.CustomDist(
                f"{each.name}{SUFFIX}",
                made[each.name].ravel(),
                *[next(parts) for _ in each.rows],
                logp=each.density,
                observed=np.zeros(each.size),
                class_name=MIXTURE,
            )
        rv.tag.local_variables = [str(local.name) for local in each.given.locals]
    return made
