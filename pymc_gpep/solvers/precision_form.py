"""A prior covariance K = A Q⁻¹ Aᵀ of one latent function, by rows A of few coefficients and a sparse precision Q.

With P = Q + AᵀΠA and x ~ N(0, Q⁻¹)

    log|I + ΠK| = log|P| − log|Q|,   var f_i = a_iᵀ P⁻¹ a_i,   (I + ΠK)⁻¹ r = r − Π A P⁻¹ Aᵀ r.

Entries of inverses are computed only where a factor has them, so that no matrix is dense. The posterior mean of x is
v = P⁻¹Aᵀ(ν − Πm). Weights b = ν − Π(m + A v) are computed from it: v = Q⁻¹Aᵀb cancels where the prior is wide. The
derivatives of the log normaliser at fixed sites are

    b vᵀ − Π A P⁻¹ in entries of A,   ½ (Q⁻¹ − P⁻¹ − vvᵀ) in those of Q.

The difference 1 − π var f loses digits where a row all but decides on its latent value alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.sparse_rows import add_gram
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.solvers.prior_form import EPSILON, STEP_ROUNDING, Algebra, FunctionPosterior, PriorForm, SiteAlgebra
from pymc_gpep.solvers.sparse_precision import FactorPattern, SparsePrecision, pairs_of_rows
from pymc_gpep.solvers.team import Team

type Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PrecisionStructure:
    """Where rows A (n, q) and a prior precision Q + V W⁻¹ Vᵀ of x have entries.

    Attributes
    ----------
    cells : array (n, k)
        Places of the coefficients of each row, each place once; entries beyond its own repeat one of these.
    first, second : array (m,)
        Rows and columns of the entries of Q, on one side of the diagonal; those of one place add up.
    columns : array (p, q)
        Vᵀ.
    widths : array (p,)
        The diagonal of W, see `pymc_gpep.solvers.sparse_precision`.
    together : sequence of tuple of array
        Further pairs of places whose posterior covariances are wanted.
    """

    cells: Indices
    first: Indices
    second: Indices
    columns: Array
    widths: Array
    together: Sequence[tuple[Indices, Indices]] = field(default=())

    @property
    def q(self) -> int:
        """How many numbers x there are."""
        return self.columns.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows there are, and how many coefficients each may have."""
        n, k = self.cells.shape
        return n, k

    def split(self, array: Array) -> tuple[Array, Array]:
        """Return coefficients (n, k) and entries (m,) of Q of the array that holds both."""
        flat = array.reshape(-1)
        return flat[: self.cells.size].reshape(self.cells.shape), flat[self.cells.size :]

    @cached_property
    def _pairs(self) -> tuple[Indices, Indices]:
        """Pairs of places (n, k(k + 1)/2) of each row."""
        return pairs_of_rows(self.cells)

    @cached_property
    def prior(self) -> FactorPattern:
        """The pattern of Q, where rows have no two places that depend on each other with it unless it is in there."""
        components = FactorPattern(self.q, self.first, self.second).components
        own, other = _distinct(self.q, [self._pairs])
        alike = components[own] == components[other]
        return FactorPattern(self.q, np.r_[self.first, own[alike]], np.r_[self.second, other[alike]])

    @cached_property
    def posterior(self) -> FactorPattern:
        """The pattern of Q + AᵀΠA."""
        own, other = _distinct(self.q, [self._pairs, *self.together])
        return FactorPattern(self.q, np.r_[self.first, own], np.r_[self.second, other])

    @cached_property
    def prior_slots(self) -> tuple[Indices, Indices]:
        """Slots in the prior's pattern of the entries of Q, and of the pairs of rows."""
        return self.prior.slots(self.first, self.second), self.prior.slots(*self._pairs)

    @cached_property
    def posterior_slots(self) -> tuple[Indices, Indices]:
        """The same in the pattern of the posterior."""
        return self.posterior.slots(self.first, self.second), self.posterior.slots(*self._pairs)

    @cached_property
    def counted(self) -> Array:
        """How often an entry (m,) of Q stands in the matrix: off the diagonal on either side of it."""
        return np.where(self.first == self.second, 1.0, 2.0)


