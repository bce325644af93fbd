"""Newton's method for the mode of p(f | y), and for methods with cavities of fixed width.

The iteration (`newton`) updates the weights b = K⁻¹ (f − m), so K is never inverted. The gradient of the log posterior
with respect to f is the residual r = ∇ log p(y | f) − b. Newton's step in b is (I + W K)⁻¹ r, where W is the curvature
of −log p. A step from the residual also corrects the rounding errors of earlier steps. So the final error is the
rounding of f = m + K b. For a prior by coefficients, other coordinates x replace b, see
`pymc_gpep.solvers.problem.SolverPrior`.

Laplace, naive TAP and the factorial variational method have cavities of fixed width (`CavityAscent`). Let h(μ, D) = log
∫ p(y | f) N(f | μ, D) df. Each of the three has weights b = K⁻¹(f − m₀) with

    b_i = h′(μ_i, D_i),   f_i = μ_i + D_i b_i.

The methods differ only in the width D: 0 for Laplace, K_ii for naive TAP, 1 / [K⁻¹]_ii for the factorial method. (In
EP, D is the cavity variance, which changes between sweeps.) Then f is the mode of Σ ĥ(f_i) − ½ (f − m₀)ᵀ K⁻¹ (f − m₀)
with

    ĥ(f) = h(μ) + ½ D b²,   ĥ′(f) = b,   −ĥ″(f) = W = γ / (1 − Dγ),   γ = −h″(μ, D) ≥ 0,

at the μ of f. For a log-concave likelihood Dγ < 1, ĥ is concave, and the mode is unique.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.status import (
    CONVERGED,
    NOT_FINITE,
    NOT_POSITIVE_DEFINITE,
    OUT_OF_DIGITS,
    OUT_OF_ITERATIONS,
)
from pymc_gpep.solvers.problem import STEP_ROUNDING, History, Problem

_CLOSE = 0.1  # A step that moves latent values by less is taken without a line search.
_MAX_INVERSIONS = 100
_LOST = 1e-8  # Slope of μ + D h′(μ) below which few digits remain.
# Ratio of tilted to cavity variance below which a cavity is narrowed. The narrower cavity has nearly the same site.
_MOST_KEPT = 0.2
_SHORT = 1e-4  # Relative change of h″ and h‴ up to which a fourth-order series replaces h.
_SLIGHT = 0.3  # Largest relative change of a step by Halley's third-order term. A larger term is omitted.
_MAX_APPROACHES = 30  # Largest number of inexact Newton steps before the first factorisation.
_REDUCTION, _LIMIT = 0.01, 100  # Relative residual, and largest number of conjugate gradient steps, per Newton step.


class CavityAscent:
    """Objective of Newton's method, see `pymc_gpep.solvers.newton.Ascent`.

    Parameters
    ----------
    problem : Problem
    average : function
        Function for the rows of the problem, of `pymc_gpep.likelihoods.local_computations.GaussianAverage.of_rows` or
        of `at_rows`. The fourth derivative is not used if the width is 0.
    width : array (n,)
        Widths D.
    volume : function of log|A| and W (n,)
        Function that returns −2 times the evidence's term for the volume of the posterior.

    Attributes
    ----------
    cavity : array (n,)
        μ at f.
    h : array (5, n)
        h and its derivatives at μ.
    posterior : FunctionPosterior
        Posterior with the precisions W.
    """

    sees_common = True

    def __init__(
        self,
        problem: Problem,
        average: Callable[..., None],
        width: Array,
        volume: Callable[[float, Array], float],
    ) -> None:
        n = problem.labels.size
        self.width, self.posterior = width, problem.prior.posterior(problem.mean[0])
        self.f, self.gradient = np.full((2, 1, n), np.nan)
        self.h = np.full((5, n), np.nan)
        self._problem, self._average, self._volume = problem, average, volume
        self.cavity = problem.mean[0].copy()

    @property
    def kept(self) -> Array:
        """Ratio of tilted variance to cavity variance D, 1 − Dγ, (n,)."""
        return np.asarray(1.0 + self.width * self.h[2])

    @property
    def curvature(self) -> Array:
        """Curvature W = −ĥ″ (see the module), (n,)."""
        return np.asarray(np.maximum(-self.h[2], 0.0) / self.kept)

    @property
    def stiffness(self) -> Array:
        """Ratio max(W, 1) of the rounding error of the gradient to the rounding error of f, (n,)."""
        return np.asarray(np.maximum(self.curvature, 1.0))

    def log_density(self) -> float:
        self._look(self.f[0])
        self.gradient[0] = self.h[1]
        return float((self.h[0] + 0.5 * self.width * self.h[1] ** 2).sum())

    def factorise(self) -> tuple[bool, float]:
        w = self.curvature
        ok = self.posterior.decompose(w)
        return ok, self._volume(self.posterior.log_det, w)

    def solve(self, residual: Array, step: Array) -> None:
        step[:] = self.posterior.solve(residual)

    def length(self, x: Array, step: Array, image: Array, value: float, slope: float) -> float:
        if np.abs(image).max() < _CLOSE:
            return 1.0
        inner = self._problem.prior.inner

        def along_line(t: float) -> tuple[float, float]:
            self._look(self.f[0] + t * image[0])
            return float(image[0] @ self.h[1]), float(image[0] ** 2 @ self.curvature)

        return step_length(along_line, slope, inner(x, step, image), inner(step, step, image))

    def _look(self, f: Array) -> None:
        """Compute h at the cavity means μ of f (n,), by Newton's method on μ + D h′(μ) = f, which increases in μ.

        The computation of h takes most of the time. Therefore the iteration starts from the last μ, and computes h only
        at points whose μ has changed. If 1 + D h″ is lost in rounding, or h is NaN, the iteration starts again from μ =
        f.
        """
        width, mean, h = self.width, self.cavity, self.h
        if not width.any():
            mean[:] = f
            self._compute()
            return
        low, high = np.full_like(f, -np.inf), np.full_like(f, np.inf)
        lost = ~(np.isfinite(h[:3]).all(axis=0) & (self.kept > _LOST))
        mean[lost] = f[lost]
        self._compute(np.flatnonzero(lost))
        at = np.arange(f.size)
        for _ in range(_MAX_INVERSIONS):
            pull = width[at] * h[1, at]
            excess = mean[at] + pull - f[at]
            off = np.abs(excess) > STEP_ROUNDING * (np.abs(mean[at]) + np.abs(pull) + np.abs(f[at]))
            if not off.any():
                break
            at, pull, excess = at[off], pull[off], excess[off]
            old, own = mean[at], h[:, at]
            low[at] = np.where(excess < 0.0, old, low[at])
            high[at] = np.where(excess > 0.0, old, high[at])
            slope = 1.0 + width[at] * own[2]
            step = -excess / slope
            bent = 0.5 * width[at] * own[3] / slope * step  # Third-order term (Halley), used if it is small.
            new = old + step * np.where(np.abs(bent) < _SLIGHT, 1.0 - bent, 1.0)
            outside = ~((new > low[at]) & (new < high[at]))
            bracketed = np.isfinite(low[at]) & np.isfinite(high[at])
            new = np.where(outside & bracketed, 0.5 * (low[at] + high[at]), np.where(outside, f[at] - pull, new))
            mean[at] = new
            short = _bend(own, new - old) < _SHORT
            h[:, at[short]] = _continued(own[:, short], (new - old)[short])
            self._compute(at[~short])

    def settle(self) -> None:
        """Compute h and all derivatives again, since the series is inaccurate for the highest derivatives."""
        if self.width.any():
            self._compute()

    def _compute(self, at: NDArray[np.intp] | None = None) -> None:
        """Compute h at the means of cavities, for all points or for points `at`."""
        if at is None or at.size == self.width.size:
            self._average(self.cavity, self.width, self.h)
        elif at.size:
            own = np.empty((5, at.size))
            self._average(self.cavity[at], self.width[at], own, at)
            self.h[:, at] = own


def _bend(h: Array, step: Array) -> Array:
    """Return the approximate relative change of h″ and h‴ over a step (n,); NaN without an estimate.

    If h is nearly quadratic, h‴ / h″ is nearly 0. Then h⁗ / h‴ measures the distance over which h‴ changes.
    """
    return np.asarray(np.abs(step) * np.maximum(np.abs(h[3] / h[2]), np.abs(h[4] / h[3])))


def _continued(h: Array, step: Array) -> Array:
    """Return h and its derivatives (5, n) after a step, by a Taylor series."""
    h0, h1, h2, h3, h4 = h
    further = np.empty_like(h)
    further[0] = h0 + step * (h1 + step / 2.0 * (h2 + step / 3.0 * (h3 + step / 4.0 * h4)))
    further[1] = h1 + step * (h2 + step / 2.0 * (h3 + step / 3.0 * h4))
    further[2] = h2 + step * (h3 + step / 2.0 * h4)
    further[3] = h3 + step * h4
    further[4] = h4
    return further


def ascend(
    problem: Problem, b: Array, ascent: CavityAscent, history: History, *, tolerance: float
) -> tuple[float, int]:
    """Maximise the log posterior from the weights `b` (1, n). `b`, `ascent` and its posterior are overwritten.

    Return evidence and status.
    """
    x = problem.prior.coordinates(b)
    if problem.prior.by_weights:
        _approach(problem, x, ascent, tolerance)
    evidence, status = newton(problem, x, ascent, history, tolerance=tolerance)
    b[:] = problem.prior.weights(x, ascent.gradient)
    if status in (CONVERGED, OUT_OF_ITERATIONS, OUT_OF_DIGITS):
        ascent.settle()
        ascent.posterior.put(x, ascent.gradient[0], ascent.f[0])
        ascent.posterior.invert()
        ascent.posterior.spread()
    return evidence, status


def _approach(problem: Problem, b: Array, ascent: CavityAscent, tolerance: float) -> None:
    """Approach the mode by inexact steps of Newton's method, without a factorisation of K.

    After many steps, or if steps do not reduce the residual, the function returns. Steps with a factorisation follow.
    """
    image, pull, step = np.empty((3, *b.shape))
    value, closest = begin(problem, b, ascent, image), np.inf
    for _ in range(_MAX_APPROACHES):
        slope = ascent.gradient - b
        reduction = min(_REDUCTION, closest)  # Newton's method squares the error.
        problem.prior.newton_direction(ascent.curvature, slope, reduction, _LIMIT, step, pull)
        residual = float(max((np.abs(slope) / ascent.stiffness).max(), np.abs(step).max()))
        if not residual < (closest if closest < _CLOSE else np.inf):  # The residual may rise far from the mode.
            break
        closest = residual
        b += ascent.length(b, pull, step, value, float(np.vdot(slope, step))) * pull
        if max(residual, reduction) * residual < MARGIN * max(tolerance, problem.prior.rounding(b)):
            break
        value = log_posterior(problem, b, ascent, image)


def at_rows(terms: Callable[..., None], y: Observed, parameters: Array) -> Callable[..., None]:
    """Return a function like that of `GaussianAverage.of_rows`, which calls the kernel `terms`."""

    def average(mean: Array, variance: Array, out: Array, rows: NDArray[np.intp] | None = None) -> None:
        own = (y, parameters) if rows is None else (y[rows], np.take(parameters, rows, axis=1))
        terms(mean, variance, *own, out)

    return average


def of_width_zero(derivatives: Callable[..., None]) -> Callable[..., None]:
    """Return the kernel of the average over cavities of width 0, from a kernel of a density and three derivatives.

    The fourth derivative is not written.
    """

    def average(mean: Array, variance: Array, y: Observed, parameters: Array, out: Array) -> None:
        derivatives(mean, y, parameters, out[:4])

    return average


def sites_at_mode(
    problem: Problem, average: Callable[..., None], tolerance: float, *, wide: bool, several_rows: bool = False
) -> Array:
    """Return site precisions and locations (2, n) of Laplace's method, or of naive TAP if `wide`.

    The sites have errors of about `tolerance`, and serve as starts. If a site is not finite, all sites are 0.
    `average` is as in `CavityAscent`.
    """
    prior = problem.prior
    width = prior.variances[0].copy() if wide else np.zeros(problem.labels.size)
    ascent = CavityAscent(problem, average, width, lambda *_: 0.0)
    if wide and several_rows:
        # Narrow the cavities that are far wider than the posterior, since their means need many iterations. A point
        # with a single row keeps the wide cavity, which leads to the mode with more mass.
        ascent.settle()
        ascent.width[:] = np.where(ascent.kept < _MOST_KEPT, width * np.maximum(ascent.kept / _MOST_KEPT, 0.0), width)
        ascent.h[:] = np.nan
    nothing, image = np.zeros((2, 1, width.size))
    x = prior.coordinates(nothing)
    if prior.by_weights:
        _approach(problem, x, ascent, tolerance)
    else:
        newton(problem, x, ascent, History(_MAX_APPROACHES, watched=False), tolerance=tolerance)
    if not np.isfinite(ascent.h[1]).all():
        return np.zeros((2, width.size))
    log_posterior(problem, x, ascent, image)
    b, slope = prior.weights(x, ascent.gradient)[0], ascent.gradient[0]
    # If the prior covariance is nearly singular, rounding determines some directions of the weights.
    b = np.where(np.abs(b - slope) * np.sqrt(prior.variances[0]) > _LOOSE, slope, b)
    sites = np.stack([ascent.curvature, b + ascent.curvature * ascent.f[0]])
    return sites if np.isfinite(sites).all() else np.zeros_like(sites)


_LOOSE = 10.0  # Difference of weights and slopes (prior standard deviations) above which sites use slopes.
_NEAR = 1.0  # Residual below which several steps use the same curvature.
_FASTER = 0.3  # Largest ratio of the residuals after and before a step with an earlier curvature.
_NEGLIGIBLE = 1e-2  # Largest fall of the log posterior that counts as rounding.
_NEARER = 0.5  # Ratio of consecutive residuals above which steps at the level of rounding end.
MARGIN = 0.1
"""Residual (in units of the tolerance) at which steps with an earlier curvature stop. The next step uses a new one."""


class Ascent(Protocol):
    """Interface of the likelihood for Newton's method, and linear algebra with its curvature."""

    f: Array
    """Latent values, (c, n)."""
    gradient: Array
    """∇ log p(y | f) at the latest evaluation of the density, (c, n)."""
    sees_common: bool
    """Whether the likelihood depends on a common shift of all functions."""

    @property
    def stiffness(self) -> Array | float:
        """Ratio of the rounding error of the gradient to that of f: the larger of curvature and 1."""
        ...

    def log_density(self) -> float:
        """Return log p(y | f), and write the gradient."""
        ...

    def factorise(self) -> tuple[bool, float]:
        """Factorise I + W K with the curvature at f. Return success and log|I + W K|.

        Half of log|I + W K| is subtracted from the evidence, for the volume of the posterior. Some forms return a
        different measure of this volume.
        """
        ...

    def solve(self, residual: Array, step: Array) -> None:
        """Write Newton's step, (I + W K)⁻¹ r for weights, with the last factorised curvature."""
        ...

    def length(self, x: Array, step: Array, image: Array, value: float, slope: float) -> float:
        """Return the length of a step from `x` that raises the log posterior; `image` is the step's image in f.

        `value` and `slope` belong to the log posterior at `x`. The method may change f and the gradient.
        """
        ...


