"""Rewrites of models before reading. Samplers use the variables of the original model.

The centring of predictors by bambi is undone. If the start of a series is not Gaussian, it becomes a separate variable.
Given this start the series is Gaussian, so all later values are integrated out.

Marginalised processes become latent values with normal noise. For `pm.gp.Marginal` and `pm.gp.MarginalKron`, PyMC
observes a multivariate normal variable. Its covariance K + D is the sum of process and noise. The rewritten model has
latent values with the covariance K, and normal observations. For `pm.gp.MarginalApprox`, PyMC has a potential with a
low-rank covariance AᵀA in place of K. The latent values are then Aᵀu with standard normals u.

An observed `pm.AR` or `pm.GaussianRandomWalk` becomes a regression of each value on earlier values. An observed vector
with correlated noise becomes a regression of each entry on earlier entries. For a covariance L Lᵀ the entries have the
means y − D L⁻¹ (y − μ) and the standard deviations D, the diagonal of L.

Potentials that are log densities of rows become observed variables, for example censored survival, weighted rows, and
sums of zero.
"""

import gc
import math
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV
from pymc.distributions.multivariate import KroneckerNormalRV, MatrixNormalRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pymc.gp.util import JITTER_DEFAULT, stabilize
from pymc.pytensorf import constant_fold
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Add, Mul, Neg, Sub, TrueDiv
from pytensor.tensor.basic import Alloc, AllocDiag, Eye
from pytensor.tensor.elemwise import CAReduce, DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.affine import Lifted, is_elementwise
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.latent.lowered_dims import missing_responses, rebuilt, unobserved_responses, variables_of
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.observed import known_shape
from pymc_gpep.reading.classifier import MARGINAL, POTENTIAL
from pymc_gpep.reading.integrated import gaussians_of
from pymc_gpep.recipes import recipe
from pymc_gpep.recipes.recipe import as_double, as_matrix, is_read, lower_root, parameters, unbroadcast
from pymc_gpep.univariate.likelihood import argument_of_variable
from pymc_gpep.univariate.row_cut import RowCut, RowsMixedError, stable

_DESIGN = "design_matrix_without_intercept"  # Attribute of a part of a bambi model if its predictors are centred.


def with_bambi_intercept(model: pm.Model) -> pm.Model:
    """Return the PyMC model of a bambi model with the intercept of uncentred predictors.

    By default bambi subtracts the means x̄ of predictors. After its own `fit` it corrects the intercept α to α − x̄ᵀβ,
    with the slopes β. In the returned model α is the corrected intercept. All other variables are the same.

    Returns
    -------
    pm.Model
        The model itself, unless bambi built it and centred predictors.

    Raises
    ------
    StructureError
        If the prior of the intercept is neither normal nor flat.
    """
    components = _centred_components(model)
    if not components:
        return model
    given = variables_of(model)
    graph = FunctionGraph(outputs=given, clone=True, copy_inputs=False)
    own = dict(zip(given, graph.outputs, strict=True))
    corrected = {}
    for component in components:
        term = component.component.intercept_term
        intercept, means = model[term.alias or term.name], getattr(component, _DESIGN).mean(0)
        slopes = [own[model[each.alias or each.name]] for each in component.component.common_terms.values()]
        corrected[intercept], shift = _corrected(own[intercept], means, slopes)
        graph.replace(own[intercept], corrected[intercept] + shift, import_missing=True)
    remade = rebuilt(model, dict(zip(given, graph.outputs, strict=True)) | corrected)
    # Place corrected intercepts after the slopes, since they depend on slopes.
    remade.free_RVs.sort(key=set(corrected.values()).__contains__)
    return remade


def _centred_components(model: pm.Model) -> list[Any]:
    """Return the parts of a bambi model that have an intercept and centred predictors; empty for other models."""
    if "bambi" not in sys.modules or "__obs__" not in model.coords:  # `__obs__` is bambi's coordinate of rows.
        return []
    for each in gc.get_referrers(model):  # A model has no reference to its bambi model.
        own = each if isinstance(each, dict) else getattr(each, "__dict__", {})
        parts = own.get("components")
        if own.get("model") is model and isinstance(parts, dict):
            return [part for part in parts.values() if getattr(part, _DESIGN, None) is not None]
    return []


