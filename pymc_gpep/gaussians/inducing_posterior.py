"""The posterior of latent functions by way of inducing values."""

from dataclasses import dataclass

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.inducing import Block, Whitening
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior

__all__ = ["InducingPosterior"]


@dataclass(frozen=True, eq=False)
class InducingPosterior:
    """Functions that are independent given the data: Gaussian inducing values, and the prior given these.

    Attributes
    ----------
    whitening : Whitening
        Of the inducing values u = L v.
    whitened : WhitenedPosterior
        Of v.
    """

    whitening: Whitening
    whitened: WhitenedPosterior

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""
        return len(self.whitened.mean)

    @property
    def _owner(self) -> list[int]:
        return self.whitening.owner(self.n_functions)

    @property
    def inducing_mean(self) -> Array:
        """Mean of the inducing values relative to the prior mean, (c, M)."""
        return np.array(
            [self.whitening.factor[own] @ mean for own, mean in zip(self._owner, self.whitened.mean, strict=True)]
        )

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Mean and variance (c, m) of the latent functions at m points, from their prior moments."""
        features = self.whitening.features(block)
        mean, variance = np.empty((2, *features.mean.shape))
        for k, own in enumerate(self._owner):
            mean[k], variance[k] = self.whitened.marginals(k, features.w[own])
            variance[k] += features.rest[own]
        return features.mean + mean, variance