def newton(problem: Problem, x: Array, ascent: Ascent, history: History, *, tolerance: float) -> tuple[float, int]:
    """Iterate from the coordinates `x` of the prior, which are overwritten, until the residual is below `tolerance`.

    If the likelihood does not depend on a common shift of all functions, the initial weights of a point must sum to 0.

    The residual is the largest entry of Newton's step in f and, where the coordinates are weights, of the gradient r
    relative to its stiffness. The iteration accepts a residual at the level of rounding, unless the evidence would be
    inaccurate. The function returns log evidence and status. At the end `ascent` is at `x`.
    """
    step, image = np.empty_like(x), np.empty_like(problem.mean)
    value, evidence, closest = begin(problem, x, ascent, image), np.nan, np.inf
    while not history.is_full():
        ok, log_det = ascent.factorise()
        if not ok:
            return np.nan, NOT_POSITIVE_DEFINITE
        evidence = value - 0.5 * log_det
        residual, slope = _step(problem, x, ascent, step, image)
        history.add(evidence, residual)
        if not np.isfinite(evidence + residual):
            return np.nan, NOT_FINITE
        limit = max(tolerance, problem.prior.rounding(x))
        # Twice the expected gain of the step. Rounding errors of the slope may exceed the slope.
        gain = max(abs(slope), float((ascent.stiffness * image**2).sum()))
        if residual < limit:
            if residual < tolerance or gain < _NEGLIGIBLE:
                # Without weights, the residual measures f but not the gradient. One more step improves the gradient.
                if not problem.prior.by_weights:
                    x += step
                    evidence += log_posterior(problem, x, ascent, image) - value
                return evidence, CONVERGED
            # The density is steep: rounding of f changes the evidence. Continue while the residual falls.
            if not residual < _NEARER * closest:
                return evidence, OUT_OF_DIGITS
            closest = residual
        if not history.is_full():
            x += ascent.length(x, step, image, value, slope) * step
            value = _go_on(problem, x, ascent, step, image, residual, limit)
    return evidence, OUT_OF_ITERATIONS


