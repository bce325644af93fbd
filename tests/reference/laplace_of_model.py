"""Laplace's approximation of the latent variables of a model, from PyMC's log density alone.

It uses no code of the package: BFGS finds the mode, and differences of gradients give the curvature.
"""

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from scipy.optimize import minimize

__all__ = ["LaplaceOfModel", "laplace_of_model"]

_STEP = 1e-4
_POLISHED = 4


class LaplaceOfModel(NamedTuple):
    """Evidence, and mode and standard deviations of the variables, concatenated."""

    evidence: float
    mode: np.ndarray
    sd: np.ndarray


def laplace_of_model(model, latents, hyperparameters, start=None):
    """Approximate the named latent variables at the given values of the other free variables."""
    others = [rv for rv in model.free_RVs if rv.name not in latents]
    log_density = model.logp(vars=[rv for rv in model.basic_RVs if rv not in others], jacobian=False)
    values = [model.rvs_to_values[model[name]] for name in latents]
    begin = model.initial_point()
    shapes = [np.shape(begin[v.name]) for v in values]
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    flat = pt.dvector("flat")
    by = {
        v: flat[a:b].reshape(shape).astype(v.dtype)
        for v, shape, a, b in zip(values, shapes, ends, ends[1:], strict=False)
    }
    for rv in others:
        transform, value = model.rvs_to_transforms[rv], model.rvs_to_values[rv]
        given = pt.as_tensor(np.asarray(hyperparameters[rv.name], np.float64))
        by[value] = (given if transform is None else transform.forward(given, *rv.owner.inputs)).astype(value.dtype)
    (made,) = graph_replace([log_density], by, strict=False)
    function = pytensor.function([flat], [made, pt.grad(made, flat)], mode="FAST_COMPILE", on_unused_input="ignore")
    x = np.concatenate([np.ravel(begin[v.name]) for v in values]) if start is None else np.asarray(start)
    x = minimize(lambda at: tuple(-each for each in function(at)), x, jac=True, options={"gtol": 1e-8}).x
    for _ in range(_POLISHED):
        near = np.stack([_STEP * _difference(function, x, unit) for unit in np.eye(x.size)])
        precision = -(near + near.T) / (2.0 * _STEP)
        x = x + np.linalg.solve(precision, function(x)[1])
    half_log_volume = 0.5 * x.size * np.log(2.0 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    return LaplaceOfModel(float(function(x)[0]) + half_log_volume, x, np.sqrt(np.diag(np.linalg.inv(precision))))


def _difference(function, x, unit):
    """The derivative of the gradient along a unit vector, by four values."""
    once, twice = (function(x + k * _STEP * unit)[1] - function(x - k * _STEP * unit)[1] for k in (1, 2))
    return (8.0 * once - twice) / (12.0 * _STEP)
