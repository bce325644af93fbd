"""Walks and autoregressions whose start is not Gaussian, as models in which the start is a variable of its own.

Given its start such a series is Gaussian, so that all that comes after the start is integrated.
"""

from collections.abc import Collection
from typing import cast

import pymc as pm
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.lowered_dims import rebuilt
from pymc_gpep.structure.recipes import recipe
from pymc_gpep.structure.recipes.recipe import is_read, parameters


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
