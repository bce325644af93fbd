"""The posterior of latent functions given the labels of some rows, at any inputs."""

from dataclasses import dataclass

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_posterior import DensePosterior
from pymc_gpep.solvers.inducing import Block

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
