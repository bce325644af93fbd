"""Posterior of latent functions at any inputs, from inducing values or from the latent values of active rows."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.solvers.inducing import Block, InducingWhitening
from pymc_gpep.solvers.whitened_posterior import CoupledWhitened, Whitened


@dataclass(frozen=True, eq=False)
class ActivePosterior:
    """A dense posterior that is asked for blocks, as one of inducing values is."""

    dense: DensePosterior
    """The posterior of the latent values of these rows."""

    @property
    def size(self) -> int:
        """How many rows there are."""
        return self.dense.prior.shape[1]

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Means (c, m) and covariances (m, c, c) of the latent functions at m points, from their prior moments."""
        return self.dense.predict(np.ascontiguousarray(block.cross.swapaxes(1, 2)), block.variance, block.mean)

    @property
    def as_inducing(self) -> "InducingPosterior":
        """The posterior whose inducing values are the latent values of the rows, for draws and for points together.

        Raises
        ------
        NotPositiveDefiniteError
            If the prior covariance of the rows has no Cholesky factor.
        """
        prior = self.dense.prior
        cov = self.dense.joint_covariance(prior.roots, np.eye(self.size)[None])
        flat = cov.reshape(self.dense.mean.size, -1)
        root = cholesky(flat[::-1, ::-1], lower=True)[::-1, ::-1].T  # lower triangular, of Σ = Rᵀ R
        mean = prior.whitened_slope(self.dense.weights)
        return InducingPosterior(
            InducingWhitening(prior.roots, 0.0), CoupledWhitened(mean, np.ascontiguousarray(root), np.nan)
        )


@dataclass(frozen=True, eq=False)
class InducingPosterior:
    """Gaussian inducing values, and the prior given these.

    Attributes
    ----------
    whitening : InducingWhitening
        Whitening of the inducing values u = L v.
    whitened : Whitened
        Posterior of v.
    """

    whitening: InducingWhitening
    whitened: Whitened

    @property
    def size(self) -> int:
        """How many inducing values each function has."""
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
        """Itself; a posterior of another form can be written like this."""
        return self

    @property
    def inducing_mean(self) -> Array:
        """Mean of the inducing values relative to the prior mean, (c, M)."""
        return np.array(
            [
                self.whitening.factor[own] @ mean[: self.whitening.n_inducing]
                for own, mean in zip(self._owner, self.whitened.mean, strict=True)
            ]
        )

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Means (c, m) and covariances (m, c, c) of the latent functions at m points, from their prior moments."""
        features = self.whitening.features(block)
        mean, cov = self.whitened.moments([features.w[own] for own in self._owner])
        every = range(self.n_functions)
        cov[:, every, every] += features.rest[self._owner].T
        return features.mean + mean, cov

    def draw_at(self, rng: np.random.Generator, v: Array, block: Block) -> Array:
        """Draws (count, c, m) of the functions at m points, given draws v (count, c, M) of whitened inducing values."""
        features = self.whitening.features(block)
        means = [v[:, k] @ features.w[own] for k, own in enumerate(self._owner)]
        noise = rng.standard_normal((len(v), *features.mean.shape))
        return np.asarray(features.mean + np.stack(means, axis=1) + np.sqrt(features.rest[self._owner]) * noise)