def _distinct(q: int, pairs: Sequence[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
    """Return each pair of different places once."""
    codes = [np.unique(np.maximum(one, other).ravel() * q + np.minimum(one, other).ravel()) for one, other in pairs]
    own, other = np.divmod(np.unique(np.concatenate(codes)), q)
    return own[own != other], other[own != other]


class PrecisionForm(PriorForm):
    """Coefficients (n, k) and entries (m,) of Q, one after the other in an array (1, 1, nk + m)."""

    square = False
    by_weights = False
    algebras = frozenset({Algebra.FUNCTION})

    def __init__(self, array: Array, structure: PrecisionStructure) -> None:
        super().__init__(array)
        self.structure = structure
        self.values, self.entries = structure.split(self.array)
        self.rows = Entries(structure.cells, self.values, structure.q)

    @cached_property
    def prior(self) -> SparsePrecision | None:
        """Q, factorised; None where it is not positive definite."""
        return self._factorised(self.structure.prior, self.structure.prior_slots[0])

    def posterior_precision(self, precision: Array) -> SparsePrecision | None:
        """Q + AᵀΠA, factorised, with Π = diag(π); None where it is not positive definite."""
        entries, pairs = self.structure.posterior_slots
        return self._factorised(self.structure.posterior, entries, pairs, precision)

    def _factorised(
        self,
        pattern: FactorPattern,
        slots: NDArray[np.int64],
        pairs: NDArray[np.int64] | None = None,
        precision: Array | None = None,
    ) -> SparsePrecision | None:
        total = np.bincount(slots, self.entries, pattern.entries + 1)
        if pairs is not None:
            add_gram(pairs, self.values, precision, total)
        return SparsePrecision.factorised(pattern, total, self.structure.columns, self.structure.widths)

    def covariances_of(self, right: Array) -> Array:
        """Q⁻¹ r of r (q,); NaN where Q is not positive definite."""
        return np.full_like(right, np.nan) if self.prior is None else self.prior.solve(right)

    def gradient(
        self, posterior: SparsePrecision, precision: Array, b: Array, v: Array, moved: Array | None = None
    ) -> Array:
        """The derivative of the log normaliser at fixed sites in the array, see `FunctionPosterior.gradient`."""
        assert self.prior is not None
        s = self.structure
        (prior_slots, _), (slots, pairs) = s.prior_slots, s.posterior_slots
        u = np.zeros_like(v) if moved is None else self.prior.solve(self.rows.sums(moved))
        of_values = -precision[:, None] * posterior.row_products(pairs, s.cells, self.values)
        of_values += b[:, None] * (v + u)[s.cells]
        of_values += 0.0 if moved is None else moved[:, None] * v[s.cells]
        i, j = s.first, s.second
        inverse = self.prior.entries(prior_slots, i, j) - posterior.entries(slots, i, j)
        of_entries = 0.5 * s.counted * (inverse - v[i] * v[j] - u[i] * v[j] - v[i] * u[j])
        return np.concatenate([of_values.ravel(), of_entries])[None, None]

    def among(self, points: NDArray[np.int64]) -> Array:
        some = self.rows.some(points)
        return (some @ self.covariances_of_rows(some).T)[None]

    def covariances_of_rows(self, rows: Array) -> Array:
        """Q⁻¹ r of each row r of (m, q); NaN where Q is not positive definite."""
        return np.full_like(rows, np.nan) if self.prior is None else self.prior.solve(rows)

    @cached_property
    def variances(self) -> Array:
        """See `PriorForm`; 0 where Q is not positive definite, which `is_covariance` tells."""
        s = self.structure
        if self.prior is None:
            return np.zeros((1, len(s.cells)))
        return self.prior.row_variances(s.prior_slots[1], s.cells, self.values)[None]

    def is_covariance(self, team: Team) -> bool:
        return self.prior is not None

    def coordinates(self, b: Array) -> Array:
        """See `PriorForm`; x (1, q)."""
        return self.covariances_of(self.rows.sums(b[0]))[None]

    def weights(self, x: Array, gradient: Array) -> Array:
        return gradient

    def multiply(self, x: Array, out: Array) -> None:
        """See `PriorForm`; A x of x (1, q)."""
        out[0] = self.rows.products(x[0])

    def precision_times(self, x: Array) -> Array:
        """Q x (q,), of x (q,)."""
        s = self.structure
        found = np.bincount(s.first, self.entries * x[s.second], s.q)
        found += np.bincount(s.second, np.where(s.first == s.second, 0.0, self.entries) * x[s.first], s.q)
        held = s.widths != 0.0  # a width of 0 holds its sum at 0, and adds nothing
        found += (s.columns[held] @ x / s.widths[held]) @ s.columns[held]
        return np.asarray(found)

    def residual(self, gradient: Array, x: Array) -> Array:
        """See `PriorForm`; Aᵀ∇ − Q x."""
        return (self.rows.sums(gradient[0]) - self.precision_times(x[0]))[None]

    def inner(self, x: Array, step: Array, image: Array) -> float:
        return float(x[0] @ self.precision_times(step[0]))

    def rounding(self, x: Array) -> float:
        """See `PriorForm`; |f_i − m_i| is at most the root of K_ii xᵀQx."""
        if not x.size:  # no posterior was found
            return 0.0
        return STEP_ROUNDING * float(np.sqrt(self.variances.max() * max(self.inner(x, x, x), 0.0)))

    def posterior(self, prior_mean: Array, *, signed: bool = False) -> "PrecisionFunctionPosterior":
        return PrecisionFunctionPosterior(self, prior_mean, signed=signed)

    def coupled(self, n_functions: int, team: Team) -> SiteAlgebra:
        """See `PriorForm`; priors of several functions are not given in this form."""
        return _one_function()

    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        """See `PriorForm`; priors of several functions are not given in this form."""
        return _one_function()


class PrecisionFunctionPosterior(FunctionPosterior):
    """The posterior by P; `signed` precisions may be below zero, as long as P is positive definite."""

    def __init__(self, form: PrecisionForm, prior_mean: Array, *, signed: bool = False) -> None:
        super().__init__(prior_mean)
        self._form, self._signed = form, signed
        self._posterior: SparsePrecision | None = None
        self.centre: Array = np.empty(0)

    @property
    def _decomposed(self) -> SparsePrecision:
        assert self._posterior is not None
        return self._posterior

    def decompose(self, precision: Array) -> bool:
        """See `FunctionPosterior`; precisions as before are not factorised again."""
        if self._posterior is not None and np.array_equal(precision, self.precision):
            return True
        self.precision[:] = precision
        self._posterior, prior = None, self._form.prior
        if prior is None or not (self._signed or (precision >= 0.0).all()):
            return False
        self._posterior = self._form.posterior_precision(self.precision)
        if self._posterior is None:
            return False
        self.log_det = self._posterior.log_det - prior.log_det
        return True

    def invert(self) -> None:
        """See `FunctionPosterior`; entries of P⁻¹."""
        _ = self._decomposed.selected

    def times(self, weights: Array) -> Array:
        return self._form.rows.products(self._form.covariances_of(self._form.rows.sums(weights)))

    def spread(self) -> None:
        s = self._form.structure
        self.variance[:] = self._decomposed.row_variances(s.posterior_slots[1], s.cells, self._form.values)

    @property
    def kept(self) -> Array:
        return np.asarray(np.maximum(1.0 - self.precision * self.variance, EPSILON))

    def smooth(self, force: Array) -> Array:
        return force - self.precision * self.moved(force)

    def moved(self, force: Array) -> Array:
        rows = self._form.rows
        return rows.products(self._decomposed.solve(rows.sums(force)))

    def solve(self, right: Array) -> Array:
        return self._decomposed.solve(right[0])[None]

    def locate(self, location: Array) -> None:
        """See `FunctionPosterior`; v is corrected once by what is left of Aᵀ(ν − π mean) − Q v."""
        form = self._form
        self._take(self._decomposed.solve(form.rows.sums(location - self.precision * self._prior_mean)))
        left = form.residual((location - self.precision * self.mean)[None], self.coordinates)
        self._take(self.centre + self._decomposed.solve(left[0]))
        self.weights[:] = location - self.precision * self.mean

    def _take(self, centre: Array) -> None:
        """Take v (q,), and compute the mean."""
        self.centre = centre
        np.add(self._prior_mean, self._form.rows.products(centre), out=self.mean)

    def put(self, x: Array, gradient: Array, mean: Array) -> None:
        self.centre, self.weights[:], self.mean[:] = x[0].copy(), gradient, mean

    @property
    def coordinates(self) -> Array:
        return self.centre[None]

    @property
    def length(self) -> float:
        return self._form.inner(self.coordinates, self.coordinates, self.mean)

    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`.

        Raises
        ------
        TypeError
            If something else depends on prior variances.
        """
        if of_variance is not None:
            raise TypeError("Derivatives in prior variances are not known by a sparse precision.")
        return self._form.gradient(self._decomposed, self.precision, self.weights, self.centre, moved)


def _one_function() -> NoReturn:
    raise TypeError("A sparse precision is that of one latent function.")