def _step(problem: Problem, x: Array, ascent: Ascent, step: Array, image: Array) -> tuple[float, float]:
    """Compute Newton's step in x and in f with the last factorised curvature. Return residual and slope."""
    prior = problem.prior
    right = prior.residual(ascent.gradient, x)
    ascent.solve(right, step)
    prior.multiply(step, image)
    slope = float(np.vdot(ascent.gradient, image)) - prior.inner(x, step, image)
    if prior.by_weights:
        return float(max((np.abs(right) / ascent.stiffness).max(), np.abs(image).max())), slope
    # With weights that sum to 0, the common part of the step is rounding error.
    return float(np.abs(image if ascent.sees_common else image - image.mean(axis=0)).max()), slope


def _go_on(
    problem: Problem, x: Array, ascent: Ascent, step: Array, image: Array, residual: float, limit: float
) -> float:
    """Take more steps in O(n²) with the last factorised curvature, while the residual falls fast.

    Return the log posterior at the new `x`, with `ascent` at `x`.
    """
    enough = MARGIN * limit
    value = log_posterior(problem, x, ascent, image)
    while residual > enough:
        left, _ = _step(problem, x, ascent, step, image)
        if not left < min(_NEAR, _FASTER * residual):
            break
        x += step
        residual = left
        value = log_posterior(problem, x, ascent, image)
    return value


