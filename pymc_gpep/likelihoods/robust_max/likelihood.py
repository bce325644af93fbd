"""The step likelihood with label noise: what PyMC's graphs, approximations and predictions ask of it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.op import Op

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.factors import noisy_step_average, step_pair_derivatives
from pymc_gpep.kernels.methods.label_noise import nested_step_update, noisy_step_derivatives
from pymc_gpep.kernels.moments.inner_ep import tilted_log_normaliser
from pymc_gpep.likelihoods.label_noise.likelihood import LabelNoise
from pymc_gpep.likelihoods.local_computations import (
    LargestUtility,
    MixedDifferenceFactors,
    PairFactors,
    PointAverage,
    PointFactor,
)
from pymc_gpep.likelihoods.multinomial_probit.likelihood import INNER_SWEEPS, INNER_TOLERANCE
from pymc_gpep.likelihoods.multinomial_probit.predictive import class_probabilities
from pymc_gpep.likelihoods.robust_max.distribution import RobustMaxRV

_NARROW = 1e-5
"""Noise that makes a step a probit, in units of the largest standard deviation of a point's latent values ..."""
_CLOSE = 1e-8  # ... or of the largest difference of their means, where they have none,
_NONE = 1e-150  # or nothing


@dataclass(frozen=True)
class RobustMaxLikelihood(LabelNoise):
    """The class of the largest of the latent values, or any class."""

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
        log_z: Array = tilted_log_normaliser(*_as_utilities(mean, cov), INNER_SWEEPS, INNER_TOLERANCE)
        return log_z[range(len(observed)), observed]


def _as_utilities(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Moments of latent values with unit noise of which the largest has the same class, but for a part in 1e10."""
    mean, cov = np.asarray(mean, np.float64), np.asarray(cov, np.float64)
    apart = mean - mean.max(axis=1, keepdims=True)
    widest = np.sqrt(cov.diagonal(axis1=1, axis2=2).max(axis=1))
    noise = np.maximum(np.maximum(_NARROW * widest, _CLOSE * np.abs(apart).max(axis=1)), _NONE)
    scaled = np.where(np.isfinite(noise), noise, np.nan)
    return apart / scaled[:, None], cov / scaled[:, None, None] / scaled[:, None, None]
