"""A variational bound over all rows, given the sites of the active rows, with derivatives in the hyperparameters.

The bound is Σ_i E log p(y_i | f_i) − KL(q ‖ p) over the active latent values f_I, with the exact prior of all others
given these (Seeger and Jordan 2004, equation 15). With the sites exp(νᵀf − ½ fᵀΠf) held, q = N(m + K b, K − K M K). A
row with prior covariances C_k with the active ones has moments

    h_k = m_k + C_k b_k,   A_kl = δ_kl (κ_k − C_k B_k C_kᵀ) + C_k T_k (C_l T_l)ᵀ,   M = blockdiag(B) − T Tᵀ.

Derivatives follow from dM = −M dK M and db = −M (dK b + dm), in O(c d²) for a row (there appendix A, by another way).

The average of a log density is exact for one function. Several functions enter by their differences from the observed
one, x = μ + L s with s standard normal. Their average is over a fixed rule of nodes, and derivatives are those of the
rule, through the Cholesky factor L.
"""

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.likelihoods.likelihood import Likelihood, LogDensity, log_density_with_slope
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, BlockCurvature, CoupledCurvature
from pymc_gpep.rivals.computations import RoughDensity
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.problem import own_matrix

_MOST = 81  # nodes of a product rule
_FINEST, _COARSEST = 20, 3  # nodes in each of its dimensions
_SPHERE = 64  # about as many where that has no room
_SEED = 20_040_661
_ROUNDING = 1e-13  # of a covariance that is singular


class RowAverages(NamedTuple):
    """Averages over B rows."""

    value: float
    """Σ E log p(y_i | f_i)."""
    slope: Array
    """Derivatives in the means, (c, B)."""
    curvature: Array
    """Derivatives in the covariances, symmetric, (B, c, c)."""


def has_averages(likelihood: Likelihood) -> bool:
    """Whether there are any."""
    return any(likelihood.offers(kind) for kind in (AverageLogDensity, BlockCurvature, CoupledCurvature))


