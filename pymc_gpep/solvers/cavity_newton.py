"""Newton's method under cavities of fixed width: Laplace, naive TAP and the factorial variational method.

Let h(μ, D) = log ∫ p(y | f) N(f | μ, D) df. Each of the three wants weights b = K⁻¹(f − m₀) with

    b_i = h′(μ_i, D_i),   f_i = μ_i + D_i b_i,

and they differ in the width D alone: 0 for Laplace, K_ii for naive TAP, 1 / [K⁻¹]_ii for the factorial method (and the
variance of the cavity itself, which moves, for EP). f is then the mode of Σ ĥ(f_i) − ½ (f − m₀)ᵀ K⁻¹ (f − m₀),

    ĥ(f) = h(μ) + ½ D b²,   ĥ′(f) = b,   −ĥ″(f) = W = γ / (1 − Dγ),   γ = −h″(μ, D) ≥ 0,

with the μ that belongs to f. For a log-concave likelihood Dγ < 1, ĥ is concave, and the mode is unique.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.linalg.rounding import rounding
from pymc_gpep.kernels.schemes.newton_direction import newton_direction
from pymc_gpep.kernels.status import CONVERGED, OUT_OF_ITERATIONS
from pymc_gpep.solvers.concave_line import step_length
from pymc_gpep.solvers.contract import Problem
from pymc_gpep.solvers.function_posterior import FunctionPosterior
from pymc_gpep.solvers.history import History
from pymc_gpep.solvers.newton import MARGIN, begin, log_posterior, newton

__all__ = ["CavityAscent", "ascend", "sites_at_mode"]

_CLOSE = 0.1  # latent values that move less do not overshoot
_MAX_INVERSIONS = 100
_ROUNDING = 8.0 * np.finfo(np.float64).eps
_MAX_APPROACHES = 30  # inexact steps of Newton's method before the first factorisation
_REDUCTION, _LIMIT = 0.01, 100  # of each of them: what is left of the residual, and steps of conjugate gradients


class CavityAscent:
    """What Newton's method climbs, see `pymc_gpep.solvers.newton.Ascent`.

    Parameters
    ----------
    problem : Problem
    average : kernel
        As of `pymc_gpep.likelihoods.local_computations.GaussianAverage`; of widths of 0 the fourth derivative is not
        used.
    width : array (n,)
        D.
    volume : function of log|A| and W (n,)
        What the evidence loses to the volume of the posterior, twice.

    Attributes
    ----------
    cavity : array (n,)
        μ at f.
    h : array (5, n)
        h and its derivatives there.
    posterior : FunctionPosterior
        With the precisions W.
    """

    def __init__(
        self,
        problem: Problem,
        average: Callable[..., None],
        width: Array,
        volume: Callable[[float, Array], float],
    ) -> None:
        n = problem.labels.size
        self.width, self.posterior = width, FunctionPosterior(problem)
        self.f, self.gradient = np.full((2, 1, n), np.nan)
        self.h = np.full((5, n), np.nan)
        self._problem, self._average, self._volume = problem, average, volume
        self.cavity = problem.mean[0].copy()

    @property
    def kept(self) -> Array:
        """1 − Dγ (n,): the tilted variance relative to D."""
        return np.asarray(1.0 + self.width * self.h[2])

    @property
    def curvature(self) -> Array:
        """W (n,)."""
        return np.asarray(np.maximum(-self.h[2], 0.0) / self.kept)

    def log_density(self) -> float:
        self._look(self.f[0])
        self.gradient[0] = self.h[1]
        return float((self.h[0] + 0.5 * self.width * self.h[1] ** 2).sum())

    def factorise(self) -> tuple[bool, float]:
        w = self.curvature
        ok = self.posterior.decompose(w)
        return ok, self._volume(self.posterior.log_det, w)

    def solve(self, residual: Array, step: Array) -> None:
        step[0] = self.posterior.smooth(residual[0])

    def length(self, b: Array, step: Array, image: Array, value: float, slope: float) -> float:
        if np.abs(image).max() < _CLOSE:
            return 1.0

        def along_line(t: float) -> tuple[float, float]:
            self._look(self.f[0] + t * image[0])
            return float(image[0] @ self.h[1]), float(image[0] ** 2 @ self.curvature)

        return step_length(along_line, float(np.vdot(b, image)), float(np.vdot(step, image)))

    def _look(self, f: Array) -> None:
        """h at the means μ of cavities that belong to f (n,): Newton's method on μ + D h′(μ), which rises with μ."""
        y, parameters, width, mean, h = self._problem.labels, self._problem.parameters, self.width, self.cavity, self.h
        if not width.any():
            mean[:] = f
            self._average(mean, width, y, parameters, h)
            return
        low, high = np.full_like(f, -np.inf), np.full_like(f, np.inf)
        for _ in range(_MAX_INVERSIONS):
            self._average(mean, width, y, parameters, h)
            pull = width * h[1]
            excess = mean + pull - f
            if not (np.abs(excess) > _ROUNDING * (np.abs(mean) + np.abs(pull) + np.abs(f))).any():
                break
            low, high = np.where(excess < 0.0, mean, low), np.where(excess > 0.0, mean, high)
            new = mean - excess / self.kept
            outside = ~((new > low) & (new < high))
            bracketed = np.isfinite(low) & np.isfinite(high)
            mean[:] = np.where(outside & bracketed, 0.5 * (low + high), np.where(outside, f - pull, new))