def _corrected(intercept: Variable, means: np.ndarray, slopes: list[Any]) -> tuple[TensorVariable, TensorVariable]:
    """Return the variable of the corrected intercept, and its difference from the original intercept."""
    node = intercept.owner
    if not isinstance(node.op, NormalRV | FlatRV):
        raise StructureError(
            f"bambi has centred the predictors of this model, and the prior of {intercept.name!r} is not normal or "
            "flat, so that its intercept cannot be corrected. Build the model with "
            "bmb.Model(..., center_predictors=False)."
        )
    several = intercept.type.ndim
    rows = [each if each.ndim > several else each[None] for each in slopes]
    shift = cast(TensorVariable, pt.dot(means, pt.concatenate(rows, axis=0)))
    if isinstance(node.op, FlatRV):
        return cast(TensorVariable, node.clone().outputs[1]), shift
    mu, sigma = node.op.dist_params(node)
    made = node.op(mu - shift, sigma, size=node.op.size_param(node), rng=node.op.rng_param(node), return_next_rng=True)
    return cast(TensorVariable, made[1]), shift


def with_starts(model: pm.Model, asked: Collection[str] = ()) -> pm.Model:
    """Return a model with separate variables for non-Gaussian starts of series.

    The start of 'walk' is the variable 'walk_start' with the prior `init_dist`. The series begins at its value.

    Parameters
    ----------
    model : pm.Model
    asked : collection of str
        Names of series. Their starts are not separated.

    Returns
    -------
    pm.Model
        The model itself if it has no such series. Otherwise a new model that shares data and coords with `model`.
    """
    found: dict[TensorVariable, tuple[TensorVariable, TensorVariable]] = {}
    for rv in model.free_RVs:
        free = rv.name not in asked and f"{rv.name}_start" not in model.named_vars
        if free and model.rvs_to_transforms[rv] is None and recipe(rv, model) is None and (own := _apart(rv)):
            found[rv] = own
    if not found:
        return model
    series = {rv: own for rv, (_, own) in found.items()}
    given = variables_of(model)
    # PyTensor copies a random variable if its size is used in a graph. A copy is not a variable of the model.
    same = {rv: rv for rv in model.basic_RVs if set(found).isdisjoint(ancestors([rv]))}
    new = dict(zip(given, graph_replace(given, {**same, **series}, strict=False), strict=True))
    return rebuilt(model, new, {rv: start for rv, (start, _) in found.items()})


