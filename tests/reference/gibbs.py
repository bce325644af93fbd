"""Gibbs sampling of the augmented multinomial probit model at fixed covariance, exact up to Monte Carlo error.

The utilities are v_ij = f_ij + e_ij with e ~ N(0, 1), and y_i is the class of the largest utility (Girolami and Rogers
2006, appendix D). Given f, the utilities of a point are drawn jointly and exactly from the truncated cone:

* The variable u = v_y − f_y has a density proportional to φ(u) ∏_{j≠y} Φ(u + f_y − f_j). Its logarithm h has h″ ≤ −1.
  For any point t, h is therefore below the tangent parabola h(t) + h′(t)² / 2 − (u − t − h′(t))² / 2. A proposal from
  N(t + h′(t), 1) is accepted with the ratio of the two functions. With t near the mode, the acceptance rate is at least
  about 1/√c.
* Given u, each v_j is N(f_j, 1), truncated to values below f_y + u.

Given v, each class of f is Gaussian, with mean m + G (v − m), covariance K − G K and G = K (K + I)⁻¹. Averages use
these conditional moments in place of draws (Rao-Blackwellisation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtri_exp

__all__ = ["GibbsAverages", "draw_utilities", "gibbs"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GibbsAverages:
    """Posterior averages of the latent values, with Monte Carlo standard errors from batch means.

    Attributes
    ----------
    mean, mean_error : ndarray, shape (c, n)
        Posterior mean and its standard error.
    variance, variance_error : ndarray, shape (c, n)
        Posterior variance and its standard error.
    covariance : ndarray, shape (n, c, c)
        Posterior covariance between the classes at each point.
    sweeps : int
        Sweeps kept, all chains together.
    """

    mean: Array
    mean_error: Array
    variance: Array
    variance_error: Array
    covariance: Array
    sweeps: int


def _draw_u(rng: np.random.Generator, d: Array) -> Array:
    """Draws from phi(u) prod_j Phi(u + d_j) / Z by tangent-parabola rejection; d has shape (..., c - 1)."""
    shape = d.shape[:-1]
    d = d.reshape(-1, d.shape[-1])

    def log_density(u: Array, d: Array) -> tuple[Array, Array, Array]:
        x = u[:, None] + d
        log_phi = log_ndtr(x)
        hazard = np.exp(-0.5 * x * x - 0.5 * np.log(2.0 * np.pi) - log_phi)
        slope = -u + hazard.sum(axis=1)
        return -0.5 * u * u + log_phi.sum(axis=1), slope, -1.0 - (hazard * (x + hazard)).sum(axis=1)

    t = np.maximum(0.0, -0.5 * d.min(axis=1))
    for _ in range(3):
        _, slope, curvature = log_density(t, d)
        t = t - slope / curvature
    height, slope, _ = log_density(t, d)
    centre, ceiling = t + slope, height + 0.5 * slope**2

    u = np.empty(len(d))
    left = np.arange(len(d))
    while left.size:
        proposal = centre[left] + rng.standard_normal(left.size)
        x = proposal[:, None] + d[left]
        log_target = -0.5 * proposal**2 + log_ndtr(x).sum(axis=1)
        log_bound = ceiling[left] - 0.5 * (proposal - centre[left]) ** 2
        accept = np.log1p(-rng.random(left.size)) <= log_target - log_bound
        u[left[accept]] = proposal[accept]
        left = left[~accept]
    return u.reshape(shape)


def draw_utilities(rng: np.random.Generator, f: Array, y: NDArray[np.int64]) -> Array:
    """Utilities given latent values and labels: independent draws from the truncated cone of every point.

    Parameters
    ----------
    rng : numpy.random.Generator
    f : ndarray, shape (s, c, n)
        Latent values, for s chains.
    y : ndarray of int, shape (n,)
        Labels.

    Returns
    -------
    ndarray, shape (s, c, n)
    """
    c, n = f.shape[1:]
    points = np.arange(n)
    others = np.stack([np.delete(np.arange(c), label) for label in y], axis=1)
    f_observed = f[:, y, points]
    f_others = f[:, others, points]
    u = _draw_u(rng, np.moveaxis(f_observed[:, None] - f_others, 1, -1))
    top = f_observed + u
    # truncated above at `top`, by inversion of log probabilities, so that far tails stay exact
    log_uniform = np.log1p(-rng.random(f_others.shape))
    v = np.empty_like(f)
    v[:, y, points] = top
    v[:, others, points] = f_others + ndtri_exp(log_uniform + log_ndtr(top[:, None] - f_others))
    return v


def gibbs(
    K: ArrayLike,
    y: ArrayLike,
    m: ArrayLike | None = None,
    *,
    c: int | None = None,
    sweeps: int = 2500,
    burn: int = 200,
    chains: int = 8,
    batches: int = 10,
    seed: int = 0,
) -> GibbsAverages:
    """Run several chains in parallel arrays and average.

    Parameters
    ----------
    K : array_like, shape (n, n) or (c, n, n)
        Prior covariance, shared or per class.
    y : array_like of int, shape (n,)
        Labels 0..c-1.
    m : array_like, shape (c, n), optional
        Prior mean, zero by default.
    c : int, optional
        Number of classes. By default it follows from `m`, `K` or the largest label.
    sweeps, burn : int
        Numbers of kept and of discarded sweeps in each chain; `sweeps` is a multiple of `batches`.
    chains : int
        Chains, all started at independent prior draws.
    batches : int
        Batches per chain, for the standard errors.
    seed : int
        Seed of the generator.

    Returns
    -------
    GibbsAverages

    Raises
    ------
    ValueError
        If `sweeps` is not a multiple of `batches`.
    """
    if sweeps % batches:
        raise ValueError(f"sweeps must be a multiple of batches, got {sweeps} and {batches}")
    K, y = np.asarray(K, dtype=np.float64), np.asarray(y, dtype=np.int64)
    n = y.size
    if c is None:
        c = np.shape(m)[0] if m is not None else K.shape[0] if K.ndim == 3 else int(y.max()) + 1
    mean = np.zeros((c, n)) if m is None else np.asarray(m, dtype=np.float64)
    rng = np.random.default_rng(seed)

    values, vectors = np.linalg.eigh(np.broadcast_to(K, (c, n, n)))
    values = np.maximum(values, 0.0)
    gain = np.einsum("kia,ka,kja->kij", vectors, values / (values + 1.0), vectors)
    conditional_root = vectors * np.sqrt(values / (values + 1.0))[:, None, :]
    prior_root = vectors * np.sqrt(values)[:, None, :]

    def correlate(root: Array, noise: Array) -> Array:
        """root_k @ noise_k for arrays (c, n, n) and (s, c, n)."""
        return np.matmul(noise.transpose(1, 0, 2), root.transpose(0, 2, 1)).transpose(1, 0, 2)

    f = mean + correlate(prior_root, rng.standard_normal((chains, c, n)))
    length = sweeps // batches
    first = np.zeros((batches, chains, c, n))
    second = np.zeros((batches, chains, n, c, c))
    for sweep in range(-burn, sweeps):
        v = draw_utilities(rng, f, y)
        expected = mean + correlate(gain, v - mean)
        f = expected + correlate(conditional_root, rng.standard_normal(f.shape))
        if sweep >= 0:
            batch = sweep // length
            centred = np.swapaxes(expected - mean, 1, 2)
            first[batch] += expected - mean
            second[batch] += centred[..., :, None] * centred[..., None, :]

    first, second = first.reshape(-1, c, n) / length, second.reshape(-1, n, c, c) / length
    centre = first.mean(axis=0)
    conditional_variance = (conditional_root**2).sum(axis=-1)
    covariance = second.mean(axis=0) - centre.T[:, :, None] * centre.T[:, None, :]
    covariance[:, np.arange(c), np.arange(c)] += conditional_variance.T
    # Squared deviations of each batch from the overall mean: their average over batches is the variance of E[f | v].
    squares = np.moveaxis(second[:, :, np.arange(c), np.arange(c)], 1, 2)
    spread = squares - 2.0 * first * centre + centre**2
    scale = np.sqrt(first.shape[0])
    return GibbsAverages(
        mean=mean + centre,
        mean_error=first.std(axis=0, ddof=1) / scale,
        variance=spread.mean(axis=0) + conditional_variance,
        variance_error=spread.std(axis=0, ddof=1) / scale,
        covariance=covariance,
        sweeps=sweeps * chains,
    )
