"""Real numbers with a kinked density about a latent value: medians and other quantiles by regression."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.continuous import AsymmetricLaplaceRV
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.basic import LaplaceRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.observed_numbers import checked_numbers
from pymc_gpep.likelihoods.standard_density import ASYMMETRIC_LAPLACE, StandardForm, standard_computations
from pymc_gpep.likelihoods.standard_likelihood import StandardLikelihood, reading_of


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    rate, kappa = parameters
    constant = np.log(rate) - np.log(kappa + 1.0 / kappa) + 0.0 * y
    return StandardForm(-rate, rate * y, kappa[None], constant)


def _slopes(y: NDArray[Any], parameters: Array) -> StandardForm:
    rate, kappa = parameters
    shape = (2, len(y))
    of_scale, of_offset, of_shapes, of_constant = (np.zeros(shape) for _ in range(4))
    of_scale[0], of_offset[0], of_constant[0] = -1.0, y, 1.0 / rate
    of_shapes[1] = 1.0
    of_constant[1] = -(1.0 - 1.0 / kappa**2) / (kappa + 1.0 / kappa)
    return StandardForm(of_scale, of_offset, of_shapes[:, None], of_constant)


@dataclass(frozen=True)
class AsymmetricLaplaceLikelihood(StandardLikelihood):
    """p(y | f) ∝ exp(−λκ (y − f)) above f, exp(λ (y − f) / κ) below it: f is the quantile κ² / (1 + κ²) of y.

    Parameters are the rate λ and the asymmetry κ, which is 1 for a Laplace distribution, where f is the median.
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

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Array:
        return checked_numbers(self.checked_shape(observed, n_functions, n_points, name), name)

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
