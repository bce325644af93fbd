"""Likelihoods of real numbers: normal, log-normal, logistic, Laplace. The latent value is a location or quantile."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import AsymmetricLaplaceRV
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LaplaceRV, LogisticRV, LogNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import expit, ndtr

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.standard_density import (
    ASYMMETRIC_LAPLACE,
    LOGISTIC_POWERS,
    NORMAL_SIDES,
    StandardDensity,
    StandardForm,
    StandardLikelihood,
    censored_side,
    log_normal_moments,
    no_slopes,
    observable_of,
    reading_of,
    standard_computations,
)


def _normal_shapes(side: Array) -> Array:
    """Return the shapes for g = (y − f)/σ: −1 for Φ(−g) above a bound, 1 for Φ(g) below a bound, 0 for the density."""
    return -side[None]


def _logistic_shapes(side: Array) -> Array:
    """Return the powers of σ(g) and σ(−g), with the logistic function σ: (1, 1) for a density, else one power is 0."""
    return np.stack([(side <= 0.0).astype(np.float64), (side >= 0.0).astype(np.float64)])


def _computations(
    density: StandardDensity, shapes_of: Callable[[Array], Array], of_logarithm: bool = False
) -> tuple[object, ...]:
    """Return local computations for a standard density of (y − f)/σ, or of (log y − f)/σ."""

    def form(y: NDArray[Any], parameters: Array) -> StandardForm:
        sigma, lower, upper = parameters
        side = censored_side(y, lower, upper)
        number = np.log(y) if of_logarithm else y
        jacobian = -number if of_logarithm else 0.0
        constant = np.where(side == 0.0, jacobian - np.log(sigma), np.where(sigma > 0.0, 0.0 * side, np.nan))
        return StandardForm(-1.0 / sigma, number / sigma, shapes_of(side), constant)

    def slopes(y: NDArray[Any], parameters: Array) -> StandardForm:
        sigma, lower, upper = parameters
        number = np.log(y) if of_logarithm else y
        found = no_slopes(3, len(shapes_of(number)), len(y))
        found.scale[0], found.offset[0] = 1.0 / sigma**2, -number / sigma**2
        found.constant[0] = np.where(censored_side(y, lower, upper) == 0.0, -1.0 / sigma, 0.0)
        return found

    def normal(y: NDArray[Any], parameters: Array, out: Array) -> None:
        sigma, lower, upper = parameters
        with np.errstate(all="ignore"):
            out[0] = np.where(censored_side(y, lower, upper) == 0.0, 1.0 / sigma**2, np.nan)
            out[1] = (np.log(y) if of_logarithm else y) * out[0]

    return standard_computations(density, form, slopes, normal if density is NORMAL_SIDES else None)


@dataclass(frozen=True)
class LocationScale(StandardLikelihood, ABC):
    """Likelihood with a standard density of (y − f)/σ, or of (log y − f)/σ.

    Parameters are the scale σ, and the bounds of censored observations. The bounds are data.
    """

    observed_dtype: ClassVar[str] = "float64"
    rows: ClassVar[tuple[str, ...]] = ("sigma", "lower", "upper")
    positive: ClassVar[tuple[str, ...]] = ("sigma",)
    of: ClassVar[type[Op]]
    """Distribution of the observations, without censoring."""

    def may_be(self, variable: TensorVariable) -> bool:
        found = observable_of(variable)
        return found is not None and isinstance(found.op, self.of)

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        found = observable_of(variable)
        if found is None or not isinstance(found.op, self.of):
            return None
        mu, sigma = found.inputs
        if set(latents).isdisjoint(ancestors([mu])):
            return None
        return reading_of(mu, sigma, bounds=(found.lower, found.upper))

    @abstractmethod
    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        """Return the predictive means of y and y² (2, m), without censoring."""


@dataclass(frozen=True)
class NormalLikelihood(LocationScale):
    """p(y | f) = N(y | f, σ²)."""

    name: ClassVar[str] = "normal"
    written: ClassVar[str] = "pm.Normal(mu=f, sigma=sigma)"
    distributions: ClassVar[tuple[type[Op], ...]] = (NormalRV, CensoredRV)
    of: ClassVar[type[Op]] = NormalRV
    local: ClassVar[tuple[object, ...]] = _computations(NORMAL_SIDES, _normal_shapes)

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        return np.asarray(ndtr((y - mean[:, 0]) / np.sqrt(cov[:, 0, 0] + self.row("sigma") ** 2)))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        location = mean[:, 0]
        return np.stack([location, location**2 + cov[:, 0, 0] + self.row("sigma") ** 2])


@dataclass(frozen=True)
class LogNormalLikelihood(LocationScale):
    """p(y | f) = N(log y | f, σ²) / y."""

    name: ClassVar[str] = "log_normal"
    written: ClassVar[str] = "pm.LogNormal(mu=f, sigma=sigma)"
    distributions: ClassVar[tuple[type[Op], ...]] = (LogNormalRV, CensoredRV)
    of: ClassVar[type[Op]] = LogNormalRV
    least: ClassVar[float] = 0.0
    local: ClassVar[tuple[object, ...]] = _computations(NORMAL_SIDES, _normal_shapes, of_logarithm=True)

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        with np.errstate(divide="ignore"):
            log_y = np.log(np.maximum(y, 0.0))
        return np.asarray(ndtr((log_y - mean[:, 0]) / np.sqrt(cov[:, 0, 0] + self.row("sigma") ** 2)))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        variance = cov[:, 0, 0] + self.row("sigma") ** 2
        return np.stack([log_normal_moments(mean[:, 0], variance, power) for power in (1.0, 2.0)])


@dataclass(frozen=True)
class LogisticLikelihood(LocationScale):
    """Logistic density with location f and scale s, for example of the logarithm of a time."""

    name: ClassVar[str] = "logistic"
    written: ClassVar[str] = "pm.Logistic(mu=f, s=s)"
    distributions: ClassVar[tuple[type[Op], ...]] = (LogisticRV, CensoredRV)
    of: ClassVar[type[Op]] = LogisticRV
    local: ClassVar[tuple[object, ...]] = _computations(LOGISTIC_POWERS, _logistic_shapes)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        return np.asarray(expit((y - f) / self.row("sigma")))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        location = mean[:, 0]
        return np.stack([location, location**2 + cov[:, 0, 0] + (math.pi * self.row("sigma")) ** 2 / 3.0])


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    rate, kappa = parameters
    constant = np.log(rate) - np.log(kappa + 1.0 / kappa) + 0.0 * y
    return StandardForm(-rate, rate * y, kappa[None], constant)


def _slopes(y: NDArray[Any], parameters: Array) -> StandardForm:
    rate, kappa = parameters
    found = no_slopes(2, 1, len(y))
    found.scale[0], found.offset[0], found.shapes[1], found.constant[0] = -1.0, y, 1.0, 1.0 / rate
    found.constant[1] = -(1.0 - 1.0 / kappa**2) / (kappa + 1.0 / kappa)
    return found


@dataclass(frozen=True)
class AsymmetricLaplaceLikelihood(StandardLikelihood):
    """p(y | f) ∝ exp(−λκ (y − f)) for y > f, exp(λ (y − f) / κ) for y < f. Then f is the quantile κ² / (1 + κ²) of y.

    Parameters are the rate λ and the asymmetry κ. With κ = 1 this is the Laplace distribution, and f is the median.
    """

    name: ClassVar[str] = "asymmetric_laplace"
    written: ClassVar[str] = "pm.AsymmetricLaplace(q=0.9, mu=f, b=b)"
    distributions: ClassVar[tuple[type[Op], ...]] = (AsymmetricLaplaceRV, LaplaceRV)
    observed_dtype: ClassVar[str] = "float64"
    rows: ClassVar[tuple[str, ...]] = ("rate", "kappa")
    positive: ClassVar[tuple[str, ...]] = ("rate", "kappa")
    local: ClassVar[tuple[object, ...]] = standard_computations(ASYMMETRIC_LAPLACE, _form, _slopes)

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        op = variable.owner.op
        inputs = op.dist_params(variable.owner)
        if isinstance(op, LaplaceRV):
            mu, rate, kappa = inputs[0], pt.reciprocal(inputs[1]), pt.constant(1.0)
        else:
            rate, kappa, mu = inputs
        if set(latents).isdisjoint(ancestors([mu])):
            return None
        return reading_of(mu, rate, kappa)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        rate, kappa = self.parameters
        g, square = rate * (y - f), kappa**2
        below = square * np.exp(np.minimum(g, 0.0) / kappa)
        above = 1.0 + square - np.exp(-kappa * np.maximum(g, 0.0))
        return np.asarray(np.where(g < 0.0, below, above) / (1.0 + square))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        rate, kappa = self.parameters
        location = mean[:, 0] - (kappa - 1.0 / kappa) / rate
        spread = (1.0 + kappa**4) / (rate * kappa) ** 2
        return np.stack([location, location**2 + cov[:, 0, 0] + spread])