def average_log_density(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> RowAverages:
    """Average over N(mean_i, cov_i), from means (c, B) and covariances (B, c, c)."""
    if likelihood.offers(AverageLogDensity):
        found = np.empty((3, len(labels)))
        given = np.ascontiguousarray(mean[0]), np.ascontiguousarray(cov[:, 0, 0]), labels, likelihood.parameters
        likelihood.computation(AverageLogDensity).terms(*given, found)
        return RowAverages(float(found[0].sum()), found[1][None], found[2][:, None, None])
    return _by_nodes(_log_density(likelihood), labels, mean, cov)


def _log_density(likelihood: Likelihood) -> LogDensity:
    """Log density of several functions with its slope, to a few digits where a likelihood offers that."""
    if likelihood.offers(RoughDensity):
        return likelihood.computation(RoughDensity).log_density
    found = log_density_with_slope(likelihood)
    assert found is not None, likelihood
    return found


def _by_nodes(log_density: LogDensity, labels: NDArray[np.int64], mean: Array, cov: Array) -> RowAverages:
    c, rows = mean.shape
    d = c - 1
    away = _differences(c)[labels]  # (B, d, c)
    centre = np.einsum("bdc,cb->bd", away, mean)
    spread = away @ cov @ away.swapaxes(1, 2)
    every = range(d)
    spread[:, every, every] += _ROUNDING * (np.abs(spread).max(axis=(1, 2)) + 1e-300)[:, None]
    lower = np.linalg.cholesky(spread)
    points, weights = _rule(d)
    slope, of_lower = np.zeros((rows, d)), np.zeros((rows, d, d))
    f, gradient = np.zeros((c, rows)), np.empty((c, rows))
    others = np.argsort(away.sum(axis=1) > 0, axis=1, kind="stable")[:, :d].T  # all functions but the observed
    column = np.arange(rows)
    value = 0.0
    for point, weight in zip(points, weights, strict=True):
        f[others, column] = -(centre + lower @ point).T
        value += weight * log_density(f, labels, gradient)
        pull = -weight * gradient[others, column].T
        slope += pull
        of_lower += pull[:, :, None] * point
    # Through the Cholesky factor: ½ L⁻ᵀ (Φ + Φᵀ) L⁻¹, Φ the lower triangle of Lᵀ L̄ with half its diagonal.
    inner = np.tril(lower.swapaxes(1, 2) @ of_lower)
    inner[:, every, every] *= 0.5
    half = np.linalg.solve(lower.swapaxes(1, 2), inner + inner.swapaxes(1, 2))
    of_spread = 0.5 * np.linalg.solve(lower.swapaxes(1, 2), half.swapaxes(1, 2))
    return RowAverages(float(value), np.einsum("bdc,bd->cb", away, slope), away.swapaxes(1, 2) @ of_spread @ away)


@lru_cache(maxsize=8)
def _differences(c: int) -> Array:
    """Return the differences of the function of each label from all others, (c, c − 1, c)."""
    return np.stack([np.delete(np.eye(c)[y] - np.eye(c), y, axis=0) for y in range(c)])


@lru_cache(maxsize=8)
def _rule(d: int) -> tuple[Array, Array]:
    """Points (N, d) and weights (N,) for N(0, I)."""
    order = min(int(_MOST ** (1.0 / d) + 1e-9), _FINEST)
    if order < _COARSEST:
        # Opposite points of the sphere of radius √d, on axes that are turned: all cubic functions are averaged exactly.
        rng = np.random.default_rng(_SEED)
        axes = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(max(_SPHERE // (2 * d), 1))]
        points = np.sqrt(d) * np.concatenate([side * each for each in axes for side in (1.0, -1.0)])
        return points, np.full(len(points), 1.0 / len(points))
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    weights = weights / weights.sum()
    return np.array(list(product(nodes, repeat=d))), np.array([np.prod(each) for each in product(weights, repeat=d)])


class BoundSlopes(NamedTuple):
    """Derivatives of the bound in the prior moments of the active rows."""

    covariance: Array
    """(q, d, d), symmetric."""
    mean: Array
    """(c, d)."""


class _Rows(NamedTuple):
    """Moments of B rows under the posterior."""

    cross: list[Array]
    """C_k (d, B)."""
    smoothed: list[Array]
    """B_k C_k."""
    shared: Array | None
    """T_k C_k (c, d, B), of coupled sites."""
    moments: tuple[Array, Array]
    """Means (c, B) and covariances (B, c, c) of their latent values."""


class ActiveBound:
    """The bound, gathered from blocks of rows.

    Parameters
    ----------
    posterior : DensePosterior
        Posterior of the active latent values.
    """

    def __init__(self, posterior: DensePosterior) -> None:
        self._posterior = posterior
        self._b, self._t = posterior.smoothing()
        self.value: float = -posterior.divergence
        c, d = posterior.weights.shape
        self._pull = np.zeros((c, d))  # Σ C_kᵀ slope_k
        self._inner = np.zeros((c, d, d))  # what M gets by the covariances of rows
        self._common = np.zeros((d, d))

    def value_of(self, block: Block, labels: NDArray[np.int64], likelihood: Likelihood, weight: float) -> None:
        """Add rows to the value alone, arguments as of `add`."""
        self.value += weight * average_log_density(likelihood, labels, *self._seen(block).moments).value

    def _seen(self, block: Block) -> _Rows:
        b, t, weights = self._b, self._t, self._posterior.weights
        c, q = len(weights), len(block.cross)
        cross = [own_matrix(block.cross, k) for k in range(c)]
        smoothed = [own_matrix(b, k) @ cross[k] for k in range(c)] if len(b) > 1 or q > 1 else [b[0] @ cross[0]] * c
        mean = block.mean + np.stack([weights[k] @ cross[k] for k in range(c)])
        cov = np.zeros((mean.shape[1], c, c))
        shared = None if t is None else np.stack([t[k].T @ cross[k] for k in range(c)])
        if shared is not None:
            cov = np.einsum("kdj,ldj->jkl", shared, shared, optimize=True)
        for k in range(c):
            left = block.variance[min(k, q - 1)] - np.einsum("dj,dj->j", cross[k], smoothed[k])
            cov[:, k, k] += np.maximum(left, 0.0)
        return _Rows(cross, smoothed, shared, (mean, cov))

    def add(self, block: Block, labels: NDArray[np.int64], likelihood: Likelihood, weight: float) -> Block:
        """Add rows, each `weight` times; returns derivatives in their prior moments, in the shape of these.

        Parameters
        ----------
        block : Block
            Prior moments of B rows: covariances with the active ones (q, d, B), variances (q, B), means (c, B).
        labels : array (B,)
        likelihood : Likelihood
            With the parameters of these rows.
        weight : float
        """
        t, weights = self._t, self._posterior.weights
        c, q = len(weights), len(block.cross)
        cross, smoothed, shared, moments = self._seen(block)
        found = average_log_density(likelihood, labels, *moments)
        self.value += weight * found.value
        slope, curvature = weight * found.slope, weight * found.curvature
        of_cross, of_variance = np.zeros_like(block.cross), np.zeros_like(block.variance)
        turned = None if shared is None else np.einsum("jke,edj->kdj", curvature, shared, optimize=True)
        for k in range(c):
            own = curvature[:, k, k]
            bar = weights[k][:, None] * slope[k] - 2.0 * own * smoothed[k]
            self._pull[k] += cross[k] @ slope[k]
            self._inner[k] += (own * smoothed[k]) @ smoothed[k].T
            if shared is not None and turned is not None and t is not None:
                bar += 2.0 * t[k] @ turned[k]
                both = smoothed[k] @ turned[k].T @ t[k].T
                self._inner[k] -= both + both.T
                self._common += shared[k] @ turned[k].T
            of_cross[min(k, q - 1)] += bar
            of_variance[min(k, q - 1)] += own
        return Block(of_cross, of_variance, slope)

    def slopes(self) -> BoundSlopes:
        """Derivatives in the prior moments of the active rows, by way of the posterior of all rows that were added."""
        posterior, b, t = self._posterior, self._b, self._t
        k_prior, weights = posterior.prior.k, posterior.weights
        c, d = weights.shape
        # Through b: −(M r) bᵀ of what pulls at the means, less K b of the divergence.
        pulled = self._m_times(self._pull - np.stack([own_matrix(k_prior, k) @ weights[k] for k in range(c)]))
        common = self._common
        if t is not None:
            within = sum(t[k].T @ own_matrix(k_prior, k) @ t[k] for k in range(c))
            common = common - 0.5 * within
        found = np.zeros((len(k_prior), d, d))
        for k in range(c):
            own_b, own_k = own_matrix(b, k), own_matrix(k_prior, k)
            bar = self._inner[k] - pulled[k][:, None] * weights[k] - 0.5 * np.outer(weights[k], weights[k])
            smoothed = own_k @ own_b
            bar -= 0.5 * own_b @ smoothed
            if t is not None:
                both = t[k] @ (t[k].T @ smoothed)
                bar += 0.5 * (both + both.T) + t[k] @ common @ t[k].T
            found[min(k, len(k_prior) - 1)] += 0.5 * (bar + bar.T)
        return BoundSlopes(found, -pulled)

    def _m_times(self, r: Array) -> Array:
        """M r (c, d)."""
        product = np.stack([own_matrix(self._b, k) @ own for k, own in enumerate(r)])
        if self._t is None:
            return product
        total = sum(t.T @ own for t, own in zip(self._t, r, strict=True))
        return np.asarray(product - np.stack([t @ total for t in self._t]))