def _apart(rv: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the start of a series, and the series given its start; None if its innovations have no recipe."""
    op = rv.owner.op
    if isinstance(op, RandomWalkRV):
        given, place = parameters(rv), 0
        if not is_read(given[1]):
            return None
        start = _without_time(given[0])
        begin = start if start is given[0] else start[None]
    elif isinstance(op, AutoRegressiveRV):
        given, place = parameters(rv), 2
        start = begin = given[2]
    else:
        return None
    given[place] = pm.Normal.dist(begin, 0.0).astype(given[place].dtype)
    start.name = f"{rv.name}_start"
    start.tag.start_of = rv.name
    own = cast(TensorVariable, op.make_node(*given).outputs[rv.owner.outputs.index(rv)])
    own.name = rv.name
    return start, own


def _without_time(start: TensorVariable) -> TensorVariable:
    """Return the start of a walk without its time axis; the start itself if it is not a random variable."""
    op = start.owner.op
    if not isinstance(op, RandomVariable):
        return start
    size = [start.shape[axis] for axis in range(1, start.ndim - op.ndim_supp)]
    given = [
        each[0] if each.ndim > own + len(size) else each
        for each, own in zip(op.dist_params(start.owner), op.ndims_params, strict=True)
    ]
    return cast(TensorVariable, op(*given, size=size, rng=op.rng_param(start.owner), return_next_rng=True)[1])


def with_predictions_drawn(model: pm.Model, asked: Collection[str] = ()) -> pm.Model:
    """Return a model in which predictions, such as the effect of a new study, are not hyperparameters but draws.

    No observation or potential depends on such a variable. Given its parameters, its posterior is its prior, so its
    draws are exact. As a hyperparameter, it would be maximised together with its scale, and the scale would go to 0.

    Parameters
    ----------
    model : pm.Model
    asked : collection of str
        Names of variables that must be hyperparameters.

    Returns
    -------
    pm.Model
        The model itself if it has no such variable.
    """
    needed = {*unobserved_responses(model), *ancestors([*model.observed_RVs, *model.potentials])}
    free = set(model.free_RVs)
    found = [
        rv
        for rv in model.free_RVs
        if rv not in needed and rv.name not in asked and not free.isdisjoint(ancestors(rv.owner.inputs))
    ]
    if not found or not needed:
        return model
    return rebuilt(model, {each: each for each in variables_of(model)}, kinds=dict.fromkeys(found, "deterministics"))


# A larger diagonal entry of a covariance is noise, not jitter.
_JITTER = 1e-5


type _Process = tuple[TensorVariable, TensorVariable]


def with_latent_processes(model: pm.Model) -> pm.Model:
    """Return a model with latent values for marginalised processes. The latent values of 'y' have the name 'y_process'.

    Returns
    -------
    pm.Model
        The model itself if it has no such process. Otherwise a new model that shares data and coords with `model`.
        With latent values integrated out, the density of observations is the same.
    """
    model = _with_vectors(_with_low_rank_processes(_with_regressions(model)))
    missing = missing_responses(model)
    found: dict[TensorVariable, _Process] = {}
    for rv in model.observed_RVs:
        name = f"{rv.name}_process"
        if rv not in missing and rv.ndim == 1 and name not in model.named_vars and (own := _read(rv)) is not None:
            latent, observed = own
            latent.name, observed.name = name, rv.name
            found[rv] = own
    if not found:
        return model
    new = {each: found[each][1] if each in found else each for each in variables_of(model)}
    return rebuilt(model, new, {rv: latent for rv, (latent, _) in found.items()})


def _with_regressions(model: pm.Model) -> pm.Model:
    """Return a model in which each value of an observed series is a normal regression on earlier values."""
    missing = missing_responses(model)
    found = {rv: own for rv in model.observed_RVs if rv not in missing and (own := _regression(rv, model)) is not None}
    if not found:
        return model
    new = {each: each for each in variables_of(model)}
    for rv, (later, start, order) in found.items():
        later.name = rv.name
        new |= {rv: later, model.rvs_to_values[rv]: model.rvs_to_values[rv][order:]}
    made = rebuilt(model, new, flat=list(found))
    for rv, (_, start, _) in found.items():
        with made:
            pm.Potential(f"{rv.name}_start", start)
    return made


def _regression(rv: TensorVariable, model: pm.Model) -> tuple[TensorVariable, TensorVariable, int] | None:
    """Return the values of a series after its start as a normal variable, and log density and length of the start."""
    node, value = rv.owner, model.rvs_to_values[rv]
    match node.op:
        case AutoRegressiveRV() if rv.ndim == 1:
            slopes, sigma, start = node.inputs[:3]
            order, first = node.op.ar_order, int(node.op.constant_term)
            lags = [slopes[first + i] * value[order - 1 - i : -1 - i] for i in range(order)]
            mean = reduce(pt.add, [slopes[0], *lags] if first else lags)
        case RandomWalkRV() if rv.ndim == 1 and isinstance(node.inputs[1].owner.op, NormalRV):
            start, step = node.inputs[:2]
            drift, sigma = step.owner.op.dist_params(step.owner)
            order, mean = 1, value[:-1] + drift
        case RandomWalkRV() if rv.ndim == 2 and isinstance(node.inputs[1].owner.op, MvNormalRV):
            start, step = node.inputs[:2]
            drift, covariance = step.owner.op.dist_params(step.owner)
            later = pm.MvNormal.dist(value[:-1] + unbroadcast(drift), as_matrix(covariance))
            return later, pt.sum(pm.logp(start, value[:1])), 1
        case _:
            return None
    return pm.Normal.dist(mean, sigma), pt.sum(pm.logp(start, value[:order])), order


def _with_vectors(model: pm.Model) -> pm.Model:
    """Return a model in which observed vectors with correlated noise are regressions on earlier entries.

    The tag `MARGINAL` of a new variable contains the marginal normal distribution of the entries, and the number of
    axes of a vector.
    """
    missing, sources = missing_responses(model), gaussians_of(model).sources
    apart = [rv for rv in model.observed_RVs if rv not in missing]
    found = {rv: own for rv in apart if (own := _vectors(rv, model, sources)) is not None}
    if not found:
        return model
    new = {each: each for each in variables_of(model)}
    for rv, own in found.items():
        own.name = rv.name
        new[rv] = own
    return rebuilt(model, new)


def _vectors(rv: TensorVariable, model: pm.Model, sources: frozenset[Variable]) -> TensorVariable | None:
    """Return a variable with the entries of a normal vector, each given earlier entries; None for other variables."""
    node, value = rv.owner, as_double(model.rvs_to_values[rv])
    if not isinstance(node.op, MvNormalRV | MatrixNormalRV) or _read(rv) is not None or rv.ndim > 2:
        return None
    mean, *scales = cast(list[TensorVariable], node.op.dist_params(node))
    if sources.isdisjoint(ancestors([mean])) or not sources.isdisjoint(ancestors(scales)):
        return None
    mean, apart = unbroadcast(mean), False
    if isinstance(node.op, MatrixNormalRV):
        (rows, of_rows, sd_rows), (columns, of_columns, sd_columns) = map(_innovations, scales)
        left, own, sd = rows @ (value - mean) @ columns.T, pt.outer(of_rows, of_columns), pt.outer(sd_rows, sd_columns)
        apart = isinstance(rows, Constant) and (rows.data == np.eye(len(rows.data))).all()
    else:
        matrix, own, sd = _innovations(lower_root(as_matrix(scales[0])))
        residual = value - mean
        left = residual @ matrix.T if matrix.ndim == 2 else pt.sum(matrix * residual[:, None, :], axis=-1)
    entries = pm.Normal.dist(value - left, own)
    alone = pm.Normal.dist(pt.expand_dims(mean, tuple(range(value.ndim - mean.ndim))), sd)
    setattr(entries.tag, MARGINAL, (alone, node.op.ndim_supp - apart))
    return cast(TensorVariable, entries)


def _innovations(root: TensorVariable) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Return D L⁻¹, D, and the standard deviations of a covariance L Lᵀ, where D is the diagonal of its root L."""
    own = pt.diagonal(root, axis1=-2, axis2=-1)
    matrix = own[..., None] * pt.linalg.solve_triangular(root, pt.eye(root.shape[-1]), lower=True, b_ndim=2)
    found = matrix, own, pt.sqrt(pt.sum(root**2, axis=-1))
    if any(isinstance(each, SharedVariable) or isinstance(each.type, RandomType) for each in ancestors([root])):
        return found
    return cast(tuple[TensorVariable, TensorVariable, TensorVariable], tuple(map(pt.constant, evaluate(found))))


_OF_APPROXIMATION = "marginalapprox_loglik_"


def _with_low_rank_processes(model: pm.Model) -> pm.Model:
    """Return a model in which potentials of `pm.gp.MarginalApprox` become observed variables and inducing values."""
    parts = {each: own for each in model.potentials if (own := _low_rank(cast(TensorVariable, each))) is not None}
    if not parts:
        return model
    made = rebuilt(model, {each: each for each in variables_of(model)})
    for potential, (factor, mean, observed, variance, trace) in parts.items():
        name = str(potential.name).removeprefix(_OF_APPROXIMATION)
        made.potentials.remove(potential)
        made.named_vars.pop(potential.name)
        with made:
            u = pm.Normal(f"{name}_inducing", shape=factor.shape[0])
            pm.Normal(name, mean + pt.dot(factor.T, u), pt.sqrt(variance), observed=observed)
            if not isinstance(trace, Constant):
                pm.Potential(f"{name}_trace", -trace)
    return made


def _low_rank(potential: TensorVariable) -> tuple[TensorVariable, ...] | None:
    """Return A, mean, observations, noise variances and trace for a potential of `pm.gp.MarginalApprox`; else None."""
    if not str(potential.name).startswith(_OF_APPROXIMATION):
        return None
    try:
        # The potential is −(constant + log determinant + quadratic form ½ (rᵀΛ⁻¹r − cᵀc) + trace).
        inner, trace = potential.owner.inputs[1].owner.inputs
        quadratic = inner.owner.inputs[1].owner.inputs[1].owner.inputs
        products = [
            next(v.owner for v in ancestors([each]) if v.owner and isinstance(v.owner.op, Dot)) for each in quadratic
        ]
        residual, scaled = (each.owner.inputs[0] for each in products[0].inputs)
        observed, mean = residual.owner.inputs
        solve = products[1].inputs[0].owner.inputs[0].owner
        factor = _nearest_product(solve.inputs[1:]).inputs[0]
    except (AttributeError, ValueError, IndexError, StopIteration):
        return None
    if not is_elementwise(residual, Sub) or not is_elementwise(scaled, TrueDiv) or factor.ndim != 2:
        return None
    return factor, mean, observed, scaled.owner.inputs[1], trace


def _nearest_product(variables: Sequence[Variable]) -> Apply:
    """Return the matrix product that is nearest to the variables, among the operations on which they depend."""
    return next(v.owner for v in ancestors(variables) if v.owner is not None and isinstance(v.owner.op, Dot))


def _read(rv: TensorVariable) -> _Process | None:
    """Return latent values and normal observations of a marginalised process; None for other variables."""
    node = rv.owner
    match node.op:
        case KroneckerNormalRV():
            _, _, mean, noise, *factors = node.inputs
            covariance, variance = reduce(_kronecker, factors), noise**2
        case MvNormalRV():
            mean, whole = cast(list[TensorVariable], node.op.dist_params(node))
            terms = list(_terms(as_matrix(whole)))
            diagonals = [_diagonal(each) for each in terms]
            kept = [term for term, own in zip(terms, diagonals, strict=True) if own is None]
            noises = [own for own in diagonals if own is not None and not _is_jitter(own)]
            if not kept or not noises:
                return None
            covariance, variance = reduce(pt.add, kept), reduce(pt.add, noises)
        case _:
            return None
    latent = pm.MvNormal.dist(unbroadcast(mean), stabilize(covariance, JITTER_DEFAULT))
    return latent, pm.Normal.dist(latent, pt.sqrt(variance))


def _kronecker(left: TensorVariable, right: TensorVariable) -> TensorVariable:
    """Return the Kronecker product of two matrices."""
    n = left.shape[0] * right.shape[0]
    return cast(TensorVariable, (left[:, None, :, None] * right[None, :, None, :]).reshape((n, n)))


def _terms(covariance: TensorVariable) -> Iterator[TensorVariable]:
    """Yield the terms of a sum of matrices."""
    if is_elementwise(covariance, Add):
        for each in covariance.owner.inputs:
            yield from _terms(cast(TensorVariable, each))
    else:
        yield covariance


def _diagonal(term: TensorVariable) -> TensorVariable | None:
    """Return the diagonal of a diagonal matrix, (n,) or a scalar; None for other matrices."""
    node = term.owner
    match node and node.op:
        case Eye() if isinstance(node.inputs[2], Constant) and node.inputs[2].data == 0:
            return cast(TensorVariable, pt.constant(1.0))
        case AllocDiag(offset=0):
            (inner,) = cast(list[TensorVariable], node.inputs)
            scalar = isinstance(inner.owner and inner.owner.op, Alloc) and inner.owner.inputs[0].type.ndim == 0
            return cast(TensorVariable, inner.owner.inputs[0]) if scalar else inner
    if not is_elementwise(term, Mul):
        return None
    parts = [_diagonal(each) for each in node.inputs]
    factors = [each for each, own in zip(node.inputs, parts, strict=True) if own is None]
    if len(factors) != len(parts) - 1 or not all(all(each.type.broadcastable) for each in factors):
        return None
    (own,) = [each for each in parts if each is not None]
    return reduce(pt.mul, [own, *(each.dimshuffle() for each in factors)])


def _is_jitter(diagonal: TensorVariable) -> bool:
    try:
        value = float(pt.get_underlying_scalar_constant_value(diagonal))
    except pt.exceptions.NotScalarConstantError:
        return False
    return value <= _JITTER


def with_observed_potentials(model: pm.Model) -> pm.Model:
    """Return a model in which potentials become observed variables, if they are log densities of rows.

    A potential is read if it is a sum over rows, and if each row depends on one affine function of Gaussian variables.
    The new variable has the name of the potential. Its observed values are zeros, and its density ignores these values.
    Terms without Gaussian variables, such as −n log σ, are divided equally among the rows.

    Returns
    -------
    pm.Model
        The model itself if it has no such potential. Otherwise a new model with the same log density. Both share data
        and coords.
    """
    # Likelihoods with several latent functions need a model with a single observed variable.
    by_class = [each for each in LIKELIHOODS if each.function_axis]
    if not model.potentials or any(each.may_be(rv) for rv in model.observed_RVs for each in by_class):
        return model
    sources = gaussians_of(model).sources
    found = {each: own for each in model.potentials if (own := _rows(each, sources, model.basic_RVs))}
    if not found:
        return model
    made = rebuilt(model, {each: cast(TensorVariable, each) for each in variables_of(model)})
    for potential, terms in found.items():
        name = str(potential.name)
        made.potentials.remove(potential)
        made.named_vars.pop(name)
        made.named_vars_to_dims.pop(name, None)
        for i, (density, given, count) in enumerate(terms):
            called = name if len(terms) == 1 else f"{name}_{i}"
            with made:
                pm.CustomDist(called, *given, logp=density, observed=np.zeros(count), class_name=POTENTIAL)
    return made


class _Density:
    """Function of parameters that returns the log density of rows as a graph.

    Parameters
    ----------
    output : TensorVariable, shape (n,)
    inputs : sequence of TensorVariable
        Variables in `output`. The parameters replace these variables.
    """

    def __init__(self, output: TensorVariable, inputs: Sequence[TensorVariable]) -> None:
        self.output, self.inputs = output, inputs

    def __call__(self, value: TensorVariable, *parameters: TensorVariable) -> TensorVariable:
        given = [pt.cast(each, old.dtype) for each, old in zip(parameters, self.inputs, strict=True)]
        made = clone_replace([self.output], dict(zip(self.inputs, given, strict=True)), rebuild_strict=False)[0]
        return cast(TensorVariable, made + pt.zeros_like(value))


type _Term = tuple[_Density, list[TensorVariable], int]


def _rows(potential: TensorVariable, sources: frozenset[Variable], stop: Collection[Variable]) -> list[_Term]:
    """Return log densities of rows that sum to the potential; empty if the potential is not such a sum."""
    terms = list(_summands(potential, sources))
    of_rows = [each for each in terms if not sources.isdisjoint(ancestors([each]))]
    shape = known_shape(of_rows[0]) if of_rows else (None,)
    if None in shape:
        return []
    if rest := [pt.sum(each) for each in terms if each not in of_rows]:
        of_rows[0] += reduce(pt.add, rest) / math.prod(cast(tuple[int, ...], shape))
    lifted, found = Lifted(sources, known_shape), []
    for term in of_rows:
        own = _term(term, lifted, sources, stop)
        if own is None:
            return []
        found.append(own)
    return found


def _summands(value: TensorVariable, sources: frozenset[Variable]) -> Iterator[TensorVariable]:
    """Yield arrays with entries that sum to the potential. Factors without `sources` are moved into the sums."""
    node = value.owner
    # PyTensor writes the product of two vectors as a matrix product (1, 1) without its axes.
    while node is not None and isinstance(node.op, ViewOp | DimShuffle) and all(value.type.broadcastable):
        value = cast(TensorVariable, node.inputs[0])
        node = value.owner
    inputs = [] if node is None else cast(list[TensorVariable], node.inputs)
    if sources.isdisjoint(ancestors([value])):
        yield value
    elif node is not None and isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, Add):
        yield from _summands(inputs[0], sources)
    elif value.ndim == 0 and is_elementwise(value, Add):
        for each in inputs:
            yield from _summands(each, sources)
    elif value.ndim == 0 and is_elementwise(value, Sub):
        yield from _summands(inputs[0], sources)
        yield from (-each for each in _summands(inputs[1], sources))
    elif value.ndim == 0 and is_elementwise(value, Neg):
        yield from (-each for each in _summands(inputs[0], sources))
    elif value.ndim == 0 and is_elementwise(value, Mul):
        others = [sources.isdisjoint(ancestors([each])) for each in inputs]
        if sum(others) < len(inputs) - 1:
            yield value
            return
        of_sources = [each for each, other in zip(inputs, others, strict=True) if not other]
        factor = reduce(pt.mul, [each for each, other in zip(inputs, others, strict=True) if other])
        yield from (factor * each for each in _summands(of_sources[0], sources))
    elif value.type.shape == (1, 1) and node is not None and isinstance(getattr(node.op, "core_op", node.op), Dot):
        left, right = inputs
        yield left.dimshuffle(1) * right.dimshuffle(0)
    elif value.ndim == 0 and is_elementwise(value, TrueDiv):
        # A mean divides by a length. Fold the length to a constant, since its graph contains copies of variables.
        (folded,) = constant_fold([inputs[1]], raise_not_constant=False)
        divisor = inputs[1] if isinstance(folded, Variable) else folded
        if not sources.isdisjoint(ancestors([divisor] if isinstance(divisor, Variable) else [])):
            yield value
            return
        yield from (each / divisor for each in _summands(inputs[0], sources))
    else:
        yield value


