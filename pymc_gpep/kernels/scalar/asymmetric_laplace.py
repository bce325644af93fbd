"""The log density ℓ(g) = −κ g for g > 0, g/κ for g < 0. Averages over a normal g have closed forms.

The row of `shapes` (1, n) is κ > 0. At 0 the derivative jumps. So `derivatives` returns one-sided derivatives without
curvature, unsuitable for Newton's method. Arrays as in `pymc_gpep.likelihoods.standard_density`.

For g ~ N(m, v), E exp ℓ is eᴬ + eᴮ with A = −κm + ½κ²v + log Φ(m/√v − κ√v). B has −m and 1/κ in place of m and κ.
"""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import log_ndtr_derivatives, log_scaled_ndtr

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
_SQRT_HALF = math.sqrt(0.5)


@kernel
def derivatives(g, shapes, out, slopes):
    """Write ℓ and three derivatives in g into `out` (4, n), and their derivatives in κ into `slopes` (1, 3, n)."""
    slopes[:] = 0.0
    for i in range(len(g)):
        kappa = shapes[0, i] if shapes[0, i] > 0.0 else math.nan
        rate = -kappa if g[i] > 0.0 else 1.0 / kappa
        of_kappa = -1.0 if g[i] > 0.0 else -1.0 / (kappa * kappa)
        out[0, i] = rate * g[i]
        out[1, i] = rate
        out[2, i] = 0.0 * rate
        out[3, i] = 0.0 * rate
        slopes[0, 0, i] = of_kappa * g[i]
        slopes[0, 1, i] = of_kappa


@kernel
def _tail(rate, mean, sd):
    """Return log ∫₀^∞ exp(−rate · g) N(g | mean, sd²) dg, four derivatives in the mean, and the slope in the rate."""
    z = mean / sd
    u = z - rate * sd
    log_p, first, second, third, fourth = log_ndtr_derivatives(u)
    if u < 0.0:  # Here the term −½u² of log Φ(u) and the other terms sum to −½z² without cancellation.
        above = -second / first  # Equals φ/Φ + u.
        value = log_scaled_ndtr(u) - 0.5 * z * z
        slope = (above - z) / sd
    else:
        above = first + u
        value = log_p - rate * mean + 0.5 * (rate * sd) ** 2
        slope = first / sd - rate
    return value, slope, second / sd**2, third / sd**3, fourth / sd**4, -sd * above


@kernel
def average(mean, variance, shapes, out, slopes):
    """Write log E exp ℓ(g) over normal g and four derivatives in the mean into `out`, the slope in κ into `slopes`."""
    for i in range(len(mean)):
        kappa, m, v = shapes[0, i], mean[i], variance[i]
        if not (0.0 <= v < math.inf and math.isfinite(m) and kappa > 0.0):
            out[:, i] = math.nan
            slopes[0, i] = math.nan
            continue
        if v == 0.0:
            rate = -kappa if m > 0.0 else 1.0 / kappa
            out[0, i] = rate * m
            out[1, i] = rate
            out[2:, i] = 0.0
            slopes[0, i] = -m if m > 0.0 else -m / (kappa * kappa)
            continue
        sd = math.sqrt(v)
        right = _tail(kappa, m, sd)
        left = _tail(1.0 / kappa, -m, sd)
        # log(eᵃ + eᵇ) = a + log(1 + eˣ) for a ≥ b and x = b − a.
        if right[0] >= left[0]:
            a, b, of_a, of_b = right, left, 1.0, -1.0
        else:
            a, b, of_a, of_b = left, right, -1.0, 1.0
        x1 = of_b * b[1] - of_a * a[1]
        x2 = b[2] - a[2]
        x3 = of_b * b[3] - of_a * a[3]
        x4 = b[4] - a[4]
        ratio = math.exp(b[0] - a[0])
        p = ratio / (1.0 + ratio)
        q = 1.0 / (1.0 + ratio)
        s2 = p * q
        s3 = s2 * (q - p)
        s4 = s2 * (1.0 - 6.0 * s2)
        out[0, i] = a[0] + math.log1p(ratio)
        out[1, i] = of_a * a[1] + p * x1
        out[2, i] = a[2] + p * x2 + s2 * x1 * x1
        out[3, i] = of_a * a[3] + p * x3 + 3.0 * s2 * x1 * x2 + s3 * x1**3
        out[4, i] = a[4] + p * x4 + s2 * (4.0 * x1 * x3 + 3.0 * x2 * x2) + 6.0 * s3 * x1 * x1 * x2 + s4 * x1**4
        of_right = q if right[0] >= left[0] else p
        slopes[0, i] = of_right * right[5] - (1.0 - of_right) * left[5] / (kappa * kappa)


@kernel
def average_log(mean, variance, shapes, out, slopes):
    """Write E ℓ(g) over normal g and slopes in mean and variance into `out` (3, n), the slope in κ into `slopes`."""
    for i in range(len(mean)):
        kappa, m, v = shapes[0, i], mean[i], variance[i]
        if not (0.0 <= v < math.inf and math.isfinite(m) and kappa > 0.0):
            out[:, i] = math.nan
            slopes[0, i] = math.nan
            continue
        sd = math.sqrt(v)
        z = m / sd if v > 0.0 else (math.inf if m > 0.0 else -math.inf)
        density = _INV_SQRT_2PI * math.exp(-0.5 * z * z)
        above, below = 0.5 * math.erfc(-z * _SQRT_HALF), 0.5 * math.erfc(z * _SQRT_HALF)
        up = m * above + sd * density
        down = sd * density - m * below
        out[0, i] = -kappa * up - down / kappa
        out[1, i] = -kappa * above + below / kappa
        out[2, i] = -0.5 * (kappa + 1.0 / kappa) * density / sd if v > 0.0 else 0.0
        slopes[0, i] = -up + down / (kappa * kappa)
