"""Likelihoods of classes with label noise: the multinomial probit, and the step likelihood (robust max)."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.factors import noisy_probit_average, noisy_step_average, step_pair_derivatives
from pymc_gpep.kernels.methods.label_noise import (
    nested_label_noise_update,
    nested_step_update,
    noisy_probit_derivatives,
    noisy_step_derivatives,
)
from pymc_gpep.kernels.sampling import draw_in_cone
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import (
    LargestUtility,
    MixedDifferenceFactors,
    PairFactors,
    PointAverage,
    PointFactor,
    Utilities,
)
from pymc_gpep.likelihoods.multinomial_probit import (
    MultinomialProbitLikelihood,
    class_probabilities,
    inner_ep_moments,
)
from pymc_gpep.likelihoods.multinomial_probit_distribution import (
    NoisyMultinomialProbitRV,
    RobustMaxRV,
    log_probabilities_and_gradients,
)
from pymc_gpep.likelihoods.one_function import OneFunctionPerClass


@dataclass(frozen=True)
class LabelNoise(OneFunctionPerClass, ABC):
    """Mixture (1 − ε) p₀(y | f) + ε / c of a likelihood p₀ and uniform labels of c classes. The parameter is ε."""

    method: ClassVar[str] = "nested_ep"
    guide: ClassVar[str] = "prior"
    has_parameters: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ("epsilon",)
    log_concave: ClassVar[bool] = False
    largest_precision: ClassVar[float]

    @abstractmethod
    def log_density_without(self, f: Array, observed: NDArray[np.int64]) -> Array:
        """Return the log likelihood (..., n) of each observation without label noise, for latent values (..., c, n)."""

    @abstractmethod
    def probabilities_without(self, mean: Array, cov: Array, how: str | None, tolerance: float) -> tuple[Array, Array]:
        """Return predictive probabilities and errors without label noise; see `probabilities`."""

    @abstractmethod
    def log_tail_without(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        """Return log tail probabilities without label noise; see `log_tail`."""

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        latent, epsilon = variable.owner.op.dist_params(variable.owner)
        return Reading(cast(TensorVariable, latent), pt.atleast_2d(epsilon))

    def check_parameters(self, observed: NDArray[np.int64] | None, name: str) -> None:
        if (bad := ~((self.parameters >= 0.0) & (self.parameters < 1.0))).any():
            raise ValueError(
                f"The epsilon of {name} must be from 0 to below 1, but is {self.parameters[bad][0]:.4g}. Give it a "
                'prior on that interval, such as pm.Beta("epsilon", 1, 19).'
            )

    def draw_noise(self, rng: np.random.Generator, f: Array, observed: NDArray[np.int64]) -> NDArray[np.bool_]:
        noise = self.parameters[0] / len(f)
        return np.asarray(rng.random(len(observed)) < noise / np.exp(self.log_densities(f, observed)))

    def log_densities(self, f: Array, observed: NDArray[np.int64]) -> Array:
        return self._with_noise(self.log_density_without(f, observed), f.shape[-2])

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        p, error = self.probabilities_without(mean, cov, self.check_way(how), tolerance)
        epsilon = self.parameters[0]
        return (1.0 - epsilon[:, None]) * p + epsilon[:, None] / p.shape[1], (1.0 - epsilon) * error

    def log_tail(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        return self._with_noise(self.log_tail_without(mean, cov, observed), mean.shape[1])

    def _with_noise(self, log_p: Array, c: int) -> Array:
        epsilon = self.parameters[0]
        with np.errstate(divide="ignore"):
            noisy: Array = np.logaddexp(np.log1p(-epsilon) + log_p, np.log(epsilon / c))
        return noisy


@dataclass(frozen=True)
class NoisyMultinomialProbitLikelihood(LabelNoise):
    """Multinomial probit with label noise."""

    name: ClassVar[str] = "noisy_multinomial_probit"
    written: ClassVar[str] = "gpep.MultinomialProbit(..., epsilon=...)"
    ways: ClassVar[tuple[str, ...]] = MultinomialProbitLikelihood.ways
    largest_precision: ClassVar[float] = MultinomialProbitLikelihood.largest_precision
    distributions: ClassVar[tuple[type[Op], ...]] = (NoisyMultinomialProbitRV,)
    local: ClassVar[tuple[object, ...]] = (
        MixedDifferenceFactors(nested_label_noise_update),
        PointFactor(noisy_probit_derivatives),
        PointAverage(noisy_probit_average),
        Utilities(draw_in_cone),
        LargestUtility(1.0),
    )

    def log_density_without(self, f: Array, observed: NDArray[np.int64]) -> Array:
        return log_probabilities_and_gradients(observed, f.swapaxes(-1, -2))[0]

    def probabilities_without(self, mean: Array, cov: Array, how: str | None, tolerance: float) -> tuple[Array, Array]:
        return class_probabilities(mean, cov, method=how or self.ways[0], tolerance=tolerance)

    def log_tail_without(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        return inner_ep_moments(observed, mean, cov)[0]


_NARROW = 1e-5
"""The noise of a probit that replaces the step, in units of the largest standard deviation of latent values."""
_CLOSE = 1e-8  # The noise is at least this fraction of the largest difference between latent means.
_NONE = 1e-150  # Smallest noise of the probit, so that a division by the noise is finite.


@dataclass(frozen=True)
class RobustMaxLikelihood(LabelNoise):
    """Step likelihood with label noise: the class of the largest latent value; with probability ε a random class."""

    name: ClassVar[str] = "robust_max"
    written: ClassVar[str] = "gpep.RobustMax"
    ways: ClassVar[tuple[str, ...]] = ("orthant",)
    largest_precision: ClassVar[float] = np.inf
    fixes_scale: ClassVar[bool] = False
    distributions: ClassVar[tuple[type[Op], ...]] = (RobustMaxRV,)
    local: ClassVar[tuple[object, ...]] = (
        MixedDifferenceFactors(nested_step_update),
        PointFactor(noisy_step_derivatives),
        PairFactors(step_pair_derivatives),
        PointAverage(noisy_step_average),
        LargestUtility(0.0),
    )

    def log_density_without(self, f: Array, observed: NDArray[np.int64]) -> Array:
        with np.errstate(divide="ignore"):
            return np.log((f.argmax(axis=-2) == observed).astype(np.float64))

    def probabilities_without(self, mean: Array, cov: Array, how: str | None, tolerance: float) -> tuple[Array, Array]:
        return class_probabilities(*_as_utilities(mean, cov), tolerance=tolerance)

    def log_tail_without(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        return inner_ep_moments(observed, *_as_utilities(mean, cov))[0]


def _as_utilities(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Return scaled means and covariances. Added noise of variance 1 changes probabilities by less than 1e-10."""
    mean, cov = np.asarray(mean, np.float64), np.asarray(cov, np.float64)
    apart = mean - mean.max(axis=1, keepdims=True)
    widest = np.sqrt(cov.diagonal(axis1=1, axis2=2).max(axis=1))
    noise = np.maximum(np.maximum(_NARROW * widest, _CLOSE * np.abs(apart).max(axis=1)), _NONE)
    scaled = np.where(np.isfinite(noise), noise, np.nan)
    return apart / scaled[:, None], cov / scaled[:, None, None] / scaled[:, None, None]
