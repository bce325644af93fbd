"""Prior by rows of coefficients with a residual at each place, and its algebra: K = J Jᵀ + R Rᵀ.

A row is f_i = m_i + J_i z + r_i e_p. The q standard normals z are common to all rows. The standard normal e_p is common
to the rows at place p. The FITC prior of a process with inducing inputs has this form (Snelson and Ghahramani 2006).

Given z, the residuals of places are independent. Let Π = diag(π) be the precision of the sites. Place p has

    d_p = 1 + Σ_i r_i² π_i,   C_p = Σ_i r_i π_i J_i,   H_i = J_i − r_i C_p / d_p,

with sums over the rows i at place p. With e integrated out, z has the posterior precision Λ = I + JᵀΠJ − Cᵀ diag(d)⁻¹ C
= L Lᵀ. So

    log|I + ΠK| = log|Λ| + Σ_p log d_p,   var f_i = |L⁻¹ H_i|² + r_i² / d_p.

If each place has one row, Λ = I + Jᵀ diag(π / d) J and H_i = J_i / d_i. No matrix has two axes over rows.

A variational bound (Titsias 2009; Hensman, Matthews and Ghahramani 2015) has the same prior. In its posterior,
residuals given z have their prior distribution: sites act on J z, and variances of f_i include r_i². Then d = 1, C = 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.linalg.blas import dtrmm

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior_form import BoundForm, PosteriorByAlgebra, PriorForm
from pymc_gpep.gaussians.row_prior import IndependentRows, PriorByRows, factor_beside_prior
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.kernels.special.normal import LOG_2PI
from pymc_gpep.solvers.coefficients import Coefficients, blocks_of_rows, coefficients
from pymc_gpep.solvers.problem import Algebra, FunctionPosterior
from pymc_gpep.solvers.site_algebra import Moved
from pymc_gpep.solvers.team import Team

type Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class PlaceStructure:
    """Parts of a `PlacePrior` that depend on data, but not on hyperparameters.

    Attributes
    ----------
    places : array (n,)
        Place of each row.
    count : int
        Number of places, p.
    flat : tuple of int
        Positions of coefficients with a flat prior among the q entries of z.
    integrated : bool
        Whether sites act on latent values. If not, they act on J z, as in a variational bound.
    """

    places: Indices
    count: int
    flat: tuple[int, ...] = ()
    integrated: bool = True

    @property
    def lacks(self) -> frozenset[Algebra]:
        """Kinds of linear algebra that are not available because some coefficients have a flat prior."""
        return frozenset({Algebra.VARIANCES} if self.flat else ())

    @cached_property
    def alone(self) -> bool:
        """Whether each row is at a separate place."""
        return len(np.unique(self.places)) == len(self.places)

    def __repr__(self) -> str:
        return f"with {self.count} places"


class PlaceRows(Coefficients):
    """Rows of q coefficients J (n, q), and a further coefficient r (n,) of each row in the column of its place."""

    def __init__(self, rows: Coefficients, entries: Array, places: Indices, count: int, size: int) -> None:
        self.rows, self.entries, self.places, self.count, self.size = rows, entries, places, count, size

    def _split(self, numbers: Array) -> tuple[Array, Array]:
        return numbers[..., : self.size], numbers[..., self.size :]

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """Yield slices of rows, and the dense columns J of these rows."""
        for some in blocks_of_rows(len(self.entries), self.size):
            yield some, self.rows.some(np.arange(some.start, some.stop))

    def at_places(self, of_rows: Array) -> Array:
        """Return the sums (p,) of numbers (n,) over the rows of each place."""
        return np.bincount(self.places, of_rows, self.count)

    def gram(self, weights: Array) -> Array:
        every = self.some(np.arange(len(weights)))
        return np.asarray(every.T @ (weights[:, None] * every))

    def products(self, numbers: Array) -> Array:
        z, e = self._split(numbers)
        return self.rows.products(z) + self.entries * e[self.places]

    def sums(self, weights: Array) -> Array:
        return np.concatenate([self.rows.sums(weights), self.at_places(self.entries * weights)])

    def variances(self, root: Array) -> Array:
        z, e = self._split(root)
        half = self.rows.combined(z.T) + self.entries[:, None] * e.T[self.places]
        return np.einsum("ij,ij->i", half, half)

    def combined(self, matrix: Array) -> Array:
        z, e = self._split(matrix.T)
        return np.asarray(self.rows.combined(z.T) + self.entries[:, None] * e.T[self.places])

    def some(self, rows: NDArray[np.int64]) -> Array:
        found = np.zeros((len(rows), self.size + self.count))
        found[:, : self.size] = self.rows.some(rows)
        found[np.arange(len(rows)), self.size + self.places[rows]] = self.entries[rows]
        return found


class PlacePrior(PriorByRows):
    """Prior f = m + J z + R e, with q standard normals z of all rows, and standard normals e of p places.

    Coordinates of the prior are the values of z, then of e, (1, q + p).

    Parameters
    ----------
    array : array (1, n, q + 1)
        Coefficients J (n, q). The last column has the residual standard deviations r of the rows.
    mean : array (1, n)
    structure : PlaceStructure
    """

    algebras = frozenset({Algebra.FUNCTION, Algebra.VARIANCES})

    def __init__(self, array: Array, mean: Array, structure: PlaceStructure) -> None:
        super().__init__(array, mean)
        self.structure = structure
        self._integrated = structure.integrated

    @classmethod
    def _shapes(cls, structure: PlaceStructure) -> tuple[tuple[int, ...], tuple[int | None, ...], str]:
        n = len(structure.places)
        return (1, n), (1, n, None), f"coefficients with residuals (1, {n}, q + 1)"

    @property
    def maker(self) -> BoundForm:
        return BoundForm(PlacePrior, self.structure)

    @classmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        return (3 if learned else 2), max(q - n, 1)

    @classmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        return n * (q - known.count + 1)

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        own = "a residual at each" if known.integrated else "a variational bound at each"
        return f"By inducing inputs: {n} rows of {q - known.count} standard normals, {own} of {known.count} places."

    @cached_property
    def rows(self) -> PlaceRows:
        """Coefficients J and r of the rows, (n, q + p)."""
        own, size = self.structure, self.array.shape[2] - 1
        return PlaceRows(coefficients(self.array[0, :, :-1]), self.residual_roots, own.places, own.count, size)

    @property
    def residual_roots(self) -> Array:
        """Residual standard deviations r (n,) of the rows, which may be negative."""
        return self.array[0, :, -1]

    @property
    def size(self) -> int:
        """See `PriorForm`: the number of standard normals common to all rows, q."""
        return self.array.shape[2] - 1

    @property
    def n_normals(self) -> int:
        """Number of standard normals, q + p."""
        return self.array.shape[2] - 1 + self.structure.count

    @cached_property
    def flat(self) -> Indices:
        return np.array(self.structure.flat, np.int64)

    @cached_property
    def variances(self) -> Array:
        """Prior variances, (1, n)."""
        return np.einsum("iq,iq->i", self.array[0], self.array[0])[None]

    def is_covariance(self, team: Team) -> bool:
        """See `PriorForm`: True, since J Jᵀ + R Rᵀ is always a covariance."""
        return True

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        j, r, places = self.array[0, :, :-1], self.residual_roots, self.structure.places
        same = places[points][:, None] == places[others]
        return np.asarray(j[points] @ j[others].T + np.where(same, r[points][:, None] * r[others], 0.0))[None]

    @cached_property
    def k(self) -> Array:
        every = np.arange(self.shape[1])
        return self.among(every, every)

    def some(self, points: NDArray[np.int64]) -> "PlacePrior":
        own = self.structure
        rest = PlaceStructure(own.places[points], own.count, own.flat, own.integrated)
        return PlacePrior(self.array[:, points], self.mean[:, points], rest)

    def at(self, points: NDArray[np.int64]) -> Array:
        return self.rows.some(points)[None]

    def rows_at(self, points: NDArray[np.int64]) -> PlaceRows:
        own = self.rows
        j = coefficients(self.array[0, points, :-1])
        return PlaceRows(j, own.entries[points], own.places[points], own.count, own.size)

    def known_variances(self, rows: Coefficients) -> Array:
        assert isinstance(rows, PlaceRows)
        return rows.rows.variances(np.eye(rows.size)) + rows.entries**2

    # In a variational bound sites do not act on the residuals e. The posterior mean of e is 0.

    def pull(self, force: Array) -> Array:
        found = super().pull(force)
        if not self._integrated:
            found[:, self.rows.size :] = 0.0
        return found

    def variance_gradient(self, of_variance: Array) -> Array:
        return 2.0 * of_variance[:, None] * self.array

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        return _PlacePosterior(self, PlaceAlgebra(self, 1), prior_mean, signed=signed)

    @cached_property
    def roots(self) -> Array:
        """All coefficients as a dense array, (1, n, q + p)."""
        return self.at(np.arange(self.shape[1]))


class _PlacePosterior(PosteriorByAlgebra):
    """Posterior of a single function under a `PlacePrior`. Sites may act on J z without residuals."""

    _prior: PlacePrior

    @property
    def site_variance(self) -> Array:
        own = self._prior
        return self.variance if own.structure.integrated else self.variance - own.residual_roots**2


class PlaceAlgebra(IndependentRows):
    """Linear algebra of a `PlacePrior` and separate sites, by the posterior precision of z (see the module)."""

    prior: PlacePrior
    kind: ClassVar[type[IndependentSites]] = IndependentSites

    def factorise(self, precision: Array) -> tuple[bool, float]:
        self.sites, self._centre = self.kind(precision.copy(), np.empty(0)), None
        for name in ("_root", "_inverse", "_squares", "_at_places"):
            vars(self).pop(name, None)
        prior, rows, pi = self.prior, self.prior.rows, precision[0]
        self._integrated = prior.structure.integrated
        stretch = rows.at_places(rows.entries**2 * pi) if self._integrated else np.zeros(rows.count)
        self._d = 1.0 + stretch
        if not (np.isfinite(self._d).all() and (self._d > 0.0).all()):
            return False, np.nan
        self._alone = prior.structure.alone or not self._integrated
        self._pi = pi / self._d[rows.places] if self._integrated and self._alone else pi
        lower = np.tril(rows.rows.gram(self._pi))
        if not self._alone:
            lower -= np.tril(self._at_places.T @ (self._at_places / self._d[:, None]))
        factor = factor_beside_prior(lower, prior.flat if prior.flat.size else None)
        if factor is None:
            return False, np.nan
        self._factor = factor
        log_det = 2.0 * float(np.log(self._factor.diagonal()).sum()) + float(np.log(self._d).sum())
        return True, log_det - prior.flat.size * LOG_2PI

    @cached_property
    def _inverse(self) -> Array:
        """Posterior covariance of the common normals z, (q, q)."""
        return np.asarray(self._root.T @ self._root)

    @cached_property
    def _at_places(self) -> Array:
        """Sums C_p of the module over the rows of each place, (p, q); 0 in a variational bound."""
        rows = self.prior.rows
        found = np.zeros((rows.count, rows.size))
        if self._integrated:
            for some, j in self._blocks():
                np.add.at(found, rows.places[some], (rows.entries * self.sites.precision[0])[some, None] * j)
        return found

    def _blocks(self) -> Iterator[tuple[slice, Array]]:
        """Yield slices of the rows of the prior, and the coefficients J of these rows."""
        rows = self.prior.array[0, :, :-1]
        return ((some, rows[some]) for some in blocks_of_rows(*rows.shape))

    def _seen(self, rows: PlaceRows, some: slice, j: Array) -> Array:
        """Return the rows H_i of the module for a slice of rows, as a new array, from their coefficients `j`."""
        if not self._integrated:
            return j.copy()
        places = rows.places[some]
        if rows is self.prior.rows and self._alone:
            return np.asarray(j / self._d[places][:, None])
        return np.asarray(j - (rows.entries[some] / self._d[places])[:, None] * self._at_places[places])

    def _halves(self, rows: PlaceRows) -> Iterator[tuple[slice, Array]]:
        """Yield slices of rows, and the products H L⁻ᵀ of the module for these rows."""
        for some, j in self._blocks() if rows is self.prior.rows else rows.blocks():
            seen = self._seen(rows, some, j)
            yield some, dtrmm(1.0, self._root, seen.T, lower=1, overwrite_b=1).T

    @cached_property
    def _squares(self) -> Array:
        """Squared norms |L⁻¹ H_i|² (n,) of the rows of the prior, see the module."""
        return self._squared(self.prior.rows)

    def _squared(self, rows: PlaceRows) -> Array:
        found = np.empty(len(rows.entries))
        for some, half in self._halves(rows):
            np.einsum("ij,ij->i", half, half, out=found[some])
        return found

    def _solved(self, right: Array) -> Array:
        """Return the posterior covariance of z and e times `right` (q + p,); in a variational bound 0 in place of e."""
        rows = self.prior.rows
        z, e = right[: rows.size], right[rows.size :]
        if not self._integrated:
            return np.concatenate([cho_solve((self._factor, True), z, check_finite=False), np.zeros_like(e)])
        weights = rows.entries * self.sites.precision[0]
        z = z - rows.rows.sums(weights * (e / self._d)[rows.places])
        z = cho_solve((self._factor, True), z, check_finite=False)
        return np.concatenate([z, (e - rows.at_places(weights * rows.rows.products(z))) / self._d])

    def marginal_covariances(self) -> Array:
        rows = self.prior.rows
        return (self._squares + rows.entries**2 / self._d[rows.places])[:, None, None]

    def site_covariances(self) -> Array:
        return self.marginal_covariances() if self._integrated else self._squares[:, None, None]

    def kept(self) -> Array:
        """See `SiteAlgebra`. In a variational bound the sites act on J z, so residual variances do not count."""
        rows, pi = self.prior.rows, self.sites.precision[0]
        if self._integrated and self._alone:  # d = 1 + π r².
            found = 1.0 / self._d[rows.places] - pi * self._squares
        elif self._integrated:
            found = 1.0 - pi * self.marginal_covariances()[:, 0, 0]
        else:
            found = 1.0 - pi * self._squares
        return np.maximum(found, self.prior.least_kept)[:, None, None]

    def cavities(self, mean: Array, cov: Array, weights: Array) -> tuple[Array, Array]:
        rest = np.zeros(len(cov)) if self._integrated else self.prior.residual_roots**2
        wide = (cov - rest[:, None, None]) / self.kept()
        return mean.T - wide[:, 0] * weights.T, wide + rest[:, None, None]

    def taken(self) -> float:
        return float(self.sites.precision[0] @ self.site_covariances()[:, 0, 0])

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        """See `SiteAlgebra`. The derivative in J is followed by the derivative in r as last column."""
        rows, pi, b = self.prior.rows, self.sites.precision[0], b[0]
        numbers = self.prior.coordinates(b[None])[0] if x is None else x[0]
        u, change = np.zeros_like(b), np.zeros_like(numbers)
        if moved is not None:
            u, change = moved.weights[0], moved.coordinates[0]
        found = np.empty_like(self.prior.array[0])
        q, places, r = rows.size, rows.places, rows.entries
        for some, j in self._blocks():
            seen = self._seen(rows, some, j) @ self._inverse
            own = found[some]
            np.multiply(seen, -pi[some, None], out=own[:, :q])
            own[:, :q] += np.outer(b[some] + u[some], numbers[:q])
            if moved is not None:
                own[:, :q] += np.outer(b[some], change[:q])
            if self._integrated and not self._alone:
                own[:, q] = np.einsum("ij,ij->i", seen, self._at_places[places[some]])
        d = self._d[places]
        if not self._integrated:
            found[:, q] = -pi * r
            return found[None]
        with_c = r * pi * d * self._squares if self._alone else found[:, q]  # H_i Λ⁻¹ C_pᵀ
        found[:, q] = (b + u) * numbers[q:][places] + b * change[q:][places] - pi * (r - with_c) / d
        return found[None]

    # Methods for all q + p coordinates: z and then e.

    def covariance_times(self, column: Array) -> Array:
        """Return the posterior covariance of the coefficients times a column (q + p,)."""
        found = self._solved(column)
        if not self._integrated:
            size = self.prior.rows.size
            found[size:] = column[size:]
        return found

    def covariance_at(self, left: Coefficients, variance: Array) -> Array:  # type: ignore[override]  # rows T
        assert isinstance(left, PlaceRows)
        own = self._squared(left) + left.entries**2 / self._d[left.places]
        return own[:, None, None] + variance

    def root_among(self, points: NDArray[np.intp]) -> Array:
        rows = self.prior.rows_at(points)
        halves = np.concatenate([half for _, half in self._halves(rows)])
        which, of = np.unique(rows.places, return_inverse=True)
        rest = np.zeros((len(points), len(which)))
        rest[np.arange(len(points)), of] = rows.entries / np.sqrt(self._d[rows.places])
        return np.concatenate([halves, rest], axis=1)[None]

    def covariance_among(self, points: NDArray[np.intp]) -> Array:
        half = self.root_among(points)
        return np.asarray(np.einsum("kiq,ljq->kilj", half, half, optimize=True))

    def whitened_variance(self, prior: PriorForm) -> Array:
        half = (self._at_places / self._d[:, None]) @ self._root.T
        own = 1.0 / self._d + np.einsum("ij,ij->i", half, half)
        return np.concatenate([np.einsum("ij,ij->j", self._root, self._root), own])[None]

    def whitened_covariance(self, prior: PriorForm) -> Array:
        scaled = self._at_places / self._d[:, None]
        between = -self._inverse @ scaled.T
        found = np.block([[self._inverse, between], [between.T, np.diag(1.0 / self._d) - scaled @ between]])
        return found[None, :, None]

    def deviations(self, rng: np.random.Generator, draws: int, prior: PriorForm) -> Array:
        z = rng.standard_normal((draws, len(self._factor))) @ self._root
        e = rng.standard_normal((draws, len(self._d))) / np.sqrt(self._d)
        e -= z @ (self._at_places / self._d[:, None]).T
        return np.concatenate([z, e], axis=1)[:, None]
