"""A prior covariance that is a matrix.

The algebra is that of `pymc_gpep.kernels.gaussians.independent`: one factorisation and one inverse.

Sites that couple the functions of a point take c + 1 factorisations. Sites without structure but their blocks take
O((cn)³), with the algebra of `pymc_gpep.kernels.gaussians.block_sites`.
"""

from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrmm

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.block_sites import (
    block_gradient,
    block_marginals,
    block_roots,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.gaussians.coupled import add_implicit_gradient, latent_weights
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    decompose_function,
    decomposed_product,
    function_variance,
    function_weights,
    kept_variance,
    root_product,
    site_roots,
)
from pymc_gpep.kernels.linalg.lapack import (
    invert_triangular,
    is_covariance,
    multiply_functions,
    multiply_symmetric,
    rounding,
    square_triangular,
)
from pymc_gpep.kernels.schemes.newton_direction import newton_direction
from pymc_gpep.solvers.coupled import Matrices, evidence_gradient, factorise, marginal_moments
from pymc_gpep.solvers.prior_form import Algebra, FunctionPosterior, PriorForm, SiteAlgebra
from pymc_gpep.solvers.signed_blocks import SignedBlocks
from pymc_gpep.solvers.signed_posterior import SignedFunctionPosterior
from pymc_gpep.solvers.team import Team


class DenseBlocks(SiteAlgebra):
    """The algebra on n(c − 1) numbers."""

    def __init__(self, k: Array, n_functions: int) -> None:
        n, c = k.shape[-1], n_functions
        size = n * (c - 1)
        self._k = k
        self._roots, self._lower, self._smooth = np.empty((n, c, c - 1)), np.empty((size, size)), np.empty((c, n, size))
        self._image = np.empty((c, n))

    def factorise(self, precision: Array) -> tuple[bool, float]:
        block_roots(precision, self._roots)
        ok, log_det = factorise_blocks(self._k, self._roots, self._lower)
        return bool(ok), float(log_det)

    def weights(self, force: Array, out: Array) -> None:
        multiply_functions(self._k, force, self._image)
        project(self._k, self._roots, self._lower, force, self._image, out)

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
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


_TINY = 1e-20  # a floor for π that changes no digit of 32 bits, and whose root and its inverse they hold


class DenseCoupled(SiteAlgebra):
    """The algebra of `pymc_gpep.kernels.gaussians.coupled`.

    Attributes
    ----------
    inverses, p, work : array (c, n, n), (n, n), (c, n, n)
        A_k⁻¹, the Cholesky factor of P, and room.
    """

    inverses: Matrices
    p: Matrices
    work: Matrices

    def __init__(self, k: Array, n_functions: int, team: Team) -> None:
        n = k.shape[-1]
        self._k, self._team = k, team
        self._pi = np.full((n_functions, n), np.nan)
        self.inverses, self.work = np.empty((2, n_functions, n, n))
        self.p = np.empty((n, n))

    def factorise(self, precision: Array) -> tuple[bool, float]:
        np.maximum(precision, _TINY if self.p.dtype == np.float32 else -np.inf, out=self._pi)
        return factorise(self._k, self._pi, self.inverses, self.p, self._team)

    def weights(self, force: Array, out: Array) -> None:
        latent_weights(self.inverses, self.p, self._pi, force, out)

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        marginal_moments(self._k, self.inverses, self.p, self._pi, b, self.work, mean, cov, self._team)

    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """See `SiteAlgebra`; (1 or c, n, n)."""
        gradient = np.empty_like(self._k)
        room = np.asarray(self.work[0], dtype=np.float64)
        evidence_gradient(self.inverses, self.p, self._pi, b, room, gradient)
        if moved is not None:
            add_implicit_gradient(b, moved, gradient)
        return gradient

    @property
    def in_single_precision(self) -> Self:
        other = copy(self)
        other.inverses, other.p, other.work = (_halved(each) for each in (self.inverses, self.p, self.work))
        return other


def _halved(matrices: Matrices) -> Matrices:
    return matrices.reshape(-1).view(np.float32)[: matrices.size].reshape(matrices.shape)


_FACTOR, _ROOT, _INVERSE = range(3)  # what a matrix holds
_CERTAIN = 1e-3  # 1 − kept that has the digits of a variance left
_FEW = 4  # rows in which one may lack them, before all of A⁻¹ takes less time than their columns


