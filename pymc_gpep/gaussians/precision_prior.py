"""Prior covariance K = A Q⁻¹ Aᵀ, with rows A of few coefficients and a sparse precision Q.

Let Π be the precision of the sites, P = Q + AᵀΠA and x ~ N(0, Q⁻¹). Row i of A is a_iᵀ. Then

    log|I + ΠK| = log|P| − log|Q|,   var f_i = a_iᵀ P⁻¹ a_i,   (I + ΠK)⁻¹ r = r − Π A P⁻¹ Aᵀ r.

for rows a_i of A. Entries of inverses are computed only in the sparsity pattern of a factor, so no matrix is dense. The
posterior mean of x is v = P⁻¹Aᵀ(ν − Πm), for site locations ν. The weights b = ν − Π(m + A v) follow from v. (The
reverse, v = Q⁻¹Aᵀb, has cancellation if the prior is wide.) The derivatives of the log normaliser at fixed sites are

    b vᵀ − Π A P⁻¹ in entries of A, ½ (Q⁻¹ − P⁻¹ − vvᵀ) in entries of Q.

The difference 1 − π var f loses digits if a row almost determines its latent value by itself.

For c functions A is (cn, q). Coefficients of a point are in the same columns for all functions. P has entries at pairs
of these.

If there is a nearest-neighbour Gaussian process, its values follow the coefficients of effects. Its precision is
determined by regressions, see `pymc_gpep.solvers.neighbour_precision`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior_form import BoundForm, PosteriorByAlgebra, PriorForm
from pymc_gpep.gaussians.row_prior import BlockRows, CoupledRows, PriorByRows, RowAlgebra
from pymc_gpep.gaussians.sites import IndependentSites, Sites
from pymc_gpep.kernels.gaussians.neighbours import precision_entries, pull_precision
from pymc_gpep.kernels.gaussians.sparse_rows import add_gram
from pymc_gpep.kernels.special.normal import LOG_2PI
from pymc_gpep.solvers.coefficients import Coefficients, Entries, SitePrecisions, blocks_of_rows
from pymc_gpep.solvers.neighbour_precision import NeighbourPrecision, NeighbourSets
from pymc_gpep.solvers.problem import STEP_ROUNDING, Algebra, FunctionPosterior
from pymc_gpep.solvers.site_algebra import Moved, NotPositiveDefiniteError
from pymc_gpep.solvers.sparse_precision import FactorPattern, SparsePrecision, pairs_of_rows
from pymc_gpep.solvers.team import Team

type Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrecisionStructure:
    """Sparsity pattern of rows A (cn, q), and of the prior precision Q + V W⁻¹ Vᵀ of the variables x (q,).

    Attributes
    ----------
    cells : array (n, k)
        Positions of the coefficients of each point, without duplicates except for padding. Functions have the same
        positions; a function without a coefficient at a position has the coefficient 0.
    first, second : array (m,)
        Rows and columns of the entries of Q, each on one side of the diagonal. Duplicate entries are added.
    columns : array (p, q)
        V transposed.
    widths : array (p,)
        Diagonal of W, see `pymc_gpep.solvers.sparse_precision`.
    together : sequence of tuple of array
        Further pairs of positions for which posterior covariances are computed.
    flat : array (f,)
        Positions of coefficients with a flat prior. They have no entry in Q. Factorisations add 1 to their diagonal.
    functions : int
        Number of functions, c.
    """

    cells: Indices
    first: Indices
    second: Indices
    columns: Array
    widths: Array
    together: Sequence[tuple[Indices, Indices]] = field(default=())
    flat: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    functions: int = 1

    @property
    def q(self) -> int:
        """Number of coefficients, the length of x."""
        return self.columns.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of points, and largest number of coefficients of a point."""
        n, k = self.cells.shape
        return n, k

    @property
    def length(self) -> int:
        """Length of the array of coefficients and entries of Q."""
        return self.functions * self.cells.size + len(self.first)

    def split(self, array: Array) -> tuple[Array, Array]:
        """Split the array of a prior into coefficients (c, n, k) and entries (m,) of Q."""
        flat, size = array.reshape(-1), self.functions * self.cells.size
        return flat[:size].reshape(self.functions, *self.shape), flat[size:]

    @cached_property
    def _pairs(self) -> tuple[Indices, Indices]:
        """Pairs of positions of coefficients of each point, (n, k(k + 1)/2) each."""
        return pairs_of_rows(self.cells)

    @cached_property
    def prior(self) -> FactorPattern:
        """Sparsity pattern of Q, and of pairs of positions of each point within one connected component of Q."""
        components = FactorPattern(self.q, self.first, self.second).components
        own, other = _distinct(self.q, [self._pairs])
        alike = components[own] == components[other]
        return FactorPattern(self.q, np.r_[self.first, own[alike]], np.r_[self.second, other[alike]])

    @cached_property
    def posterior(self) -> FactorPattern:
        """Sparsity pattern of the posterior precision Q + AᵀΠA, for site precisions Π."""
        own, other = _distinct(self.q, [self._pairs, *self.together])
        return FactorPattern(self.q, np.r_[self.first, own], np.r_[self.second, other], self.places)

    @property
    def places(self) -> Array | None:
        """Places (q, d) of coefficients, NaN without a place; None if no coefficient has a place."""
        return None

    @cached_property
    def prior_slots(self) -> tuple[Indices, Indices]:
        """Slots (`FactorPattern.slots`) in `prior`: of entries of Q, and of the pairs of positions of each point."""
        return self.prior.slots(self.first, self.second), self.prior.slots(*self._pairs)

    @cached_property
    def posterior_slots(self) -> tuple[Indices, Indices]:
        """Slots in the pattern `posterior`: of the entries of Q, and of the pairs of positions of each point."""
        return self.posterior.slots(self.first, self.second), self.posterior.slots(*self._pairs)

    @cached_property
    def flat_slots(self) -> Indices:
        """Slots of the diagonal entries of flat coefficients, in the pattern of the prior."""
        return self.prior.slots(self.flat, self.flat)

    @cached_property
    def last(self) -> list[tuple[Array, SparsePrecision | None]]:
        """Entries (m,) of the last factorised Q, and its factor; empty before a factorisation."""
        return []

    @cached_property
    def counted(self) -> Array:
        """Number of occurrences of each entry (m,) of Q in the symmetric matrix: 1 on the diagonal, else 2."""
        return np.where(self.first == self.second, 1.0, 2.0)


