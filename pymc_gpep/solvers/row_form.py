"""A prior covariance K = J Jᵀ of latent functions, by rows J of coefficients of q independent standard normals z.

Matrices have the size of z: with Λ = I + JᵀΠJ = L Lᵀ and H = J L⁻ᵀ

    log|I + ΠK| = log|Λ|,   cov f_i = H_i H_iᵀ,

    (I + ΠK)⁻¹ r = r − Π J Λ⁻¹ Jᵀ r,   M = Π − Π H Hᵀ Π.

The posterior mean is m + J z̄ with z̄ = Λ⁻¹ Jᵀ(ν − Πm), and the quadratic form of the prior is |z̄|². Weights
b = ν − Π(m + J z̄) are computed from these, since the sum J Jᵀ b cancels if the prior is wide.

With c functions J is (cn, q), all rows of a function after those of the one before. Π has a block for each point.
Functions may have normals in common. Time for n rows is O(c² n q²), products of matrices, or O(c² n k²) if rows have k
entries. The difference 1 − π var f of one function loses digits where a row all but decides on its latent value alone.

A root of a covariance matrix has such rows too. `SignedFunctionPosterior` uses them for precisions of any sign, which
have no roots themselves.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import (
    BlockPrecisions,
    Coefficients,
    Composed,
    CoupledPrecisions,
    IndependentPrecisions,
    SitePrecisions,
    coefficients,
    rows_of_functions,
)
from pymc_gpep.solvers.prior_form import EPSILON, STEP_ROUNDING, Algebra, FunctionPosterior, PriorForm, SiteAlgebra
from pymc_gpep.solvers.team import Team


def precision_factor(rows: Coefficients, precisions: SitePrecisions) -> Array | None:
    """Return the Cholesky factor L (q, q) of Λ = I + JᵀΠJ; None if Λ is not positive definite."""
    total = rows.coupled_gram(precisions)
    total[np.diag_indices(len(total))] += 1.0
    if not np.isfinite(total).all():
        return None
    try:
        factor: Array = cholesky(total, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    return factor


class RowAlgebra(SiteAlgebra):
    """The algebra by Λ = I + JᵀΠJ, see `pymc_gpep.solvers.row_form`.

    Parameters
    ----------
    rows : Coefficients
        J, (cn, q).
    shape : tuple of int
        Shape of the array that they are made of.
    form : callable
        Makes precisions of their array.
    """

    _precisions: SitePrecisions
    _factor: Array

    def __init__(self, rows: Coefficients, shape: tuple[int, ...], form: Callable[[Array], SitePrecisions]) -> None:
        self._rows, self._shape, self._form = rows, shape, form

    def factorise(self, precision: Array) -> tuple[bool, float]:
        self._precisions = self._form(precision.copy())
        self._centre: Array | None = None
        factor = precision_factor(self._rows, self._precisions) if self._precisions.legal else None
        if factor is None:
            return False, np.nan
        self._factor = factor
        return True, 2.0 * float(np.log(factor.diagonal()).sum())

    def _times(self, b: Array) -> Array:
        """K b (c, n)."""
        return self._rows.products(self._rows.sums(b.ravel())).reshape(b.shape)

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`; z̄ is corrected once by what is left of Jᵀ(r − Π J z̄) − z̄."""
        centre = self._solved(self._rows.sums(force.ravel()))
        centre += self._solved(self._rows.sums(self._left(force, centre).ravel()) - centre)
        out[:] = self._left(force, centre)
        self._centre = centre

    def _left(self, force: Array, centre: Array) -> Array:
        """r − Π J z (c, n), of r (c, n)."""
        return force - self._precisions.times(self._rows.products(centre).reshape(force.shape))

    def _solved(self, right: Array) -> Array:
        """Λ⁻¹ r (q,)."""
        return np.asarray(cho_solve((self._factor, True), right, check_finite=False))

    def solve(self, right: Array, step: Array) -> None:
        step[0] = self._solved(right[0])

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        mean[:] = self._times(b) if self._centre is None else self._rows.products(self._centre).reshape(b.shape)
        root, _ = dtrtri(self._factor, lower=1)
        cov[:] = self._rows.covariances(root)

    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """See `SiteAlgebra`; twice the derivative in K times J, or what that is in B of J = A B."""
        rows, pulled = self._rows, self._rows.sums(b.ravel())
        inverse = cho_solve((self._factor, True), np.eye(len(self._factor)), check_finite=False)
        gradient = rows.outer((b if moved is None else b + moved).ravel(), pulled)
        gradient -= rows.coupled_weighted(self._precisions, inverse)  # M J = Π J Λ⁻¹
        if moved is not None:
            gradient += rows.outer(b.ravel(), rows.sums(moved.ravel()))
        return gradient.reshape(self._shape)


