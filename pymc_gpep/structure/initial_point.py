"""The initial point of a model, computed by an interpreted graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm
from pymc.blocking import PointType
from pymc.initial_point import convert_str_to_rv_dict, make_initial_point_expression, make_initial_point_fn
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.interpreted import evaluate, without_c_compiler


def initial_point(
    model: pm.Model,
    overrides: Mapping[Any, Any] | None = None,
    seed: int = 0,
    rvs: Sequence[TensorVariable] | None = None,
) -> PointType:
    """Return the values of value variables where PyMC begins, by name.

    Parameters
    ----------
    model : pm.Model
    overrides : dict, optional
        Initial values by name of the variable or of its value variable.
    seed : int
        Seed for variables that begin at a draw.
    rvs : sequence of TensorVariable, optional
        Free variables whose values are asked for, with all free variables that they depend on. Without it these are all
        free variables of the model.

    Returns
    -------
    dict
    """
    rvs = model.free_RVs if rvs is None else rvs
    values: list[Variable] = make_initial_point_expression(
        free_rvs=rvs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies={**model.rvs_to_initial_values, **convert_str_to_rv_dict(model, overrides or {})},
        return_transformed=True,
    )
    if any(isinstance(each.type, RandomType) for each in ancestors(values)):
        with without_c_compiler():
            point: PointType = make_initial_point_fn(model=model, overrides=overrides)(seed)
        return point
    names = [model.rvs_to_values[rv].name for rv in rvs]
    return dict(zip(names, evaluate(values), strict=True))
