"""A prior covariance that is a matrix, with scalar sites, sites that couple functions, and precisions of any sign.

One latent function takes one factorisation and one inverse (`pymc_gpep.kernels.gaussians.independent`). Sites that
couple the functions of a point take c + 1 factorisations (`pymc_gpep.kernels.gaussians.coupled`). Sites with any blocks
take O((cn)³) (`pymc_gpep.kernels.gaussians.block_sites`).

Precisions of any sign (`SignedBlocks`) have no roots, which the other algebras use. Let W be any symmetric precision
for which there is a posterior. With a root L of the prior covariance K of all latent values and Λ = I + LᵀWL = C Cᵀ

    G = L C⁻ᵀ,   Cov f = G Gᵀ,   log|I + WK| = log|Λ|,   F = W G,   M = W − F Fᵀ.
"""

from copy import copy
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
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
    decomposed_product,
    factorise_function,
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
    solve_right_transposed,
    square_triangular,
)
from pymc_gpep.kernels.schemes.newton_direction import newton_direction
from pymc_gpep.solvers.prior_form import Algebra, FunctionPosterior, PriorForm, SiteAlgebra
from pymc_gpep.solvers.problem import own_matrix
from pymc_gpep.solvers.row_form import SignedFunctionPosterior, covariance_root
from pymc_gpep.solvers.team import ALONE, Team

type Matrices = NDArray[np.float64] | NDArray[np.float32]
"""Those that take the time of a sweep, with 64 or 32 bits a number."""

_FEWEST_POINTS = 200  # points; below, a triangular system less is not worth its digits
_DIGITS = 1e-9  # of what classes differ by, that may be lost for it
_LONG = 2000  # points; above, all is shared out that can be
_GAIN = 1.6  # up to there, as many factorisations as make a sweep this much faster by the count of operations


@cache
def _shared_out(c: int) -> int:
    """Return the number of classes whose factorisations are shared out on two processors.

    With all of them one fit would be nearly twice as fast as on one thread. Two fits at once would then take twice as
    long as one alone. With these a fit is as fast as with two threads of BLAS, and two at once take about 1.5 times as
    long. In units of n³ operations a class has one in its factorisation and inverse, one in its moments, and P a third.
    """
    alone = 2 * c + 1 / 3
    return max(
        count for count in range(c + 1) if alone / (-(-count // 2) + c - count + 1 / 3 - (-c // 2)) < _GAIN or not count
    )


def factorise(k: Array, pi: Array, inverses: Matrices, p: Matrices, team: Team = ALONE) -> tuple[bool, float]:
    """A_k⁻¹ into `inverses` (c, n, n) and the Cholesky factor of P into `p` (n, n), lower triangles.

    Returns whether every matrix was positive definite, and Σ_k log|A_k| + log|P| = log|I + KΠ| + Σ_i log 1ᵀπ_i.
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
    """Posterior means K b into `mean` (c, n), marginal covariances of each f_i into `cov` (n, c, c).

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
    """Whether what the last class has is taken from the others, as it can be where all have one prior covariance.

    It is a difference of numbers as large as the prior variance then, so that this must not be too large.
    """
    n = k.shape[-1]
    return len(k) == 1 and n >= _FEWEST_POINTS and float(np.finfo(np.float64).eps * k[0].trace()) < _DIGITS


def evidence_gradient(inverses: Matrices, p: Matrices, pi: Array, b: Array, work: Array, gradient: Array) -> None:
    """½ (b_k b_kᵀ − M_kk) into `gradient` (1 or c, n, n), summed over classes where there is one prior covariance.

    This is d log Z / d K_k at a fixed point of EP, where the sites may be taken as constants. `work` is (n, n).
    """
    gradient[:] = 0.0
    for a in range(len(pi)):
        add_gradient(inverses[a], p, pi[a], b[a], work, own_matrix(gradient, a))
    for matrix in gradient:
        mirror(matrix)


# Largest difference of R Rᵀ from a covariance with the root R, relative to the largest variance.
_ROOT_ERROR = 1e-8


class SignedBlocks(SiteAlgebra):
    """The algebra by Λ.

    Attributes
    ----------
    half : array (c, n, cn)
        G, after `factorise`.
    """

    half: Array
    _precision: Array

    def __init__(self, k: Array, n_functions: int) -> None:
        self._k, self._c = k, n_functions
        self._roots = np.stack([_root(own) for own in k])

    def factorise(self, precision: Array) -> tuple[bool, float]:
        """See `SiteAlgebra`; W (n, c, c)."""
        self._precision = precision
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

    @property
    def weighted(self) -> Array:
        """F, (c, n, cn)."""
        return np.einsum("iae,eiq->aiq", self._precision, self.half)

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`: r − W G Gᵀ r, corrected once by what is left of r − (I + WK) b."""
        out[:] = self._smoothed(force)
        out += self._smoothed(force - self._times(self._image(out)) - out)

    def _smoothed(self, force: Array) -> Array:
        pulled = np.einsum("aiq,ai->q", self.half, force)
        return force - self._times(self.half @ pulled)

    def _times(self, f: Array) -> Array:
        """W f (c, n)."""
        return np.einsum("iae,ei->ai", self._precision, f)

    def _image(self, b: Array) -> Array:
        """K b (c, n)."""
        return np.stack([own_matrix(self._k, a) @ own for a, own in enumerate(b)])

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        mean[:] = self._image(b)
        cov[:] = np.einsum("aiq,eiq->iae", self.half, self.half, optimize=True)

    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """See `SiteAlgebra`; (1 or c, n, n)."""
        weighted, gradient = self.weighted, np.zeros_like(self._k)
        for a, own in enumerate(b):
            of_function = np.outer(own, own) + weighted[a] @ weighted[a].T
            of_function[np.diag_indices(len(own))] -= self._precision[:, a, a]
            own_matrix(gradient, a)[:] += 0.5 * of_function
        if moved is not None:
            add_implicit_gradient(b, moved, gradient)
        return gradient


def _root(k: Array) -> Array:
    """A root of a covariance that may be singular; NaN where it has negative eigenvalues."""
    try:
        return np.asarray(np.linalg.cholesky(k))
    except np.linalg.LinAlgError:
        root = covariance_root(k)
    missing = np.abs(root @ root.T - k).max()
    return root if missing <= _ROOT_ERROR * np.abs(k).max() else np.full_like(k, np.nan)


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
_FEW_ROWS = 4  # rows in which one may lack them, before all of A⁻¹ takes less time than their columns


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
        if unsure.size and (self._holds == _INVERSE or _FEW_ROWS * unsure.size > certain.size):
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
