"""A sparse precision P = P₀ + V W⁻¹ Vᵀ with few columns V, by the factor of P₀: solves, selected covariances, draws.

With Y = P₀⁻¹V and M = W + VᵀY

    P⁻¹ = P₀⁻¹ − Y M⁻¹ Yᵀ,   log|P| = log|P₀| + log|M| − log|W|.

W = 0 holds Vᵀx at 0, conditioning by kriging. An entry of W below 0 takes away what a column has in P₀, so that P₀ may
be positive definite where P is not.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.sparse_rows import sparse_row_products, sparse_row_variances
from pymc_gpep.kernels.linalg.sparse_factor import factorise, selected_inverse, solve_lower, solve_upper
from pymc_gpep.solvers.coefficients import Coefficients, Entries
from pymc_gpep.solvers.factor_pattern import FactorPattern, pairs_of_rows

_ROWS = 500  # that are solved for at a time


class SparsePrecision:
    """P, factorised.

    Parameters
    ----------
    pattern : FactorPattern
    factor : array
        D and L of P₀ by slots.
    columns : array (p, q)
        Vᵀ.
    widths : array (p,)
        The diagonal of W.
    """

    def __init__(self, pattern: FactorPattern, factor: Array, columns: Array, widths: Array) -> None:
        self.pattern = pattern
        self._diagonal, self._lower = factor[: pattern.size], factor[pattern.size : -1]
        self._columns, self._widths = columns, widths
        self._pull = self._solve_sparse(columns)
        self._middle = np.diag(widths) + columns @ self._pull.T

    @classmethod
    def factorised(
        cls, pattern: FactorPattern, entries: Array, columns: Array, widths: Array
    ) -> "SparsePrecision | None":
        """Factorise P₀, which `entries` has by slots and loses; None if it is not positive definite."""
        q, p = pattern.size, pattern
        entries[-1] = 0.0
        diagonal, lower = entries[:q], entries[q:-1]
        done = factorise(
            p.starts, p.rows, p.row_starts, p.row_columns, p.row_places, p.dense, diagonal, lower, np.zeros(q)
        )
        if not done or not np.isfinite(entries).all() or not _factorise_corner(pattern, diagonal, lower):
            return None
        return cls(pattern, entries, columns, widths)

    @property
    def log_det(self) -> float:
        """log|P₀| + log|M|, which is log|P| but for a constant."""
        return float(np.log(self._diagonal).sum()) + float(np.linalg.slogdet(self._middle)[1])

    def _solve_sparse(self, right: Array) -> Array:
        """P₀⁻¹ r of each row r of (m, q)."""
        p = self.pattern
        x = np.ascontiguousarray(right[:, p.order])
        solve_lower(p.starts, p.rows, self._lower, x)
        x /= self._diagonal
        solve_upper(p.starts, p.rows, self._lower, x)
        found = np.empty_like(x)
        found[:, p.order] = x
        return found

    def solve(self, right: Array) -> Array:
        """P⁻¹ r of r (q,), or of each row of (m, q)."""
        rows = np.atleast_2d(np.asarray(right, np.float64))
        found = self._solve_sparse(rows)
        if len(self._widths):
            found -= np.linalg.solve(self._middle, self._columns @ found.T).T @ self._pull
        return found.reshape(np.shape(right))

    # A root F R of P⁻¹: F of P₀⁻¹, and R that is the identity but for the span of Fᵀ V.

    @cached_property
    def _span(self) -> tuple[Array, Array]:
        """Directions U (q, p) and factors g (p,) with R = I − U diag(g) Uᵀ."""
        span, own = np.linalg.qr(self._lowered(self._columns).T)
        kept, turned = np.linalg.eigh(own @ np.linalg.solve(self._middle, own.T))
        return span @ turned, 1.0 - np.sqrt(np.maximum(1.0 - kept, 0.0))

    def _lowered(self, right: Array) -> Array:
        """Fᵀ r of each row r of (m, q), F Fᵀ = P₀⁻¹."""
        p = self.pattern
        x = np.ascontiguousarray(right[:, p.order])
        solve_lower(p.starts, p.rows, self._lower, x)
        x /= np.sqrt(self._diagonal)
        return x

    def halved(self, right: Array) -> Array:
        """Rᵀ Fᵀ r of each row r of (m, q): rᵀP⁻¹s is the product of two of them."""
        found = self._lowered(right)
        if len(self._widths):
            directions, factors = self._span
            found -= ((found @ directions) * factors) @ directions.T
        return found

    def spread(self, noise: Array) -> Array:
        """F R ε of each row ε of (m, q): draws of N(0, P⁻¹) of standard normals."""
        x, p = np.array(noise, np.float64), self.pattern
        if len(self._widths):
            directions, factors = self._span
            x -= ((x @ directions) * factors) @ directions.T
        x /= np.sqrt(self._diagonal)
        solve_upper(p.starts, p.rows, self._lower, x)
        found = np.empty_like(x)
        found[:, p.order] = x
        return found

    # Covariances on the pattern.

    @cached_property
    def selected(self) -> Array:
        """Entries of P₀⁻¹ by slots."""
        p = self.pattern
        entries, work = np.zeros(p.entries + 1), np.zeros((2, p.size))
        diagonal, lower = entries[: p.size], entries[p.size : -1]
        if p.dense < p.size:
            root = _corner(p, np.ones(p.size), self._lower) * np.sqrt(self._diagonal[p.dense :])
            inverse, _ = dpotri(root, lower=1)
            diagonal[p.dense :] = inverse.diagonal()
            lower[p.starts[p.dense] :] = inverse.T[p.corner]
        selected_inverse(p.starts, p.rows, p.dense, self._diagonal, self._lower, diagonal, lower, work[0], work[1])
        return entries

    def _taken(self, cells: NDArray[np.int64], values: Array) -> tuple[Array, Array]:
        """AY (n, p) of rows A, and M⁻¹ times that."""
        moved = np.einsum("ik,pik->ip", values, self._pull[:, cells])
        return moved, np.linalg.solve(self._middle, moved.T).T

    def row_variances(self, slots: NDArray[np.int64], cells: NDArray[np.int64], values: Array) -> Array:
        """Return the diagonal (n,) of A P⁻¹ Aᵀ, of rows A by cells and values (n, k) whose pairs have slots."""
        found = np.empty(len(values))
        sparse_row_variances(slots, values, self.selected, found)
        if len(self._widths):
            moved, taken = self._taken(cells, values)
            found -= (moved * taken).sum(axis=1)
        return found

    def row_products(self, slots: NDArray[np.int64], cells: NDArray[np.int64], values: Array) -> Array:
        """Return P⁻¹ a_i (n, k) at the entries of each row, given as for `row_variances`."""
        found = np.zeros_like(values)
        sparse_row_products(slots, values, self.selected, found)
        if len(self._widths):
            _, taken = self._taken(cells, values)
            found -= np.einsum("ip,pik->ik", taken, self._pull[:, cells])
        return found

    def variances(self, rows: Coefficients) -> Array:
        """Return the diagonal (m,) of T P⁻¹ Tᵀ, of any rows T (m, q): by solves where the factor lacks an entry."""
        m = len(rows.products(np.zeros(self.pattern.size)))
        found, left = np.zeros(m), np.arange(m)
        if isinstance(rows, Entries):
            one, other = pairs_of_rows(rows.cells)
            slots, components = self.pattern.slots(one, other), self.pattern.components
            own, its = np.tril_indices(rows.cells.shape[1])
            wanted = (rows.values[:, own] != 0.0) & (rows.values[:, its] != 0.0)
            lacks = (slots == self.pattern.nothing) & (components[one] == components[other])  # of others it is 0
            left = np.flatnonzero((wanted & lacks).any(axis=1))
            found = self.row_variances(slots, rows.cells, rows.values)
        for start in range(0, len(left), _ROWS):
            some = left[start : start + _ROWS]
            found[some] = (self.halved(rows.some(some)) ** 2).sum(axis=1)
        return found

    def entries(self, slots: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64]) -> Array:
        """Return entries (i, j) of P⁻¹ that have slots."""
        found = self.selected[slots]
        if len(self._widths):
            taken = np.linalg.solve(self._middle, self._pull)
            found = found - (self._pull[:, first] * taken[:, second]).sum(axis=0)
        return np.asarray(found)


def _corner(pattern: FactorPattern, diagonal: Array, lower: Array) -> Array:
    """The last block of a matrix by slots, in full, whose lower triangle counts."""
    corner = np.diag(diagonal[pattern.dense :])
    corner.T[pattern.corner] = lower[pattern.starts[pattern.dense] :]
    return corner


def _factorise_corner(pattern: FactorPattern, diagonal: Array, lower: Array) -> bool:
    """Put D and L in the place of the last block; whether it is positive definite."""
    if pattern.dense == pattern.size:
        return True
    root, failed = dpotrf(_corner(pattern, diagonal, lower), lower=1)
    if failed:
        return False
    pivots = root.diagonal().copy()
    diagonal[pattern.dense :] = pivots**2
    lower[pattern.starts[pattern.dense] :] = (root / pivots).T[pattern.corner]
    return bool(np.isfinite(diagonal).all())
