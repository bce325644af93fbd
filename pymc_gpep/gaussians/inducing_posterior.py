"""Posterior of latent functions at any inputs, computed from the posterior of inducing values."""

from dataclasses import dataclass

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.inducing import Block, InducingWhitening
from pymc_gpep.solvers.whitened_posterior import Whitened


@dataclass(frozen=True, eq=False)
class InducingPosterior:
    """Posterior of inducing values. It predicts latent functions by their prior given the inducing values.

    Attributes
    ----------
    whitening : InducingWhitening
        Map u = L v from whitened values v to inducing values u.
    whitened : Whitened
        Posterior of the whitened values v.
    """

    whitening: InducingWhitening
    whitened: Whitened

    @property
    def size(self) -> int:
        """Number of inducing values and effects of each function."""
        return self.whitening.size

    @property
    def n_functions(self) -> int:
        """Number of latent functions, c."""
        return len(self.whitened.mean)

    @property
    def _owner(self) -> list[int]:
        return self.whitening.owner(self.n_functions)

    @property
    def as_inducing(self) -> "InducingPosterior":
        """The posterior itself. Posteriors of other classes are converted by their property of this name."""
        return self

    @property
    def inducing_mean(self) -> Array:
        """Posterior mean of the inducing values minus their prior mean, (c, M)."""
        return np.array(
            [
                self.whitening.factor[own] @ mean[: self.whitening.n_inducing]
                for own, mean in zip(self._owner, self.whitened.mean, strict=True)
            ]
        )

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Return means (c, m) and covariances (m, c, c) of latent functions at m points; `block` has prior moments."""
        features = self.whitening.features(block)
        mean, cov = self.whitened.moments([features.w[own] for own in self._owner])
        every = range(self.n_functions)
        cov[:, every, every] += features.rest[self._owner].T
        return features.mean + mean, cov

    def draw_at(self, rng: np.random.Generator, v: Array, block: Block) -> Array:
        """Return draws (count, c, m) at m points, given draws v (count, c, M) of whitened inducing values."""
        features = self.whitening.features(block)
        means = [v[:, k] @ features.w[own] for k, own in enumerate(self._owner)]
        noise = rng.standard_normal((len(v), *features.mean.shape))
        return np.asarray(features.mean + np.stack(means, axis=1) + np.sqrt(features.rest[self._owner]) * noise)