def log_posterior(problem: Problem, x: Array, ascent: Ascent, image: Array) -> float:
    """Return log p(y | f) − ½ bᵀ K b at f = m + K b. Set f in `ascent`, and write f − m into `image`."""
    problem.prior.multiply(x, image)
    np.add(problem.mean, image, out=ascent.f)
    return ascent.log_density() - 0.5 * problem.prior.inner(x, x, image)


def begin(problem: Problem, x: Array, ascent: Ascent, image: Array) -> float:
    """Set `x` to 0 if the log posterior is higher at 0. Return the log posterior at `x`, with `ascent` at `x`."""
    value = log_posterior(problem, x, ascent, image)
    # The value at 0 exceeds the value at x by at most −slope, if the log posterior is concave.
    slope = float(np.vdot(ascent.gradient, image)) - problem.prior.inner(x, x, image)
    if not x.any() or slope > -_RISE:
        return value
    cold = log_posterior(problem, np.zeros_like(x), ascent, image)
    if value >= cold:
        return log_posterior(problem, x, ascent, image)
    x[:] = 0.0
    return cold


_RISE = 1.0  # Largest possible rise of the log posterior from the start to 0, below which 0 is not tried.
_ENOUGH = 0.1  # Largest final slope of a line search, relative to the first slope.
_MAX_TRIALS = 60


