"""Importance weights: estimates from their mean, Pareto smoothing of their tail, and draws of equal weight.

The shape of the tail is interpreted as by Vehtari, Simpson, Gelman, Yao and Gabry (2024).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array

USABLE = 0.7
"""Pareto k below which smoothed weights are reliable."""

ENOUGH_ALIKE = 0.9
"""Effective share of the draws above which weights count as nearly equal."""

ALL_ALIKE = 0.99
"""Effective share of the draws above which the Pareto k is ignored."""

_NEGLIGIBLE = 1e-4  # Largest total weight of the dropped draws, relative to the weight of all draws.
_TAIL = 5  # Smallest number of draws in a tail that can be fitted.
_CONSTANT = 1e-8  # Spread of log weights that counts as rounding.
_GRID = 30  # Smallest number of tail shapes in the average.
_BITS = 62  # Bits of a position on the space-filling curve.
_ENTRIES = 2_000_000  # Largest size of a temporary array.


class Estimate(NamedTuple):
    """Estimate and its standard error."""

    value: float
    error: float


def importance_estimate(log_weights: Array) -> tuple[Estimate, float]:
    """Return the log mean weight with its standard error (delta method), and the effective number of draws."""
    top = log_weights.max()
    if not np.isfinite(top):
        return Estimate(-np.inf, np.nan), 0.0
    weights = np.exp(log_weights - top)
    average = weights.mean()
    error = weights.std(ddof=1) / (average * np.sqrt(len(weights)))
    return Estimate(float(top + np.log(average)), float(error)), float(weights.sum() ** 2 / (weights**2).sum())


class Weighing(NamedTuple):
    """Summary of the weights of draws: the estimate by their mean, and its reliability."""

    estimate: Estimate
    """Log of the mean of the weights."""
    effective_size: float
    """Effective number of draws, (Σw)² / Σw²."""
    pareto_k: float
    """Shape of the tail of the weights; −inf for equal weights."""
    draws: int

    @classmethod
    def of(cls, log_weights: Array, pareto_k: float) -> "Weighing":
        """Summarise smoothed log weights (draws,)."""
        return cls(*importance_estimate(log_weights), pareto_k, len(log_weights))

    @property
    def usable(self) -> bool:
        """Whether weighted draws represent the posterior, see `stand_for_posterior`."""
        return stand_for_posterior(self.pareto_k, self.effective_size, self.draws)

    def about(self, estimated: str) -> str:
        """Return a text on the reliability; `estimated` is the name of the estimate."""
        return (
            f"{self.draws} draws have the effective size {self.effective_size:.0f} (Pareto k {self.pareto_k:.2f}), "
            f"and the standard error of {estimated} is {self.estimate.error:.3f}"
        )


def excess_of_tail(log_weights: Array) -> float:
    """Return the sum of excesses of weights over the threshold of the tail, relative to the sum of all weights.

    If weights are bounded and this share is small, the Pareto k is irrelevant: it does not depend on the scale of the
    tail.
    """
    weights = np.exp(log_weights - log_weights.max())
    tail = np.sort(weights)[-_in_tail(len(weights)) - 1 :]
    return float((tail - tail[0]).sum() / weights.sum())


def _in_tail(count: int) -> int:
    """Return the number of weights in the tail, as in Vehtari et al. (2024)."""
    return int(min(0.2 * count, 3.0 * np.sqrt(count)))


def smooth(log_weights: Array) -> tuple[Array, float]:
    """Return Pareto-smoothed log weights (draws,) with the same normaliser, and the Pareto k."""
    smoothed, pareto_k = smooth_each(log_weights[:, None])
    return smoothed[:, 0], float(pareto_k[0])


def smooth_each(log_weights: Array) -> tuple[Array, Array]:
    """Return smoothed log weights (draws, m) of m sets of draws, and their Pareto k (m,).

    A generalised Pareto distribution is fitted to the tail of each set by the estimate of Zhang and Stephens (2009).
    """
    count, m = log_weights.shape
    tail = _in_tail(count)
    if tail < _TAIL:
        return log_weights, np.full(m, np.inf)
    smoothed, pareto_k = log_weights.copy(), np.empty(m)
    step = max(1, _ENTRIES // (tail * (_GRID + int(np.sqrt(tail)))))
    with np.errstate(all="ignore"):  # The Pareto fit needs tail draws; k is infinite without them.
        for some in (slice(start, start + step) for start in range(0, m, step)):
            smoothed[:, some], pareto_k[some] = _smoothed_tails(log_weights[:, some], tail)
    return smoothed, pareto_k


def _smoothed_tails(log_weights: Array, tail: int) -> tuple[Array, Array]:
    """Return the results of `smooth_each` for a batch of sets."""
    top = log_weights.max(axis=0)
    order = np.argsort(log_weights, axis=0)[-tail - 1 :]
    largest = np.take_along_axis(log_weights, order, axis=0) - top
    cutoff, weights = np.exp(largest[0]), np.exp(largest[1:])
    k, sigma = _pareto_fits(weights - cutoff)
    share = ((np.arange(tail) + 0.5) / tail)[:, None]
    quantiles = cutoff + sigma * np.expm1(-k * np.log1p(-share)) / k
    found = np.isfinite(k) & (sigma > 0.0)
    there = np.where(found, np.minimum(np.log(quantiles), 0.0), largest[1:])
    constant = np.ptp(largest[1:], axis=0) < _CONSTANT
    smoothed = log_weights.copy()
    np.put_along_axis(smoothed, order[1:], np.where(constant, largest[1:], there) + top, axis=0)
    return smoothed, np.where(constant, -np.inf, np.where(found, k, np.inf))


def _pareto_fits(x: Array) -> tuple[Array, Array]:
    """Fit generalised Pareto distributions to samples (n, m) in ascending order. Return shapes and scales (m,).

    The shape is shrunk towards ½ with the weight of ten observations.
    """
    n = len(x)
    size = _GRID + int(np.sqrt(n))
    quartile = x[int(n / 4 + 0.5) - 1]
    grid = 1.0 - np.sqrt(size / (np.arange(1, size + 1) - 0.5))
    b = grid[:, None] / (3.0 * quartile) + 1.0 / x[-1]
    k = np.log1p(-b[:, None] * x).mean(axis=1)
    log_profile = n * (np.log(-b / k) - k - 1.0)
    weight = np.exp(log_profile - log_profile.max(axis=0))
    weight /= weight.sum(axis=0)
    weight[weight < 10.0 * np.finfo(float).eps] = 0.0
    best = (b * weight).sum(axis=0) / weight.sum(axis=0)
    shape = np.log1p(-best * x).mean(axis=0)
    apart = quartile > x[0]  # If the smallest quarter of excesses is equal, no Pareto tail fits.
    shrunk = (n * shape + 5.0) / (n + 10.0)
    return np.where(apart, shrunk, np.nan), np.where(apart, -shape / best, np.nan)


def stand_for_posterior(pareto_k: float, effective_size: float, draws: int, limit: float = USABLE) -> bool:
    """Return whether weighted draws represent the posterior: k is below the limit, or weights are nearly equal.

    The Pareto k does not depend on the scale of the tail. If the effective size is above 0.9 of the number of draws, a
    tail with a finite mean (k below 1) has little weight. Weights of a proper density have a finite mean, so k of 1 or
    more is an estimate from too few tail draws. It is ignored if the effective size is above 0.99.
    """
    worth = effective_size / draws
    return pareto_k < limit or worth > ALL_ALIKE or (pareto_k < 1.0 and worth > ENOUGH_ALIKE)


def worth_keeping(weights: Array) -> NDArray[np.bool_]:
    """Return a mask of draws: all but the lightest draws, whose weights sum to at most 1e-4."""
    light_first = np.argsort(weights, kind="stable")
    kept = np.ones(len(weights), dtype=bool)
    kept[light_first[np.cumsum(weights[light_first]) < _NEGLIGIBLE * weights.sum()]] = False
    return kept


def along_curve(points: Array) -> NDArray[np.int64]:
    """Return the order (m,) of points (m, d) along a space-filling curve, by the interleaved bits of their ranks."""
    m, d = points.shape
    bits = max(1, min(_BITS // d, int(m).bit_length()))
    cells = (points.argsort(axis=0).argsort(axis=0) << bits) // m
    key = np.zeros(m, dtype=np.int64)
    for bit in range(bits):
        for axis in range(d):
            key |= ((cells[:, axis] >> bit) & 1) << (bit * d + axis)
    return np.argsort(key, kind="stable")


def resampled(log_weights: Array, points: Array, random_seed: int, count: int) -> NDArray[np.int64]:
    """Resample points (m, d) by log weights (m,), systematically along a curve. Return shuffled indices (count,)."""
    rng = np.random.default_rng(random_seed)
    order = along_curve(points)
    share = np.cumsum(np.exp(log_weights[order] - log_weights.max()))
    places = np.searchsorted(share / share[-1], (np.arange(count) + rng.random()) / count)
    return order[rng.permutation(np.minimum(places, len(order) - 1))]


def with_marginals(draws: Array, x: Array, weights: Array) -> Array:
    """Return draws (m, d) with the marginals of points (n, d) with weights (n,), and with unchanged ranks."""
    levels = (np.arange(len(draws)) + 0.5) / len(draws)
    moved = np.empty_like(draws)
    for axis, values in enumerate(x.T):
        order = np.argsort(values, kind="stable")
        share = np.cumsum(weights[order]) - 0.5 * weights[order]
        moved[np.argsort(draws[:, axis], kind="stable"), axis] = np.interp(levels, share / weights.sum(), values[order])
    return moved


def weighted_draws(log_weights: Array, points: Array, random_seed: int, count: int) -> Array:
    """Return draws (count, d) of equal weight with the marginals of points (m, d) with log weights (m,)."""
    chosen = points[resampled(log_weights, points, random_seed, count)]
    return with_marginals(chosen, points, np.exp(log_weights - log_weights.max()))
