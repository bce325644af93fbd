"""Hyperparameters of a model on their natural scale."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType
from pytensor.graph.replace import graph_replace

from pymc_gpep.graphs.interpreted import INTERPRETED, graph_function
from pymc_gpep.latent.latent_prior import LatentPrior


def unconstrain(prior: LatentPrior) -> Callable[[Mapping[str, Any]], PointType]:
    """Make the function from values of the hyperparameters, by name, to values of the value variables, by name.

    The values have the shapes of the hyperparameters. Names of other variables may be among them.
    """
    model = prior.model
    rvs = list(prior.hyperparameters)
    given = {rv: rv.type(rv.name) for rv in rvs}
    transforms = [model.rvs_to_transforms[rv] for rv in rvs]
    values = [
        rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        for rv, transform in zip(rvs, transforms, strict=True)
    ]
    function = graph_function(model, list(given.values()), graph_replace(values, given, strict=False) if values else [])
    names = [model.rvs_to_values[rv].name for rv in rvs]

    def point(of: Mapping[str, Any]) -> PointType:
        arguments = (np.asarray(of[rv.name], dtype=rv.dtype) for rv in rvs)
        return dict(zip(names, function(*arguments), strict=True))

    return point


def draw_hyperparameters(prior: LatentPrior, random_seed: int) -> PointType:
    """One draw from the priors of the hyperparameters, as values of the value variables by name.

    Raises
    ------
    NotImplementedError
        If a prior is improper.
    """
    rvs = list(prior.hyperparameters)
    drawn = pm.draw(rvs, random_seed=random_seed, mode=INTERPRETED)
    return unconstrain(prior)(dict(zip((rv.name for rv in rvs), drawn, strict=True)))
