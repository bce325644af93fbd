"""The variables that a model made from another one shares with it."""

from collections.abc import Container

import pymc as pm
from pytensor.graph.basic import Variable

__all__ = ["add_others"]


def add_others(made: pm.Model, model: pm.Model, left_out: Container[Variable]) -> None:
    """Add coords, data and all variables of a model to an empty one, but for some; they are then of both."""
    made.add_coords(dict(model.coords), lengths=dict(model.dim_lengths))
    for name, variable in model.named_vars.items():
        if variable in left_out:
            continue
        if variable in model.basic_RVs:
            (made.free_RVs if variable in model.free_RVs else made.observed_RVs).append(variable)
            made.create_value_var(
                variable,
                transform=model.rvs_to_transforms[variable],
                default_transform=None,
                value_var=model.rvs_to_values[variable],
            )
            made.set_initval(variable, model.rvs_to_initial_values.get(variable))
        for own, theirs in (
            (made.deterministics, model.deterministics),
            (made.potentials, model.potentials),
            (made.data_vars, model.data_vars),
        ):
            if variable in theirs:
                own.append(variable)
        made.add_named_variable(variable, dims=model.named_vars_to_dims.get(name))
