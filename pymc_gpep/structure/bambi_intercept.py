"""Models of bambi that take the means off predictors, with the intercept that bambi's own `fit` reports."""

import gc
import sys
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.errors import StructureError
from pymc_gpep.structure.lowered_dims import rebuilt

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
