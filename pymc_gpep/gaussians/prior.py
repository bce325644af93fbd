"""Prior of latent functions with a covariance matrix."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.blas import dtrmm

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_algebra import DenseBlocks, DenseCoupled, SignedBlocks, SignedDiagonal
from pymc_gpep.gaussians.prior_form import PosteriorByAlgebra, PriorForm
from pymc_gpep.kernels.gaussians.coupled import add_implicit_gradient
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    decompose_function,
    decomposed_product,
    function_variance,
    function_weights,
    kept_variance,
    newton_direction,
    root_product,
    site_roots,
)
from pymc_gpep.kernels.linalg.lapack import (
    invert_triangular,
    is_covariance,
    multiply_functions,
    rounding,
    square_triangular,
)
from pymc_gpep.solvers.problem import Algebra, FunctionPosterior, SolverPrior, check_finite
from pymc_gpep.solvers.site_algebra import Moved, NotPositiveDefiniteError, SiteAlgebra
from pymc_gpep.solvers.team import Team

_SYMMETRY = 1e-8  # Largest relative asymmetry that counts as rounding.
_HELD = 2  # Number of matrices in memory, at least, for each covariance: the covariance and its factor.
_LEARNED = 4  # The same number for a fit with derivatives in hyperparameters.


class DensePrior(PriorForm):
    """Prior f_k ~ N(m_k, K_k) of independent functions k = 1 … c: f_k = m_k + L_k z_k with standard normals z_k.

    The constructor does not check arrays. `checked` converts and checks them.

    Parameters
    ----------
    array : array (1 or c, n, n)
        Covariance K, one for all functions, or one for each.
    mean : array (c, n)
    """

    square = True
    algebras = frozenset(Algebra)

    @property
    def k(self) -> Array:
        """Covariances, (1 or c, n, n)."""
        return self.array

    @classmethod
    def checked(cls, k: ArrayLike, mean: ArrayLike) -> Self:
        """Check arrays, and return their prior.

        Raises
        ------
        ValueError
            If a shape is wrong or a value is not finite. If a covariance is not symmetric, or has a negative variance.
            The message names the argument.
        """
        means = np.ascontiguousarray(mean, dtype=np.float64)
        if means.ndim not in (1, 2) or 0 in means.shape:
            raise ValueError(
                "mean must be (c, n) with c ≥ 1 latent functions and n ≥ 1 points, or (n,) for one function, but has "
                f"shape {means.shape}."
            )
        means = np.atleast_2d(means)
        c, n = means.shape
        covariance = np.ascontiguousarray(k, dtype=np.float64)
        if covariance.shape not in ((n, n), (1, n, n), (c, n, n)):
            raise ValueError(
                f"k must be ({n}, {n}) or ({c}, {n}, {n}) to fit the mean, but has shape {covariance.shape}."
            )
        covariance = covariance.reshape(-1, n, n)
        check_finite({"mean": means, "k": covariance})
        size = np.abs(covariance).max()
        if np.abs(covariance - covariance.transpose(0, 2, 1)).max() > _SYMMETRY * size:
            raise ValueError("k must be symmetric, but is not: check the covariance function.")
        if covariance.diagonal(axis1=1, axis2=2).min() < 0:
            raise ValueError("k must have no negative variance on its diagonal: check the covariance function.")
        return cls(covariance, means)

    def check(self) -> None:
        _ = self.roots

    def for_solver(self, takes: Callable[[type[PriorForm]], bool]) -> tuple[Array, type[PriorForm]]:
        """Return the covariances, and this class as form of the prior, for a solver; see `NormalsPrior.for_solver`."""
        return self.array, type(self)

    @property
    def function_mean(self) -> Array:
        """Prior mean of the latent functions, (c, n)."""
        return self.mean

    @classmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        return (_LEARNED if learned else _HELD) * (1 + c), n

    @classmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        return (c * n) ** 2

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return self.k[:, points][..., others]

    @property
    def variances(self) -> Array:
        return self.k.diagonal(axis1=1, axis2=2)

    def is_covariance(self, team: Team) -> bool:
        return all(team.each(lambda matrix: is_covariance(matrix, np.empty_like(matrix)), self.k))

    def some(self, points: NDArray[np.int64]) -> "DensePrior":
        return DensePrior(self.k[:, points][:, :, points], self.mean[:, points])

    def multiply(self, x: Array, out: Array) -> None:
        multiply_functions(self.k, x, out)

    def images(self, b: Array) -> Array:
        return np.asarray((self.k @ b.transpose(1, 2, 0)).transpose(2, 0, 1))

    def variance_gradient(self, of_variance: Array) -> Array:
        return np.diag(of_variance)[None]

    def rounding(self, x: Array) -> float:
        return float(rounding(self.k, x))

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """See `PriorForm`. Each step of the conjugate gradients takes O(n²)."""
        newton_direction(self.k, curvature[:, None, None], slope, reduction, limit, image, pull, np.empty_like(pull))

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        if signed:
            return PosteriorByAlgebra(self, SignedDiagonal(self, 1), prior_mean, signed=True)
        return DenseFunctionPosterior(self, prior_mean)

    def coupled(self, n_functions: int, team: Team) -> DenseCoupled:
        return DenseCoupled(self, n_functions, team)

    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        return SignedBlocks(self, n_functions) if signed else DenseBlocks(self, n_functions)

    def combined(self, matrix: Array) -> Array:
        """Return the product (cn, p) of the roots J (c, n, q) of all functions with `matrix` (q, p)."""
        return np.concatenate([root @ matrix for root in self.roots])

    def gram(self, weights: Array) -> Array:
        """Return Jᵀ diag(weights) J (q, q) for the root J of a single function, and weights (n,)."""
        (root,) = self.roots
        return np.asarray(root.T @ (weights[:, None] * root))

    @cached_property
    def roots(self) -> Array:
        """Lower Cholesky factors L of the covariance (1 or c, n, n), with zeros above the diagonal.

        Raises
        ------
        NotPositiveDefiniteError
            If a covariance has no Cholesky factor.
        """
        try:
            roots = np.linalg.cholesky(self.k)
        except np.linalg.LinAlgError:
            roots = np.full_like(self.k, np.nan)
        if not np.isfinite(roots).all():
            raise NotPositiveDefiniteError.of_matrices("the prior covariance", self.k)
        return roots

    def rooted(self, roots: Array) -> "DensePrior":
        """Return this prior with other roots J (1 or c, n, q), K = J Jᵀ. K may be singular, and q is any number."""
        other = DensePrior(self.k, self.mean)
        other.roots = roots
        return other

    def latent(self, z: Array) -> Array:
        """Return latent values f = m + L z for z (c, q) or (count, c, q)."""
        columns = z.reshape(-1, *z.shape[-2:]).transpose(1, 2, 0)
        return self.mean + np.matmul(self.roots, columns).transpose(2, 0, 1).reshape(*z.shape[:-1], self.shape[1])

    def whitened(self, f: Array) -> Array:
        """Return the standard normals z = L⁻¹ (f − m) of latent values f (c, n)."""
        return self.whitened_residual(f - self.mean)

    def whitened_residual(self, residual: Array) -> Array:
        """Return L⁻¹ times `residual` (c, n), with Cholesky factors L of the prior covariances."""
        if len(self.roots) == 1:
            solved = solve_triangular(self.roots[0], residual.T, lower=True, check_finite=False)
            return np.ascontiguousarray(solved.T)
        return np.stack(
            [
                solve_triangular(root, own, lower=True, check_finite=False)
                for root, own in zip(self.roots, residual, strict=True)
            ]
        )

    def whitened_slope(self, slope: Array) -> Array:
        """Return Lᵀ s (..., c, q): the derivative in z of a function with the derivative s (..., c, n) in f."""
        columns = slope.reshape(-1, *slope.shape[-2:]).transpose(1, 2, 0)
        found = np.matmul(self.roots.swapaxes(1, 2), columns).transpose(2, 0, 1)
        return np.asarray(found.reshape(*slope.shape[:-1], found.shape[-1]))

    def draw_normals(self, rng: np.random.Generator, count: int) -> Array:
        return rng.standard_normal((len(self.mean), self.roots.shape[-1], count)).transpose(2, 0, 1)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return self.latent(rng.standard_normal((count, *self.shape)))

    def conditional(self, f: Array, k_cross: Array, k_new: Array, new_mean: Array) -> tuple[Array, Array]:
        """See `PriorForm`.

        Raises
        ------
        NotPositiveDefiniteError
            If the covariance has no Cholesky factor.
        """
        residual = f - self.mean
        means, variances = np.empty(new_mean.shape), np.empty(new_mean.shape)
        # Leading axes have length 1 or c: functions with equal covariances share a matrix, or each has a copy.
        distinct = max(len(self.k), len(k_cross))
        for i in range(distinct):
            own = slice(None) if distinct == 1 else slice(i, i + 1)
            root, between = self.roots[i % len(self.k)], k_cross[i % len(k_cross)]
            means[own] = new_mean[own] + (between @ cho_solve((root, True), residual[own].T)).T
            spread = solve_triangular(root, between.T, lower=True)
            variances[own] = np.maximum(k_new[i % len(k_new)] - (spread**2).sum(axis=0), 0.0)
        return means, variances


_FACTOR, _ROOT, _INVERSE = range(3)  # Contents of the matrix: Cholesky factor of A, its inverse, or A⁻¹.
_CERTAIN = 1e-3  # The variance (1 − `kept`) / precision is accurate if 1 − `kept` is above this number.
_FEW_ROWS = 4  # If this number times the rows below `_CERTAIN` exceeds all rows, the whole A⁻¹ is computed.


class DenseFunctionPosterior(FunctionPosterior):
    """Posterior of a single function, computed from A = I + π^½ K π^½.

    Here K is the prior covariance and π are site precisions. One matrix contains the Cholesky factor of A in its lower
    triangle, then the inverse of the factor, and then A⁻¹. Each is computed on demand: a sweep of EP rarely needs A⁻¹.
    """

    def __init__(self, prior: SolverPrior, prior_mean: Array) -> None:
        super().__init__(prior, prior_mean)
        self._k = prior.array[0]
        self._matrix = np.empty(self._k.shape)
        self._kept = np.empty(len(self._k))
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
        """Inverse A⁻¹ (n, n) in its lower triangle, available after `invert`."""
        if self._holds == _ROOT:
            square_triangular(self._matrix)
            self._holds = _INVERSE
        return self._matrix

    def spread(self) -> None:
        certain = 1.0 - self._kept
        unsure = np.flatnonzero(certain <= _CERTAIN)
        if unsure.size and (self._holds == _INVERSE or _FEW_ROWS * unsure.size > certain.size):
            function_variance(self._k, self.precision, self.inverse, self.variance)
            return
        np.divide(certain, self.precision, out=self.variance, where=~(certain <= _CERTAIN))
        if unsure.size:
            self.variance[unsure] = self._variances_at(unsure)

    def _variances_at(self, rows: NDArray[np.intp]) -> Array:
        """Return posterior variances (m,) of few rows, from their columns of A⁻¹; see `function_variance`."""
        columns = np.asfortranarray(self._matrix[:, rows])
        columns[np.arange(len(columns))[:, None] < rows] = 0.0
        of_inverse = dtrmm(1.0, self._matrix.T, columns)
        root, own = site_roots(self.precision), self._k[rows, rows]
        found = np.einsum("ji,j,ji->i", self._k[:, rows], root, of_inverse) / root[rows]
        exact = (1.0 - self._kept[rows]) / root[rows] ** 2
        return np.where(root[rows] ** 2 * own > 1.0, exact, found)

    @property
    def kept(self) -> Array:
        """See `FunctionPosterior`. The diagonal of A⁻¹ is computed without cancellation."""
        return self._kept

    def solve(self, right: Array) -> Array:
        return self.smooth(right[0])[None]

    def smooth(self, force: Array) -> Array:
        smoothed = np.empty_like(force)
        if self._holds == _INVERSE:
            function_weights(self._matrix, self.precision, force, np.zeros_like(force), smoothed)
        else:
            product = root_product if self._holds == _ROOT else decomposed_product
            product(self._matrix, self.precision, force, smoothed)
        return smoothed

    def gradient(self, moved: Moved | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`. The derivative has the shape (1, n, n)."""
        inverse = self.inverse
        gradient = np.zeros((1, *inverse.shape))
        add_function_gradient(self.precision, inverse, self.weights, gradient[0])
        if moved is not None:
            add_implicit_gradient(self.weights[None], moved.weights, gradient)
        if of_variance is not None:
            gradient += self._prior.variance_gradient(of_variance)
        return gradient
