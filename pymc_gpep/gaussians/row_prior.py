"""Prior f = m + J z with rows J of coefficients of q standard normals z, and its algebra: K = J Jᵀ.

Matrices have the size of z. With site precisions Π, Λ = I + JᵀΠJ = L Lᵀ and H = J L⁻ᵀ,

    log|I + ΠK| = log|Λ|,   cov f_i = H_i H_iᵀ,

    (I + ΠK)⁻¹ r = r − Π J Λ⁻¹ Jᵀ r,   M = Π − Π H Hᵀ Π.

With site locations ν, the posterior mean is m + J z̄, z̄ = Λ⁻¹ Jᵀ(ν − Πm). The quadratic form of the prior is |z̄|².
Weights b = ν − Π(m + J z̄) are computed from z̄: if the prior is wide, the sum J Jᵀ b has cancellation.

Some entries of z may have a flat prior, the density 1. Let E be a diagonal matrix with 0 at these entries, else 1. Then
Λ is E + JᵀΠJ, and the quadratic form is z̄ᵀE z̄. The integral over p flat entries adds ½ p log 2π to log normalisers.

For c functions J is (cn, q), sorted by function and then by row. Π has a block for each point. Functions may depend on
the same entries of z. The time for n rows is O(c² n q²) in matrix products, or O(c² n k²) if rows have k entries. For a
single function, 1 − π var f loses digits if a row almost determines f by itself.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior_form import BoundForm, PosteriorAlgebra, PosteriorByAlgebra, PriorForm, covariance_root
from pymc_gpep.gaussians.sites import CoupledSites, IndependentSites, SignedSites, Sites
from pymc_gpep.kernels.special.normal import LOG_2PI
from pymc_gpep.solvers.coefficients import (
    Coefficients,
    Composed,
    SitePrecisions,
    rows_of_functions,
)
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.problem import STEP_ROUNDING, Algebra, FunctionPosterior, check_finite
from pymc_gpep.solvers.site_algebra import Moved
from pymc_gpep.solvers.team import ALONE, Team

type Indices = NDArray[np.int64]

# With flat coefficients, the ratio of posterior to cavity variance is at least this number. Averages of likelihoods
# over even wider cavities would be inaccurate.
_WIDE_CAVITY = 1e-8
# The data do not determine a flat coefficient if its pivot of Λ, relative to the diagonal of Λ, is smaller.
OPEN = 1e-13


def precision_factor(rows: Coefficients, precisions: SitePrecisions, flat: Indices | None = None) -> Array | None:
    """Return the Cholesky factor (q, q) of Λ = E + JᵀΠJ, with rows J and site precisions Π; None on failure.

    E is diagonal. Its entries are 0 at `flat`, and 1 at all other positions.
    """
    return factor_beside_prior(rows.coupled_gram(precisions), flat)


def factor_beside_prior(total: Array, flat: Indices | None = None) -> Array | None:
    """Add 1 to the diagonal of `total` (q, q) except at `flat`. Return the Cholesky factor; None on failure."""
    own = np.ones(len(total))
    if flat is not None:
        own[flat] = 0.0
    total[np.diag_indices(len(total))] += own
    diagonal = total.diagonal().copy()
    if not np.isfinite(total).all():
        return None
    try:
        factor: Array = cholesky(total, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    if flat is not None and (factor.diagonal()[flat] ** 2 <= OPEN * diagonal[flat]).any():
        return None
    return factor


class RowAlgebra(PosteriorAlgebra):
    """Linear algebra with the posterior precision Λ = E + JᵀΠJ of the standard normals z (see the module).

    Parameters
    ----------
    prior : PriorForm
        Prior with the rows J (cn, q) as its attribute `rows`.
    n_functions : int
    team : Team
    """

    kind: ClassVar[type[Sites]]
    """Form of sites."""
    prior: Any
    _factor: Array

    def __init__(self, prior: Any, n_functions: int, team: Team = ALONE) -> None:
        self.prior, self._rows = prior, prior.rows

    def factorise(self, precision: Array) -> tuple[bool, float]:
        self.sites = self.kind(precision.copy(), np.empty(0))
        self._centre: Array | None = None
        vars(self).pop("_root", None)
        flat = self.prior.flat
        factor = precision_factor(self._rows, self.sites, flat if flat.size else None)
        if factor is None:
            return False, np.nan
        self._factor = factor
        return True, 2.0 * float(np.log(factor.diagonal()).sum()) - flat.size * LOG_2PI

    @cached_property
    def _root(self) -> Array:
        """Inverse L⁻¹ of the Cholesky factor of Λ, (q, q)."""
        root: Array = dtrtri(self._factor, lower=1)[0]
        return root

    def _times(self, b: Array) -> Array:
        """Return the product K b (c, n) with the prior covariance."""
        return self._rows.products(self._rows.sums(b.ravel())).reshape(b.shape)

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`. The mean of z is corrected once by its residual."""
        self._centre, out[:] = self._located(force)

    def located(self, force: Array) -> tuple[Array, Array]:
        centre, weights = self._located(force)
        return centre[None], weights

    def moved(self, force: Array) -> Moved:
        step, weights = self._located(force)
        return Moved(weights, step[None])

    def _located(self, force: Array) -> tuple[Array, Array]:
        """Return the posterior mean of z (q,) and the weights (c, n), for `force` ν − Πm (c, n)."""
        centre = self._solved(self.prior.pull(force)[0])
        centre += self._solved(self.prior.residual(self._left(force, centre), centre[None])[0])
        return centre, self._left(force, centre)

    def _left(self, force: Array, centre: Array) -> Array:
        """Return `force` minus Π J z (c, n), for z in `centre` (q,)."""
        return force - self.sites.product(self._rows.products(centre).reshape(force.shape))

    def _solved(self, right: Array) -> Array:
        """Solve Λ x = `right` for x (q,)."""
        return np.asarray(cho_solve((self._factor, True), right, check_finite=False))

    def solve(self, right: Array, step: Array) -> None:
        step[0] = self._solved(right[0])

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        mean[:] = self._times(b) if self._centre is None else self._rows.products(self._centre).reshape(b.shape)
        cov[:] = self.marginal_covariances()

    def marginal_covariances(self) -> Array:
        return self._rows.covariances(self._root)

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        """See `SiteAlgebra`. With the derivative G in K, it is 2 G J in J. If J = A B, it is Aᵀ(2 G J) in B."""
        rows, pulled = self._rows, self.prior.coordinates(b)[0] if x is None else x[0]
        inverse = cho_solve((self._factor, True), np.eye(len(self._factor)), check_finite=False)
        gradient = rows.outer((b if moved is None else b + moved.weights).ravel(), pulled)
        gradient -= rows.coupled_weighted(self.sites, inverse)  # M J = Π J Λ⁻¹
        if moved is not None:
            gradient += rows.outer(b.ravel(), moved.coordinates[0])
        return gradient.reshape(self.prior.array.shape)

    def pulled(self, f: Array) -> Array:
        """See `PosteriorAlgebra`. The product is Π f − Π J Λ⁻¹ JᵀΠ f."""
        force = self.sites.product(f)
        return np.stack([self._left(own, self._solved(self._rows.sums(own.ravel()))) for own in force])

    def covariance_at(self, left: Coefficients, variance: Array) -> Array:  # type: ignore[override]  # rows T
        """See `PosteriorAlgebra`. New points are T z + e, with rows T in `left` and covariances `variance` of e."""
        return np.asarray(left.covariances(self._root) + variance)

    def covariance_among(self, points: NDArray[np.intp]) -> Array:
        half = self.root_among(points)
        c, s, q = half.shape
        flat = half.reshape(c * s, q)
        return np.asarray((flat @ flat.T).reshape(c, s, c, s))  # NumPy computes one triangle of such a product.

    def root_among(self, points: NDArray[np.intp]) -> Array:
        return np.asarray(self.prior.at(points) @ self._root.T)

    def whitened_variance(self, prior: PriorForm) -> Array:
        return np.einsum("ij,ij->j", self._root, self._root)[None]

    def whitened_covariance(self, prior: PriorForm) -> Array:
        return np.asarray(self._root.T @ self._root)[None, :, None]

    def deviations(self, rng: np.random.Generator, draws: int, prior: PriorForm) -> Array:
        """See `PosteriorAlgebra`. Draws are L⁻ᵀ times standard normals, with Λ = L Lᵀ."""
        return np.asarray(rng.standard_normal((draws, len(self._factor))) @ self._root)[:, None]

    def cavities(self, mean: Array, cov: Array, weights: Array) -> tuple[Array, Array]:
        if len(mean) > 1:
            return super().cavities(mean, cov, weights)
        wide = cov / np.maximum(1.0 - self.sites.blocks * cov, self.prior.least_kept)
        return mean.T - wide[:, 0] * weights.T, wide

    def taken(self) -> float:
        if len(self.prior.mean) > 1 and not self.sites.signed:
            return super().taken()
        return float((self.sites.blocks * self.marginal_covariances()).sum())


