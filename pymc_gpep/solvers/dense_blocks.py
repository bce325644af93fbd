"""Sites whose precisions have no structure but their blocks, with prior covariances that are matrices: O((cn)³).

The algebra is that of `pymc_gpep.kernels.gaussians.block_sites`.
"""

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.block_sites import (
    block_gradient,
    block_marginals,
    block_roots,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.gaussians.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.linalg.lapack import multiply_functions
from pymc_gpep.solvers.prior_form import SiteAlgebra

__all__ = ["DenseBlocks"]


class DenseBlocks(SiteAlgebra):
    """The algebra on n(c − 1) numbers.

    Parameters
    ----------
    k : array (1 or c, n, n)
    n_functions : int
    """

    def __init__(self, k: Array, n_functions: int) -> None:
        n, c = k.shape[-1], n_functions
        size = n * (c - 1)
        self._k = k
        self._roots, self._lower, self._smooth = np.empty((n, c, c - 1)), np.empty((size, size)), np.empty((c, n, size))
        self._image = np.empty((c, n))

    def factorise(self, precision: Array) -> tuple[bool, float]:
        """See `SiteAlgebra`."""
        block_roots(precision, self._roots)
        ok, log_det = factorise_blocks(self._k, self._roots, self._lower)
        return bool(ok), float(log_det)

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`."""
        multiply_functions(self._k, force, self._image)
        project(self._k, self._roots, self._lower, force, self._image, out)

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        """See `SiteAlgebra`."""
        multiply_functions(self._k, b, mean)
        smooth_blocks(self._k, self._roots, self._lower, self._smooth)
        block_marginals(self._k, self._smooth, cov)

    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """See `SiteAlgebra`; (1 or c, n, n)."""
        gradient = np.empty_like(self._k)
        block_gradient(self._roots, self._lower, b, self._smooth[0], gradient)
        if moved is not None:
            add_implicit_gradient(b, moved, gradient)
        return gradient
