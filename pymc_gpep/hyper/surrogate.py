"""A log density of a few standardised hyperparameters, interpolated through values and slopes, and draws of it.

Each axis has a warped coordinate x, in which the log density along the axis is −½ x². The interpolant is a quadratic
form in these coordinates, with the mixed second derivatives at the centre, plus a Gaussian process for the remainder.
The process has a squared exponential covariance and interpolates values and slopes together (Solak et al. 2003). With
three coordinates or more, part of the covariance is a sum over pairs of coordinates, since most interactions are
pairwise. The length scale is selected from a few values by marginal likelihood. Log densities l far below the maximum
are compressed first, to −c log(1 − l / c). So steep slopes in the tails have little influence near the maximum.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.special import gammaln
from scipy.stats import chi2, norm, qmc

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.weights import smooth, weighted_draws

DRAWS = 4096
"""Number of draws that represent a density."""

_LENGTHS = 1.0, 1.5, 2.5, 4.0, 7.0  # Length scales of the process, in warped coordinates.
_FEW = 3  # Largest number of axes for which the longest scale is not tried: it would extrapolate too far.
_PAIRS_FROM, _PAIRS = 3, 0.7  # Smallest number of axes for a covariance with pairs; share of the pairs in it.
_HELD = 200_000  # Largest size of a temporary array.
_LARGE = 700  # Number of values and slopes above which the length scale is not selected again.
_NUGGET = 1e-8  # Relative variance of the noise of values and slopes.
_COMPRESSED = 12.0  # The unit c of the compression is this number plus the number of axes.
_DEEPEST = 30.0  # Lowest compressed log density, in units of c.
_MARGIN = 1.0  # Largest excess of the interpolated log density over the highest computed value.
_STEEPEST = 0.05, 20.0  # Limits of the derivative dx / dt of a warp.
_TABLE = 400  # Number of entries in the table of a warp.
_FURTHEST = 12.0  # Warped coordinate at the end of a table.
_PROPOSALS, _FEWEST = 2, 12  # log2 of the number of proposals for each draw, and of the smallest total number.
_WIDER, _DEGREES = 1.1, 6.0  # Scale of t proposals relative to the quadratic form; their degrees of freedom.
_WORTH = 0.1  # Effective share of weighted draws below which Markov chains continue from them.
_CHAINS, _STEPS, _BETWEEN, _LEAPS = 1024, 40, 5, 6  # Numbers: chains, burn-in, steps between draws, leapfrog steps.


class Points(NamedTuple):
    """Evaluated points, including the centre, with log densities relative to the centre."""

    z: Array
    """Standardised coordinates, (n, d)."""
    value: Array
    """Log densities relative to the centre, (n,)."""
    slope: Array
    """Slopes of the log density, (n, d); NaN where they were not computed."""

    @property
    def axis(self) -> Array:
        """Axis on which each point lies, (n,); −1 for points off the axes."""
        beside = self.z != 0.0
        return np.where(beside.sum(axis=1) == 1, beside.argmax(axis=1), -1)


class Surrogate:
    """Interpolated log density.

    Parameters
    ----------
    points : Points
    mixed : array (d, d)
        Second derivatives of the log density at the centre, with a diagonal of −1.
    length : float, optional
        Length scale of the process, used if there are too many points to compare length scales.
    """

    def __init__(self, points: Points, mixed: Array, length: float | None = None) -> None:
        n, self.d = points.z.shape
        self._precision = -mixed
        self._warps = [_Warp(points, j) for j in range(self.d)]
        self._top, self._unit = points.value.max() + _MARGIN, _COMPRESSED + self.d
        self._x = self._warped(points.z)
        base = -0.5 * np.einsum("na,ab,nb->n", self._x, self._precision, self._x)
        values = self._compressed(points.value) - self._compressed(base)
        slopes = points.slope / self._stretch(points.z) * self._rate(points.value)[:, None]
        slopes += self._x @ self._precision * self._rate(base)[:, None]
        self._known = np.concatenate([np.full(n, True), np.isfinite(slopes).ravel()])
        self._data = np.concatenate([values, slopes.ravel()])[self._known]
        lengths: tuple[float, ...] = _LENGTHS if self.d > _FEW else _LENGTHS[:-1]
        if length is not None and len(self._data) > _LARGE:
            lengths = (length,)
        fits = [self._fit(each) for each in lengths]
        _, self.length, self.amplitude, self._root = max(fits, key=lambda fit: fit[0])
        weights = np.zeros(n * (1 + self.d))
        weights[self._known] = cho_solve((self._root, True), self._data)
        self._alpha, self._beta = weights[:n], weights[n:].reshape(n, self.d)

    def _warped(self, z: Array) -> Array:
        return np.column_stack([warp(z[:, j]) for j, warp in enumerate(self._warps)])

    def _stretch(self, z: Array) -> Array:
        return np.column_stack([warp.rate(z[:, j]) for j, warp in enumerate(self._warps)])

    def _compressed(self, value: Array) -> Array:
        return -self._unit * np.log1p((self._top - np.minimum(value, self._top)) / self._unit)

    def _rate(self, value: Array) -> Array:
        return (value < self._top) / (1.0 + (self._top - np.minimum(value, self._top)) / self._unit)

    def __call__(self, z: Array) -> Array:
        """Return log densities (m,) at points (m, d), relative to the centre."""
        return self._at(self._warped(z))[0]

    def _at(self, x: Array) -> tuple[Array, Array]:
        """Return log densities (m,) and their derivatives (m, d) at warped coordinates (m, d)."""
        pull = x @ self._precision
        base = -0.5 * (x * pull).sum(axis=1)
        slope = -pull * self._rate(base)[:, None]
        compressed = self._compressed(base)
        step = max(1, _HELD // self._x.size)
        for some in (slice(first, first + step) for first in range(0, len(x), step)):
            value, own = self._process(x[some])
            compressed[some] += value
            slope[some] += own
        compressed = np.clip(compressed, -_DEEPEST * self._unit, 0.0)
        value = self._top - self._unit * np.expm1(-compressed / self._unit)
        return value, slope * np.exp(-compressed / self._unit)[:, None]

    def _process(self, x: Array) -> tuple[Array, Array]:
        """Return the process (m,) and its derivatives (m, d) at warped coordinates (m, d)."""
        square = self.length**2
        distance = (x**2).sum(axis=1)[:, None] + (self._x**2).sum(axis=1) - 2.0 * x @ self._x.T
        kernel = np.exp(-0.5 * np.maximum(distance, 0.0) / square)
        weighted = kernel * (self._alpha + (x @ self._beta.T - (self._x * self._beta).sum(axis=1)) / square)
        value = weighted.sum(axis=1)
        slope = (weighted @ self._x - value[:, None] * x + kernel @ self._beta) / square
        if self.d < _PAIRS_FROM:
            return value, slope
        away = (x[:, None] - self._x) / self.length
        each = np.exp(-0.5 * away**2)
        others = each.sum(axis=-1, keepdims=True) - each
        rate = each * away / self.length  # Derivatives in the coordinates of evaluated points.
        pairs, product = 0.5 * self.d * (self.d - 1), self._beta * rate
        of_pairs = self._alpha * 0.5 * (each * others).sum(axis=-1) + (product * others).sum(axis=-1)
        turning = self._beta * each * (1.0 - away**2) / square - self._alpha[:, None] * rate
        turned = (turning * others).sum(axis=1) - (rate * (product.sum(axis=-1, keepdims=True) - product)).sum(axis=1)
        share = _PAIRS / pairs
        return (1.0 - _PAIRS) * value + share * of_pairs.sum(axis=1), (1.0 - _PAIRS) * slope + share * turned

    def _covariance(self, a: Array, b: Array, length: float) -> Array:
        """Return covariances (m (1 + d), n (1 + d)) of values and slopes at points a (m, d) and b (n, d)."""
        d, away = self.d, (a[:, None] - b) / length
        each = np.exp(-0.5 * away**2)
        k = each.prod(axis=-1)
        second = (np.eye(d) - away[..., :, None] * away[..., None, :]) / length**2
        full = _blocks(k, k[..., None] * away / length, k[..., None, None] * second)
        if d < _PAIRS_FROM:
            return full
        others, rate = each.sum(axis=-1, keepdims=True) - each, each * away / length
        second = -rate[..., :, None] * rate[..., None, :]
        second[..., np.arange(d), np.arange(d)] = each * (1.0 - away**2) / length**2 * others
        share = _PAIRS / (0.5 * d * (d - 1))
        return (1.0 - _PAIRS) * full + share * _blocks(0.5 * (each * others).sum(axis=-1), rate * others, second)

    def _fit(self, length: float) -> tuple[float, float, float, Array]:
        """Return log marginal likelihood, length scale, amplitude and Cholesky factor, at the best amplitude."""
        root = _root(self._covariance(self._x, self._x, length)[np.ix_(self._known, self._known)])
        white = solve_triangular(root, self._data, lower=True, check_finite=False)
        amplitude = float(np.sqrt(max(white @ white / len(white), 1e-12)))
        return -len(white) * np.log(amplitude) - float(np.log(root.diagonal()).sum()), length, amplitude, root

    def least_known(self, z: Array, count: int) -> Array:
        """Return indices of points (m, d), each with the largest variance of the process given the earlier points."""
        x, n = self._warped(z), len(z)
        cross = np.concatenate([self._covariance(each[None], self._x, self.length)[:1] for each in x])[:, self._known]
        features = solve_triangular(self._root, cross.T, lower=True, check_finite=False)
        left = self._values(x) - features.T @ features
        chosen: list[int] = []
        for _ in range(min(count, n)):
            chosen.append(int(np.argmax(left.diagonal())))
            row = left[chosen[-1]]
            left = left - np.outer(row, row) / max(row[chosen[-1]], 1e-12)
        return np.array(chosen)

    def _values(self, x: Array) -> Array:
        """Return the covariance (m, m) of values at warped coordinates (m, d)."""
        each = np.exp(-0.5 * ((x[:, None] - x) / self.length) ** 2)
        if self.d < _PAIRS_FROM:
            return np.asarray(each.prod(axis=-1))
        pairs = (each.sum(axis=-1) ** 2 - (each**2).sum(axis=-1)) / (self.d * (self.d - 1))
        return np.asarray((1.0 - _PAIRS) * each.prod(axis=-1) + _PAIRS * pairs)

    def draws(self, count: int, seed: int, chains: int = _CHAINS) -> tuple[Array, float]:
        """Return draws (count, d) of equal weight from the density, and the log of its integral.

        Quasi-random draws from a Student t density in warped coordinates are weighted. If few draws carry most of the
        weight, chains of Hamiltonian Monte Carlo continue from them.
        """
        rng = np.random.default_rng(seed)
        root = _WIDER * np.linalg.cholesky(np.linalg.inv(self._precision))
        uniform = qmc.Sobol(self.d + 1, rng=rng).random_base2(max(_FEWEST, _PROPOSALS + int(np.ceil(np.log2(count)))))
        standard = norm.ppf(uniform[:, 1:]) * np.sqrt(_DEGREES / chi2.ppf(uniform[:, :1], _DEGREES))
        x = standard @ root.T
        exponent = 0.5 * (_DEGREES + self.d)
        logs, _ = smooth(self._density(x)[0] + exponent * np.log1p((standard**2).sum(axis=1) / _DEGREES))
        weights = np.exp(logs - logs.max())
        volume = 0.5 * self.d * np.log(np.pi * _DEGREES) + gammaln(0.5 * _DEGREES) - gammaln(exponent)
        total = float(volume + np.log(root.diagonal()).sum() + logs.max() + np.log(weights.mean()))
        weights /= weights.sum()
        if 1.0 / (weights @ weights) > _WORTH * len(x):
            return self._unwarped(weighted_draws(logs, x, seed, count)), total
        moving, kept = x[rng.choice(len(x), chains, p=weights)], []
        steps = _STEPS + _BETWEEN * (-(-count // chains) - 1)
        for step in range(1, steps + 1):
            moving = self._moved(moving, root, rng)
            if step >= _STEPS and (step - _STEPS) % _BETWEEN == 0:
                kept.append(moving)
        return self._unwarped(np.concatenate(kept)[:count]), total

    def _unwarped(self, x: Array) -> Array:
        return np.column_stack([warp.inverse(x[:, j]) for j, warp in enumerate(self._warps)])

    def _density(self, x: Array) -> tuple[Array, Array]:
        """Return the log density (m,) of warped coordinates, with Jacobians, and its derivatives (m, d)."""
        value, slope = self._at(x)
        for j, warp in enumerate(self._warps):
            volume, change = warp.log_volume(x[:, j])
            value, slope[:, j] = value + volume, slope[:, j] + change
        return value, slope

    def _moved(self, x: Array, root: Array, rng: np.random.Generator) -> Array:
        """Return chains (m, d) after a step of Hamiltonian Monte Carlo with inverse mass matrix R Rᵀ, R = `root`."""
        step = rng.uniform(0.2, 0.8) / self.d**0.25
        start = rng.standard_normal(x.shape)
        value, slope = self._density(x)
        new, p = x, start + 0.5 * step * slope @ root
        for leap in range(_LEAPS):
            new = new + step * p @ root.T
            found, slope = self._density(new)
            p = p + (step if leap < _LEAPS - 1 else 0.5 * step) * slope @ root
        change = found - value - 0.5 * (p**2 - start**2).sum(axis=1)
        accepted = np.log(rng.random(len(x))) < change
        return np.where(accepted[:, None], new, x)


def _blocks(k: Array, rate: Array, second: Array) -> Array:
    """Return a covariance of values and slopes from k (m, n), ∂k / ∂b (m, n, d) and ∂²k / ∂a ∂b (m, n, d, d)."""
    m, n, d = rate.shape
    full = np.empty((m * (1 + d), n * (1 + d)))
    full[:m, :n] = k
    full[:m, n:] = rate.reshape(m, n * d)
    full[m:, :n] = -rate.swapaxes(1, 2).reshape(m * d, n)
    full[m:, n:] = second.transpose(0, 2, 1, 3).reshape(m * d, n * d)
    return full


def _root(covariance: Array) -> Array:
    """Return the Cholesky factor of a covariance, with the smallest noise that makes it positive definite."""
    noise, diagonal = _NUGGET, covariance.diagonal().copy()
    while True:
        covariance[np.diag_indices(len(covariance))] = diagonal * (1.0 + noise)
        try:
            return np.asarray(cholesky(covariance, lower=True, check_finite=False))
        except LinAlgError:
            noise *= 100.0


class _Warp:
    """Increasing map from a coordinate t to x such that the log density along the axis is −½ x²."""

    def __init__(self, points: Points, axis: int) -> None:
        own = np.flatnonzero((points.axis == axis) | ~points.z.any(axis=1))
        if len(own) < 2:  # With fewer points, x = t.
            points, own = (
                Points(np.array([[0.0], [1.0]]), np.array([0.0, -0.5]), np.array([[0.0], [-1.0]])),
                np.arange(2),
            )
            axis = 0
        own = own[np.unique(points.z[own, axis], return_index=True)[1]]
        t, value, slope = points.z[own, axis], points.value[own], points.slope[own, axis]
        x = np.sign(t) * np.sqrt(2.0 * np.maximum(-value, 1e-3))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(t == 0.0, 1.0, np.clip(-slope / x, *_STEEPEST))
        self._low, self._high = t[0], t[-1]
        grid = np.linspace(t[0], t[-1], _TABLE)
        self._map: Any = CubicHermiteSpline(t, x, rate) if np.isfinite(rate).all() else None
        if self._map is None or (self._map(grid, 1) < 0.5 * _STEEPEST[0]).any():
            self._map = PchipInterpolator(t, np.maximum.accumulate(x) + _STEEPEST[0] * t)
        self._ends = tuple(max(float(self._map(end, 1)), _STEEPEST[0]) for end in (t[0], t[-1]))
        reach = (
            max(0.0, (_FURTHEST + self._map(t[0])) / self._ends[0]),
            max(0.0, (_FURTHEST - self._map(t[-1])) / self._ends[1]),
        )
        self._grid = np.concatenate([t[:1] - reach[0] - 1e-6, grid, t[-1:] + reach[1] + 1e-6])
        self._x = self(self._grid)
        log_rate = np.log(self.rate(self._grid))
        self._log_rate = PchipInterpolator(self._x, log_rate)

    def __call__(self, t: Array) -> Array:
        inside = self._map(np.clip(t, self._low, self._high))
        return np.asarray(
            inside + self._ends[0] * np.minimum(t - self._low, 0.0) + self._ends[1] * np.maximum(t - self._high, 0.0)
        )

    def rate(self, t: Array) -> Array:
        """Return dx / dt."""
        inside = self._map(np.clip(t, self._low, self._high), 1)
        return np.where(t < self._low, self._ends[0], np.where(t > self._high, self._ends[1], inside))

    def inverse(self, x: Array) -> Array:
        """Return the coordinate t for x."""
        return np.interp(x, self._x, self._grid)

    def log_volume(self, x: Array) -> tuple[Array, Array]:
        """Return log dt / dx at x, and its derivative in x."""
        x = np.clip(x, self._x[0], self._x[-1])
        return -self._log_rate(x), -self._log_rate(x, 1)