class CoupledRows(RowAlgebra):
    """Linear algebra for site precisions diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i. Log determinants include Σ_i log 1ᵀπ_i."""

    kind: ClassVar[type[Sites]] = CoupledSites

    def factorise(self, precision: Array) -> tuple[bool, float]:
        if not ((precision >= 0.0).all() and (precision.sum(axis=0) > 0.0).all()):
            return False, np.nan
        ok, log_det = super().factorise(precision)
        return ok, log_det + self.sites.log_total


class BlockRows(RowAlgebra):
    """Linear algebra for any symmetric site precisions (n, c, c) with a proper posterior."""

    kind: ClassVar[type[Sites]] = SignedSites


class IndependentRows(RowAlgebra):
    """Linear algebra for separate sites of each function. Precisions (c, n) may be negative."""

    kind: ClassVar[type[Sites]] = IndependentSites


class PriorByRows(PriorForm):
    """Prior f = m + J z with rows of coefficients J of far fewer standard normals z than rows.

    All functions share the normals. Arrays of z have the shape (1, q), without an axis of functions.
    """

    square = False
    by_weights = False
    by_normals = True

    @classmethod
    def checked(cls, array: ArrayLike, mean: ArrayLike, structure: Any = None) -> Self:
        """Check arrays, and return their prior.

        Raises
        ------
        ValueError
            If a shape does not fit or a value is not finite. The message names the argument.
        """
        means = np.atleast_2d(np.asarray(mean, dtype=np.float64))
        numbers = np.asarray(array, dtype=np.float64)
        of_mean, of_numbers, named = cls._shapes(structure)
        lengths = zip(of_numbers or (*means.shape, None), numbers.shape, strict=False)
        fits = means.ndim == 2 and numbers.ndim == 3 and all(wanted in (None, own) for wanted, own in lengths)
        if not fits or of_mean not in (None, means.shape):
            raise ValueError(
                f"mean must be {of_mean or '(c, n)'} and {named}, but they have the shapes {means.shape} and "
                f"{numbers.shape}."
            )
        check_finite({"mean": means, "coefficients": numbers})
        made: Any = cls
        return cast(Self, made(numbers, means, structure))

    @classmethod
    @abstractmethod
    def _shapes(cls, structure: Any) -> tuple[tuple[int, ...] | None, tuple[int | None, ...] | None, str]:
        """Return the shapes of mean and coefficients, with None for any length, and a name of the coefficients.

        By default the mean has any shape (c, n), and coefficients have the shape (c, n, q).
        """

    @property
    def flat_columns(self) -> Array:
        units = np.zeros((self.n_normals, self.flat.size))
        units[self.flat, np.arange(self.flat.size)] = 1.0
        return self.combined(units).reshape(*self.shape, -1)

    @property
    def least_kept(self) -> float:
        """See `PriorForm`. If a single row determines a flat coefficient, its cavity is wide, and not improper."""
        return _WIDE_CAVITY if self.flat.size else super().least_kept

    def check_proper(self) -> None:
        """Raise a ValueError if coefficients have a flat prior."""
        if self.flat.size:
            raise ValueError(
                f"{self.flat.size} coefficients have a flat prior, without draws and moments. Use pm.Normal instead."
            )

    @property
    @abstractmethod
    def rows(self) -> Coefficients:
        """Coefficients J of all functions as rows, (cn, q)."""

    @property
    @abstractmethod
    def n_normals(self) -> int:
        """Number q of standard normals z."""

    @abstractmethod
    def at(self, points: NDArray[np.int64]) -> Array:
        """Return the coefficients (c, s, q) of these points (s,)."""

    @abstractmethod
    def rows_at(self, points: NDArray[np.int64]) -> Coefficients:
        """Return the coefficients of these points (s,), as rows (cs, q)."""

    @abstractmethod
    def known_variances(self, rows: Coefficients) -> Array:
        """Return prior variances (m,) of linear functions of z with coefficients `rows` (m, q)."""

    @property
    def size(self) -> int:
        return self.n_normals

    @property
    def own(self) -> Array:
        """Ones (c, 1), the variance of one normal. `reach` treats each latent value as a multiple of it."""
        return np.ones((len(self.mean), 1))

    def reach(self, some: NDArray[np.int64]) -> tuple[Array, Array]:
        return np.sqrt(self.variances[:, some, None]), self.variances[:, some]

    def combined(self, matrix: Array) -> Array:
        """Return the product (cn, p) of the coefficients J with `matrix` (q, p)."""
        return self.rows.combined(matrix)

    def gram(self, weights: Array) -> Array:
        """Return Jᵀ diag(weights) J (q, q) for the coefficients J of a single function, and weights (n,)."""
        lower = np.tril(self.rows.gram(weights))
        return np.asarray(lower + np.tril(lower, -1).T)

    @cached_property
    def k(self) -> Array:
        """Prior covariances as dense matrices, (c, n, n)."""
        return self.roots @ self.roots.swapaxes(1, 2)

    def weights(self, x: Array, gradient: Array) -> Array:
        return gradient

    def pull(self, force: Array) -> Array:
        """See `PriorForm`. The result is Jᵀ times `force`, (1, q)."""
        return self.rows.sums(force.ravel())[None]

    def coordinates(self, b: Array) -> Array:
        """See `PriorForm`. The coordinates are z (1, q). Weights do not determine flat coefficients: these are 0."""
        return self._informed(self.pull(b))

    def _informed(self, x: Array) -> Array:
        """Return a copy of x with the entries of flat coefficients set to 0."""
        found = x.copy()
        found[:, self.flat] = 0.0
        return found

    def residual(self, gradient: Array, x: Array) -> Array:
        """See `PriorForm`. The residual is Jᵀ∇ − z, without z at flat coefficients."""
        return self.pull(gradient) - self._informed(x)

    def inner(self, x: Array, step: Array, image: Array) -> float:
        return float(np.vdot(self._informed(x), step))

    def rounding(self, x: Array) -> float:
        """See `PriorForm`. |f_i − m_i| = |J_i z| is at most |J_i| |z|."""
        return STEP_ROUNDING * float(np.sqrt(self.variances.max() * np.vdot(x, x)))

    def whitened_slope(self, slope: Array) -> Array:
        """Return Jᵀ s (1, q): the derivative in z of a function with the derivative s (c, n) in f."""
        return self.pull(slope)

    def multiply(self, x: Array, out: Array) -> None:
        """See `PriorForm`. The product is J z for z (1, q)."""
        out[:] = self.rows.products(x[0]).reshape(out.shape)

    def latent(self, z: Array) -> Array:
        """Return latent values f = m + J z (..., c, n) for z (..., 1, q)."""
        flat = np.asarray(z, dtype=np.float64).reshape(-1, self.n_normals)
        found = np.stack([self.rows.products(each) for each in flat])
        return np.asarray(self.mean + found.reshape(*z.shape[:-2], *self.shape))

    def draw_normals(self, rng: np.random.Generator, count: int) -> Array:
        self.check_proper()
        return rng.standard_normal((count, 1, self.n_normals))

    def point_of(self, i: int) -> tuple[Coefficients, Array, Array]:
        return self.rows_at(np.array([i])), np.zeros((1, len(self.mean), len(self.mean))), self.mean[:, [i]]

    def image(self, left: Coefficients, x: Array) -> Array:
        return left.products(x[0]).reshape(len(self.mean), -1)

    def block(self, left: Coefficients, variance: Array, mean: Array) -> Block:
        known = self.known_variances(left).reshape(mean.shape)
        return Block(np.sqrt(known)[:, None], variance.diagonal(axis1=1, axis2=2).T + known, mean)

    def draw_at(self, rng: np.random.Generator, f: Array, z: Array, left: Any, variance: Array, mean: Array) -> Array:
        values = mean + np.stack([self.image(left, each) for each in z])
        noise = rng.standard_normal(values.shape)
        return np.asarray(values + np.einsum("mij,sjm->sim", covariance_root(variance), noise))