def ascend(
    problem: Problem, b: Array, ascent: CavityAscent, history: History, *, tolerance: float
) -> tuple[float, int]:
    """Climb from the weights `b` (1, n), which are overwritten, and leave `ascent` and its posterior belonging to them.

    Returns evidence and status.
    """
    _approach(problem, b, ascent, tolerance)
    evidence, status = newton(problem, b, ascent, history, tolerance=tolerance)
    if status in (CONVERGED, OUT_OF_ITERATIONS):
        ascent.posterior.weights[:], ascent.posterior.mean[:] = b[0], ascent.f[0]
        ascent.posterior.invert()
        ascent.posterior.spread()
    return evidence, status


def _approach(problem: Problem, b: Array, ascent: CavityAscent, tolerance: float) -> None:
    """Come close to the mode without a factorisation: Newton's method, its steps by conjugate gradients, O(n²) each.

    Where these take many steps or none helps, what is left is for the factorisation.
    """
    image, left, pull, step = np.empty((4, *b.shape))
    closest = np.inf
    begin(problem, b, ascent, image)
    for _ in range(_MAX_APPROACHES):
        value = log_posterior(problem, b, ascent, image)
        slope = ascent.gradient - b
        reduction = min(_REDUCTION, closest)  # Newton's method squares what is left
        newton_direction(problem.k, ascent.curvature[:, None, None], slope, reduction, _LIMIT, step, pull, left)
        residual = float(max(np.abs(slope).max(), np.abs(step).max()))
        if not residual < (closest if closest < _CLOSE else np.inf):  # from far away it may rise
            break
        closest = residual
        b += ascent.length(b, pull, step, value, float(np.vdot(slope, step))) * pull
        if max(residual, reduction) * residual < MARGIN * max(tolerance, rounding(problem.k, b)):
            break


def sites_at_mode(problem: Problem, average: Callable[..., None], tolerance: float) -> Array:
    """Precisions and locations (2, n) of naive TAP, D = K_ii, about as accurate as asked for, without a factorisation.

    They are a start for other approximations, and all 0 where they are no numbers.
    """
    width = problem.k[0].diagonal().copy()
    ascent = CavityAscent(problem, average, width, lambda *_: np.nan)
    b, image = np.zeros((2, 1, width.size))
    _approach(problem, b, ascent, tolerance)
    log_posterior(problem, b, ascent, image)
    sites = np.stack([ascent.curvature, b[0] + ascent.curvature * ascent.f[0]])
    return sites if np.isfinite(sites).all() else np.zeros_like(sites)
