"""The multinomial probit with label noise as a likelihood."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.op import Op

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.factors import noisy_probit_average
from pymc_gpep.kernels.methods.label_noise import nested_label_noise_update, noisy_probit_derivatives
from pymc_gpep.kernels.moments.inner_ep import tilted_log_normaliser
from pymc_gpep.kernels.sampling import draw_in_cone
from pymc_gpep.likelihoods.label_noise.likelihood import LabelNoise
from pymc_gpep.likelihoods.local_computations import (
    LargestUtility,
    MixedDifferenceFactors,
    PointAverage,
    PointFactor,
    Utilities,
)
from pymc_gpep.likelihoods.multinomial_probit.likelihood import (
    INNER_SWEEPS,
    INNER_TOLERANCE,
    MultinomialProbitLikelihood,
)
from pymc_gpep.likelihoods.multinomial_probit.log_probability import log_probabilities_and_gradients
from pymc_gpep.likelihoods.multinomial_probit.noisy_distribution import NoisyMultinomialProbitRV
from pymc_gpep.likelihoods.multinomial_probit.predictive import class_probabilities


@dataclass(frozen=True)
class NoisyMultinomialProbitLikelihood(LabelNoise):
    """The class of the largest of the latent values, each with unit normal noise, or any class."""

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
        log_z: Array = tilted_log_normaliser(mean, cov, INNER_SWEEPS, INNER_TOLERANCE)
        return log_z[range(len(observed)), observed]
