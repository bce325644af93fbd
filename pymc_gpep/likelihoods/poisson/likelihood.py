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
from scipy.special import pdtr

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.scalar import poisson
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    ParameterSlopes,
    ScalarDensity,
)
from pymc_gpep.likelihoods.log_rate import read_log_rate
from pymc_gpep.likelihoods.observed_numbers import checked_counts, rows_text
from pymc_gpep.likelihoods.one_function import OneFunction


@dataclass(frozen=True)
class PoissonLikelihood(OneFunction):
    """p(y | f) = Poisson(y; exp(f + o)), with the offset o, the logarithm of an exposure, as its one parameter.

    For an exposure of 0 the offset is `NO_EXPOSURE`. A row with a count of 0 then says as much as a row that is left
    out.
    """

    name: ClassVar[str] = "poisson"
    written: ClassVar[str] = "pm.Poisson(mu=pm.math.exp(f + offset))"
    distributions: ClassVar[tuple[type[Op], ...]] = (PoissonRV,)
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "laplace"
    least: ClassVar[float] = 0.0
    has_parameters: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ("offset",)
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
        """Return 0, since observations are counts."""
        return 0

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        given = self.checked_shape(observed, n_functions, n_points, name)
        return checked_counts(given, name)

    def check_parameters(self, observed: NDArray[np.int64] | None, name: str) -> None:
        (offset,) = self.parameters
        if (bad := ~(offset < np.inf)).any():
            raise ValueError(
                f"Exposures of {name} must be numbers of at least 0, and offsets numbers less than infinity, but are "
                f"not in {rows_text(bad)}."
            )
        if observed is not None and (bad := (offset <= poisson.NO_EXPOSURE) & (observed > 0)).any():
            raise ValueError(
                f"The exposure of {name} is 0 in {rows_text(bad)}, where the count is more than 0, which cannot be. "
                "Put the exposure right, or leave those rows out, of the latent function's inputs as well."
            )

    def says_nothing(self, observed: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self.parameters[0] <= poisson.NO_EXPOSURE)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        return np.asarray(pdtr(np.floor(y), np.exp(f + self.parameters[0])))

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
