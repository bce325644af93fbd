"""The posterior of latent functions given the labels of some rows, at any inputs."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.inducing_posterior import InducingPosterior
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.solvers.coupled_whitened import CoupledWhitened
from pymc_gpep.solvers.inducing import Block, InducingWhitening

__all__ = ["ActivePosterior"]


@dataclass(frozen=True, eq=False)
class ActivePosterior:
    """A dense posterior that is asked for blocks, as one of inducing values is."""

    dense: DensePosterior
    """Of the latent values of these rows."""

    @property
    def size(self) -> int:
        """How many rows there are."""
        return self.dense.prior.shape[1]

    def predict(self, block: Block) -> tuple[Array, Array]:
        """Means (c, m) and covariances (m, c, c) of the latent functions at m points, from their prior moments."""
        return self.dense.predict(np.ascontiguousarray(block.cross.swapaxes(1, 2)), block.variance, block.mean)

    @property
    def as_inducing(self) -> InducingPosterior:
        """The same, whose inducing values are the latent values of the rows: for draws, and for points together.

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