def _term(
    value: TensorVariable, lifted: Lifted, sources: frozenset[Variable], stop: Collection[Variable]
) -> _Term | None:
    """Return an array as a term: a log density of rows; None if a row depends on several Gaussian arguments."""
    if value.ndim > 1:
        shape = known_shape(value)
        if None in shape:
            return None
        own = lifted.rows(lifted(value), shape)
    else:
        own = lifted(value)
    count = 1 if own.ndim == 0 else known_shape(own)[0]
    argument = None if own.owner is None else argument_of_variable(own, sources)
    if count is None or argument is None or argument.others or argument.variable is own:
        return None
    made = row_density(own, [argument.variable], stop)
    return None if made is None else (made[0], [argument.variable, *made[1]], count)


def row_density(
    value: TensorVariable, arguments: Sequence[TensorVariable], stop: Collection[Variable]
) -> tuple["_Density", list[TensorVariable]] | None:
    """Return the log density of rows as a function, and its parameters; None if a row depends on other rows.

    Parameters
    ----------
    value : TensorVariable, shape (n,) or ()
        Log density.
    arguments : sequence of TensorVariable
        Variables of the density. They become its first parameters.
    stop : collection of Variable
        Random variables. They become parameters as well.
    """
    # Random variables and data become parameters, so that the density does not contain them.
    leaves = [each for each in ancestors([value], blockers=[*arguments, *stop]) if each in stop]
    leaves += [each for each in ancestors([value], blockers=leaves) if isinstance(each, TensorSharedVariable)]
    there = {each: each.type() for each in (*arguments, *leaves)}
    vectors = [pt.dvector(f"argument_{i}") for i in range(len(arguments))]
    alone = stable(clone_replace(value, there, copy_inputs_over=True))
    cut = RowCut({there[each]: vector for each, vector in zip(arguments, vectors, strict=True)}, _length)
    try:
        output = cut.through(alone)
        allowed = cut.allowed()
    except (RowsMixedError, NotImplementedError):
        return None
    output = output if allowed is None else pt.switch(allowed, output, -np.inf)
    parts = graph_replace(cut.parts, {new: old for old, new in there.items()}, strict=False)
    return _Density(output, [*vectors, *cut.inputs]), parts


