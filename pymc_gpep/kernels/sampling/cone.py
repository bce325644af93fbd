"""Utilities of the multinomial probit given latent values and labels: independent normals, the observed one largest.

The utilities v of a point are N(f, I) in the cone where v_y is the largest. They are drawn jointly, not coordinate by
coordinate, so that successive draws owe nothing to each other (the model: Girolami and Rogers 2006, appendix D).

The density of v_y alone, φ(v_y − f_y) ∏_{j≠y} Φ(v_y − f_j), has a logarithm h with h″ ≤ −1. For any t it is therefore
below a parabola of curvature −1 that touches it at t. Up to a constant the parabola is the logarithm of
N(t + h′(t), 1). A draw x from that normal is accepted with the logarithm of the probability

    Σ_{j≠y} [log Φ(x − f_j) − log Φ(t − f_j) − (x − t) φ(t − f_j) / Φ(t − f_j)] ≤ 0,

in which the parabolas have cancelled. With t at the mode at least one draw in about √c is accepted, since h″ ≥ −c.
Given v_y the others are normals truncated from above.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.sampling.truncated import draw_below
from pymc_gpep.kernels.special.normal import log_ndtr_and_hazard

_NEWTON_STEPS = 6
_FLAT = 0.1  # slope at which a tangent is good enough: it costs less than one draw in a hundred
_MOST_PROPOSALS = 10_000  # far more than ever needed, and an end for what rounding may do


@kernel
def _tangent(f, y, i, hazards):
    """A point t near the mode of h and the slope h′(t); φ/Φ of t − f_j at point i into `hazards` (c,).

    h′ is convex, so that Newton's iteration cannot run away from wherever it starts.
    """
    own = f[y, i]
    highest = own
    for j in range(f.shape[0]):
        highest = max(highest, f[j, i])
    t = own + 0.5 * (highest - own)
    slope = np.nan
    for step in range(_NEWTON_STEPS + 1):
        slope = own - t
        curvature = 1.0
        for j in range(f.shape[0]):
            if j != y:
                z = t - f[j, i]
                hazards[j] = log_ndtr_and_hazard(z)[1]
                slope += hazards[j]
                curvature += max(hazards[j] * (hazards[j] + z), 0.0)
        if step == _NEWTON_STEPS or not abs(slope) > _FLAT:
            break
        t += slope / curvature
    return t, slope


@kernel
def _below_tangent(z, hazard, step):
    """log Φ(z + step) − log Φ(z) − step · φ(z)/Φ(z), the last factor being `hazard`; it is not positive.

    In the tail log Φ = log φ − log(φ/Φ) takes the parabola out before the difference is formed.
    """
    log_p, next_hazard = log_ndtr_and_hazard(z + step)
    if z < 0.0:
        return math.log(hazard / next_hazard) - step * (0.5 * step + (hazard + z))
    return log_p - log_ndtr_and_hazard(z)[0] - step * hazard


@kernel
def _draw_largest(rng, f, y, i, hazards):
    """The utility of the observed class, NaN where rounding or values that are not finite leave nothing to accept."""
    t, slope = _tangent(f, y, i, hazards)
    if not math.isfinite(slope):
        return np.nan
    for _ in range(_MOST_PROPOSALS):
        step = slope + rng.standard_normal()
        log_uniform = -rng.standard_exponential()
        log_accepted = 0.0
        for j in range(f.shape[0]):
            if j != y:
                log_accepted += _below_tangent(t - f[j, i], hazards[j], step)
        if log_accepted >= log_uniform:
            return t + step
    return np.nan


@kernel
def draw_in_cone(rng, f, labels, v):
    """Draw utilities v ~ N(f, I) given that the observed class has the largest, exactly, every point by itself.

    Parameters
    ----------
    rng : numpy.random.Generator
    f : ndarray, shape (c, n)
        Latent values.
    labels : ndarray of int64, shape (n,)
    v : ndarray, shape (c, n)
        The draw is put here; NaN for points whose latent values are not finite, or 10⁸ and more apart.
    """
    c, n = f.shape
    hazards = np.empty(c)
    for i in range(n):
        y = labels[i]
        top = _draw_largest(rng, f, y, i, hazards)
        for j in range(c):
            v[j, i] = top
            if j != y and math.isfinite(top):
                v[j, i] = draw_below(rng, f[j, i], top)
