"""Posterior of whitened inducing values, for independent and for coupled functions.

The whitened inducing values are v (cM,). A point has the c projections x_k = w_kᵀv_k, and a site with the precision
Π = diag(π) − ππᵀ / 1ᵀπ on them. Time for n points is O(n c² M²), for products of matrices.

If all functions share their features w, a point needs only the forms wᵀΣ_kl w for pairs of functions. They depend on
the symmetric parts of the blocks of Σ, and S has symmetric blocks. Therefore BLAS computes only half of the products.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.blas import dsyrk, dtrmm
from scipy.linalg.lapack import dlauum, dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import mirror
from pymc_gpep.kernels.methods.step_loops import scaled_rows, squared_rows


def lower_product(lower: Array, w: Array, transposed: bool = False) -> Array:
    """Return R w or Rᵀ w for a lower triangular R (M, M) in C order and w (M, B). Fortran order of w is fastest."""
    product: Array = dtrmm(1.0, lower.T, w, trans_a=not transposed)
    return product


def squared_columns(w: Array) -> Array:
    """Return the squared norms (B,) of the columns of w (M, B). Fortran order is fastest."""
    found = np.empty(w.shape[1])
    squared_rows(np.ascontiguousarray(w.T), found)
    return found


def weighted_gram(w: Array, weights: Array, out: Array | None = None) -> Array:
    """Return Σ_b weights_b w_b w_bᵀ, (M, M), for w (M, B). Fortran order is fastest."""
    rows = np.ascontiguousarray(w.T)
    half = np.zeros((len(w), len(w)))
    below = weights < 0.0
    for sign, chosen in ((1.0, ~below), (-1.0, below)) if below.any() else ((1.0, slice(None)),):
        own = rows[chosen]
        scaled = np.empty_like(own)
        scaled_rows(own, weights[chosen, None], 0, sign, scaled)
        dsyrk(sign, scaled.T, beta=1.0, c=half.T, lower=0, overwrite_c=1)  # Lower triangle in C order.
    mirror(half)
    if out is None:
        return half
    out[:] = half
    return out


class Whitened(Protocol):
    """Gaussian q(v) = N(μ, Σ) of the whitened inducing values of all functions."""

    @property
    def mean(self) -> Array:
        """Posterior means μ of the whitened inducing values v, (c, M)."""

    @property
    def root(self) -> Array:
        """Lower triangular R with Σ = Rᵀ R: (c, M, M) for independent functions, else (cM, cM)."""

    @property
    def log_normaliser(self) -> float:
        """Log normaliser log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv."""

    def moments(self, w: list[Array]) -> tuple[Array, Array]:
        """Return means (c, B) and covariances (B, c, c) of w_kᵀv_k, for features w_k (M, B) of each function."""

    def joint_covariance(self, w: list[Array]) -> Array:
        """Return the joint covariance (c, B, c, B) of w_kᵀv_k at all points, for features w_k (M, B)."""

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Return draws of v, (count, c, M)."""


class WhitenedPosterior(NamedTuple):
    """Gaussians q(v_k) = N(μ_k, Σ_k) of independent functions, with Σ = (I + S)⁻¹ = Rᵀ R and μ = Σ h."""

    mean: Array
    """Posterior means μ of the whitened inducing values v, (c, M)."""
    root: Array
    """Lower triangular roots R_k with Σ_k = R_kᵀ R_k, (c, M, M)."""
    log_normaliser: float
    """log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv, summed over functions."""

    def half(self, k: int, w: Array) -> Array:
        """Return R_k w, (M, B). The squared norms of its columns are the variances of wᵀv_k."""
        return lower_product(self.root[k], w)

    def marginals(self, k: int, w: Array) -> tuple[Array, Array]:
        """Return mean and variance (B,) of wᵀv_k, for features w (M, B)."""
        return self.mean[k] @ w, squared_columns(self.half(k, w))

    def shared_marginals(self, w: Array) -> tuple[Array, Array]:
        """Return means and variances (c, B) of all functions, for shared features w (M, B)."""
        variance = np.array([squared_columns(lower_product(root, w)) for root in self.root])
        return self.mean @ w, variance

    def moments(self, w: list[Array]) -> tuple[Array, Array]:
        """Return means (c, B) and diagonal covariances (B, c, c); see `Whitened.moments`."""
        pairs = [self.marginals(k, own) for k, own in enumerate(w)]
        mean, variance = (np.array(each) for each in zip(*pairs, strict=True))
        return mean, variance.T[:, :, None] * np.eye(len(w))

    def joint_covariance(self, w: list[Array]) -> Array:
        c, columns = len(w), w[0].shape[1]
        cov = np.zeros((c, columns, c, columns))
        for k, own in enumerate(w):
            half = lower_product(self.root[k], own)
            cov[k, :, k] = half.T @ half
        return cov

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        noise = rng.standard_normal((count, *self.mean.shape))
        drawn: Array = self.mean + np.einsum("kij,ski->skj", self.root, noise)
        return drawn

    def covariances(self, k: int, w: Array) -> Array:
        """Return the posterior covariances Σ_k w of v_k with the projections wᵀv_k, (M, B)."""
        return lower_product(self.root[k], self.half(k, w), transposed=True)


