"""Likelihoods of ordered classes, by cutpoints or by stopping ratios of one latent function; probit and logistic."""

from abc import ABC
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import expit, ndtr

from pymc_gpep.argument_types import rows_text
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.scalar import ordinal
from pymc_gpep.likelihoods.averages_over_cells import average_log_density, computations_of, parameter_slopes
from pymc_gpep.likelihoods.links import Reading, read_cutpoints
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    ParameterSlopes,
    ScalarDensity,
)
from pymc_gpep.likelihoods.observed import some_of, without_marks
from pymc_gpep.likelihoods.one_function import OneFunction

_PROBIT = ScalarDensity(ordinal.probit_derivatives)


@dataclass(frozen=True)
class OrderedLikelihood(OneFunction, ABC):
    """Ordered classes: p(y = k | f) = F(κ_{k+1} − f) − F(κ_k − f), κ₀ = −∞, κ_K = ∞. Parameters are κ₁ … κ_{K−1}."""

    distributions: ClassVar[tuple[type[Op], ...]] = (CategoricalRV,)
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "ep"
    has_parameters: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ("cutpoints in rising order",)
    distribution: ClassVar[np.ufunc]
    """Distribution function F."""

    def of_bounds(self, x: Array) -> Array:
        """Return class probabilities (..., K) for cutpoints minus a latent value, x (..., K − 1)."""
        return np.diff(self.distribution(x), axis=-1, prepend=0.0, append=1.0)

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        op = variable.owner.op
        (p,) = op.dist_params(variable.owner)
        return read_cutpoints(p, latents, self.of_bounds)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        name = repr(variable.name)
        return (
            f"{name} is a Categorical of classes between cutpoints, but its noise is not standard normal or logistic. "
            f"Write pm.OrderedProbit({name}, eta=f, cutpoints=...) without sigma, or pm.OrderedLogistic. The "
            "model with sigma equals the model with eta=f / sigma and cutpoints=cutpoints / sigma. Stopping ratios "
            "with standard normal or logistic noise are supported as well."
        )

    def takes_rows(self, count: int) -> bool:
        return count > 0

    def check_parameters(self, observed: NDArray[np.int64] | None, name: str) -> None:
        self._check_finite(name)
        descends = ~(np.diff(self.parameters, axis=0) > 0.0).all(axis=0)
        if descends.any():
            first = self.parameters[:, descends][:, 0]
            raise ValueError(
                f"The cutpoints of ordered classes must ascend, but are {', '.join(f'{cut:.4g}' for cut in first)}. "
                "Declare them with transform=pm.distributions.transforms.ordered, and with initval=... that ascend."
            )

    def _check_finite(self, name: str) -> None:
        if not np.isfinite(self.parameters).all():
            raise ValueError(
                f"The cutpoints of {name} are not finite in {rows_text(~np.isfinite(self.parameters).all(axis=0))}. "
                "Replace infinite cutpoints by large numbers: np.clip(cutpoints, -1e10, 1e10)."
            )

    def n_classes(self, n_functions: int) -> int:
        """Return the number of cutpoints plus one."""
        return len(self.parameters) + 1

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        given = self.checked_shape(observed, n_functions, n_points, name)
        last = len(self.parameters)
        wrong = ~np.isin(given, np.arange(last + 1)) | (given.dtype.kind not in "biuf")
        if wrong.any():
            raise ValueError(
                f"{name} must be integers 0…{last}, one class more than there are cutpoints, but among them are "
                f"{some_of(given[wrong])}. Code the classes from 0, in their order.{without_marks(given)}"
            )
        return np.ascontiguousarray(given, np.int64)

    def scores(self, observed: NDArray[np.int64], p: Array, moments: Array | None) -> dict[str, Array]:
        """Return the accuracy, and the ranked probability score, Σ_k (p(y ≤ k) − [y ≤ k])² (Epstein 1969)."""
        reached = observed[:, None] <= np.arange(p.shape[1])
        ranked = ((p.cumsum(axis=1) - reached) ** 2).sum(axis=1)
        return super().scores(observed, p, moments) | {"ranked_probability": ranked}


