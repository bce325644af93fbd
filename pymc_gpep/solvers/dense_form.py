"""A prior covariance that is a matrix.

The algebra is that of `pymc_gpep.kernels.gaussians.independent`: one factorisation and one inverse.
"""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.implicit_gradient import add_implicit_gradient
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    decompose_function,
    decomposed_product,
    function_variance,
    function_weights,
)
from pymc_gpep.kernels.linalg.lapack import (
    inverse_from_cholesky,
    is_covariance,
    multiply_functions,
    multiply_symmetric,
    rounding,
)
from pymc_gpep.kernels.schemes.newton_direction import newton_direction
from pymc_gpep.solvers.dense_blocks import DenseBlocks
from pymc_gpep.solvers.dense_coupled import DenseCoupled
from pymc_gpep.solvers.prior_form import Algebra, FunctionPosterior, PriorForm, SiteAlgebra
from pymc_gpep.solvers.signed_blocks import SignedBlocks
from pymc_gpep.solvers.signed_posterior import SignedFunctionPosterior
from pymc_gpep.solvers.team import Team

__all__ = ["DenseForm", "DenseFunctionPosterior"]


class DenseFunctionPosterior(FunctionPosterior):
    """The posterior by A = I + π^½ K π^½.

    Attributes
    ----------
    inverse : array (n, n)
        A⁻¹ in the lower triangle, after `decompose` the Cholesky factor of A.
    """

    def __init__(self, k: Array, prior_mean: Array) -> None:
        super().__init__(prior_mean)
        self._k = k
        self.inverse = np.empty(k.shape)
        self._inverted = False

    def decompose(self, precision: Array) -> bool:
        """See `FunctionPosterior`."""
        self.precision[:] = precision
        ok, self.log_det = decompose_function(self._k, self.precision, self.inverse)
        self._inverted = False
        return bool(ok)

    def invert(self) -> None:
        """See `FunctionPosterior`."""
        inverse_from_cholesky(self.inverse)
        self._inverted = True

    def times(self, weights: Array) -> Array:
        """See `FunctionPosterior`."""
        image = np.empty_like(self.mean)
        multiply_symmetric(self._k, weights, image)
        return image

    def spread(self) -> None:
        """See `FunctionPosterior`."""
        function_variance(self._k, self.precision, self.inverse, self.variance)

    @property
    def kept(self) -> Array:
        """See `FunctionPosterior`; it is the diagonal of A⁻¹, in which nothing cancels."""
        return self.inverse.diagonal()

    def smooth(self, force: Array) -> Array:
        """See `FunctionPosterior`."""
        smoothed = np.empty_like(force)
        if self._inverted:
            function_weights(self.inverse, self.precision, force, np.zeros_like(force), smoothed)
        else:
            decomposed_product(self.inverse, self.precision, force, smoothed)
        return smoothed

    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`; (1, n, n)."""
        gradient = np.zeros((1, *self.inverse.shape))
        add_function_gradient(self.precision, self.inverse, self.weights, gradient[0])
        if moved is not None:
            add_implicit_gradient(self.weights[None], moved[None], gradient)
        if of_variance is not None:
            gradient[0][np.diag_indices(len(self._k))] += of_variance
        return gradient


class DenseForm(PriorForm):
    """Covariances (1 or c, n, n), one that all functions share or one for each."""

    square = True
    algebras = frozenset(Algebra)

    def among(self, points: NDArray[np.int64]) -> Array:
        """See `PriorForm`."""
        return self.array[:, points][:, :, points]

    @property
    def variances(self) -> Array:
        """See `PriorForm`."""
        return self.array.diagonal(axis1=1, axis2=2)

    def is_covariance(self, team: Team) -> bool:
        """See `PriorForm`."""
        return all(team.each(lambda matrix: is_covariance(matrix, np.empty_like(matrix)), self.array))

    def multiply(self, b: Array, out: Array) -> None:
        """See `PriorForm`."""
        multiply_functions(self.array, b, out)

    def rounding(self, b: Array) -> float:
        """See `PriorForm`."""
        return float(rounding(self.array, b))

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """See `PriorForm`; by conjugate gradients, O(n²) each."""
        newton_direction(
            self.array, curvature[:, None, None], slope, reduction, limit, image, pull, np.empty_like(pull)
        )

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        """See `PriorForm`."""
        own = self.array[0]
        return SignedFunctionPosterior(own, prior_mean) if signed else DenseFunctionPosterior(own, prior_mean)

    def coupled(self, n_functions: int, team: Team) -> DenseCoupled:
        """See `PriorForm`."""
        return DenseCoupled(self.array, n_functions, team)

    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        """See `PriorForm`."""
        return SignedBlocks(self.array, n_functions) if signed else DenseBlocks(self.array, n_functions)
