"""Features of rows with respect to inducing values, computed from prior moments in blocks.

A function has M inducing values u = L v at its inducing inputs, with prior covariance K = L Lᵀ and v ~ N(0, I). At an
input x the function is f = m + wᵀv + e with the features w = L⁻¹ k(x). The residual e ~ N(0, s), s = κ − wᵀw, is
assumed independent between points (the FITC prior: Snelson and Ghahramani 2006). No matrix has more than one axis over
points, and rows are processed in blocks.

Effects added to a process are J z with p standard normals z. Rows of J are features without a residual, below the
features of the process. The vector v then has M + p entries.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from pymc_gpep.array_types import Array

_ENTRIES = 2_000_000  # Largest number of feature entries in a block: 16 MB.
_KEPT = 32_000_000  # Largest number of feature entries that stay in memory between sweeps: 256 MB.
_ESCALATION = 100.0
_ATTEMPTS = 3
_NO_EFFECTS: Array = np.empty((1, 0, 1))


class Block(NamedTuple):
    """Prior moments of B rows. q is 1 if all functions share covariance and inducing inputs, else c."""

    cross: Array
    """Prior covariance between inducing values and rows, (q, M, B)."""
    variance: Array
    """Prior variance of the rows, κ (q, B)."""
    mean: Array
    """Prior mean of the rows, (c, B)."""
    effects: Array = _NO_EFFECTS
    """Coefficients of the p standard normals of effects added to the processes, (q, p, B)."""


class InducedPrior(Protocol):
    """Prior at fixed hyperparameters and inducing inputs."""

    n_points: int
    n_functions: int
    n_effects: int
    """Number of standard normals of effects, p."""

    def inducing(self) -> Array:
        """Prior covariance of the inducing values, (q, M, M)."""

    def block(self, rows: slice) -> Block:
        """Return the prior moments of these rows."""


class Features(NamedTuple):
    """Features of the rows of a block, their residual variances and prior means."""

    w: Array
    """Features w of the rows, (q, M + p, B)."""
    rest: Array
    """Residual variances s of the rows, (q, B)."""
    mean: Array
    """Prior means m of the rows, (c, B)."""


class InducingWhitening(NamedTuple):
    """Map from inducing values to whitened values, and from rows to features."""

    factor: Array
    """Cholesky factors L of the covariances of the inducing values, (q, M, M)."""
    jitter: float
    """Jitter on the diagonal of the covariance of the inducing values, relative to the diagonal's mean."""
    n_effects: int = 0
    """Number of standard normals of effects, p."""

    @property
    def n_inducing(self) -> int:
        """Number of inducing values of a function, M."""
        return self.factor.shape[1]

    @property
    def size(self) -> int:
        """Number of inducing values and effects of a function, M + p."""
        return self.n_inducing + self.n_effects

    def owner(self, c: int) -> list[int]:
        """Return for each of c functions the index of its set of features."""
        return list(range(c)) if len(self.factor) > 1 else [0] * c

    def features(self, block: Block) -> Features:
        """Return the features of a block of fitted or new rows."""
        w = self._solve(block.cross)
        rest = np.maximum(block.variance - (w * w).sum(axis=1), 0.0)
        if self.n_effects:
            # Keep the features of a row contiguous in memory.
            w = np.concatenate([w.swapaxes(1, 2), block.effects.swapaxes(1, 2)], axis=2).swapaxes(1, 2)
        return Features(w, rest, block.mean)

    def pull_back(self, features: Features, w_bar: Array, rest_bar: Array, mean_bar: Array) -> tuple[Block, Array]:
        """Return derivatives in the moments of a block and W̄ Wᵀ (q, M, M), given derivatives in w, s and m.

        W̄ is the derivative in w. The argument of `pull_factor` is the sum of W̄ Wᵀ over blocks.
        """
        rest_bar = np.where(features.rest > 0.0, rest_bar, 0.0)
        w, of_effects = features.w[:, : self.n_inducing], w_bar[:, self.n_inducing :]
        w_bar = w_bar[:, : self.n_inducing] - 2.0 * w * rest_bar[:, None]
        bars = Block(self._solve(w_bar, transposed=True), rest_bar, mean_bar, of_effects)
        return bars, w_bar @ w.swapaxes(1, 2)

    def pull_factor(self, product: Array) -> Array:
        """Return derivatives in the covariance of the inducing values, with jitter, from Σ W̄ Wᵀ (q, M, M).

        With L̄ = −L⁻ᵀ W̄ Wᵀ the derivative is the symmetric part of −L⁻ᵀ Φ(W̄ Wᵀ) L⁻¹. Here Φ takes the lower triangle
        and halves the diagonal (Murray 2016).
        """
        lower = np.tril(product)
        diagonal = np.arange(self.n_inducing)
        lower[:, diagonal, diagonal] *= 0.5
        half = self._solve(lower + lower.swapaxes(1, 2), transposed=True)
        found = -0.5 * self._solve(half.swapaxes(1, 2), transposed=True)
        found[:, diagonal, diagonal] += self.jitter * found.trace(axis1=1, axis2=2)[:, None] / self.n_inducing
        return found

    def _solve(self, right: Array, transposed: bool = False) -> Array:
        """Return L⁻¹ right, or L⁻ᵀ right, (q, M, ·), with the entries of a row contiguous in memory."""
        found = np.empty((len(right), right.shape[2], right.shape[1]))
        for own, factor, of in zip(found, self.factor, right, strict=True):
            own[:] = solve_triangular(factor, of, lower=True, trans=int(transposed), check_finite=False).T
        return found.swapaxes(1, 2)


def whitening(k: Array, jitter: float, n_effects: int = 0) -> InducingWhitening | None:
    """Factorise the covariance (q, M, M) of inducing values. Return None if it has no Cholesky factor.

    The `jitter` is relative to the mean of the diagonal. If the factorisation fails, it is repeated with more jitter.
    """
    if not np.isfinite(k).all():
        return None
    mean = k.trace(axis1=1, axis2=2) / k.shape[-1]
    identity = np.eye(k.shape[-1])
    for _ in range(_ATTEMPTS):
        try:
            factor = [cholesky(one + jitter * own * identity, lower=True) for one, own in zip(k, mean, strict=True)]
        except LinAlgError:
            jitter *= _ESCALATION
        else:
            return InducingWhitening(np.stack(factor), jitter, n_effects)
    return None


class RowFeatures:
    """Features of all rows of a prior, in blocks. They stay in memory if they are small enough."""

    def __init__(self, prior: InducedPrior, whitening: InducingWhitening) -> None:
        self.whitening = whitening
        self.owner = whitening.owner(prior.n_functions)
        self._prior = prior
        self._keeps = len(whitening.factor) * whitening.size * prior.n_points <= _KEPT
        self._kept: dict[int, Features] = {}

    def blocks(self) -> Iterator[tuple[slice, Features]]:
        """Yield slices of rows and their features."""
        for rows in row_blocks(self._prior.n_points, len(self.whitening.factor) * self.whitening.size):
            yield rows, self._of(rows)

    def _of(self, rows: slice) -> Features:
        if rows.start in self._kept:
            return self._kept[rows.start]
        features = self.whitening.features(self._prior.block(rows))
        if self._keeps:
            self._kept[rows.start] = features
        return features


def row_blocks(n: int, entries: int) -> Iterator[slice]:
    """Yield slices of n rows with `entries` entries each. A slice has at most `_ENTRIES` entries, or one row."""
    size = max(1, _ENTRIES // max(entries, 1))
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
