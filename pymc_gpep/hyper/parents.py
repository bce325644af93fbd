"""Parents of hyperparameters where they are the most probable given their children."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pymc.blocking import PointType
from scipy.optimize import minimize

from pymc_gpep.array_types import Array
from pymc_gpep.structure.hierarchy import Hierarchy

__all__ = ["most_probable_parents"]

_STEP = 1e-4  # of the differences that second derivatives are taken from
_POLISH = 6  # Newton steps; the error of each is a part in 10⁷ of that before it
_LARGEST = 1.0  # Newton step


def most_probable_parents(hierarchy: Hierarchy, start: PointType, children: Mapping[str, Any]) -> PointType:
    """Values of the parents' value variables at the maximum of their log density, unconstrained, given the children.

    For a conjugate pair, φ ~ Exponential(ψ) with ψ ~ Gamma(σ, τ), the maximum is at ψ = (σ + 1) / (τ + φ). This is also
    the mean of ψ given φ (Girolami and Rogers 2006, equation 4.8): the Jacobian of the logarithm makes the two one.

    Parameters
    ----------
    hierarchy : Hierarchy
    start : dict
        Values to begin at, of these variables and perhaps others.
    children : mapping
        Children by name, on their natural scale.
    """
    names = hierarchy.parent_values
    if not names:
        return {}
    shapes = [np.shape(start[name]) for name in names]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def parts(flat: Array) -> list[Array]:
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=True)]

    def slope(flat: Array) -> Array:
        return hierarchy.conditional(parts(flat), children)[1]

    def negative(flat: Array) -> tuple[float, Array]:
        value, gradient = hierarchy.conditional(parts(flat), children)
        return (-value, -gradient) if np.isfinite(value) and np.isfinite(gradient).all() else (np.inf, 0.0 * flat)

    found = np.concatenate([np.ravel(start[name]) for name in names]).astype(np.float64)
    found = np.asarray(minimize(negative, found, jac=True, method="L-BFGS-B").x)
    for _ in range(_POLISH):
        here = slope(found)
        curvature = np.array(
            [(slope(found - step) - slope(found + step)) / (2 * _STEP) for step in _STEP * np.eye(found.size)]
        )
        try:
            np.linalg.cholesky(0.5 * (curvature + curvature.T))
            step = np.linalg.solve(curvature, here)
        except np.linalg.LinAlgError:
            break  # a ridge, along which no point is better than another
        if not np.abs(step).max() < _LARGEST:
            break
        found = found + step
    return dict(zip(names, parts(found), strict=True))
