"""Counts with a logarithmic link, and an offset or an exposure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import PoissonRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.scalar import poisson
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    ParameterSlopes,
    ScalarDensity,
)
from pymc_gpep.likelihoods.observed_classes import some_of, without_marks
from pymc_gpep.likelihoods.one_function import OneFunction
from pymc_gpep.likelihoods.poisson.log_rate import read_log_rate

__all__ = ["PoissonLikelihood"]


@dataclass(frozen=True)
class PoissonLikelihood(OneFunction):
    """p(y | f) = Poisson(y; exp(f + o)), with the offset o, the logarithm of an exposure, as its one parameter.

    Of an exposure of 0 it is `NO_EXPOSURE`, by which a row with a count of 0 says as much as a row that is left out.
    """

    name: ClassVar[str] = "poisson"
    written: ClassVar[str] = "pm.Poisson(mu=pm.math.exp(f + offset))"
    distributions: ClassVar[tuple[type[Op], ...]] = (PoissonRV,)
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "laplace"
    has_parameters: ClassVar[bool] = True
    largest_precision: ClassVar[float] = np.inf
    local: ClassVar[tuple[object, ...]] = (
        ScalarDensity(poisson.derivatives),
        GaussianAverage(poisson.average),
        AverageLogDensity(poisson.average_log),
        ParameterSlopes(poisson.parameter_derivatives, poisson.average_slopes, poisson.average_log_slopes),
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        op = variable.owner.op
        (rate,) = op.dist_params(variable.owner)
        return read_log_rate(rate, latents)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        return (
            f"{variable.name!r} is a Poisson, but its rate is not the exponential of one latent function and what is "
            f"added to it: write pm.Poisson({variable.name!r}, mu=pm.math.exp(f + offset))."
        )

    def n_classes(self, n_functions: int) -> int:
        """None: they are counts."""
        return 0

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        given = self.checked_shape(observed, n_functions, n_points, name)
        numbers = given.dtype.kind in "biuf"
        wrong = (given < 0) | (given != np.round(given)) if numbers else np.full(n_points, True)
        if wrong.any():
            raise ValueError(
                f"{name} must be counts, 0, 1, 2, ..., but among them are {some_of(given[wrong])}."
                f"{without_marks(given)}"
            )
        if (given > _LARGEST).any():
            raise ValueError(f"{name} must be counts up to {_LARGEST}, but run up to {given.max()}.")
        return np.ascontiguousarray(given, np.int64)

    def check_parameters(self, observed: NDArray[np.int64] | None, name: str) -> None:
        (offset,) = self.parameters
        if (bad := ~(offset < np.inf)).any():
            raise ValueError(
                f"Exposures of {name} must be numbers of at least 0, and offsets numbers less than infinity, but are "
                f"not in {_rows(bad)}."
            )
        if observed is not None and (bad := (offset <= poisson.NO_EXPOSURE) & (observed > 0)).any():
            raise ValueError(
                f"The exposure of {name} is 0 in {_rows(bad)}, where the count is more than 0, which cannot be. Put "
                "the exposure right, or leave those rows out, of the latent function's inputs as well."
            )

    def says_nothing(self, observed: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.parameters[0] <= poisson.NO_EXPOSURE)

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        variance = cov[:, 0, 0]
        log_rate = mean[:, 0] + self.parameters[0] + 0.5 * variance
        with np.errstate(over="ignore"):  # a mean beyond all numbers is infinite
            first = np.exp(log_rate)
            return np.stack([first, first + np.exp(2.0 * log_rate + variance)])

    def scores(self, observed: NDArray[np.int64], p: Array, moments: Array | None) -> dict[str, Array]:
        """The squared error of the predictive mean."""
        assert moments is not None
        return {"squared_error": (observed - moments[0]) ** 2}


_LARGEST = 2**53
_NAMED = 5  # rows in a message


def _rows(bad: NDArray[np.bool_]) -> str:
    """Rows by their numbers, as a message names them."""
    rows = np.flatnonzero(bad)
    named = ", ".join(map(str, rows[:_NAMED]))
    return f"row{'s' * (rows.size > 1)} {named}" + (f" and {rows.size - _NAMED} more" if rows.size > _NAMED else "")