def step_length(
    along_line: Callable[[float], tuple[float, float]], first: float, start: float, curvature: float
) -> float:
    """Return t > 0 at which the slope of log p(y | f + t d) − t `start` − t² `curvature` / 2 is small and positive.

    On a concave function such a step raises the value. Newton's method on the slope finds t between the longest step
    that was too short and the shortest step that was too long. If Newton's steps do not become shorter, as for a slope
    that falls exponentially, the bracket is halved. `first` is the slope at t = 0. `along_line(t)` returns the first
    derivative of log p(y | f + t d) in t, and minus the second derivative.
    """
    short = 0.0
    long = 0.0  # Shortest step that was too long; 0 if no step was too long.
    t = 1.0
    moved = math.inf  # Length of the last Newton step.
    for _ in range(_MAX_TRIALS):
        slope, bend = along_line(t)
        slope -= start + t * curvature
        bend += curvature
        if slope >= 0.0:
            short = t
            if slope <= _ENOUGH * first:
                break
        else:
            long = t
        # Slightly shorter than the Newton step, since a too long step is rejected.
        move = float(np.divide(slope - 0.5 * _ENOUGH * first, bend))  # The curvature may underflow.
        outside = not short < t + move or (long > 0.0 and not t + move < long)
        if outside or (long > 0.0 and not abs(move) < 0.5 * moved):
            t = 0.5 * (short + long) if long > 0.0 else 2.0 * short
            moved = math.inf
        else:
            t += move
            moved = abs(move)
    return short
