"""Array library of a step over a batch: BLAS and kernels for NumPy. A subclass implements it for JAX.

Formulas of a step are written once (`step_algebra`, `common_shift`, `pymc_gpep.streaming.memories`), for both
libraries. A method overwrites an array only if its docstring states it. Callers must use the returned array.

`PointKernel` computes the terms of the factors of points. Under JAX, `pymc_gpep.streaming.jax_step` computes them.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dgemm, dsymv, dsyrk, dtrmm, dtrmv, dtrsv, get_blas_funcs, ssyrk
from scipy.linalg.lapack import dposv, dpotrf, get_lapack_funcs

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import mirror
from pymc_gpep.kernels.methods import step_loops as loops
from pymc_gpep.kernels.methods.factors import (
    FLAT,
    average_labels,
    expected_logit,
    expected_pairs,
    expected_probit,
    mix_labels,
    one_logit,
    one_probit,
    pairs,
    whole_points,
)

RIDGE = 1e-10  # Ridge of a linear system, relative to the mean of its diagonal.
LEAST_RIDGE = 1e-100  # Smallest ridge, for a system of zeros.
_SINGLE_RIDGE = 1e-6  # Relative ridge of a float32 system.
_LARGEST_TRACE = 1e5  # Largest trace of β S for a float32 inverse.
_LOG_ERROR = float(np.log(1e-6))  # Logarithm of the allowed error of the integral of a point.
_UNDIVIDED = 80  # Largest size of a matrix that LAPACK factorises and inverts without recursion.


class StepGaussians(NamedTuple):
    """Gaussians N(μ_k, Σ_k) of c functions, with Σ_k = (I + β_k S_k)⁻¹ and μ_k = β_k Σ_k h_k."""

    mean: Array
    """Means μ_k of the Gaussians, (c, M)."""
    covariance: Array
    """Covariances Σ_k of the Gaussians, (c, M, M)."""
    half_log_dets: Array
    """Half log determinants ½ log |I + β_k S_k|, (c,)."""
    roots: Any
    """Roots R_k with Σ_k = R_kᵀ R_k, if requested."""


class StepArrays:
    """Array library for NumPy. If `single`, products are float32. Stored sums are float64.

    Matrices S (c, M, M) are read from their lower triangles.
    """

    xp: ModuleType = np

    def __init__(self, single: bool = False) -> None:
        self.single = single
        self.ridge = _SINGLE_RIDGE if single else RIDGE
        """Relative ridge of a system of covariances."""

    def root(self, matrix: Array) -> Array:
        """Return R with RᵀR = matrix⁻¹, in the representation that methods of this class use.

        Raises
        ------
        LinAlgError
            If the matrix (M, M) has no Cholesky factor. Under JAX, R is NaN.
        """
        # The lower triangle in C order is the upper triangle in Fortran order.
        return _inverse_factor(matrix.T)[0]

    def whitened(self, root: Array, rows: Array, transposed: bool = False) -> Array:
        """Return rows (B, M) times Rᵀ, or times R. `rows` are overwritten."""
        dtrmm(1.0, root, rows.T, side=0, lower=0, trans_a=0 if transposed else 1, overwrite_b=1)
        return rows

    def pulled_root(self, root: Array, half: Array) -> Array:
        """Return −½ Rᵀ T R, where T has the lower triangle of `half` (M, M), which is overwritten."""
        mirror(half)
        self.whitened(root, half, transposed=True)
        dtrmm(-0.5, root, half.T, side=1, lower=0, trans_a=1, overwrite_b=1)
        return half

    def with_diagonal(self, matrix: Array, added: Any) -> Array:
        """Return the matrix (n, n) with `added` added to its diagonal. The matrix is overwritten."""
        diagonal = np.arange(len(matrix))
        matrix[diagonal, diagonal] += added
        return matrix

    def gaussians(self, precision: Array, location: Array, share: Array, roots: bool) -> StepGaussians:
        """Return the Gaussians for S (c, M, M), h (c, M) and β (c,). Roots are computed in float64.

        If `single`, Σ is computed in float32. In directions without data, the error of Σ is the rounding error times
        the largest eigenvalue of I + β S. If this error could be too large, Σ of the function is computed in float64.

        Raises
        ------
        LinAlgError
            If I + β S has no Cholesky factor. Under JAX, the result is NaN.
        """
        c, size, _ = precision.shape
        mean, half_log_dets, kept = np.empty((c, size)), np.empty(c), []
        covariance = np.empty((c, size, size), np.float32 if self.single else np.float64)
        traces = share * precision.trace(axis1=1, axis2=2) if self.single else np.zeros(c)
        for k, own in enumerate(covariance):
            inverse = np.zeros((size, size), np.float64 if roots or traces[k] > _LARGEST_TRACE else own.dtype)
            loops.precisions(precision[k], share[k], inverse)
            factor, half_log_dets[k] = _inverse_factor(inverse.T)
            square, multiply = get_lapack_funcs("lauum", (factor,)), get_blas_funcs("symv", (factor,))
            if roots:
                kept.append(factor)
            found, _ = square(factor, lower=0, overwrite_c=not roots)
            mean[k] = multiply(share[k], found, location[k], lower=0)
            own[:] = found.T
            mirror(own)
        return StepGaussians(mean, covariance, half_log_dets, kept)

    def means(self, roots: Any, location: Array, share: Array) -> Array:
        """Return means μ = β Rᵀ R h (c, M) from `roots` R, for h = `location`."""
        return np.array([
            part * dtrmv(root, dtrmv(root, h, trans=1)) for root, part, h in zip(roots, share, location, strict=True)
        ])  # fmt: skip

    def log_normalisers(self, precision: Array, location: Array) -> Array:
        """Return log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, (c,); NaN if I + S has no Cholesky factor."""
        found = np.empty(len(location))
        inverse = np.empty(precision.shape[1:])
        for k, h in enumerate(location):
            loops.precisions(precision[k], 1.0, inverse)
            upper, failed = dpotrf(inverse.T, lower=0, clean=0, overwrite_a=1)
            half = dtrsv(upper, h, lower=0, trans=1)
            found[k] = np.nan if failed else 0.5 * float(half @ half) - float(np.log(upper.diagonal()).sum())
        return found

    def residual_covariances(self, covariance: Array, share: Array) -> Array:
        """Return the lower triangle of the sum over k of (I − Σ_k) / β_k (M, M)."""
        size = covariance.shape[1]
        total = np.zeros((size, size))
        for own, part in zip(covariance, share, strict=True):
            loops.add_lower(own, -1.0 / part, total)
        return self.with_diagonal(total, (1.0 / share).sum())

    def residual_tests(self, precision: Array, cross: Array, roots: Any, share: Array) -> Array:
        """Return the lower triangle of Q (r, r) minus the sum over k of β_k R_k Σ_k R_kᵀ, for R (c, r, M)."""
        system = precision.copy()
        for root, own, part in zip(roots, cross, share, strict=True):
            half = dtrmm(np.sqrt(part), root, own.T, side=0, lower=0, trans_a=1)
            dsyrk(-1.0, half, beta=1.0, c=system.T, trans=1, lower=0, overwrite_c=1)
        return system

    def products(self, precision: Array, x: Array) -> Array:
        """Return the products S_k x (c, M) of a vector x with the matrix of each function."""
        return np.array([dsymv(1.0, own.T, x, lower=0) for own in precision])

    def solved(self, system: Array, right: Array, ridge: float) -> Array:
        """Return the solution of a system (n, n) with a relative ridge; zeros if it fails. `system` is overwritten."""
        self.with_diagonal(system, ridge * max(float(system.trace()), 0.0) / len(system) + LEAST_RIDGE)
        _, solution, failed = dposv(system.T, right, lower=0, overwrite_a=1)
        return np.zeros_like(right) if failed or not np.isfinite(solution.sum()) else solution

    def narrow(self, rows: Array) -> Array:
        """Return rows as float32 or float64, like Σ."""
        return rows.astype(np.float32 if self.single else np.float64, copy=False)

    def residual_variances(self, variance: Array, w: Array) -> Array:
        """Return variances (B,) minus squared norms of features w (B, M), at least 0."""
        rest = np.empty(len(w))
        loops.left_unsaid(variance, w, rest)
        return rest

    def inner_products(self, w: Array, covariances: Array, functions: int) -> Array:
        """Return wᵀ Σ_k w′ (B, g) from features w (B, M) and all Σ_k w′ (B, g M)."""
        found = np.empty((len(w), functions))
        loops.variances(w, covariances, found)
        return found

    def feature_slopes(
        self, w: Array, covariances: Array, of_variance: Array, of_rest: Array, inducing: int, slopes: Array
    ) -> Array:
        """Add derivatives in w to `slopes` (B, M), from derivatives (B, g) in variances and s, and return `slopes`."""
        of_variance, of_rest = map(np.ascontiguousarray, (of_variance, of_rest))
        loops.feature_slopes(w, covariances, of_variance, of_rest, inducing, slopes)
        return slopes

    def with_sites(
        self,
        precision: Array,
        features: Sequence[tuple[Array, Sequence[int]]],
        weights: Array,
        beta: float,
        added: bool = False,
    ) -> Array:
        """Return (1 − β) S + β Σ t w wᵀ (c, M, M), or S + β Σ t w wᵀ if `added`. S is overwritten.

        Weights t are (B, c). `features` has pairs of features (B, M) and the functions that use them. Negative weights
        need a second product. With `added`, sums are float64.
        """
        rows, size = features[0][0].shape
        below, above = weights.min(axis=0) < 0.0, weights.max(axis=0) > 0.0
        single = self.single and not added
        scaled = np.empty((rows, size), np.float32 if single else np.float64)
        sums = np.empty((size, size), np.float32) if single else None
        for w, functions in features:
            for k in functions:
                own = precision[k]
                left = 1.0 if added else 1.0 - beta, 0.0  # Weights of the old S, and of the old sums.
                for sign in [1.0] * bool(above[k] or not below[k]) + [-1.0] * bool(below[k]):
                    loops.scaled_rows(w, weights, k, sign, scaled)
                    if sums is None:
                        dsyrk(sign * beta, scaled.T, beta=left[0], c=own.T, lower=0, overwrite_c=1)
                    else:
                        ssyrk(sign, scaled.T, beta=left[1], c=sums.T, lower=0, overwrite_c=1)
                    left = 1.0, 1.0
                if sums is not None:
                    loops.average(own, sums, beta)
                mirror(own)
        return precision

    def with_tests(self, cross: Array, tests: Array, features: Sequence[Array], weights: Array, beta: float) -> Array:
        """Return (1 − β) R + β Σ t φ wᵀ (c, r, M), for weights t (B, c). R is overwritten.

        Test functions φ are (B, r). Each function has features w (B, M).
        """
        for k, (own, w) in enumerate(zip(cross, features, strict=True)):
            dgemm(beta, (w * weights[:, k, None]).T, tests.T, trans_b=1, beta=1.0 - beta, c=own.T, overwrite_c=1)
        return cross

    def at_sites(self, values: Array, functions: NDArray[np.int64]) -> Array:
        """Return the values (B, d) of the function of each site, from values (B, c) of all functions."""
        found = np.empty(functions.shape)
        loops.at_sites(values, functions, found)
        return found

    def by_function(self, values: Array, functions: NDArray[np.int64], weights: Array, count: int) -> Array:
        """Return sums (B, c) of values (B, d) over the sites of each of c functions, times weights of rows (B,)."""
        found = np.empty((len(values), count))
        loops.by_function(values, functions, weights, found)
        return found

    def repeat[State](self, update: Callable[[State], State], start: State, times: int) -> State:
        """Return the state after `times` updates."""
        for _ in range(times):
            start = update(start)
        return start

    def cavities(
        self, mean: Array, variance: Array, t: Array, nu: Array, prior_mean: Array, rest: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Return cavity means and variances (B, d) of x = wᵀv without the sites t, ν, and then of latent values."""
        found = np.empty((4, *t.shape))
        loops.cavities(mean, variance, t, nu, prior_mean, rest, found[0], found[1], found[2], found[3])
        return found[0], found[1], found[2], found[3]

    def matching_sites(self, in_mean: Array, in_variance: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return sites t, ν with which cavities N(mean, variance) have the moments of the tilted distributions, (B, d).

        If a tilted distribution is wider than its cavity, as with label noise, the site matches only the mean.
        """
        t, nu = np.empty_like(mean), np.empty_like(mean)
        loops.matching_sites(in_mean, in_variance, mean, variance, t, nu)
        return t, nu

    def bounded_sites(self, variance: Array, largest: float, t: Array, nu: Array) -> tuple[Array, Array]:
        """Limit precision times variance of sites to `largest`, with unchanged means. Sites are overwritten."""
        loops.bounded_sites(variance, largest, t, nu)
        return t, nu

    def site_log_normalisers(self, t: Array, nu: Array, mean: Array, variance: Array) -> Array:
        """Return log ∫ N(x | mean, variance) exp(ν x − ½ t x²) dx, summed over the sites (B, d) of each point."""
        found = np.empty(len(t))
        loops.site_log_normalisers(t, nu, mean, variance, found)
        return found


def _inverse_factor(matrix: Array) -> tuple[Array, float]:
    """Return U⁻¹ and log |U| for a matrix UᵀU (n, n) in Fortran order. Only its upper triangle is read.

    A recursion over halves computes mostly products of triangular matrices, which takes half the time of solves. Lower
    triangles of results are undefined.
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
    """Take a step of Adam upwards (Kingma and Ba 2015), in place and in one loop.

    Parameters
    ----------
    values, slopes, first, second : array (n,)
        Parameters, their derivatives, and both stored moments.
    rate : float
        Learning rate, corrected for the bias of both moments.
    of_first, of_second : float
        Decay rates of the moments.
    least : float
        Number added to the root of the second moment.
    """
    loops.move(values, slopes, first, second, rate, of_first, of_second, least)


class PointTerms(NamedTuple):
    """Terms of B points, each with d normal latent values."""

    value: Array
    """Sums over the factors of each point, such as of their log normalisers, (B,)."""
    in_mean: Array
    """Derivatives of `value` in the means, (B, d)."""
    in_variance: Array
    """Derivatives of `value` in the variances, (B, d)."""


class PointKernel:
    """Kernel that computes `PointTerms`.

    The mode of the integrand of each point is stored as a start for the next call.

    Parameters
    ----------
    compute : function
        Function of means and variances (B, d), labels (B,), modes of integrands (B,), and the arrays of `PointTerms`.
        It overwrites the modes and these arrays.
    """

    def __init__(self, compute: Callable[..., None]) -> None:
        self._compute = compute

    def of(self, labels: NDArray[np.int64]) -> Callable[[Array, Array], PointTerms]:
        """Return a function that computes the terms of points with labels (B,) from means and variances (B, d)."""
        places = np.zeros(len(labels))

        def terms(mean: Array, variance: Array) -> PointTerms:
            found = PointTerms(np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean))
            self._compute(mean, variance, labels, places, *found)
            return found

        return terms


