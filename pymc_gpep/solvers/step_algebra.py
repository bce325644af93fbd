"""The algebra of a step over a batch on arrays.

Functions that share covariance and inducing inputs are a group with the same features. Function k is f = m + wᵀv_k + e,
w = L⁻¹ k(x), s = κ − wᵀw. Its q(v_k) = N(μ_k, Σ_k) has Σ_k = (I + β_k S_k)⁻¹ and μ_k = β_k Σ_k h_k. A batch uses the
part β_k of S and h. All else is computed from the covariances. Variances are wᵀΣ_k w, derivatives in w need Σ_k w as
well, and S Σ S follows from S and Σ. So a group takes one product of all w with all Σ_k, and no system is solved for a
function.

Coefficients of effects that are added to the process stand to the right of these features, without a residual.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dsymv, dsyrk, dtrmm, dtrmv, dtrsv, get_blas_funcs, ssyrk
from scipy.linalg.lapack import dposv, dpotrf, get_lapack_funcs

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import mirror
from pymc_gpep.kernels.methods.step_loops import (
    add_lower,
    average,
    feature_slopes,
    left_unsaid,
    move,
    precisions,
    scaled_rows,
    variances,
)
from pymc_gpep.solvers.step_blocks import Group, InducingMoments, RowMoments

RIDGE = 1e-10  # of a system, relative to the mean of its diagonal
_SINGLE_RIDGE = 1e-6  # of a system whose numbers have 32 bits
_LARGEST_TRACE = 1e5  # of β S, for inverses with 32 bits a number
LEAST_RIDGE = 1e-100  # of a system of zeros
_UNDIVIDED = 80  # rows of a matrix that LAPACK factorises and inverts


class StepFeatures(NamedTuple):
    """Features of a group at B rows."""

    w: Array
    """(B, M + p)."""
    rest: Array
    """s, (B,)."""
    moments: RowMoments
    group: Group

    @property
    def n_inducing(self) -> int:
        """M."""
        return self.moments.cross.shape[1]


class StepSlopes(NamedTuple):
    """Derivatives in what a group of g functions has at B rows."""

    w: Array
    """In w (B, M + p), besides what s has to say."""
    rest: Array
    """In s (B,), 0 where s is."""
    mean: Array
    """In prior means, (B, g)."""


class StepWhitening:
    """From inducing values to whitened ones, at fixed hyperparameters and inducing inputs.

    Parameters
    ----------
    moments : InducingMoments
    groups : sequence of Group
    jitter : float
        Added to the diagonal of each covariance of inducing values, relative to its mean.

    Raises
    ------
    LinAlgError
        If one of these has no Cholesky factor.
    """

    def __init__(self, moments: InducingMoments, groups: Sequence[Group], jitter: float) -> None:
        self._moments, self._groups = moments, groups
        self._each = [_Whitening(covariance, jitter) for covariance in moments.covariances]

    def features(self, x: Array) -> list[StepFeatures]:
        """Features of rows (B, d), of each group."""
        return [
            each.features(moments, group)
            for each, moments, group in zip(self._each, self._moments.rows(x), self._groups, strict=True)
        ]

    def pulled(self, features: Sequence[StepFeatures], slopes: Sequence[StepSlopes]) -> tuple[Array, Array]:
        """Derivatives in hyperparameters and in inducing inputs (1 or c, M, d), from those in the last features."""
        found = [each.pulled(own, bars) for each, own, bars in zip(self._each, features, slopes, strict=True)]
        covariances, rows = zip(*found, strict=True)
        return self._moments.pulled(covariances, rows)


class _Whitening:
    """The whitening of one group."""

    def __init__(self, covariance: Array, jitter: float) -> None:
        self._jitter = jitter
        k = covariance.copy()
        diagonal = np.arange(len(k))
        k[diagonal, diagonal] += jitter * k.trace() / len(k)
        # A lower triangle in the order of C is an upper one in that of Fortran.
        self._inverse, _ = _inverse_factor(k.T)

    def features(self, moments: RowMoments, group: Group) -> StepFeatures:
        w = moments.cross.copy()
        self._whiten(w)
        rest = np.empty(len(w))
        left_unsaid(moments.variance, w, rest)
        whole = w if moments.effects is None else np.concatenate([w, moments.effects], axis=1)
        return StepFeatures(whole, rest, moments, group)

    def pulled(self, features: StepFeatures, slopes: StepSlopes) -> tuple[Array, RowMoments]:
        """Derivatives in the covariance of the inducing values and in the moments of rows."""
        of_effects = None
        w, size, w_bar = features.w, features.n_inducing, slopes.w
        if features.moments.effects is not None:
            w, w_bar, of_effects = w[:, :size], np.ascontiguousarray(w_bar[:, :size]), w_bar[:, size:]
        half = w_bar.T @ w
        mirror(half)
        self._whiten(half, transposed=True)
        dtrmm(-0.5, self._inverse, half.T, side=1, lower=0, trans_a=1, overwrite_b=1)
        diagonal = np.arange(len(half))
        half[diagonal, diagonal] += self._jitter * half.trace() / len(half)
        self._whiten(w_bar, transposed=True)
        return half, RowMoments(w_bar, slopes.rest, slopes.mean, of_effects)

    def _whiten(self, rows: Array, transposed: bool = False) -> None:
        """Put rows (B, M) times L⁻ᵀ in place of them, or times L⁻¹."""
        dtrmm(1.0, self._inverse, rows.T, side=0, lower=0, trans_a=0 if transposed else 1, overwrite_b=1)


class Covered(NamedTuple):
    """Moments of the rows of a batch under q."""

    mean: Array
    """Means of the wᵀv_k, (B, c)."""
    variance: Array
    """Variances of the wᵀv_k, (B, c)."""
    covariances: list[Array]
    """Σ_k w of each group of g functions, (B, g M)."""


class StepPosterior:
    """q of all functions, from S (c, M, M), h (c, M) and the parts β (c,) of both.

    The lower triangles of S are what is looked at. Where `single`, Σ has 32 bits a number, and is computed with these.
    In directions of which data say nothing its error is their rounding times the largest eigenvalue of I + β S. A
    function has 64 bits where that may be too large.

    With `factors` the U⁻¹ of UᵀU = I + β S are kept, which have 64 bits.

    Raises
    ------
    LinAlgError
        If I + β S has no Cholesky factor.
    """

    def __init__(
        self, precision: Array, location: Array, share: Array, single: bool = False, factors: bool = False
    ) -> None:
        c, size, _ = precision.shape
        self._precision, self._share, self._single = precision, share, single
        self.location = location.copy()
        self.mean, self._half_log_dets = np.empty((c, size)), np.empty(c)
        self.covariance = np.empty((c, size, size), np.float32 if single else np.float64)
        self._factors: list[Array] = []
        traces = share * precision.trace(axis1=1, axis2=2) if single else np.zeros(c)
        for k, own in enumerate(self.covariance):
            inverse = np.empty((size, size), np.float64 if factors or traces[k] > _LARGEST_TRACE else own.dtype)
            precisions(precision[k], share[k], inverse)
            factor, self._half_log_dets[k] = _inverse_factor(inverse.T)
            square, multiply = get_lapack_funcs("lauum", (factor,)), get_blas_funcs("symv", (factor,))
            if factors:
                self._factors.append(factor)
            found, _ = square(factor, lower=0, overwrite_c=not factors)
            self.mean[k] = multiply(share[k], found, self.location[k], lower=0)
            own[:] = found.T
            mirror(own)

    @property
    def log_normalisers(self) -> Array:
        """log ∫ N(v | 0, I) exp(β hᵀv − ½ β vᵀS v) dv, (c,)."""
        found: Array = 0.5 * self._share * (self.location * self.mean).sum(axis=1) - self._half_log_dets
        return found

    @property
    def divergences(self) -> Array:
        """KL(q(v_k), N(0, I)), (c,)."""
        traces = self.covariance.trace(axis1=1, axis2=2, dtype=np.float64)
        squares = (self.mean * self.mean).sum(axis=1)
        found: Array = 0.5 * (traces + squares - self.mean.shape[1]) + self._half_log_dets
        return found

    def whole_log_normalisers(self) -> Array:
        """The same for β = 1, to first order in 1 − β, (c,), by Σ S = (I − Σ) / β."""
        traces = self.covariance.trace(axis1=1, axis2=2, dtype=np.float64)
        squares = (self.mean * self.mean).sum(axis=1)
        slopes = (self.location * self.mean).sum(axis=1) + (squares - self.mean.shape[1] + traces) / self._share
        found: Array = self.log_normalisers + 0.5 * (1.0 - self._share) * slopes
        return found

    def shift(self, common: Array) -> Array:
        """Move sites with the best function common to all, h_k + S_k a, and return what becomes of `common`, g (M,).

        All functions have the same features. See `pymc_gpep.solvers.common_shift`. The system there is the sum of
        (I − Σ_k) / β_k, since S Σ S = (S − (I − Σ) / β) / β. And S μ is h − μ / β.
        """
        size = self.location.shape[1]
        total = np.zeros((size, size))
        for own, part in zip(self.covariance, self._share, strict=True):
            add_lower(own, 1.0 / part, total)
        system = -total
        diagonal = np.arange(size)
        system[diagonal, diagonal] += (1.0 / self._share).sum()
        missing = (self.location - self.mean / self._share[:, None]).sum(axis=0) - common
        weights = solved(system, missing, _SINGLE_RIDGE if self._single else RIDGE)
        if weights is None:
            return common
        moved = np.array([_symmetric_product(own, weights) for own in self._precision])
        self.location += moved
        self.mean += weights - self.covariance @ weights.astype(self.covariance.dtype)
        return common + moved.sum(axis=0)

    def halves(self, cross: Array) -> Iterator[Array]:
        """√β U⁻ᵀ R_kᵀ of one function after the other, (M, r), for R (c, r, M); there are `factors`."""
        for factor, own, part in zip(self._factors, cross, self._share, strict=True):
            found: Array = dtrmm(np.sqrt(part), factor, own.T, side=0, lower=0, trans_a=1)
            yield found

    def move(self, changes: Array) -> None:
        """Add something to h (c, M), and have the means follow; there are `factors`."""
        self.location += changes
        for mean, factor, part, h in zip(self.mean, self._factors, self._share, self.location, strict=True):
            mean[:] = part * dtrmv(factor, dtrmv(factor, h, trans=1))

    def covered(self, features: Sequence[StepFeatures]) -> Covered:
        """Return the moments of a batch."""
        shape = len(features[0].w), len(self.mean)
        found = Covered(np.empty(shape), np.empty(shape), [])
        for each in features:
            size, taken = each.w.shape[1], each.group.taken
            w = each.w.astype(self.covariance.dtype, copy=False)
            covariances = w @ self.covariance[taken].reshape(-1, size).T
            variance = np.empty((len(w), len(each.group.functions)))
            variances(w, covariances, variance)
            found.mean[:, taken], found.variance[:, taken] = each.w @ self.mean[taken].T, variance
            found.covariances.append(covariances)
        return found

    def slopes(
        self,
        features: Sequence[StepFeatures],
        covered: Covered,
        of_mean: Array,
        of_variance: Array,
        of_rest: Array,
    ) -> list[StepSlopes]:
        """Derivatives of each group, from those (B, c) in means and variances of the wᵀv_k and in s.

        There s is less wᵀw, and those in s are 0 where s is.
        """
        found = []
        for each, covariances in zip(features, covered.covariances, strict=True):
            taken = each.group.taken
            own_mean, own_variance, own_rest = (
                np.ascontiguousarray(of[:, taken]) for of in (of_mean, of_variance, of_rest)
            )
            slopes: Array = own_mean @ self.mean[taken]
            own_rest *= (each.rest > 0.0)[:, None]
            feature_slopes(each.w, covariances, own_variance, own_rest, each.n_inducing, slopes)
            found.append(StepSlopes(slopes, own_rest.sum(axis=1), own_mean))
        return found


def average_sites(
    precision: Array, features: Sequence[StepFeatures], weights: Array, beta: float, single: bool = False
) -> None:
    """Replace the part β of S (c, M, M) by Σ t w wᵀ, in place, with weights t (B, c).

    Where `single` the sums have 32 bits a number, and S keeps its 64. Weights below zero take a second product.
    """
    rows, size = features[0].w.shape
    below = weights.min(axis=0) < 0.0
    scaled = np.empty((rows, size), np.float32 if single else np.float64)
    sums = np.empty((size, size), np.float32) if single else None
    for each in features:
        for k in each.group.functions:
            own = precision[k]
            kept = 1.0 - beta, 0.0  # of S, and of the sums
            for sign in (1.0, -1.0) if below[k] else (1.0,):
                scaled_rows(each.w, weights, k, sign, scaled)
                if sums is None:
                    dsyrk(sign * beta, scaled.T, beta=kept[0], c=own.T, lower=0, overwrite_c=1)
                else:
                    ssyrk(sign, scaled.T, beta=kept[1], c=sums.T, lower=0, overwrite_c=1)
                kept = 1.0, 1.0
            if sums is not None:
                average(own, sums, beta)
            mirror(own)


def solved(system: Array, right: Array, ridge: float = RIDGE) -> Array | None:
    """Solution of a system (n, n) with a ridge; None without one. The system, a lower triangle, is overwritten."""
    diagonal = np.arange(len(system))
    system[diagonal, diagonal] += ridge * max(float(system.trace()), 0.0) / len(system) + LEAST_RIDGE
    _, solution, failed = dposv(system.T, right, lower=0, overwrite_a=1)
    return None if failed or not np.isfinite(solution.sum()) else solution


def log_normalisers(precision: Array, location: Array) -> Array:
    """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, (c,), from S (c, M, M) and h (c, M) alone; NaN without a factor."""
    found = np.empty(len(location))
    inverse = np.empty(precision.shape[1:])
    for k, h in enumerate(location):
        precisions(precision[k], 1.0, inverse)
        upper, failed = dpotrf(inverse.T, lower=0, clean=0, overwrite_a=1)
        half = dtrsv(upper, h, lower=0, trans=1)
        found[k] = np.nan if failed else 0.5 * float(half @ half) - float(np.log(upper.diagonal()).sum())
    return found


def _inverse_factor(matrix: Array) -> tuple[Array, float]:
    """U⁻¹ and log |U| for a matrix UᵀU (n, n) in the order of Fortran, whose upper triangle is looked at.

    It goes by halves, so that most of it is products of triangular matrices. They take half the time of systems.
    Lower triangles hold anything.
    """
    size = len(matrix)
    if size <= _UNDIVIDED:
        factorise, invert = get_lapack_funcs(("potrf", "trtri"), (matrix,))
        upper, failed = factorise(matrix, lower=0, clean=0)
        if failed:
            raise LinAlgError("the matrix has no Cholesky factor")
        log_det = float(np.log(upper.diagonal()).sum(dtype=np.float64))
        return invert(upper, lower=0, overwrite_c=1)[0], log_det
    multiply, square = get_blas_funcs(("trmm", "syrk"), (matrix,))
    half = size // 2
    first, log_det = _inverse_factor(matrix[:half, :half])
    beside = multiply(1.0, first, matrix[:half, half:], trans_a=1)
    second, other = _inverse_factor(square(-1.0, beside, beta=1.0, c=matrix[half:, half:], trans=1))
    beside = multiply(-1.0, first, beside, overwrite_b=1)
    found = np.empty((size, size), matrix.dtype, order="F")
    found[:half, :half], found[half:, half:] = first, second
    found[:half, half:] = multiply(1.0, second, beside, side=1, overwrite_b=1)
    return found, log_det + other


def _symmetric_product(lower: Array, x: Array) -> Array:
    """S x, where the lower triangle of a matrix is that of S."""
    found: Array = dsymv(1.0, lower.T, x, lower=0)
    return found


def adam_step(
    values: Array,
    slopes: Array,
    first: Array,
    second: Array,
    rate: float,
    of_first: float,
    of_second: float,
    least: float,
) -> None:
    """Take a step of Adam uphill (Kingma and Ba 2015), in place and in one loop.

    Parameters
    ----------
    values, slopes, first, second : array (n,)
        The numbers, their derivatives, and both moments that are remembered.
    rate : float
        With the correction of both moments in it.
    of_first, of_second : float
        Parts of the moments that stay.
    least : float
        Added to the root of the second one.
    """
    move(values, slopes, first, second, rate, of_first, of_second, least)
