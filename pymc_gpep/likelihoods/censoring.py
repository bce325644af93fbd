"""Censored observations, `pm.Censored`: numbers at a bound stand for all beyond it."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import PartialObservedRV, SymbolicRandomVariable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array

UNBOUNDED = 1e300
"""The number that stands for an infinite bound: solvers take no parameters that are not finite."""


class Observable(NamedTuple):
    """A random variable that is observed, or observed between bounds."""

    op: Op
    inputs: list[TensorVariable]
    """The parameters of its distribution."""
    lower: TensorVariable
    upper: TensorVariable
    """Bounds, numbers or (n,); ∓ `UNBOUNDED` on a side without one."""


@cache
def no_bounds() -> tuple[TensorVariable, TensorVariable]:
    """The bounds of what is not censored."""
    lower, upper = (pt.constant(end, dtype="float64") for end in (-UNBOUNDED, UNBOUNDED))
    return lower, upper


def observable_of(variable: TensorVariable) -> Observable | None:
    """The distribution behind a random variable, and its bounds; None where these are random themselves."""
    lower, upper = ends = no_bounds()
    if isinstance(variable.owner.op, CensoredRV):
        variable, lower, upper = variable.owner.inputs[:3]
        if any(isinstance(v.owner and v.owner.op, RandomVariable) for v in ancestors([lower, upper])):
            return None
        lower, upper = (pt.clip(bound.astype("float64"), *ends) for bound in (lower, upper))
    op = variable.owner.op
    told_apart = isinstance(op, SymbolicRandomVariable) and op.extended_signature is not None
    if not (isinstance(op, RandomVariable) or told_apart) or isinstance(op, PartialObservedRV):
        return None  # the parameters of the others are not told apart
    return Observable(op, list(op.dist_params(variable.owner)), lower, upper)


def censored_side(y: NDArray[Any], lower: Array, upper: Array) -> Array:
    """0 for observations (n,) that were seen, 1 for those above a bound, −1 for those below one.

    NaN for numbers beyond the bounds, which cannot be.
    """
    side = np.where(y >= upper, 1.0, np.where(y <= lower, -1.0, 0.0))
    return np.where((y > upper) | (y < lower) | np.isnan(y), np.nan, side)