@dataclass(frozen=True)
class OrderedProbitLikelihood(OrderedLikelihood):
    """Ordered classes with the normal distribution function F = Φ."""

    name: ClassVar[str] = "ordered_probit"
    distribution: ClassVar[np.ufunc] = ndtr
    written: ClassVar[str] = "pm.OrderedProbit"
    largest_precision: ClassVar[float] = 1.0
    local: ClassVar[tuple[object, ...]] = (
        _PROBIT,
        GaussianAverage(ordinal.probit_average),
        average_log_density(_PROBIT),
        ParameterSlopes(
            ordinal.probit_parameter_derivatives,
            ordinal.probit_average_slopes,
            parameter_slopes(_PROBIT, ordinal.probit_parameter_derivatives).average_log,
        ),
    )


@dataclass(frozen=True)
class OrderedLogitLikelihood(OrderedLikelihood):
    """Ordered classes with the logistic function as F."""

    name: ClassVar[str] = "ordered_logit"
    distribution: ClassVar[np.ufunc] = expit
    written: ClassVar[str] = "pm.OrderedLogistic"
    largest_precision: ClassVar[float] = 0.5
    local: ClassVar[tuple[object, ...]] = (
        ScalarDensity(ordinal.logit_derivatives),
        GaussianAverage(ordinal.logit_average),
        AverageLogDensity(ordinal.logit_average_log),
        ParameterSlopes(
            ordinal.logit_parameter_derivatives, ordinal.logit_average_slopes, ordinal.logit_average_log_slopes
        ),
    )


def _of_stopping_ratios(normal: bool) -> tuple[object, ...]:
    """Return all local computations of stopping ratios. F is Φ if `normal`, else the logistic function."""

    def derivatives(f: Array, y: Observed, parameters: Array, out: Array) -> None:
        ordinal.stopping_derivatives(f, y, parameters, normal, out)

    def parameter_derivatives(f: Array, y: Observed, parameters: Array, out: Array) -> None:
        ordinal.stopping_parameter_derivatives(f, y, parameters, normal, out)

    def log_density(f: Array, y: Observed, parameters: Array) -> Array:
        out = np.empty((4, len(f)))
        derivatives(f, np.asarray(y, np.int64), parameters, out)
        return out

    return *computations_of(log_density), parameter_slopes(ScalarDensity(derivatives), parameter_derivatives)


@dataclass(frozen=True)
class StoppingRatioLikelihood(OrderedLikelihood, ABC):
    """p(y = k | f) = F(κ_k − f) ∏_{j<k} (1 − F(κ_j − f)): class k is reached if all lower classes are passed."""

    written: ClassVar[str] = "pm.Categorical of stopping ratios"
    rows: ClassVar[tuple[str, ...]] = ("cutpoints",)
    largest_precision: ClassVar[float] = np.inf  # Without a bound, since each passed class adds to the precision.

    def of_bounds(self, x: Array) -> Array:
        stops = self.distribution(x)
        passed = np.cumprod(1.0 - stops, axis=-1)
        return np.concatenate([stops[..., :1], stops[..., 1:] * passed[..., :-1], passed[..., -1:]], axis=-1)

    def check_parameters(self, observed: NDArray[np.int64] | None, name: str) -> None:
        self._check_finite(name)


@dataclass(frozen=True)
class StoppingProbitLikelihood(StoppingRatioLikelihood):
    """Stopping ratios with F = Φ."""

    name: ClassVar[str] = "stopping_probit"
    distribution: ClassVar[np.ufunc] = ndtr
    local: ClassVar[tuple[object, ...]] = _of_stopping_ratios(normal=True)


@dataclass(frozen=True)
class StoppingLogitLikelihood(StoppingRatioLikelihood):
    """Stopping ratios with the logistic function as F."""

    name: ClassVar[str] = "stopping_logit"
    distribution: ClassVar[np.ufunc] = expit
    local: ClassVar[tuple[object, ...]] = _of_stopping_ratios(normal=False)