def whitened_posterior(precision: Array, location: Array) -> WhitenedPosterior:
    """Return the posterior for S (c, M, M) and h (c, M).

    Raises
    ------
    LinAlgError
        If I + S has no Cholesky factor, or is not finite.
    """
    if not np.isfinite(precision).all():
        raise LinAlgError("S is not finite")
    mean, root = np.empty_like(location), np.empty_like(precision)
    total = 0.0
    identity = np.eye(precision.shape[-1])
    for k, (s, h) in enumerate(zip(precision, location, strict=True)):
        factor = cholesky(identity + s, lower=True)
        mean[k] = cho_solve((factor, True), h)
        root[k], _ = dtrtri(factor, lower=1)
        total += 0.5 * float(h @ mean[k]) - float(np.log(factor.diagonal()).sum())
    return WhitenedPosterior(mean, root, total)


_ENTRIES = 4_000_000  # Largest number of entries of R times features: 32 MB.


@dataclass(frozen=True, eq=False)
class CoupledWhitened:
    """Gaussian q(v) = N(μ, Σ) of coupled functions, with Σ = (I + S)⁻¹ = Rᵀ R and μ = Σ h."""

    mean: Array
    """Posterior means μ of the whitened inducing values v, (c, M)."""
    root: Array
    """Lower triangular root R with Σ = Rᵀ R, (cM, cM)."""
    log_normaliser: float
    """Log normaliser log ∫ N(v | 0, I) exp(hᵀv − ½ vᵀS v) dv."""

    def moments(self, w: list[Array]) -> tuple[Array, Array]:
        """Return means (c, B) and covariances (B, c, c) of the projections; see `Whitened.moments`."""
        c, columns = len(w), w[0].shape[1]
        cov = np.empty((columns, c, c))
        for some, halves in self._halves(w):
            for k, half in enumerate(halves):
                for other in range(k + 1):
                    product = np.einsum("ij,ij->j", half, halves[other][-len(half) :])
                    cov[some, k, other] = cov[some, other, k] = product
        return np.stack([mean @ own for mean, own in zip(self.mean, w, strict=True)]), cov

    def shared_moments(self, w: Array) -> tuple[Array, Array]:
        """Return `moments` for features w (M, B) that all functions share."""
        c, columns = len(self.mean), w.shape[1]
        cov = np.empty((columns, c, c))
        for (k, other), form in self._pair_forms.items():
            cov[:, k, other] = cov[:, other, k] = np.einsum("ij,ij->j", w, lower_product(form, w))
        return self.mean @ w, cov

    def joint_covariance(self, w: list[Array]) -> Array:
        halves = [self._rows(k) @ own for k, own in enumerate(w)]
        c, columns = len(w), w[0].shape[1]
        cov = np.empty((c, columns, c, columns))
        for k, half in enumerate(halves):
            for other in range(k + 1):
                product = half.T @ halves[other][-len(half) :]
                cov[k, :, other], cov[other, :, k] = product, product.T
        return cov

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        noise = rng.standard_normal((count, self.mean.size))
        drawn: Array = self.mean + (noise @ self.root).reshape(count, *self.mean.shape)
        return drawn

    def smoothed(self, w: list[Array], pi: Array) -> Array:
        """Return the rows of Σ W Π for the features of each function, (c, M, B), for π (c, B)."""
        c, size = self.mean.shape
        found = np.empty((c, size, pi.shape[1]))
        for some, halves in self._halves(w):
            weights = pi[:, some]
            total = np.zeros_like(halves[0])
            for half, own in zip(halves, weights, strict=True):
                half *= own
                total[-len(half) :] += half
            total /= weights.sum(axis=0)
            for k, (half, own) in enumerate(zip(halves, weights, strict=True)):
                found[k, :, some] = self._rows(k).T @ (half - total[k * size :] * own)
        return found

    def shared_smoothed(self, w: Array, pi: Array) -> Array:
        """Return `smoothed` for features w (M, B) that all functions share, summed over functions, (M, B)."""
        found = np.zeros_like(w)
        for (k, other), form in self._pair_forms.items():
            # A pair of different functions counts twice. For such a pair, form + formᵀ is twice the symmetric part.
            found += (form + form.T) @ (w * (_pair_precision(pi, k, other) * (0.5 if k == other else 1.0)))
        return found

    @cached_property
    def _pair_forms(self) -> dict[tuple[int, int], Array]:
        """Lower triangular T (M, M) with wᵀT w = wᵀΣ_kl w for all w, by pair k ≥ l of functions."""
        (c, size), (whole, _) = self.mean.shape, dlauum(self.root, lower=1)
        blocks = whole.reshape(c, size, c, size)
        diagonal = np.arange(size)
        forms = {}
        for k in range(c):
            for other in range(k + 1):
                block = blocks[k, :, other]
                # LAPACK does not write the upper triangle of a diagonal block.
                form = np.tril(block + (block if k == other else block.T))
                form[diagonal, diagonal] = block.diagonal()
                forms[k, other] = form
        return forms

    def _halves(self, w: list[Array]) -> Iterator[tuple[slice, list[Array]]]:
        """Yield, for blocks of points, the nonzero rows of R W for each function."""
        c, size = self.mean.shape
        step = max(1, _ENTRIES // (c * c * size))
        for start in range(0, w[0].shape[1], step):
            some = slice(start, start + step)
            yield some, [self._rows(k) @ np.ascontiguousarray(w[k][:, some]) for k in range(c)]

    def _rows(self, k: int) -> Array:
        """Return the columns of R for v_k without their zero rows, ((c − k)M, M)."""
        size = self.mean.shape[1]
        return self.root[k * size :, k * size : (k + 1) * size]


def coupled_precision(w: list[Array], pi: Array) -> Array:
    """Return S (cM, cM) of the sites of B points, from features (M, B) of each function and π (c, B)."""
    size = len(w[0])
    shared = np.concatenate([own * weights for own, weights in zip(w, pi / np.sqrt(pi.sum(axis=0)), strict=True)])
    precision: Array = shared @ shared.T
    np.negative(precision, out=precision)
    for k, own in enumerate(w):
        block = slice(k * size, (k + 1) * size)
        precision[block, block] += weighted_gram(own, pi[k])
    return precision


def shared_precision(w: Array, pi: Array) -> Array:
    """Return `coupled_precision`, valid in its lower triangle, for features w (M, B) that all functions share."""
    c, size = len(pi), len(w)
    precision = np.zeros((c, size, c, size))
    for k in range(c):
        precision[k, :, k] = weighted_gram(w, _pair_precision(pi, k, k))
        for other in range(k):
            np.negative(weighted_gram(w, -_pair_precision(pi, k, other)), out=precision[k, :, other])
    return precision.reshape(c * size, c * size)


def _pair_precision(pi: Array, k: int, other: int) -> Array:
    """Return Π_kl of B points, from π (c, B)."""
    shared = pi[k] * pi[other] / pi.sum(axis=0)
    return pi[k] - shared if k == other else -shared


def coupled_whitened(precision: Array, location: Array) -> CoupledWhitened:
    """Return the posterior for S (cM, cM), valid in its lower triangle, and h (c, M).

    Raises
    ------
    LinAlgError
        If I + S has no Cholesky factor, or is not finite.
    """
    if not np.isfinite(precision).all():
        raise LinAlgError("S is not finite")
    every = np.arange(len(precision))
    total = precision.copy()
    total[every, every] += 1.0
    factor = cholesky(total, lower=True, overwrite_a=True)
    root, _ = dtrtri(factor, lower=1)
    half = root @ location.ravel()
    log_normaliser = 0.5 * float(half @ half) - float(np.log(factor.diagonal()).sum())
    return CoupledWhitened((root.T @ half).reshape(location.shape), root, log_normaliser)