def _distinct(q: int, pairs: Sequence[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
    """Return each pair of two distinct positions once."""
    codes = [np.unique(np.maximum(one, other).ravel() * q + np.minimum(one, other).ravel()) for one, other in pairs]
    own, other = np.divmod(np.unique(np.concatenate(codes)), q)
    return own[own != other], other[own != other]


class PrecisionPrior(PriorByRows):
    """Prior f = m + A x with x ~ N(0, Q⁻¹), and a sparse precision Q. Arrays of x have the shape (1, q).

    Parameters
    ----------
    array : array (1, 1, cnk + m)
        Coefficients (c, n, k), then entries (m,) of Q.
    mean : array (c, n)
    structure : PrecisionStructure
        Positions of coefficients and entries.
    """

    algebras = frozenset({Algebra.FUNCTION, Algebra.FUNCTIONS})

    def __init__(self, array: Array, mean: Array, structure: PrecisionStructure) -> None:
        super().__init__(array, mean)
        self.structure = structure
        self.values, rest = structure.split(self.array)
        self.entries_of_precision = self._read_precision(rest)
        cells = np.tile(structure.cells, (structure.functions, 1))
        self._rows = Entries(cells, self.values.reshape(cells.shape), structure.q)
        self._rows.functions = structure.functions

    def _read_precision(self, rest: Array) -> Array:
        """Return the entries of Q, from the part of the array after the coefficients."""
        return rest

    @classmethod
    def _shapes(cls, structure: PrecisionStructure) -> tuple[tuple[int, ...], tuple[int | None, ...], str]:
        size, own = structure.length, (structure.functions, len(structure.cells))
        return own, (1, 1, size), f"coefficients with a precision (1, 1, {size})"

    @property
    def maker(self) -> BoundForm:
        return BoundForm(type(self), self.structure)

    @classmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        return 0, q

    @classmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        return int(known.posterior.entries)

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        entries = known.posterior.entries
        return f"By a sparse precision: {n} rows of {q} numbers, with {entries} entries in its factor."

    @property
    def rows(self) -> Entries:
        """Rows A of coefficients, (cn, q)."""
        return self._rows

    @property
    def n_normals(self) -> int:
        """Number q of variables x."""
        return self.structure.q

    @cached_property
    def factor(self) -> SparsePrecision | None:
        """Factorised Q, with 1 added to the diagonal of flat coefficients; None if it is not positive definite.

        If Q equals the Q of the last prior, for example if hyperparameters only scale x, its factor is reused.
        """
        s = self.structure
        if s.last and np.array_equal(s.last[0][0], self.entries_of_precision):
            return s.last[0][1]
        found = self._factorised(s.prior, s.prior_slots[0], s.flat_slots)
        s.last[:] = [(self.entries_of_precision.copy(), found)]
        return found

    @property
    def size(self) -> int:
        return self.structure.shape[1]

    @property
    def flat(self) -> Indices:
        return self.structure.flat

    @property
    def precision(self) -> SparsePrecision:
        """Factorised prior precision Q of x.

        Raises
        ------
        NotPositiveDefiniteError
            If Q is not positive definite.
        """
        if self.factor is None:
            raise NotPositiveDefiniteError(
                "The prior precision of the integrated variables is not positive definite to working precision. Add to "
                "the diagonal of a precision, tau + 1e-6 * scipy.sparse.eye_array(n), or give hyperparameters "
                "informative priors."
            )
        return self.factor

    def posterior_precision(self, sites: SitePrecisions) -> SparsePrecision | None:
        """Factorise the posterior precision Q + AᵀΠA. Return None if it is not positive definite."""
        entries, pairs = self.structure.posterior_slots
        return self._factorised(self.structure.posterior, entries, None, pairs, self.weighed(sites, self.values))

    def weighed(self, sites: SitePrecisions, values: Array) -> Array:
        """Return products of site precisions with `values` (c, n, k), over the functions of each point, (c, n, k)."""
        return np.ascontiguousarray(np.moveaxis(sites.product(np.moveaxis(values, 2, 0)), 0, 2))

    def _factorised(
        self,
        pattern: FactorPattern,
        slots: NDArray[np.int64],
        ones: NDArray[np.int64] | None = None,
        pairs: NDArray[np.int64] | None = None,
        weighed: Array | None = None,
    ) -> SparsePrecision | None:
        total = _summed(slots, self.entries_of_precision, pattern.entries + 1)
        if ones is not None:
            total[ones] += 1.0
        if pairs is not None and weighed is not None:
            for left, right in zip(weighed, self.values, strict=True):
                add_gram(pairs, left, right, total)
        return SparsePrecision.factorised(pattern, total, self.structure.columns, self.structure.widths)

    def products(self, posterior: SparsePrecision) -> Array:
        """Return P⁻¹ a for each row a of A, (c, n, k): its entries at the positions of the point."""
        s = self.structure
        return np.stack([posterior.row_products(s.posterior_slots[1], s.cells, own) for own in self.values])

    def gradient(
        self, posterior: SparsePrecision, sites: SitePrecisions, b: Array, v: Array, moved: Moved | None = None
    ) -> Array:
        """Return the derivative of the log normaliser at fixed sites, in the array of the prior."""
        s = self.structure
        slots, _ = s.posterior_slots
        u = np.zeros_like(v) if moved is None else moved.coordinates[0]
        of_values = -self.weighed(sites, self.products(posterior))
        of_values += b[..., None] * (v + u)[s.cells]
        of_values += 0.0 if moved is None else moved.weights[..., None] * v[s.cells]
        i, j = s.first, s.second
        inverse = self._inverse_entries() - posterior.entries(slots, i, j)
        of_entries = 0.5 * s.counted * (inverse - v[i] * v[j] - u[i] * v[j] - v[i] * u[j])
        return np.concatenate([of_values.ravel(), self._array_gradient(of_entries)])[None, None]

    def _inverse_entries(self) -> Array:
        """Return Q⁻¹ at the entries of Q, (m,)."""
        s = self.structure
        return self.precision.entries(s.prior_slots[0], s.first, s.second)

    def _array_gradient(self, of_entries: Array) -> Array:
        """Return derivatives in the part of the array after the coefficients, from derivatives in entries of Q."""
        return of_entries

    def solved(self, right: Array) -> Array:
        """Return Q⁻¹ times `right` (q,), or times each row of (m, q); NaN if Q is not positive definite."""
        return np.full_like(right, np.nan) if self.factor is None else self.factor.solve(right)

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return np.asarray(self.at(points) @ self.solved(self.at(others)[0]).T)

    @cached_property
    def variances(self) -> Array:
        """See `PriorForm`. The variances are 0 if Q is not positive definite."""
        s = self.structure
        if self.factor is None:
            return np.zeros(self.shape)
        return np.stack([self.factor.row_variances(s.prior_slots[1], s.cells, own) for own in self.values])

    def check(self) -> None:
        _ = self.precision

    def is_covariance(self, team: Team) -> bool:
        return self.factor is not None

    def coordinates(self, b: Array) -> Array:
        """See `PriorForm`. The coordinates are x (1, q). Weights do not determine flat coefficients: these are 0."""
        return self.solved(self.rows.sums(b.ravel()))[None]

    def precision_times(self, x: Array) -> Array:
        """Return the product Q x (q,) with the prior precision, for x (q,)."""
        s = self.structure
        found = _summed(s.first, self.entries_of_precision * x[s.second], s.q)
        found += _summed(s.second, np.where(s.first == s.second, 0.0, self.entries_of_precision) * x[s.first], s.q)
        held = s.widths != 0.0  # A column of V with width 0 only conditions on Vᵀx = 0.
        found += (s.columns[held] @ x / s.widths[held]) @ s.columns[held]
        return np.asarray(found)

    def residual(self, gradient: Array, x: Array) -> Array:
        """See `PriorForm`. The residual is Aᵀ∇ − Q x."""
        return self.pull(gradient) - self.precision_times(x[0])

    def inner(self, x: Array, step: Array, image: Array) -> float:
        return float(x[0] @ self.precision_times(step[0]))

    def rounding(self, x: Array) -> float:
        """See `PriorForm`. |f_i − m_i| is at most √(K_ii xᵀQx), with a precision of 1 for flat coefficients."""
        if not x.size:  # No posterior was found.
            return 0.0
        length = self.inner(x, x, x) + float((x[0, self.flat] ** 2).sum())
        return STEP_ROUNDING * float(np.sqrt(self.variances.max() * max(length, 0.0)))

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        return PosteriorByAlgebra(self, PrecisionAlgebra(self, 1), prior_mean, signed=signed)

    def coupled(self, n_functions: int, team: Team) -> "PrecisionCoupled":
        return PrecisionCoupled(self, n_functions, team)

    def blocks(self, n_functions: int, *, signed: bool = False) -> "PrecisionBlocks":
        return PrecisionBlocks(self, n_functions)

    def at(self, points: NDArray[np.int64]) -> Array:
        """Return the coefficients A (c, s, q) of these points (s,)."""
        c, n = self.shape
        places = n * np.arange(c)[:, None] + points
        return self.rows.some(places.ravel()).reshape(c, len(points), -1)

    def rows_at(self, points: NDArray[np.int64]) -> Coefficients:
        return self.some(points).rows

    def known_variances(self, rows: Coefficients) -> Array:
        return self.precision.variances(rows)

    def some(self, points: NDArray[np.int64]) -> "PrecisionPrior":
        """Return the prior of the latent values at these points (s,)."""
        own = self.structure
        structure = replace(own, cells=own.cells[points], together=())
        array = np.concatenate([self.values[:, points].ravel(), self.entries_of_precision])
        return PrecisionPrior(array[None, None], self.mean[:, points], structure)

    @cached_property
    def roots(self) -> Array:
        """Root of the covariance as a dense array, (c, n, q)."""
        return np.stack([self.precision.halved(own) for own in self.at(np.arange(self.shape[1]))])

    def whitened_slope(self, slope: Array) -> Array:
        """Return Q⁻¹ Aᵀ times `slope` (c, n), (1, q). For weights of a posterior it is the posterior mean of x."""
        return self.precision.solve(self.rows.sums(slope.ravel()))[None]


class PrecisionAlgebra(RowAlgebra):
    """Linear algebra of a `PrecisionPrior`, with the posterior precision P = Q + AᵀΠA of the variables x."""

    kind: ClassVar[type[Sites]] = IndependentSites
    prior: PrecisionPrior
    factor: SparsePrecision
    """Factorised posterior precision P of x."""

    def factorise(self, precision: Array) -> tuple[bool, float]:
        self.sites, self._centre = self.kind(precision.copy(), np.empty(0)), None
        found = None if self.prior.factor is None else self.prior.posterior_precision(self.sites)
        if found is None:
            return False, np.nan
        self.factor = found
        return True, found.log_det - self.prior.precision.log_det - self.prior.flat.size * LOG_2PI

    def _solved(self, right: Array) -> Array:
        """Solve P x = `right` for x (q,), with the posterior precision P."""
        return self.factor.solve(right)

    def marginal_covariances(self) -> Array:
        s, values = self.prior.structure, self.prior.values
        if s.functions == 1:
            return self.factor.row_variances(s.posterior_slots[1], s.cells, values[0])[:, None, None]
        return np.einsum("ink,jnk->nij", values, self.prior.products(self.factor))

    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        v = self.prior.coordinates(b) if x is None else x
        return self.prior.gradient(self.factor, self.sites, b, v[0], moved)

    def covariance_at(self, left: Coefficients, variance: Array) -> Array:  # type: ignore[override]  # rows T
        m, c, _ = variance.shape
        if c == 1:
            return self.factor.variances(left)[:, None, None] + variance
        places, found = m * np.arange(c)[:, None], np.empty((m, c, c))
        for some in blocks_of_rows(m, c * self.prior.n_normals):
            rows = (places + np.arange(some.start, some.stop)).ravel()
            half = self.factor.halved(left.some(rows)).reshape(c, -1, self.prior.n_normals)
            found[some] = np.einsum("imq,jmq->mij", half, half)
        return found + variance

    def root_among(self, points: NDArray[np.intp]) -> Array:
        return np.stack([self.factor.halved(own) for own in self.prior.at(points)])

    def whitened_variance(self, prior: PriorForm) -> Array:
        q = self.prior.n_normals
        return self.factor.variances(Entries(np.arange(q)[:, None], np.ones((q, 1)), q))[None]

    def whitened_covariance(self, prior: PriorForm) -> Array:
        return self.factor.solve(np.eye(self.prior.n_normals))[None, :, None]

    def deviations(self, rng: np.random.Generator, draws: int, prior: PriorForm) -> Array:
        return self.factor.spread(rng.standard_normal((draws, self.prior.n_normals)))[:, None]


class PrecisionCoupled(CoupledRows, PrecisionAlgebra):
    """Linear algebra for site precisions diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i. Log determinants include Σ_i log 1ᵀπ_i."""


class PrecisionBlocks(BlockRows, PrecisionAlgebra):
    """Linear algebra for any symmetric site precisions (n, c, c) with a proper posterior."""


@dataclass(frozen=True, eq=False)
class NeighbourStructure(PrecisionStructure):
    """Sparsity pattern of rows and precision. Variables are effects, then values of a nearest-neighbour process.

    Attributes
    ----------
    sets : NeighbourSets
        Neighbours of each place.
    inputs : array (p, d)
        Inputs of the places.
    """

    sets: NeighbourSets = field(kw_only=True)
    inputs: Array = field(kw_only=True)

    @property
    def places(self) -> Array:
        return np.concatenate([np.full((self.begin, self.inputs.shape[1]), np.nan), self.inputs])

    @property
    def begin(self) -> int:
        """Position of the first value of the process in x."""
        return self.q - self.sets.size

    @property
    def n_own(self) -> int:
        """Number of entries in the precision of effects."""
        return len(self.first) - len(self.sets.first)

    @property
    def length(self) -> int:
        """Length of the prior's array: coefficients, entries of effects, and the results of `regressions`."""
        p, m = self.sets.cells.shape
        return self.cells.size + self.n_own + p * (m + 2)

    @cached_property
    def effects(self) -> tuple[FactorPattern, Indices, Indices] | None:
        """Pattern of the precision of effects, slots of its entries and of flat coefficients; None without effects."""
        if not self.begin:
            return None
        first, second = self.first[: self.n_own], self.second[: self.n_own]
        pattern = FactorPattern(self.begin, first, second)
        return pattern, pattern.slots(first, second), pattern.slots(self.flat, self.flat)

    def regressions(self, rest: Array) -> tuple[Array, Array, Array]:
        """Return regressions on neighbours b (p, m), residual variances d (p,) and prior variances (p,) of p places."""
        p, m = self.sets.cells.shape
        own = rest[self.n_own :]
        return own[: p * m].reshape(p, m), own[p * m : -p], own[-p:]


class NeighbourPrior(PrecisionPrior):
    """Prior f = m + A x. x are effects with a sparse precision, then values of a nearest-neighbour process.

    Parameters
    ----------
    array : array (1, 1, length)
        Coefficients and entries, see `NeighbourStructure.length`.
    mean : array (1, n)
    structure : NeighbourStructure
    """

    structure: NeighbourStructure

    def _read_precision(self, rest: Array) -> Array:
        s = self.structure
        self._b, self._d, self._own_variances = s.regressions(rest)
        found = np.zeros(len(s.sets.first))
        precision_entries(s.sets.slots, s.sets.counts, self._b, self._d, found)
        return np.concatenate([rest[: s.n_own], found])

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        p, m = known.sets.cells.shape
        entries = known.posterior.entries
        return (
            f"By at most {m} nearest neighbours of {p} places: {n} rows of {q} numbers, with {entries} entries in the "
            "factor."
        )

    @cached_property
    def _effects(self) -> SparsePrecision | None:
        """Factorised precision of effects, with 1 added for flat coefficients; None if not positive definite."""
        s = self.structure
        if s.effects is None:
            return None
        pattern, slots, ones = s.effects
        total = _summed(slots, self.entries_of_precision[: s.n_own], pattern.entries + 1)
        total[ones] += 1.0
        return SparsePrecision.factorised(pattern, total, s.columns[:, : s.begin], s.widths)

    @cached_property
    def factor(self) -> NeighbourPrecision | None:  # type: ignore[override]  # It has the same methods.
        s = self.structure
        there = np.isfinite(self._b).all() and (self._d > 0.0).all()
        if not there or (s.effects is not None and self._effects is None):
            return None
        return NeighbourPrecision(s.sets, self._effects, self._b, self._d)

    @cached_property
    def _in_posterior_pattern(self) -> SparsePrecision | None:
        """Factorised Q in the pattern of the posterior. This pattern includes pairs of neighbours of new places."""
        s = self.structure
        return self._factorised(s.posterior, s.posterior_slots[0], s.posterior.slots(s.flat, s.flat))

    def known_variances(self, rows: Coefficients) -> Array:
        factor = self.precision if self._in_posterior_pattern is None else self._in_posterior_pattern
        return factor.variances(rows)

    @cached_property
    def variances(self) -> Array:
        """See `PrecisionPrior`. Variances of the process come from its covariance function."""
        s = self.structure
        own = np.where(s.cells >= s.begin, self.values[0], 0.0)
        variance = (own**2 * self._own_variances[np.maximum(s.cells - s.begin, 0)]).sum(axis=1)
        if s.begin and self.factor is not None:
            effects = np.where(s.cells < s.begin, self.values[0], 0.0)
            variance += self.factor.variances(Entries(s.cells, effects, s.q))
        return variance[None]

    def _inverse_entries(self) -> Array:
        """See `PrecisionPrior`. Entries of the process are 0: `_array_gradient` adds derivatives of −Σ log d."""
        s = self.structure
        found = np.zeros(len(s.first))
        if s.effects is not None and self._effects is not None:
            own = slice(0, s.n_own)
            found[own] = self._effects.entries(s.effects[1], s.first[own], s.second[own])
        return found

    def _array_gradient(self, of_entries: Array) -> Array:
        s = self.structure
        of_b, of_d = np.empty_like(self._b), np.empty_like(self._d)
        own = np.ascontiguousarray(of_entries[s.n_own :])
        pull_precision(s.sets.slots, s.sets.counts, self._b, self._d, own, of_b, of_d)
        of_d -= 0.5 / self._d
        return np.concatenate([of_entries[: s.n_own], of_b.ravel(), of_d, np.zeros_like(of_d)])

    def some(self, points: Indices) -> "NeighbourPrior":
        own = self.structure
        structure = replace(own, cells=own.cells[points], together=())
        array = np.concatenate([self.values[:, points].ravel(), self.array.ravel()[own.cells.size :]])
        return NeighbourPrior(array[None, None], self.mean[:, points], structure)


def _summed(places: NDArray[np.int64], values: Array, size: int) -> Array:
    """Return the sums (size,) of the values with the same position, as floats."""
    return np.bincount(places, values, size).astype(np.float64, copy=False)