def _length(variable: TensorVariable, axis: int) -> int:
    length = known_shape(variable)[axis]
    if length is None:
        raise NotImplementedError
    return length


def with_float_bounds(model: pm.Model) -> pm.Model:
    """Return a model with bounds as floats if differences of small integers overflow; else the model itself.

    For `pm.Uniform("b", -100, 100)` PyMC computes 100 − (−100) in int8, and the density is NaN.
    """
    new: dict[Variable, TensorVariable] = {}
    for rv in model.free_RVs:
        op = rv.owner.op
        if not isinstance(op, RandomVariable) or op.ndim_supp or not rv.dtype.startswith("float"):
            continue
        given = op.dist_params(rv.owner)
        small = [each.data for each in given if isinstance(each, Constant) and np.dtype(each.dtype).kind == "i"]
        if any(np.any(np.subtract(a, b) != a.astype(float) - b) for a in small for b in small):
            floats = [each.astype("float64") for each in given]
            size, rng = op.size_param(rv.owner), op.rng_param(rv.owner)
            new[rv] = op(*floats, size=size, rng=rng, return_next_rng=True)[1]
    if not new:
        return model
    variables = variables_of(model)
    same = {rv: rv for rv in model.basic_RVs if new.keys().isdisjoint(ancestors([rv]))}
    return rebuilt(model, dict(zip(variables, graph_replace(variables, same | new, strict=False), strict=True)))


def as_fits_read(model: pm.Model, hyperparameters: Sequence[str]) -> pm.Model:
    """Return the rewritten model that fits read; the model itself if it needs no rewriting."""
    alone = with_predictions_drawn(with_float_bounds(model), hyperparameters)
    return with_observed_potentials(with_latent_processes(with_starts(alone, hyperparameters)))
