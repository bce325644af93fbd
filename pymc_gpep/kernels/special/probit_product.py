"""Integrals of φ(x) ∏_j Φ(a_j x + d_j) over x, with a_j > 0, by the trapezoid rule about the integrand's mode.

On the line x + iη the integrand is at most exp(κ η² / 2) times what it is at x, κ = 1 + Σ a_j². The reason is
|φ(t + iη)| = exp(η²/2) φ(t); integrating that along the line bounds |Φ(t + iη)| by exp(η²/2) Φ(t) in the same way. The
rule with step h then errs by a factor of 2 exp(κ η²/2 − 2πη/h) at most (Trefethen and Weideman 2014, theorem 5.1). For
the best η this is 2 exp(−2π²/(κ h²)): the step follows from the digits wanted, whatever the d_j are. The integrand is
log-concave with a curvature between 1 and κ, so that it needs to be summed only around its mode.

The factors are those of the classes other than `y`: `slopes` and `offsets` (c,) hold a and d, of which entry y is not
read. The multinomial probit likelihood of one point is such an integral, and so is its average over independent latent
values.
"""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import log_ndtr_and_hazard, probit_moments

_LOG_ERROR = math.log(1e-15)
LOWEST_LOG_WEIGHT = -40.0
"""Of a node, relative to the mode's; below this it does not count."""
_FURTHEST_NODE = math.sqrt(-2.0 * LOWEST_LOG_WEIGHT)  # with a curvature of 1 or more, weights fall at least so fast
_MAX_NEWTON_STEPS = 100


@kernel
def log_integrand(x, slopes, offsets, y, hazards):
    """log(φ(x) ∏ Φ) up to ½ log 2π; the hazards of the other classes go to `hazards`, 0 for class y."""
    total = -0.5 * x * x
    for j in range(slopes.shape[0]):
        hazards[j] = 0.0
        if j != y:
            log_cdf, hazards[j] = log_ndtr_and_hazard(slopes[j] * x + offsets[j])
            total += log_cdf
    return total


@kernel
def near_mode(slopes, offsets, y, hazards):
    """Return a point within a small part of the integrand's width from its mode.

    The slope of the log integrand is convex and falls (hazards do: Sampford 1953), and it is positive at 0. Newton's
    method started there thus comes up to the mode from the left without ever passing it.
    """
    x = 0.0
    for _ in range(_MAX_NEWTON_STEPS):
        slope = -x
        curvature = 1.0
        for j in range(slopes.shape[0]):
            hazards[j] = 0.0
            if j != y:
                # Far in the tail h (h + t) is 1, but the sum of its parts has no digits.
                _, hazards[j], bend, _ = probit_moments(slopes[j] * x + offsets[j])
                slope += slopes[j] * hazards[j]
                curvature += slopes[j] * slopes[j] * bend
        x += slope / curvature
        if not slope * slope > 1e-4 * curvature:
            break
    return x


@kernel
def trapezoid_rule(curvature):
    """Step of the rule for the largest curvature κ, and how many nodes a side of the mode can have."""
    step = math.pi * math.sqrt(-2.0 / (curvature * _LOG_ERROR))
    return step, int(_FURTHEST_NODE / step) + 1
