"""Models rewritten before they are read: bambi's centred predictors, and series whose start is not Gaussian.

Given its start such a series is Gaussian, so that all values after the start are integrated. Fits and
`gpep.marginalize` read the rewritten model. Samplers move the variables of the original one.
"""

import gc
import sys
from collections.abc import Collection
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.latent.lowered_dims import rebuilt
from pymc_gpep.recipes import recipe
from pymc_gpep.recipes.recipe import is_read, parameters

_DESIGN = "design_matrix_without_intercept"  # Attribute of a part of a bambi model that has centred its predictors.


def with_bambi_intercept(model: pm.Model) -> pm.Model:
    """Return the model of a bambi model whose intercept is that of predictors as they are.

    By default bambi subtracts the means of predictors, and corrects the intercept α to α − x̄ᵀβ after its own `fit`. In
    the model that is returned the variable of that name has the corrected value, and all else is the same.

    Returns
    -------
    pm.Model
        The model itself unless bambi built it and centred its predictors.

    Raises
    ------
    StructureError
        If the prior of such an intercept is not normal.
    """
    components = _centred_components(model)
    if not components:
        return model
    begun = [each for each in model.rvs_to_initial_values.values() if isinstance(each, Variable)]
    given = [*model.named_vars.values(), *(model.rvs_to_values[rv] for rv in model.observed_RVs), *begun]
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
    remade.free_RVs.sort(key=set(corrected.values()).__contains__)  # after the variables that they depend on
    return remade


def _centred_components(model: pm.Model) -> list[Any]:
    """Return the parts of a bambi model with an intercept of centred predictors; none for other models."""
    if "bambi" not in sys.modules:
        return []
    for each in gc.get_referrers(model):  # the model does not know its bambi model
        own = each if isinstance(each, dict) else getattr(each, "__dict__", {})
        parts = own.get("components")
        if own.get("model") is model and isinstance(parts, dict):
            return [part for part in parts.values() if getattr(part, _DESIGN, None) is not None]
    return []


def _corrected(intercept: Variable, means: np.ndarray, slopes: list[Any]) -> tuple[TensorVariable, TensorVariable]:
    """Return the variable of the corrected intercept, and what the intercept of centred predictors is more."""
    node = intercept.owner
    if not isinstance(node.op, NormalRV):
        raise StructureError(
            f"bambi has centred the predictors of this model, and the prior of {intercept.name!r} is not normal, so "
            "that its intercept cannot be corrected. Build the model with bmb.Model(..., center_predictors=False)."
        )
    several = intercept.type.ndim
    rows = [each if each.ndim > several else each[None] for each in slopes]
    shift = cast(TensorVariable, pt.dot(means, pt.concatenate(rows, axis=0)))
    mu, sigma = node.op.dist_params(node)
    made = node.op(mu - shift, sigma, size=node.op.size_param(node), rng=node.op.rng_param(node), return_next_rng=True)
    return cast(TensorVariable, made[1]), shift


def with_starts(model: pm.Model, asked: Collection[str] = ()) -> pm.Model:
    """Return a model in which starts that are not Gaussian are variables, and series follow from them.

    The start of 'walk' is 'walk_start'. It has the prior `init_dist`, and the series begins with its value.

    Parameters
    ----------
    model : pm.Model
    asked : collection of str
        Names of series that are to stay whole.

    Returns
    -------
    pm.Model
        The model itself if there is no such series. Otherwise a new model whose data and coords follow those of
        `model`.
    """
    found: dict[TensorVariable, tuple[TensorVariable, TensorVariable]] = {}
    for rv in model.free_RVs:
        free = rv.name not in asked and f"{rv.name}_start" not in model.named_vars
        if free and model.rvs_to_transforms[rv] is None and recipe(rv, model) is None and (own := _apart(rv)):
            found[rv] = own
    if not found:
        return model
    series = {rv: own for rv, (_, own) in found.items()}
    begun = [value for value in model.rvs_to_initial_values.values() if isinstance(value, Variable)]
    given = [*model.named_vars.values(), *(model.rvs_to_values[rv] for rv in model.observed_RVs), *begun]
    # PyTensor copies a random variable whose size is used as well, and a copy is no variable of the model.
    same = {rv: rv for rv in model.basic_RVs if set(found).isdisjoint(ancestors([rv]))}
    new = dict(zip(given, graph_replace(given, {**same, **series}, strict=False), strict=True))
    return rebuilt(model, new, {rv: start for rv, (start, _) in found.items()})


def _apart(rv: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the start of a series, and the series that begins there; None unless only the start is not Gaussian."""
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
    """Return the start of a walk without its first axis, of time, or as it is where its parts are no plain numbers."""
    op = start.owner.op
    if not isinstance(op, RandomVariable):
        return start
    size = [start.shape[axis] for axis in range(1, start.ndim - op.ndim_supp)]
    given = [
        each[0] if each.ndim > own + len(size) else each
        for each, own in zip(op.dist_params(start.owner), op.ndims_params, strict=True)
    ]
    return cast(TensorVariable, op(*given, size=size, rng=op.rng_param(start.owner), return_next_rng=True)[1])
