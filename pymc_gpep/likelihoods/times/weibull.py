"""Times until an event whose scale is the exponential of a latent value, with a Weibull distribution, or censored."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import WeibullBetaRV
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import ExponentialRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import gamma

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.censoring import censored_side, observable_of
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.log_rate import read_log_rate
from pymc_gpep.likelihoods.observed_numbers import checked_numbers
from pymc_gpep.likelihoods.standard_density import LOG_RATE, StandardForm, standard_computations
from pymc_gpep.likelihoods.standard_likelihood import (
    StandardLikelihood,
    checked_bounds,
    log_normal_moments,
    reading_of,
)


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha, lower, upper = parameters
    log_y, side = np.log(y), censored_side(y, lower, upper)
    constant = np.where(side == 0.0, np.log(alpha) - log_y, 0.0 * side + 0.0 * log_y)
    shapes = np.stack([(side == 0.0).astype(np.float64), (side < 0.0).astype(np.float64)])
    return StandardForm(-alpha, alpha * (log_y - offset), shapes, constant)


def _slopes(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha, lower, upper = parameters
    shape = (4, len(y))
    of_scale, of_offset, of_constant = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    of_offset[0] = -alpha
    of_scale[1] = -1.0
    of_offset[1] = np.log(y) - offset
    of_constant[1] = np.where(censored_side(y, lower, upper) == 0.0, 1.0 / alpha, 0.0)
    return StandardForm(of_scale, of_offset, np.zeros((4, 2, len(y))), of_constant)


@dataclass(frozen=True)
class WeibullLikelihood(StandardLikelihood):
    """P(y > t | f) = exp(−(t / θ)^α), log θ = f + o; an exponential distribution has α = 1.

    Parameters are the offset o, the shape α, and the bounds at which times are censored, which are data.
    """

    name: ClassVar[str] = "weibull"
    written: ClassVar[str] = "pm.Weibull(alpha=alpha, beta=pm.math.exp(f))"
    distributions: ClassVar[tuple[type[Op], ...]] = (WeibullBetaRV, ExponentialRV, CensoredRV)
    observed_dtype: ClassVar[str] = "float64"
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("offset", "alpha", "lower", "upper")
    positive: ClassVar[tuple[str, ...]] = ("alpha",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOG_RATE, _form, _slopes)

    def may_be(self, variable: TensorVariable) -> bool:
        found = observable_of(variable)
        return found is not None and isinstance(found.op, (WeibullBetaRV, ExponentialRV))

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        found = observable_of(variable)
        if found is None or not isinstance(found.op, (WeibullBetaRV, ExponentialRV)):
            return None
        *alpha, scale = found.inputs
        reading = read_log_rate(scale, latents)
        if reading is None or reading.parameters is None:
            return None
        shape = alpha[0] if alpha else pt.constant(1.0)
        return reading_of(reading.argument, reading.parameters[0], shape, bounds=(found.lower, found.upper))

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        name = repr(variable.name)
        return (
            f"{name} is a Weibull or Exponential, but its scale is not the exponential of one latent function and "
            f"what is added to it: write pm.Weibull({name}, alpha=alpha, beta=pm.math.exp(f)) or "
            f"pm.Exponential({name}, scale=pm.math.exp(f)), within pm.Censored by their .dist."
        )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Array:
        return checked_numbers(self.checked_shape(observed, n_functions, n_points, name), name, positive=True)

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        super().check_parameters(observed, name)
        if observed is not None:
            checked_bounds(observed, self.row("lower"), self.row("upper"), name)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        offset, alpha, _, _ = self.parameters
        return np.asarray(-np.expm1(-np.exp(alpha * (np.log(np.maximum(y, 0.0)) - f - offset))))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        """Moments of times, whether or not they would be censored."""
        log_scale, variance, alpha = mean[:, 0] + self.row("offset"), cov[:, 0, 0], self.row("alpha")
        powers = (1.0, 2.0)
        return np.stack([gamma(1.0 + k / alpha) * log_normal_moments(log_scale, variance, k) for k in powers])
