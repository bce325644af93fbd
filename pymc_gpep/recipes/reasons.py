"""Messages for variables similar to Gaussian variables that have no recipe, with the code to write instead."""

from collections.abc import Iterable

import pymc as pm
from pymc.distributions.multivariate import ICARRV, MvStudentTRV, ZeroSumNormalRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.tensor.random.basic import CauchyRV, LaplaceRV, StudentTRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.errors import describe, distribution
from pymc_gpep.recipes.areas import is_connected, neighbours
from pymc_gpep.recipes.recipe import is_random, is_read, keeps_gaussian, parameters, recipe, shape_of

_MIXTURES = {
    StudentTRV: "pm.Normal(..., sigma=sigma * pt.sqrt(w)) with w = pm.InverseGamma('w', nu / 2, nu / 2{shape})",
    CauchyRV: "pm.Normal(..., sigma=beta * pt.sqrt(w)) with w = pm.InverseGamma('w', 0.5, 0.5{shape})",
    LaplaceRV: "pm.Normal(..., sigma=b * pt.sqrt(2 * w)) with w = pm.Exponential('w', 1{shape})",
    MvStudentTRV: "pm.MvNormal(..., cov=w * scale) with w = pm.InverseGamma('w', nu / 2, nu / 2)",
}
"""Code for the same prior as a normal with a random scale w, a hyperparameter, by distribution."""


def why_no_recipe(variable: TensorVariable, model: pm.Model) -> str:
    """Return why a variable is not integrated out, and the code to write instead.

    Parameters
    ----------
    variable : TensorVariable
        A random variable of the model.
    model : pm.Model

    Returns
    -------
    str
        One sentence; empty if no reason is found.
    """
    op = variable.owner.op
    name = describe(variable)
    if (series := getattr(variable.tag, "start_of", None)) is not None:
        return f"{name} is the start of {series!r}, and stays a hyperparameter: give it init_dist=pm.Normal.dist(...)."
    if type(op) in _MIXTURES:
        # Each entry needs its own scale: a common scale would change the prior.
        shape = shape_of(variable)
        mixture = _MIXTURES[type(op)].format(shape=f", shape={shape if len(shape) > 1 else shape[0]}" if shape else "")
        return f"{name} is not Gaussian, and stays a hyperparameter: the same prior is {mixture}."
    if not is_read(variable):
        return ""
    if not keeps_gaussian(variable, model):
        return _of_transform(variable, model)
    if recipe(variable, model) is not None:
        return ""
    if isinstance(op, ICARRV):
        return _of_areas(variable)
    if isinstance(op, RandomWalkRV | AutoRegressiveRV):
        return _of_series(variable)
    return ""


def why_no_recipes(variables: Iterable[TensorVariable], model: pm.Model) -> str:
    """Return the reasons why variables are not integrated out. Each reason occurs once.

    Parameters
    ----------
    variables : iterable of TensorVariable
        Random variables of the model.
    model : pm.Model
    """
    whys: dict[str, str] = {}
    for variable in variables:
        why = why_no_recipe(variable, model) or f"{describe(variable)} is not Gaussian."
        whys.setdefault(why.replace(describe(variable), ""), why)
    return " ".join(whys.values())


def _of_transform(variable: TensorVariable, model: pm.Model) -> str:
    transform = model.rvs_to_transforms.get(variable)
    if isinstance(variable.owner.op, ZeroSumNormalRV):
        return f"{describe(variable)} needs the transform that PyMC gives it: leave `default_transform` out."
    return (
        f"{describe(variable)} is not Gaussian because of its transform, {type(transform).__name__}, and stays a "
        "hyperparameter. Leave the transform out if the model does not need it."
    )


def _of_areas(variable: TensorVariable) -> str:
    name = variable.name
    if is_random(parameters(variable)[1]):
        return (
            f"{describe(variable)} has a sigma that is not constant. PyMC's density omits the power of sigma that "
            f"normalises it, also for samplers. Write sigma * pm.ICAR({name!r}, W)."
        )
    if not is_connected(neighbours(variable)):
        return (
            f"{describe(variable)} has areas in several unconnected parts, so its density is not proper. Give each "
            "connected part a pm.ICAR of its own, and an area without neighbours a pm.Normal."
        )
    return ""


def _of_series(variable: TensorVariable) -> str:
    walk = isinstance(variable.owner.op, RandomWalkRV)
    start, innovations = parameters(variable)[:2] if walk else (parameters(variable)[2], None)
    if innovations is not None and not is_read(innovations):
        part, mend = f"innovations by {distribution(innovations)}", "pm.GaussianRandomWalk has normal innovations"
    else:
        part, mend = f"a start by {distribution(start)}", "give it init_dist=pm.Normal.dist(...)"
    return f"{describe(variable)} has {part}, is not Gaussian, and stays a hyperparameter: {mend}."