def pair_kernel(noise: float) -> PointKernel:
    """Return the kernel of ∏_k Φ((f_y − f_k) / √noise). Sites of f_y precede sites of the f_k."""
    return PointKernel(lambda mean, variance, labels, places, *found: pairs(mean, variance, noise, *found))


def probit_kernel() -> PointKernel:
    """Return the kernel of Φ(±f), for one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: one_probit(mean, variance, labels, 1.0, *found))


def logit_kernel() -> PointKernel:
    """Return the kernel of the average of σ(±f), for one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: one_logit(mean, variance, labels, *found))


def whole_point_kernel(noise: float, epsilon: float = 0.0) -> PointKernel:
    """Return the kernel of the probability that the label's utility is largest, with label noise ε."""

    def compute(mean: Array, variance: Array, labels: NDArray[np.int64], places: Array, *found: Array) -> None:
        whole_points(mean, variance, labels, noise, FLAT, _LOG_ERROR, places, *found)
        if epsilon:
            mix_labels(epsilon, mean.shape[1], *found)

    return PointKernel(compute)


def expected_pair_kernel(noise: float) -> PointKernel:
    """Return the kernel of Σ_k E log Φ((f_y − f_k) / √noise), with the sites of `pair_kernel`."""
    return PointKernel(lambda mean, variance, labels, places, *found: expected_pairs(mean, variance, noise, *found))


def expected_probit_kernel() -> PointKernel:
    """Return the kernel of E log Φ(±f), for one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: expected_probit(mean, variance, labels, *found))


def expected_logit_kernel() -> PointKernel:
    """Return the kernel of E log σ(±f), for one function."""
    return PointKernel(lambda mean, variance, labels, places, *found: expected_logit(mean, variance, labels, *found))


def expected_labels_kernel(noise: float, epsilon: float) -> PointKernel:
    """Return the kernel of the expected log probability of a label with noise ε; see `noisy_step_average`."""

    def compute(mean: Array, variance: Array, labels: NDArray[np.int64], places: Array, *found: Array) -> None:
        whole_points(mean, variance, labels, noise, FLAT, _LOG_ERROR, places, *found)
        average_labels(np.full(len(mean), epsilon), mean.shape[1], *found)

    return PointKernel(compute)