@dataclass(frozen=True, repr=False)
class RowStructure:
    """Parts of a prior by rows that depend on data, but not on hyperparameters.

    Attributes
    ----------
    rows : Coefficients, optional
        Factor A of the coefficients J = A B; the default is the identity.
    flat : tuple of int
        Positions of flat coefficients.
    """

    rows: Coefficients | None = None
    flat: tuple[int, ...] = ()

    @property
    def lacks(self) -> frozenset[Algebra]:
        """Kinds of linear algebra that are not available because some coefficients have a flat prior."""
        return frozenset({Algebra.VARIANCES} if self.flat else ())

    def __repr__(self) -> str:
        return f"with flat numbers {self.flat}"


class RowPrior(PriorByRows):
    """Prior f = m + J z with standard normals z, far fewer than rows.

    Functions may depend on the same normals. So arrays of z have the shape (1, q), without an axis of functions.

    Parameters
    ----------
    array : array (c, n, q) or (1, r, q)
        Coefficients J, or the factor B if J = A B.
    mean : array (c, n)
    structure : RowStructure, optional
    """

    algebras = frozenset({Algebra.FUNCTION, Algebra.VARIANCES, Algebra.FUNCTIONS})

    def __init__(self, array: Array, mean: Array, structure: RowStructure | None = None) -> None:
        super().__init__(array, mean)
        self._structure = structure
        self._base = None if structure is None else structure.rows

    @classmethod
    def checked(cls, array: ArrayLike, mean: ArrayLike, structure: RowStructure | None = None) -> Self:
        coefficients = np.asarray(array, dtype=np.float64)
        return super().checked(coefficients[None] if coefficients.ndim == 2 else coefficients, mean, structure)

    @classmethod
    def _shapes(cls, structure: RowStructure | None) -> tuple[None, tuple[None, ...] | None, str]:
        based = structure is not None and structure.rows is not None
        return None, (None, None, None) if based else None, "coefficients (c, n, q)"

    @cached_property
    def rows(self) -> Coefficients:
        """Coefficients J of all functions as rows, (cn, q); sparse if that is cheaper."""
        return rows_of_functions(self.array) if self._base is None else Composed(self._base, self.array[0])

    @property
    def n_normals(self) -> int:
        """Number of standard normals, q."""
        return self.array.shape[2]

    @cached_property
    def variances(self) -> Array:
        """Prior variances, (c, n)."""
        return self.rows.variances(np.eye(self.n_normals)).reshape(self.rows.functions, -1)

    def is_covariance(self, team: Team) -> bool:
        """See `PriorForm`. The result is True: J Jᵀ is always a covariance."""
        return True

    @cached_property
    def flat(self) -> Indices:
        return np.array(() if self._structure is None else self._structure.flat, np.int64)

    @property
    def maker(self) -> Any:
        return RowPrior if self._structure is None else BoundForm(RowPrior, self._structure)

    @classmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        return 1, q  # J is the only matrix.

    @classmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        return n * q

    @classmethod
    def kept(cls, c: int, n: int, q: int, known: Any = None) -> int:
        based = known is not None and known.rows is not None
        return super().kept(c, n, q, known) + q * (2 * q - n if based else q)  # B is stored, A is data.

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        return f"By rows: {n} rows of {q} standard normals."

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return self.at(points) @ self.at(others).swapaxes(1, 2)

    def some(self, points: NDArray[np.int64]) -> "RowPrior":
        return RowPrior(self.at(points), self.mean[:, points], self._apart)

    def at(self, points: NDArray[np.int64]) -> Array:
        c, n = self.rows.functions, self.mean.shape[1]
        places = n * np.arange(c)[:, None] + points
        return self.rows.some(places.ravel()).reshape(c, len(points), -1)

    def rows_at(self, points: NDArray[np.int64]) -> Coefficients:
        return rows_of_functions(self.at(points))

    def known_variances(self, rows: Coefficients) -> Array:
        return rows.variances(np.eye(self.n_normals))

    @property
    def _apart(self) -> RowStructure | None:
        """Structure of the same prior with J as its array, in place of the factors A and B."""
        return RowStructure(flat=tuple(self.flat.tolist())) if self.flat.size else None

    def variance_gradient(self, of_variance: Array) -> Array:
        return self.rows.weighted(2.0 * of_variance, np.eye(self.n_normals))[None]

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        return PosteriorByAlgebra(self, IndependentRows(self, 1), prior_mean, signed=signed)

    def coupled(self, n_functions: int, team: Team) -> CoupledRows:
        return CoupledRows(self, n_functions, team)

    def blocks(self, n_functions: int, *, signed: bool = False) -> BlockRows:
        return BlockRows(self, n_functions)

    @cached_property
    def roots(self) -> Array:
        """Coefficients J as a dense array, (c, n, q)."""
        return self.at(np.arange(self.shape[1]))

    def rooted(self, roots: Array) -> "RowPrior":
        """Return this prior with other coefficients (c, n, q)."""
        return RowPrior(roots, self.mean, self._apart)