class CoupledRowAlgebra(RowAlgebra):
    """That with Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i; log determinants have Σ_i log 1ᵀπ_i with them."""

    def __init__(self, rows: Coefficients, shape: tuple[int, ...]) -> None:
        super().__init__(rows, shape, CoupledPrecisions)

    def factorise(self, precision: Array) -> tuple[bool, float]:
        ok, log_det = super().factorise(precision)
        return ok, log_det + float(np.log(precision.sum(axis=0)).sum())


class RowFunctionPosterior(FunctionPosterior):
    """The posterior by Λ.

    Parameters
    ----------
    rows : Coefficients
    prior_mean : array (n,)
    signed : bool
        Whether precisions may be below zero, as long as Λ is positive definite.
    """

    def __init__(self, rows: Coefficients, prior_mean: Array, *, signed: bool = False) -> None:
        super().__init__(prior_mean)
        self._rows, self._signed = rows, signed
        self._factor: Array = np.empty((0, 0))
        self._root: Array = np.empty((0, 0))
        self.centre: Array = np.empty(0)

    def decompose(self, precision: Array) -> bool:
        """See `FunctionPosterior`; precisions as before are not factorised again."""
        if self._factor.size and np.array_equal(precision, self.precision):
            return True
        self._factor = np.empty((0, 0))
        self.precision[:] = precision
        if not (self._signed or (precision >= 0.0).all()):
            return False
        factor = precision_factor(self._rows, IndependentPrecisions(self.precision[None]))
        if factor is None:
            return False
        self._factor = factor
        self.log_det = 2.0 * float(np.log(factor.diagonal()).sum())
        return True

    def invert(self) -> None:
        """See `FunctionPosterior`; L⁻¹ (q, q)."""
        self._root, _ = dtrtri(self._factor, lower=1)

    def times(self, weights: Array) -> Array:
        return self._rows.products(self._rows.sums(weights))

    def locate(self, location: Array) -> None:
        """See `FunctionPosterior`; z̄ is corrected once by what is left of Jᵀ(ν − π mean) − z̄."""
        self._take(self._solved(self._rows.sums(location - self.precision * self._prior_mean)))
        left = self._rows.sums(location - self.precision * self.mean) - self.centre
        self._take(self.centre + self._solved(left))
        self.weights[:] = location - self.precision * self.mean

    def _take(self, centre: Array) -> None:
        """Take z̄ (q,), and compute the mean."""
        self.centre = centre
        np.add(self._prior_mean, self._rows.products(centre), out=self.mean)

    def put(self, x: Array, gradient: Array, mean: Array) -> None:
        self.centre, self.weights[:], self.mean[:] = x[0].copy(), gradient, mean

    @property
    def coordinates(self) -> Array:
        return self.centre[None]

    @property
    def length(self) -> float:
        return float(self.centre @ self.centre)

    def spread(self) -> None:
        self.variance[:] = self._rows.variances(self._root)

    @property
    def kept(self) -> Array:
        return np.asarray(np.maximum(1.0 - self.precision * self.variance, EPSILON))

    def smooth(self, force: Array) -> Array:
        return force - self.precision * self.moved(force)

    def moved(self, force: Array) -> Array:
        return self._rows.products(self._solved(self._rows.sums(force)))

    def solve(self, right: Array) -> Array:
        return self._solved(right[0])[None]

    def _solved(self, right: Array) -> Array:
        """Λ⁻¹ r, of r (q,) or (q, p)."""
        return np.asarray(cho_solve((self._factor, True), right, check_finite=False))

    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`; twice the derivative in K times J, or what that is in B of J = A B."""
        b, rows, identity, pulled = self.weights, self._rows, np.eye(len(self._factor)), self.centre
        # M J = π J Λ⁻¹
        gradient = rows.outer(b if moved is None else b + moved, pulled)
        gradient -= rows.weighted(self.precision, self._solved(identity))
        if moved is not None:
            gradient += rows.outer(b, rows.sums(moved))
        if of_variance is not None:
            gradient += rows.weighted(2.0 * of_variance, identity)
        return gradient[None]


class RowForm(PriorForm):
    """Coefficients J (c, n, q) of c latent functions, or B (1, r, q) of J = A B.

    Parameters
    ----------
    array : array
    base : Coefficients, optional
        A; the identity if not given.
    """

    square = False
    by_weights = False
    algebras = frozenset({Algebra.FUNCTION, Algebra.VARIANCES, Algebra.FUNCTIONS})

    def __init__(self, array: Array, base: Coefficients | None = None) -> None:
        super().__init__(array)
        self.rows = rows_of_functions(self.array) if base is None else Composed(base, self.array[0])

    def coefficients_at(self, points: NDArray[np.int64]) -> Array:
        """Return J (c, s, q) at some points (s,)."""
        c, n = self.variances.shape
        places = n * np.arange(c)[:, None] + points
        return self.rows.some(places.ravel()).reshape(c, len(points), -1)

    def among(self, points: NDArray[np.int64]) -> Array:
        some = self.coefficients_at(points)
        return some @ some.swapaxes(1, 2)

    @cached_property
    def variances(self) -> Array:
        return self.rows.variances(np.eye(self.array.shape[2])).reshape(self.rows.functions, -1)

    def is_covariance(self, team: Team) -> bool:
        """See `PriorForm`; J Jᵀ always is one."""
        return True

    def coordinates(self, b: Array) -> Array:
        """See `PriorForm`; z (1, q)."""
        return self.rows.sums(b.ravel())[None]

    def weights(self, x: Array, gradient: Array) -> Array:
        return gradient

    def multiply(self, x: Array, out: Array) -> None:
        """See `PriorForm`; J z of z (1, q)."""
        out[:] = self.rows.products(x[0]).reshape(out.shape)

    def residual(self, gradient: Array, x: Array) -> Array:
        """See `PriorForm`; Jᵀ∇ − z."""
        return self.rows.sums(gradient.ravel())[None] - x

    def inner(self, x: Array, step: Array, image: Array) -> float:
        return float(np.vdot(x, step))

    def rounding(self, x: Array) -> float:
        """See `PriorForm`; |J_i z| is at most |J_i| |z|."""
        return STEP_ROUNDING * float(np.sqrt(self.variances.max() * np.vdot(x, x)))

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> RowFunctionPosterior:
        return RowFunctionPosterior(self.rows, prior_mean, signed=signed)

    def coupled(self, n_functions: int, team: Team) -> CoupledRowAlgebra:
        return CoupledRowAlgebra(self.rows, self.array.shape)

    def blocks(self, n_functions: int, *, signed: bool = False) -> RowAlgebra:
        return RowAlgebra(self.rows, self.array.shape, BlockPrecisions)


def covariance_root(k: Array) -> Array:
    """Return R (n, n) with R Rᵀ = K, of a covariance K (n, n) that may be singular."""
    values, vectors = np.linalg.eigh(k)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


class SignedFunctionPosterior(RowFunctionPosterior):
    """The posterior by Λ = I + RᵀΠR, R Rᵀ = K."""

    def __init__(self, k: Array, prior_mean: Array) -> None:
        super().__init__(coefficients(covariance_root(k)), prior_mean, signed=True)

    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`; (1, n, n)."""
        b, pi = self.weights, self.precision
        half = pi[:, None] * self._rows.combined(self._root.T)
        gradient = 0.5 * (np.outer(b, b) + half @ half.T - np.diag(pi))
        if moved is not None:
            gradient += 0.5 * (np.outer(moved, b) + np.outer(b, moved))
        if of_variance is not None:
            gradient[np.diag_indices(len(pi))] += of_variance
        return gradient[None]
