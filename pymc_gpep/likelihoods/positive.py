"""Likelihoods of positive numbers: gamma, Weibull, exponential. The latent value is the log scale."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import WeibullBetaRV
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import ExponentialRV, GammaRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import gamma, gammainc, gammaln, psi

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.links import Reading, free_of_latents, read_log_rate
from pymc_gpep.likelihoods.standard_density import (
    LOG_RATE,
    StandardForm,
    StandardLikelihood,
    censored_side,
    log_normal_moments,
    no_slopes,
    observable_of,
    reading_of,
    standard_computations,
)


def _form_of_gamma(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha = parameters
    log_y = np.log(y)
    shapes = np.stack([alpha, np.zeros(len(y))])
    return StandardForm(np.full(len(y), -1.0), log_y - offset, shapes, -log_y - gammaln(alpha))


def _slopes_of_gamma(y: NDArray[Any], parameters: Array) -> StandardForm:
    _, alpha = parameters
    found = no_slopes(2, 2, len(y))
    found.offset[0], found.shapes[1, 0], found.constant[1] = -1.0, 1.0, -psi(alpha)
    return found


@dataclass(frozen=True)
class GammaLikelihood(StandardLikelihood):
    """p(y | f) = y^(α − 1) exp(−y / θ) / (Γ(α) θ^α) with log θ = f + o. Parameters are the offset o and the shape α."""

    name: ClassVar[str] = "gamma"
    written: ClassVar[str] = "pm.Gamma(alpha=alpha, beta=alpha * pm.math.exp(-f))"
    distributions: ClassVar[tuple[type[Op], ...]] = (GammaRV,)
    observed_dtype: ClassVar[str] = "float64"
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("offset", "alpha")
    positive: ClassVar[tuple[str, ...]] = ("alpha",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOG_RATE, _form_of_gamma, _slopes_of_gamma)

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        alpha, scale = variable.owner.op.dist_params(variable.owner)
        reading, shape = read_log_rate(scale, latents), free_of_latents(alpha, latents)
        if reading is None or reading.parameters is None or shape is None:
            return None
        return reading_of(reading.argument, reading.parameters[0], shape)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        name, (alpha, _) = repr(variable.name), variable.owner.op.dist_params(variable.owner)
        if free_of_latents(alpha, latents) is None:
            return (
                f"{name} is a Gamma, but its shape, alpha or (mu / sigma)², depends on latent values. Write "
                f"pm.Gamma({name}, mu=mu, sigma=ratio * mu) with mu = pm.math.exp(f), or "
                f"pm.Gamma({name}, alpha=alpha, beta=alpha * pm.math.exp(-f)). Let ratio and alpha be hyperparameters."
            )
        return (
            f"{name} is a Gamma, but its scale is not the exponential of one latent function plus an offset. "
            f"Write pm.Gamma({name}, alpha=alpha, beta=alpha * pm.math.exp(-f)), with alpha a hyperparameter."
        )

    def cumulative_given(self, y: Array, f: Array) -> Array:
        offset, alpha = self.parameters
        return np.asarray(gammainc(alpha, np.maximum(y, 0.0) * np.exp(-f - offset)))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        offset, alpha = self.parameters
        log_scale, variance = mean[:, 0] + offset, cov[:, 0, 0]
        first, second = (log_normal_moments(log_scale, variance, power) for power in (1.0, 2.0))
        return np.stack([alpha * first, alpha * (alpha + 1.0) * second])


def _form_of_weibull(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha, lower, upper = parameters
    log_y, side = np.log(y), censored_side(y, lower, upper)
    constant = np.where(side == 0.0, np.log(alpha) - log_y, 0.0 * side + 0.0 * log_y)
    shapes = np.stack([(side == 0.0).astype(np.float64), (side < 0.0).astype(np.float64)])
    return StandardForm(-alpha, alpha * (log_y - offset), shapes, constant)


def _slopes_of_weibull(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha, lower, upper = parameters
    found = no_slopes(4, 2, len(y))
    found.offset[0], found.offset[1], found.scale[1] = -alpha, np.log(y) - offset, -1.0
    found.constant[1] = np.where(censored_side(y, lower, upper) == 0.0, 1.0 / alpha, 0.0)
    return found


@dataclass(frozen=True)
class WeibullLikelihood(StandardLikelihood):
    """P(y > t | f) = exp(−(t / θ)^α) with log θ = f + o. The exponential distribution has α = 1.

    Parameters are the offset o, the shape α, and the bounds of censored times. The bounds are data.
    """

    name: ClassVar[str] = "weibull"
    written: ClassVar[str] = "pm.Weibull(alpha=alpha, beta=pm.math.exp(f))"
    distributions: ClassVar[tuple[type[Op], ...]] = (WeibullBetaRV, ExponentialRV, CensoredRV)
    observed_dtype: ClassVar[str] = "float64"
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("offset", "alpha", "lower", "upper")
    positive: ClassVar[tuple[str, ...]] = ("alpha",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOG_RATE, _form_of_weibull, _slopes_of_weibull)

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
            f"{name} is a Weibull or Exponential, but its scale is not the exponential of one latent function plus "
            f"an offset. Write pm.Weibull({name}, alpha=alpha, beta=pm.math.exp(f)) or "
            f"pm.Exponential({name}, scale=pm.math.exp(f)), within pm.Censored by their .dist."
        )

    def cumulative_given(self, y: Array, f: Array) -> Array:
        offset, alpha, _, _ = self.parameters
        return np.asarray(-np.expm1(-np.exp(alpha * (np.log(np.maximum(y, 0.0)) - f - offset))))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        """Return the predictive means of y and y² (2, m), without censoring."""
        log_scale, variance, alpha = mean[:, 0] + self.row("offset"), cov[:, 0, 0], self.row("alpha")
        powers = (1.0, 2.0)
        return np.stack([gamma(1.0 + k / alpha) * log_normal_moments(log_scale, variance, k) for k in powers])