class DenseFunctionPosterior(FunctionPosterior):
    """The posterior by A = I + π^½ K π^½.

    One matrix holds the Cholesky factor of A in its lower triangle, then the inverse of that, and then A⁻¹. Each is
    computed when it is asked for: a sweep of EP rarely needs A⁻¹.
    """

    def __init__(self, k: Array, prior_mean: Array) -> None:
        super().__init__(prior_mean)
        self._k = k
        self._matrix = np.empty(k.shape)
        self._kept = np.empty(len(k))
        self._holds = _FACTOR

    def decompose(self, precision: Array) -> bool:
        self.precision[:] = precision
        ok, self.log_det = decompose_function(self._k, self.precision, self._matrix)
        self._holds = _FACTOR
        return bool(ok)

    def invert(self) -> None:
        invert_triangular(self._matrix)
        kept_variance(self._matrix, self._kept)
        self._holds = _ROOT

    @property
    def inverse(self) -> Array:
        """A⁻¹ (n, n) in the lower triangle, once `invert` was called."""
        if self._holds == _ROOT:
            square_triangular(self._matrix)
            self._holds = _INVERSE
        return self._matrix

    def times(self, weights: Array) -> Array:
        image = np.empty_like(self.mean)
        multiply_symmetric(self._k, weights, image)
        return image

    def spread(self) -> None:
        certain = 1.0 - self._kept
        unsure = np.flatnonzero(certain <= _CERTAIN)
        if unsure.size and (self._holds == _INVERSE or _FEW * unsure.size > certain.size):
            function_variance(self._k, self.precision, self.inverse, self.variance)
            return
        np.divide(certain, self.precision, out=self.variance, where=~(certain <= _CERTAIN))
        if unsure.size:
            self.variance[unsure] = self._variances_at(unsure)

    def _variances_at(self, rows: NDArray[np.intp]) -> Array:
        """Posterior variances of few rows (m,), by their columns of A⁻¹; see `function_variance`."""
        columns = np.asfortranarray(self._matrix[:, rows])
        columns[np.arange(len(columns))[:, None] < rows] = 0.0
        of_inverse = dtrmm(1.0, self._matrix.T, columns)
        root, own = site_roots(self.precision), self._k[rows, rows]
        found = np.einsum("ji,j,ji->i", self._k[:, rows], root, of_inverse) / root[rows]
        exact = (1.0 - self._kept[rows]) / root[rows] ** 2
        return np.where(root[rows] ** 2 * own > 1.0, exact, found)

    @property
    def kept(self) -> Array:
        """See `FunctionPosterior`; it is the diagonal of A⁻¹, in which nothing cancels."""
        return self._kept

    def smooth(self, force: Array) -> Array:
        smoothed = np.empty_like(force)
        if self._holds == _INVERSE:
            function_weights(self._matrix, self.precision, force, np.zeros_like(force), smoothed)
        else:
            product = root_product if self._holds == _ROOT else decomposed_product
            product(self._matrix, self.precision, force, smoothed)
        return smoothed

    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`; (1, n, n)."""
        inverse = self.inverse
        gradient = np.zeros((1, *inverse.shape))
        add_function_gradient(self.precision, inverse, self.weights, gradient[0])
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
        return self.array[:, points][:, :, points]

    @property
    def variances(self) -> Array:
        return self.array.diagonal(axis1=1, axis2=2)

    def is_covariance(self, team: Team) -> bool:
        return all(team.each(lambda matrix: is_covariance(matrix, np.empty_like(matrix)), self.array))

    def multiply(self, b: Array, out: Array) -> None:
        multiply_functions(self.array, b, out)

    def rounding(self, b: Array) -> float:
        return float(rounding(self.array, b))

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """See `PriorForm`; by conjugate gradients, O(n²) each."""
        newton_direction(
            self.array, curvature[:, None, None], slope, reduction, limit, image, pull, np.empty_like(pull)
        )

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        own = self.array[0]
        return SignedFunctionPosterior(own, prior_mean) if signed else DenseFunctionPosterior(own, prior_mean)

    def coupled(self, n_functions: int, team: Team) -> DenseCoupled:
        return DenseCoupled(self.array, n_functions, team)

    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        return SignedBlocks(self.array, n_functions) if signed else DenseBlocks(self.array, n_functions)
