"""Algebra of a prior covariance matrix, for diagonal sites, block sites, and sites whose precisions may be negative.

A single latent function takes one factorisation and one inverse (`pymc_gpep.kernels.gaussians.independent`). Sites that
couple the functions of a point take c + 1 factorisations (`pymc_gpep.kernels.gaussians.coupled`). Sites with any blocks
take O((cn)³) (`pymc_gpep.kernels.gaussians.block_sites`).

Other algebras use roots of site precisions. Precisions of any sign (`SignedBlocks`) have no roots. Let K be the prior
covariance of all latent values with a root L. Let W be a symmetric site precision with a proper posterior. With Λ = I +
LᵀWL = C Cᵀ and (I + WK)⁻¹ W = M,

    G = L C⁻ᵀ,   Cov f = G Gᵀ,   log|I + WK| = log|Λ|,   F = W G,   M = W − F Fᵀ.
"""

from copy import copy
from functools import cache, cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.blas import dsymm
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior_form import PosteriorAlgebra, PriorForm, covariance_root, scaled_symmetric
from pymc_gpep.gaussians.sites import FLOOR
from pymc_gpep.kernels.gaussians.block_sites import (
    block_gradient,
    block_marginals,
    block_roots,
    factorise_blocks,
    project,
    smooth_blocks,
)
from pymc_gpep.kernels.gaussians.coupled import (
    add_gradient,
    add_implicit_gradient,
    factorise_sum,
    function_moments,
    latent_weights,
    mirror,
    shared_moments,
)
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    decompose_function,
    factorise_function,
    function_variance,
    function_weights,
)
from pymc_gpep.kernels.linalg.lapack import (
    inverse_from_cholesky,
    multiply_functions,
    solve_right_transposed,
)
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.site_algebra import Moved
from pymc_gpep.solvers.team import ALONE, Team, gather

type Matrices = NDArray[np.float64] | NDArray[np.float32]
"""Matrices in double or single precision. Their products take most of the time of a sweep."""

_FEWEST_POINTS = 200  # Smallest number of points for which moments of the last class follow from the other classes.
_DIGITS = 1e-9  # Largest rounding error of a difference between classes for this computation.
_LONG = 2000  # With more points, the factorisations of all classes are divided among threads; see `_shared_out`.
# Required speed-up of a fit on two threads, by counts of operations, for `_shared_out`.
_GAIN = 1.6


