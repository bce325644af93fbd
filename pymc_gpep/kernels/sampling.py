"""Draws of utilities and latent values for the inner loop of samplers.

The utility of class k is its latent value plus noise, v_k = f_k + ε_k with ε_k ~ N(0, 1). The label of a point is the
class of its largest utility, or the sign of a single utility. Given f, utilities are independent between points
(`draw_in_cone`, `draw_by_sign`). Given v, the latent values of each class are Gaussian (`draw_latent_values`).

With one utility for each point, utilities are independent normals with fixed signs (Albert and Chib 1993). With
several, the utilities v of a point are N(f, I), restricted to the cone in which v_y is the largest. They are drawn
jointly, not one after another, so successive draws are independent (the model: Girolami and Rogers 2006, appendix D).

The density of v_y alone, φ(v_y − f_y) ∏_{j≠y} Φ(v_y − f_j), has a logarithm h with h″ ≤ −1. For any t it is therefore
below a parabola of curvature −1 that touches it at t. Up to a constant the parabola is the logarithm of N(t + h′(t),
1). A draw x from that normal is accepted with the logarithm of the probability

    Σ_{j≠y} [log Φ(x − f_j) − log Φ(t − f_j) − (x − t) φ(t − f_j) / Φ(t − f_j)] ≤ 0,

in which the parabolas cancel. With t at the mode, the share of accepted draws is about 1/√c or more, since h″ ≥ −c.
Given v_y the other utilities are normals truncated from above.

The latent values given the utilities are

    f_k = m_k + G_k (v_k − m_k) + noise of covariance G_k,   G_k = K_k S_k = I − S_k,   S_k = (K_k + I)⁻¹.

They are drawn without a factor of G_k, which is nearly singular if K_k is. For prior draws f⁰ of the latent values and
v⁰ = f⁰ + noise of the utilities, with d_k = v_k − m_k − v⁰_k,

    f_k = m_k + f⁰_k + G_k d_k

has that distribution.

The class of the largest utility does not depend on a shift of all utilities of a point. Alternating draws of f and v
would move this shift only by small steps. With f integrated out, the shift s has the density ∏_k N(v_k + s; m_k, K_k +
I). A draw of it is s = −(Σ_k S_k)⁻¹ Σ_k S_k d_k. If all classes share a covariance, s is minus the mean of the d_k. The
same d_k can then be used to draw f given the shifted v, since the random part of f⁰ is independent of v⁰.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import (
    cholesky,
    copy_into,
    inverse_from_cholesky,
    multiply_symmetric,
    multiply_triangular,
    solve_with_cholesky,
)
from pymc_gpep.kernels.scalar.probit import class_sign
from pymc_gpep.kernels.special.normal import log_ndtr_and_hazard

_NAIVE_ABOVE = -0.4  # If `top` − `mean` is larger, normal draws are rejected until one is below `top`.


@kernel
def draw_below(rng, mean, top):
    """Draw from N(mean, 1), restricted to values below `top`. Both arguments are finite.

    In the tail the distance to `top` is drawn by rejection from an exponential (Robert 1995), without loss of digits.
    """
    if top - mean > _NAIVE_ABOVE:
        while True:
            x = mean + rng.standard_normal()
            if x <= top:
                return x
    least = mean - top
    excess = 2.0 / (least + math.sqrt(least * least + 4.0))  # Excess of the rate of the exponential over `least`.
    while True:
        distance = rng.standard_exponential() / (least + excess)
        if 0.5 * (distance - excess) ** 2 <= rng.standard_exponential():
            return top - distance


@kernel
def draw_by_sign(rng, f, labels, v):
    """Draw utilities v ~ N(f, 1) given their signs: positive for label 1, negative for label 0.

    Parameters
    ----------
    rng : numpy.random.Generator
    f : ndarray, shape (1, n)
        Latent values.
    labels : ndarray of int64, shape (n,)
        0 or 1.
    v : ndarray, shape (1, n)
        Overwritten with the draw; NaN for points whose latent value is not finite.
    """
    for i in range(f.shape[1]):
        sign = class_sign(labels[i])
        mean = -sign * f[0, i]
        v[0, i] = -sign * draw_below(rng, mean, 0.0) if math.isfinite(mean) else np.nan


_NEWTON_STEPS = 6
_FLAT = 0.1  # If h′(t) is smaller, t counts as the mode. This adds less than 1 % of rejected draws.
_MOST_PROPOSALS = (
    10_000  # After this number of proposals a draw fails. Without a limit, rounding could cause an endless loop.
)


@kernel
def _tangent(f, y, i, hazards):
    """Return t near the mode of the log density h of the largest utility, and h′(t).

    φ/Φ of t − f_j at point i is written into `hazards` (c,). h′ is convex, so Newton's method converges from any start.
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
    """Return log Φ(z + step) − log Φ(z) − step · `hazard` ≤ 0, with `hazard` = φ(z)/Φ(z).

    In the tail, log Φ is written as log φ − log(φ/Φ). The parabolas log φ are subtracted exactly, to keep digits.
    """
    log_p, next_hazard = log_ndtr_and_hazard(z + step)
    if z < 0.0:
        return math.log(hazard / next_hazard) - step * (0.5 * step + (hazard + z))
    return log_p - log_ndtr_and_hazard(z)[0] - step * hazard


