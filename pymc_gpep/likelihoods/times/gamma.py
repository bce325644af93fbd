"""Positive numbers whose mean is the exponential of a latent value, with a gamma distribution."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import GammaRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import gammainc, gammaln, psi

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.log_rate import free_of_latents, read_log_rate
from pymc_gpep.likelihoods.observed_numbers import checked_numbers
from pymc_gpep.likelihoods.standard_density import LOG_RATE, StandardForm, standard_computations
from pymc_gpep.likelihoods.standard_likelihood import StandardLikelihood, log_normal_moments, reading_of


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    offset, alpha = parameters
    log_y = np.log(y)
    shapes = np.stack([alpha, np.zeros(len(y))])
    return StandardForm(np.full(len(y), -1.0), log_y - offset, shapes, -log_y - gammaln(alpha))


def _slopes(y: NDArray[Any], parameters: Array) -> StandardForm:
    _, alpha = parameters
    shape = (2, len(y))
    of_offset, of_shapes, of_constant = np.zeros(shape), np.zeros((2, *shape)), np.zeros(shape)
    of_offset[0] = -1.0
    of_shapes[1, 0] = 1.0
    of_constant[1] = -psi(alpha)
    return StandardForm(np.zeros(shape), of_offset, of_shapes, of_constant)


@dataclass(frozen=True)
class GammaLikelihood(StandardLikelihood):
    """p(y | f) = y^(α − 1) exp(−y / θ) / (Γ(α) θ^α), log θ = f + o, with the offset o and the shape α as parameters."""

    name: ClassVar[str] = "gamma"
    written: ClassVar[str] = "pm.Gamma(alpha=alpha, beta=alpha * pm.math.exp(-f))"
    distributions: ClassVar[tuple[type[Op], ...]] = (GammaRV,)
    observed_dtype: ClassVar[str] = "float64"
    least: ClassVar[float] = 0.0
    rows: ClassVar[tuple[str, ...]] = ("offset", "alpha")
    positive: ClassVar[tuple[str, ...]] = ("alpha",)
    local: ClassVar[tuple[object, ...]] = standard_computations(LOG_RATE, _form, _slopes)

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
                f"{name} is a Gamma whose shape depends on latent values: mu and sigma make it (mu / sigma)². Let "
                f"sigma be in proportion to mu, pm.Gamma({name}, mu=mu, sigma=ratio * mu), where mu is pm.math.exp(f), "
                f"or write pm.Gamma({name}, alpha=alpha, beta=alpha * pm.math.exp(-f)), with ratio or alpha a "
                "hyperparameter."
            )
        return (
            f"{name} is a Gamma, but its scale is not the exponential of one latent function and what is added to it: "
            f"write pm.Gamma({name}, alpha=alpha, beta=alpha * pm.math.exp(-f)), with alpha a hyperparameter."
        )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Array:
        return checked_numbers(self.checked_shape(observed, n_functions, n_points, name), name, positive=True)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        offset, alpha = self.parameters
        return np.asarray(gammainc(alpha, np.maximum(y, 0.0) * np.exp(-f - offset)))

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        offset, alpha = self.parameters
        log_scale, variance = mean[:, 0] + offset, cov[:, 0, 0]
        first, second = (log_normal_moments(log_scale, variance, power) for power in (1.0, 2.0))
        return np.stack([alpha * first, alpha * (alpha + 1.0) * second])