@cache
def _shared_out(c: int) -> int:
    """Return the number of classes, of c, for which factorisations are divided between two processors.

    If all classes were divided, one fit would take nearly half the time of one thread, but two simultaneous fits would
    take twice as long. With this number, one fit is as fast as with two threads of BLAS, and two simultaneous fits take
    1.5 times as long. In units of n³ operations, a class takes 1 for its factorisation and inverse, and 1 for its
    moments. The matrix P of `factorise` takes a third.
    """
    alone = 2 * c + 1 / 3
    return max(
        count for count in range(c + 1) if alone / (-(-count // 2) + c - count + 1 / 3 - (-c // 2)) < _GAIN or not count
    )


def factorise(k: Array, pi: Array, inverses: Matrices, p: Matrices, team: Team = ALONE) -> tuple[bool, float]:
    """Factorise the posterior under coupled sites. Write lower triangles of `inverses` (c, n, n) and `p` (n, n).

    In the symbols of `pymc_gpep.kernels.gaussians.coupled`, these are A_k⁻¹ and the Cholesky factor of P. Return
    whether all matrices are positive definite, and Σ_k log|A_k| + log|P| = log|I + KΠ| + Σ_i log 1ᵀπ_i.
    """

    def one(a: int) -> tuple[bool, float]:
        return factorise_function(own_matrix(k, a), pi[a], inverses[a])

    c, n = pi.shape
    count = c if n > _LONG else _shared_out(c)
    of_classes = team.each(one, range(count)) + [one(a) for a in range(count, c)]
    if not all(ok for ok, _ in of_classes):
        return False, np.nan
    ok, log_det = factorise_sum(pi, inverses, p)
    return ok, log_det + sum(own for _, own in of_classes)


def marginal_moments(
    k: Array,
    inverses: Matrices,
    p: Matrices,
    pi: Array,
    b: Array,
    work: Matrices,
    mean: Array,
    cov: Array,
    team: Team = ALONE,
) -> None:
    """Write posterior means K b into `mean` (c, n), and covariances at each point into `cov` (n, c, c).

    `work` (c, n, n) is overwritten.
    """
    c, n = pi.shape
    needed = c - 1 if _last_follows(k) else c

    def one(a: int) -> None:
        function_moments(own_matrix(k, a), inverses[a], pi[a], b[a], work[a], mean[a], cov, a)
        if a < needed:
            solve_right_transposed(p, work[a])

    team.each(one, range(c))
    half = (n + 1) // 2
    team.each(lambda low: shared_moments(k, work[:needed], cov, low, min(low + half, n)), range(0, n, half))


def _last_follows(k: Array) -> bool:
    """Return whether moments of the last class follow from the other classes. They need a common prior covariance.

    The subtraction loses digits if prior variances are large. Then, and for few points, the function returns False.
    """
    n = k.shape[-1]
    return len(k) == 1 and n >= _FEWEST_POINTS and float(np.finfo(np.float64).eps * k[0].trace()) < _DIGITS


def evidence_gradient(inverses: Matrices, p: Matrices, pi: Array, b: Array, work: Array, gradient: Array) -> None:
    """Write the derivative of EP's log evidence in prior covariances into `gradient` (1 or c, n, n).

    At a fixed point the derivative of class k is ½ (b_k b_kᵀ − M_kk), summed over classes with a common covariance.
    """
    gradient[:] = 0.0
    for a in range(len(pi)):
        add_gradient(inverses[a], p, pi[a], b[a], work, own_matrix(gradient, a))
    for matrix in gradient:
        mirror(matrix)


# A covariance is invalid if it differs from R Rᵀ, for its root R, by more than this part of a variance.
_ROOT_ERROR = 1e-8


class SignedBlocks(PosteriorAlgebra):
    """Linear algebra for site precisions W (n, c, c) of any sign, by the matrix Λ = I + LᵀWL (see the module).

    Attributes
    ----------
    half : array (c, n, cn)
        Factor G of the posterior covariance G Gᵀ, after `factorise`.
    """

    half: Array
    _precision: Array

    def __init__(self, prior: PriorForm, n_functions: int, team: Team = ALONE) -> None:
        self.prior, self._k, self._c = prior, prior.array, n_functions
        self._roots = np.stack([_root(own) for own in self._k])

    def factorise(self, precision: Array) -> tuple[bool, float]:
        """See `SiteAlgebra`. Site precisions have the shape (n, c, c)."""
        self._precision = precision
        vars(self).pop("weighted", None)
        c, n = self._c, self._k.shape[-1]
        matrix = np.empty((c, n, c, n))
        for a in range(c):
            root = own_matrix(self._roots, a)
            for e in range(a + 1):
                product = root.T @ (precision[:, a, e, None] * own_matrix(self._roots, e))
                matrix[a, :, e], matrix[e, :, a] = product, product.T
        whole = matrix.reshape(c * n, c * n)
        whole[np.diag_indices(c * n)] += 1.0
        if not np.isfinite(whole).all():
            return False, np.nan
        try:
            lower = cholesky(whole, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return False, np.nan
        inverse, _ = dtrtri(lower, lower=1)
        by_function = inverse.T.reshape(c, n, c * n)
        self.half = np.stack([own_matrix(self._roots, a) @ by_function[a] for a in range(c)])
        return True, 2.0 * float(np.log(lower.diagonal()).sum())

    @cached_property
    def weighted(self) -> Array:
        """Matrix F = W G (c, n, cn), with site precision W and posterior covariance G Gᵀ. M is W − F Fᵀ."""
        return np.einsum("iae,eiq->aiq", self._precision, self.half)

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`. The weights b = r − W G Gᵀ r for `force` r are corrected once by r − (I + WK) b."""
        out[:] = self._smoothed(force)
        out += self._smoothed(force - self._times(self.prior.images(out[None])[0]) - out)

    def _smoothed(self, force: Array) -> Array:
        pulled = np.einsum("aiq,ai->q", self.half, force)
        return force - self._times(self.half @ pulled)

    def _times(self, f: Array) -> Array:
        """Return the product (c, n) of the site precision with f (c, n)."""
        return np.einsum("iae,ei->ai", self._precision, f)

    def marginal_covariances(self) -> Array:
        n = self._k.shape[-1]
        cov: Array = np.einsum("aiq,eiq->iae", self.half, self.half, optimize=True)
        return cov.reshape(n, self._c, self._c)

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        weighted, gradient = self.weighted, np.zeros_like(self._k)
        for a, own in enumerate(b):
            of_function = np.outer(own, own) + weighted[a] @ weighted[a].T
            of_function[np.diag_indices(len(own))] -= self._precision[:, a, a]
            own_matrix(gradient, a)[:] += 0.5 * of_function
        if moved is not None:
            add_implicit_gradient(b, moved.weights, gradient)
        return gradient

    def covariance_at(self, left: Array, variance: Array) -> Array:
        c, m = variance.shape
        cross = np.broadcast_to(left, (c, m, left.shape[-1]))
        half = np.matmul(cross, self.weighted)
        cov = np.einsum("ajq,ejq->jae", half, half, optimize=True)
        cov -= np.einsum("aji,iae,eji->jae", cross, self._precision, cross, optimize=True)
        cov[:, range(c), range(c)] = np.maximum(cov[:, range(c), range(c)] + variance.T, 0.0)
        return np.asarray(cov)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, q = self._c, left.shape[-1]
        every = np.broadcast_to(left, (c, *left.shape[1:]))
        half = np.matmul(every.swapaxes(1, 2), self.weighted).reshape(c * q, -1)
        cov = (half @ half.T).reshape(c, q, c, q)
        for a in range(c):
            for e in range(c):
                cov[a, :, e] -= every[a].T @ (self._precision[:, a, e, None] * every[e])
            cov[a, :, a] += own_matrix(prior.reshape(-1, q, q), a)
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        c, q = self._c, left.shape[-1]
        every = np.broadcast_to(left, (c, *left.shape[1:]))
        half = np.matmul(every.swapaxes(1, 2), self.weighted)
        own = self._precision.diagonal(axis1=1, axis2=2).T[:, :, None]
        taken = (own * every**2).sum(axis=1) - np.einsum("ajq,ajq->aj", half, half)
        return np.asarray(np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (c, q)) - taken)


class SignedDiagonal(SignedBlocks):
    """Linear algebra for separate sites of each function, with precisions (c, n) of any sign."""

    def factorise(self, precision: Array) -> tuple[bool, float]:
        return super().factorise(precision.T[:, :, None] * np.eye(len(precision)))


def _root(k: Array) -> Array:
    """Return a root of a covariance, which may be singular; NaN if it has negative eigenvalues."""
    try:
        return np.asarray(np.linalg.cholesky(k))
    except np.linalg.LinAlgError:
        root = covariance_root(k)
    missing = np.abs(root @ root.T - k).max()
    return root if missing <= _ROOT_ERROR * np.abs(k).max() else np.full_like(k, np.nan)


class DenseBlocks(PosteriorAlgebra):
    """Linear algebra for positive semi-definite site precisions (n, c, c) with rows that sum to zero.

    Site i has the precision R_i R_iᵀ. L, the Cholesky factor of I + Rᵀ K R, has n(c − 1) rows. Then (I + WK)⁻¹ W = G Gᵀ
    with G = R L⁻ᵀ, for all precisions W.
    """

    def __init__(self, prior: PriorForm, n_functions: int, team: Team = ALONE) -> None:
        k = prior.array
        n, c = k.shape[-1], n_functions
        size = n * (c - 1)
        self.prior, self._k = prior, k
        self._roots, self._lower = np.empty((n, c, c - 1)), np.zeros((size, size))
        self._image = np.empty((c, n))

    def factorise(self, precision: Array) -> tuple[bool, float]:
        block_roots(precision, self._roots)
        vars(self).pop("_factor", None)
        ok, log_det = factorise_blocks(self._k, self._roots, self._lower)
        return bool(ok), float(log_det)

    def weights(self, force: Array, out: Array) -> None:
        multiply_functions(self._k, force, self._image)
        project(self._k, self._roots, self._lower, force, self._image, out)

    @cached_property
    def _smooth(self) -> Array:
        """Scratch array for the product K G of the class docstring, (c, n, n(c − 1))."""
        return np.empty((*self._image.shape, len(self._lower)))

    def marginal_covariances(self) -> Array:
        c, n = self._image.shape
        cov = np.empty((n, c, c))
        smooth_blocks(self._k, self._roots, self._lower, self._smooth)
        block_marginals(self._k, self._smooth, cov)
        return cov

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        gradient = np.empty_like(self._k)
        block_gradient(self._roots, self._lower, b, self._smooth[0], gradient)
        if moved is not None:
            add_implicit_gradient(b, moved.weights, gradient)
        return gradient

    @cached_property
    def _factor(self) -> Array:
        """Factor G = R L⁻ᵀ of the class docstring, (c, n, n(c − 1))."""
        n, c, rank = self._roots.shape
        g = np.zeros((c, n, n, rank))
        g[:, range(n), range(n)] = self._roots.swapaxes(0, 1)
        flat = g.reshape(c * n, n * rank)
        return solve_triangular(self._lower, flat.T, lower=True).T.reshape(c, n, n * rank)

    def pulled(self, f: Array) -> Array:
        inner = np.einsum("aiq,dai->qd", self._factor, f, optimize=True)
        return np.asarray((self._factor @ inner).transpose(2, 0, 1))

    def covariance_at(self, left: Array, variance: Array) -> Array:
        smoothed = np.matmul(left, self._factor)
        cov = -np.einsum("kmn,lmn->mkl", smoothed, smoothed, optimize=True)
        diagonal = range(len(variance))
        cov[:, diagonal, diagonal] = np.maximum(cov[:, diagonal, diagonal] + variance.T, 0.0)
        return np.asarray(cov)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, q = len(self._image), left.shape[-1]
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor).reshape(c * q, -1)
        cov = -(smoothed @ smoothed.T).reshape(c, q, c, q)
        for a, own in enumerate(np.broadcast_to(prior, (c, q, q))):
            cov[a, :, a, :] += own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        smoothed = np.matmul(left.swapaxes(1, 2), self._factor)
        own = np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (len(self._image), left.shape[-1]))
        return own - np.einsum("kij,kij->ki", smoothed, smoothed)

    def kept(self) -> Array:
        n, _, rank = self._roots.shape
        inverse = solve_triangular(self._lower, np.eye(n * rank), lower=True).reshape(n * rank, n, rank)
        return np.asarray(np.einsum("jip,jiq->ipq", inverse, inverse, optimize=True))


_TINY = 1e-20  # Smaller site precisions are raised to this in single precision. Its root and inverse are in range.


class DenseCoupled(PosteriorAlgebra):
    """Linear algebra for sites that couple the classes, see `pymc_gpep.kernels.gaussians.coupled`.

    Attributes
    ----------
    inverses, p : array (c, n, n), (n, n)
        A_k⁻¹, and the Cholesky factor of P, in lower triangles.
    """

    inverses: Matrices
    p: Matrices

    def __init__(self, prior: PriorForm, n_functions: int, team: Team = ALONE) -> None:
        n = prior.array.shape[-1]
        self.prior, self._k, self._team = prior, prior.array, team
        self._pi = np.full((n_functions, n), np.nan)
        self.inverses = np.empty((n_functions, n, n))
        self.p = np.zeros((n, n))

    @cached_property
    def work(self) -> Matrices:
        """Scratch array for products of K_k and B_k, (c, n, n)."""
        return np.empty_like(self.inverses)

    def factorise(self, precision: Array) -> tuple[bool, float]:
        np.maximum(precision, _TINY if self.p.dtype == np.float32 else -np.inf, out=self._pi)
        vars(self).pop("_shared", None)
        return factorise(self._k, self._pi, self.inverses, self.p, self._team)

    def weights(self, force: Array, out: Array) -> None:
        latent_weights(self.inverses, self.p, self._pi, force, out)

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        marginal_moments(self._k, self.inverses, self.p, self._pi, b, self.work, mean, cov, self._team)

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        gradient = np.empty_like(self._k)
        room = np.asarray(self.work[0], dtype=np.float64)
        evidence_gradient(self.inverses, self.p, self._pi, b, room, gradient)
        if moved is not None:
            add_implicit_gradient(b, moved.weights, gradient)
        return gradient

    def marginal_covariances(self) -> Array:
        c, n = self._pi.shape
        cov = np.empty((n, c, c))
        self.moments(np.zeros((c, n)), np.empty((c, n)), cov)
        del self.work
        return cov

    @property
    def _b(self) -> Array:
        """Matrices D_k^½ A_k⁻¹ D_k^½ of the classes k, (c, n, n), where D_k contains site precisions."""
        roots = np.sqrt(self._pi)
        return np.stack([scaled_symmetric(own, root) for own, root in zip(self.inverses, roots, strict=True)])

    @cached_property
    def _shared(self) -> Array:
        """Matrices T_k = B_k L⁻ᵀ (c, n, n), for B_k of `_b` and the Cholesky factor L of P."""
        return np.stack([solve_triangular(self.p, own, lower=True, check_finite=False).T for own in self._b])

    def smoothing(self) -> tuple[Array, Array]:
        return self._b, self._shared

    def pulled(self, f: Array) -> Array:
        b = self._b
        found = b @ f.transpose(1, 2, 0)
        found -= b @ cho_solve((self.p, True), found.sum(0), check_finite=False)
        return np.asarray(found.transpose(2, 0, 1))

    def covariance_at(self, left: Array, variance: Array) -> Array:
        c, m = variance.shape
        if c * m < self._pi.shape[1]:
            return self._covariance_at_few(left, variance)
        # For K_* = `left` and P = L Lᵀ, K_* B K_*ᵀ is Z Yᵀ with Z = K_* T, Y = K_* L. If all functions have the same
        # K_*, the sum of Z over functions is Y, since Σ B_k = P.
        y = left @ np.tril(self.p)
        z = np.empty((c, m, self.p.shape[0]))
        own = c - 1 if len(left) == 1 else c
        np.matmul(left, self._shared[:own], out=z[:own])
        if own < c:
            np.subtract(y[0], z[:own].sum(axis=0), out=z[own])
        rest = variance - np.einsum("kmn,kmn->km", z, np.broadcast_to(y, z.shape))
        by_point = z.transpose(1, 0, 2)
        cov = by_point @ by_point.swapaxes(1, 2)
        cov[:, range(c), range(c)] += np.maximum(rest, 0.0).T
        return np.asarray(cov)

    def _covariance_at_few(self, left: Array, variance: Array) -> Array:
        """Return covariances at few points. Matrix products of all data points would take more time here."""
        roots = np.sqrt(self._pi)
        (c, m), n = variance.shape, self.p.shape[0]

        def smooth(a: int) -> Array:
            """Return `left` times the matrix B of function a, without computing B for each block of points."""
            scaled = own_matrix(left, a) * roots[a]
            return np.asarray(dsymm(1.0, self.inverses[a].T, scaled.T).T) * roots[a]

        with gather(n) as team:
            smoothed = np.stack(team.each(smooth, range(c)))
        rest = variance - np.einsum("kmn,kmn->km", smoothed, np.broadcast_to(left, (c, m, n)))
        shared = solve_triangular(self.p, smoothed.reshape(c * m, n).T, lower=True).T.reshape(c, m, n)
        cov = np.einsum("kmn,lmn->mkl", shared, shared, optimize=True)
        cov[:, range(c), range(c)] += np.maximum(rest, 0.0).T
        return np.asarray(cov)

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        (c, n), q = self._pi.shape, left.shape[-1]
        left_b = np.matmul(left.swapaxes(1, 2), self._b)
        shared = solve_triangular(self.p, left_b.reshape(c * q, n).T, lower=True).T
        cov = (shared @ shared.T).reshape(c, q, c, q)
        for a, own in enumerate(np.broadcast_to(prior - left_b @ left, (c, q, q))):
            cov[a, :, a, :] += own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        (c, n), q = self._pi.shape, left.shape[-1]
        left_b = np.matmul(left.swapaxes(1, 2), self._b)
        shared = solve_triangular(self.p, left_b.reshape(c * q, n).T, lower=True)
        own = np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (c, q))
        own = own - np.einsum("kij,kji->ki", left_b, np.broadcast_to(left, (c, n, q)))
        return own + np.einsum("ji,ji->i", shared, shared).reshape(c, q)

    def site_blocks(self) -> tuple[Array, Array]:
        # R = D^½ (I − uuᵀ) with u = (π / 1ᵀπ)^½, and E = uuᵀ + D^{-½} M_ii D^{-½}, which has no cancellation.
        b, (c, n) = self._b, self._pi.shape
        root = np.sqrt(np.maximum(self._pi, FLOOR))
        unit = (root / np.sqrt((root**2).sum(0))).T
        shared = solve_triangular(self.p, b.reshape(c * n, n).T, lower=True).reshape(n, c, n) / root
        outer = unit[:, :, None] * unit[:, None, :]
        kept = outer - np.einsum("jki,jli->ikl", shared, shared, optimize=True)
        own = b.diagonal(axis1=1, axis2=2) / root**2
        kept[:, range(c), range(c)] += np.where(self._pi > FLOOR, own, 1.0).T
        return root.T[:, :, None] * (np.eye(c) - outer), kept

    @property
    def in_single_precision(self) -> Self:
        other = copy(self)
        other.inverses, other.p = _halved(self.inverses), _halved(self.p)
        vars(other)["work"] = _halved(self.work)
        return other


def _halved(matrices: Matrices) -> Matrices:
    return matrices.reshape(-1).view(np.float32)[: matrices.size].reshape(matrices.shape)


class DenseIndependent(PosteriorAlgebra):
    """Linear algebra for separate sites of each function, with precisions π (c, n) ≥ 0.

    With D_k = diag(π_k), it factorises A_k = I + D_k^½ K_k D_k^½. The block of function k in M is D_k^½ A_k⁻¹ D_k^½.
    """

    signed = SignedDiagonal

    def __init__(self, prior: PriorForm, n_functions: int, team: Team = ALONE) -> None:
        self.prior, self._k = prior, prior.array
        self._pi = np.full((n_functions, self._k.shape[-1]), np.nan)

    def factorise(self, precision: Array) -> tuple[bool, float]:
        self._pi[:] = precision
        vars(self).pop("inverses", None)
        # If all functions have equal covariances and precisions, a single matrix is factorised.
        self._distinct = 1 if len(self._k) == 1 and (precision == precision[0]).all() else len(precision)
        self._lower = np.empty((self._distinct, *self._k.shape[1:]))
        total = 0.0
        for a, (matrix, pi) in enumerate(zip(self._lower, self._pi, strict=False)):
            exists, log_det = decompose_function(own_matrix(self._k, a), pi, matrix)
            if not exists:
                return False, np.nan
            total += log_det
        return True, total * len(precision) / self._distinct

    @cached_property
    def inverses(self) -> Array:
        """Matrices A_k⁻¹ of the class docstring (1 or c, n, n), in their lower triangles."""
        inverses = self._lower.copy()
        for matrix in inverses:
            inverse_from_cholesky(matrix)
        return inverses

    @property
    def _b(self) -> Array:
        """Blocks D_k^½ A_k⁻¹ D_k^½ of M in the class docstring, (1 or c, n, n)."""
        roots = np.sqrt(self._pi[: self._distinct])
        return np.stack([scaled_symmetric(own, root) for own, root in zip(self.inverses, roots, strict=True)])

    @property
    def full_inverses(self) -> Array:
        """Matrices A_k⁻¹ of the class docstring (1 or c, n, n), with both triangles."""
        return np.stack([scaled_symmetric(own, np.ones(len(own))) for own in self.inverses])

    def smoothing(self) -> tuple[Array, None]:
        return self._b, None

    def weights(self, force: Array, out: Array) -> None:
        for a, (pi, own, b) in enumerate(zip(self._pi, force, out, strict=True)):
            function_weights(own_matrix(self.inverses, a), pi, np.ascontiguousarray(own), np.zeros_like(own), b)

    def pulled(self, f: Array) -> Array:
        return np.asarray((self._b @ f.transpose(1, 2, 0)).transpose(2, 0, 1))

    def marginal_covariances(self) -> Array:
        variance = np.empty_like(self._pi)
        for a, (pi, own) in enumerate(zip(self._pi, variance, strict=True)):
            function_variance(own_matrix(self._k, a), pi, own_matrix(self.inverses, a), own)
        return np.asarray(variance.T[:, :, None] * np.eye(len(variance)))

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        gradient = np.zeros_like(self._k)
        for a, (pi, own) in enumerate(zip(self._pi, b, strict=True)):
            add_function_gradient(pi, own_matrix(self.inverses, a), own, own_matrix(gradient, a))
        if moved is not None:
            add_implicit_gradient(b, moved.weights, gradient)
        return gradient

    def covariance_at(self, left: Array, variance: Array) -> Array:
        c, m = variance.shape
        explained = np.empty((max(self._distinct, len(left)), m))
        for a, own in enumerate(explained):
            rows = np.multiply(own_matrix(left, a), np.sqrt(self._pi[a]), order="C")  # C order, for the kernel.
            solve_right_transposed(own_matrix(self._lower, a), rows)
            own[:] = np.einsum("ij,ij->i", rows, rows)
        cov = np.zeros((m, c, c))
        cov[:, range(c), range(c)] = np.maximum(variance - explained, 0.0).T
        return cov

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        c, q = len(self._pi), left.shape[-1]
        cov = np.zeros((c, q, c, q))
        for a, own in enumerate(np.broadcast_to(prior - left.swapaxes(1, 2) @ self._b @ left, (c, q, q))):
            cov[a, :, a, :] = own
        return cov

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        explained = np.empty((len(self._pi), left.shape[-1]))
        for a, (pi, own) in enumerate(zip(self._pi, explained, strict=True)):
            # The explained variance is the squared norm of L⁻¹ D^½ times a column, with A = L Lᵀ.
            rows = np.ascontiguousarray((np.sqrt(pi)[:, None] * own_matrix(left, a)).T)
            solve_right_transposed(own_matrix(self._lower, a), rows)
            own[:] = np.einsum("ij,ij->i", rows, rows)
        return np.asarray(prior.diagonal(axis1=-2, axis2=-1) - explained)

    def kept(self) -> Array:
        if (inverses := vars(self).get("inverses")) is not None:
            own = inverses.diagonal(axis1=1, axis2=2)
        else:  # Diagonal of A⁻¹: sums of squares of the columns of L⁻¹.
            own = np.stack([(dtrtri(matrix.T)[0] ** 2).sum(1) for matrix in map(np.tril, self._lower)])
        found = np.broadcast_to(own, self._pi.shape)
        return np.asarray(found.T[:, :, None] * np.eye(len(found)))