@kernel
def _draw_largest(rng, f, y, i, hazards):
    """Draw the utility of the observed class at point i. NaN if no draw is accepted, or f is not finite."""
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
    """Draw utilities v ~ N(f, I) of each point, given that the observed class has the largest utility.

    Parameters
    ----------
    rng : numpy.random.Generator
    f : ndarray, shape (c, n)
        Latent values.
    labels : ndarray of int64, shape (n,)
    v : ndarray, shape (c, n)
        Overwritten with the draw; NaN for points whose latent values are not finite, or differ by 10⁸ or more.
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


@kernel
def utility_precisions(k, precisions, total):
    """Compute the matrices for `draw_latent_values`. Return whether their Cholesky factors exist.

    Parameters
    ----------
    k : ndarray, shape (1 or c, n, n)
    precisions : ndarray, shape of k
        Their lower triangles are overwritten with S_k = (K_k + I)⁻¹.
    total : ndarray, shape (n, n)
        Its lower triangle is overwritten with the Cholesky factor of Σ_k S_k; unchanged if k has one matrix.
    """
    n = k.shape[1]
    copy_into(precisions, k)
    definite = True
    for a in range(k.shape[0]):
        for i in range(n):
            precisions[a, i, i] += 1.0
        definite = definite and cholesky(precisions[a]) and inverse_from_cholesky(precisions[a])
    if definite and k.shape[0] > 1:
        for i in range(n):
            for j in range(i + 1):
                total[i, j] = 0.0
                for s in precisions:
                    total[i, j] += s[i, j]
        definite = cholesky(total)
    return definite


@kernel
def _common_shift(d, precisions, total):
    """Return minus the drawn common shift: (Σ_k S_k)⁻¹ Σ_k S_k d_k, shape (n,)."""
    c, n = d.shape
    shift = np.zeros(n)
    if precisions.shape[0] == 1:
        for a in range(c):
            for i in range(n):
                shift[i] += d[a, i] / c
        return shift
    product = np.empty(n)
    for a in range(c):
        multiply_symmetric(precisions[a], d[a], product)
        for i in range(n):
            shift[i] += product[i]
    return solve_with_cholesky(total, shift)


@kernel
def draw_latent_values(rng, mean, roots, precisions, total, shifted, f, v):
    """Draw latent values given utilities. If `shifted`, first draw a common shift of the utilities of each point.

    Parameters
    ----------
    rng : numpy.random.Generator
    mean : ndarray, shape (c, n)
        Prior mean m.
    roots : ndarray, shape (1 or c, n, n)
        Cholesky factors of the prior covariances.
    precisions, total : ndarray
        Results of `utility_precisions`.
    shifted : bool
        Whether to draw the common shift of a point's utilities. The labels must not depend on it.
    f : ndarray, shape (c, n)
        Overwritten with the draw.
    v : ndarray, shape (c, n)
        Utilities; a shift is added in place.
    """
    c, n = v.shape
    d = np.empty((c, n))
    for a in range(c):
        for i in range(n):
            f[a, i] = rng.standard_normal()
        multiply_triangular(roots[a if roots.shape[0] > 1 else 0], f[a], False)
        for i in range(n):
            d[a, i] = v[a, i] - mean[a, i] - f[a, i] - rng.standard_normal()
    shift = _common_shift(d, precisions, total) if shifted else np.zeros(n)
    product = np.empty(n)
    for a in range(c):
        for i in range(n):
            d[a, i] -= shift[i]
            v[a, i] -= shift[i]
        multiply_symmetric(precisions[a if precisions.shape[0] > 1 else 0], d[a], product)
        for i in range(n):
            f[a, i] += mean[a, i] + d[a, i] - product[i]
