"""The common part of likelihoods with label noise: a part of the labels is drawn from all classes alike."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.one_function_per_class import OneFunctionPerClass


@dataclass(frozen=True)
class LabelNoise(OneFunctionPerClass, ABC):
    """p(y | f) = (1 − ε) p₀(y | f) + ε / c; the parameter is ε, (1, n)."""

    method: ClassVar[str] = "nested_ep"
    guide: ClassVar[str] = "prior"
    has_parameters: ClassVar[bool] = True
    rows: ClassVar[tuple[str, ...]] = ("epsilon",)
    log_concave: ClassVar[bool] = False
    largest_precision: ClassVar[float]

    @abstractmethod
    def log_density_without(self, f: Array, observed: NDArray[np.int64]) -> Array:
        """log p₀(y_i | f_i) (..., n) of each observation, for latent values (..., c, n)."""

    @abstractmethod
    def probabilities_without(self, mean: Array, cov: Array, how: str | None, tolerance: float) -> tuple[Array, Array]:
        """Predictive probabilities and errors, as of `probabilities`, without label noise."""

    @abstractmethod
    def log_tail_without(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        """As of `log_tail`, without label noise."""

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
