"""Likelihoods of one function in standard form: what they share besides the form itself."""

from abc import ABC
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.censoring import censored_side, no_bounds
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.observed_numbers import rows_text
from pymc_gpep.likelihoods.one_function import OneFunction


def reading_of(
    argument: TensorVariable, *rows: TensorVariable, bounds: tuple[TensorVariable, TensorVariable] | None = None
) -> Reading:
    """The reading of a variable whose parameters have these rows, each a number or (n,), and bounds after them."""

    def stacked(*each: TensorVariable) -> TensorVariable:
        return pt.stack(pt.broadcast_arrays(*(pt.atleast_1d(row.astype("float64")) for row in each)))

    if bounds is None:
        return Reading(argument, stacked(*rows))
    return Reading(argument, stacked(*rows, *bounds), unbounded=stacked(*rows, *no_bounds()))


@dataclass(frozen=True)
class StandardLikelihood(OneFunction, ABC):
    """A density of numbers or counts; its computations are those of `pymc_gpep.likelihoods.standard_density`."""

    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "ep"
    has_parameters: ClassVar[bool] = True
    largest_precision: ClassVar[float] = np.inf
    positive: ClassVar[tuple[str, ...]] = ()
    """Names of those that must be positive numbers."""

    def n_classes(self, n_functions: int) -> int:
        """Zero: observations are no classes."""
        return 0

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        for row, values in zip(self.rows, self.parameters, strict=True):
            if row in self.positive and (bad := ~((values > 0.0) & (values < np.inf))).any():
                raise ValueError(
                    f"{row} of {name} must be a positive number, but is {values[bad][0]:.4g} in {rows_text(bad)}."
                )
            if np.isnan(values).any():
                raise ValueError(f"{row} of {name} is not a number in {rows_text(np.isnan(values))}.")

    def scores(self, observed: NDArray[Any], p: Array, moments: Array | None) -> dict[str, Array]:
        """The squared error of the predictive mean."""
        assert moments is not None
        return {"squared_error": (observed - moments[0]) ** 2}

    def ends(self, observed: NDArray[Any], mean: Array, cov: Array) -> tuple[Array, Array]:
        below, at = super().ends(observed, mean, cov)
        if "upper" not in self.rows:
            return below, at
        side = censored_side(observed, self.row("lower"), self.row("upper"))
        return np.where(side < 0.0, 0.0, below), np.where(side > 0.0, 1.0, at)

    def row(self, name: str) -> Array:
        """A row of the parameters (n,), by its name."""
        return self.parameters[self.rows.index(name)]


def log_normal_moments(mean: Array, variance: Array, power: float = 1.0) -> Array:
    """E exp(power · f) for f ~ N(mean, variance); infinite beyond all numbers."""
    with np.errstate(over="ignore"):
        moment: Array = np.exp(power * mean + 0.5 * power**2 * variance)
    return moment


def checked_bounds(observed: ArrayLike, lower: Array, upper: Array, name: str) -> None:
    """Raise a ValueError where an observation lies beyond the bounds that it is censored at."""
    bad = ~((np.asarray(observed) >= lower) & (np.asarray(observed) <= upper))
    if bad.any():
        raise ValueError(
            f"{name} is censored, but lies beyond its bounds in {rows_text(bad)}. An observation that is censored "
            "equals its bound: np.minimum(y, upper)."
        )
