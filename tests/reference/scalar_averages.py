"""Averages of a likelihood p of one latent value over N(f | m, v): h = log E p(f) and g = E log p(f), in many digits.

The trapezoid rule has nodes in the standardised f, or for a wide normal density in τ with f = 3 sinh τ. Derivatives of
h are cumulants of f under N(f) p(f). Derivatives of g are integrals of log p times derivatives of the normal density.
The number of digits exceeds the digits lost by cancellation.
"""

from collections.abc import Callable

import mpmath
import numpy as np
from scipy.special import log_expit, log_ndtr

from tests.reference.stored import stored

DIGITS = 60
_EXPONENT = 125.0  # a node is dropped if its log weight is this far below the largest


def _rule(mean: float, sd: float, log_weight: Callable[[np.ndarray], np.ndarray]) -> list:
    """Nodes and weights of the normal average."""
    if sd < 2.0:
        step = 0.06 if sd > 0.5 else 0.14
        tau = step * np.arange(-int(60 / step), int(60 / step) + 1)
        f, jacobian = mean + sd * tau, np.full(len(tau), sd)
    else:
        step = 0.005 if abs(mean) > 8 * sd else 0.02
        ends = int(np.arcsinh((abs(mean) + 60 * sd) / 3) / step) + 1
        tau = step * np.arange(-ends, ends + 1)
        f, jacobian = 3 * np.sinh(tau), 3 * np.cosh(tau)
    exponent = -0.5 * ((f - mean) / sd) ** 2 + np.log(jacobian) + log_weight(f)
    rule = []
    for k in np.flatnonzero(exponent > exponent.max() - _EXPONENT):
        t = mpmath.mpf(step) * round(tau[k] / step)
        x = mean + sd * t if sd < 2.0 else 3 * mpmath.sinh(t)
        dx = mpmath.mpf(sd) if sd < 2.0 else 3 * mpmath.cosh(t)
        rule.append((x, step * dx * mpmath.npdf(x, mean, sd)))
    return rule


def log_average(density: Callable, log_density: Callable, mean: float, sd: float) -> list:
    """h = log E p(f) and its first four derivatives in the mean.

    `density` takes mpmath's numbers, and `log_density` takes arrays.
    """
    with mpmath.workdps(DIGITS):
        weighted = [(x, w * density(x)) for x, w in _rule(mean, sd, log_density)]
        raw = [mpmath.fsum(w * x**k for x, w in weighted) for k in range(5)]
        one, two, three, four = (moment / raw[0] for moment in raw[1:])
        v = mpmath.mpf(sd) ** 2
        second = two - one**2
        third = three - 3 * two * one + 2 * one**3
        fourth = four - 4 * three * one - 3 * two**2 + 12 * two * one**2 - 6 * one**4
        return [mpmath.log(raw[0]), (one - mean) / v, second / v**2 - 1 / v, third / v**3, fourth / v**4]


def average_log(log_density: Callable, log_size: Callable, mean: float, sd: float) -> list:
    """g = E log p(f), ∂g/∂m and ∂g/∂v.

    `log_density` takes mpmath's numbers, and `log_size` approximates log |log p| of arrays.
    """
    with mpmath.workdps(DIGITS):
        v = mpmath.mpf(sd) ** 2
        weighted = [(x - mean, w * log_density(x)) for x, w in _rule(mean, sd, log_size)]
        return [
            mpmath.fsum(w for _, w in weighted),
            mpmath.fsum(w * d for d, w in weighted) / v,
            mpmath.fsum(w * (d * d - v) for d, w in weighted) / (2 * v * v),
        ]


def logistic(x):
    return 1 / (1 + mpmath.exp(-x))


def log_logistic(x):
    return -mpmath.log1p(mpmath.exp(-x))


def log_ndtr_mp(x):
    return mpmath.log(mpmath.ncdf(x)) if x < 0 else mpmath.log1p(-mpmath.ncdf(-x))


def log_size_logit(f):
    return np.where(f > 30, -f, np.log(-log_expit(np.minimum(f, 30))))


def log_size_probit(f):
    return np.where(f > 5, log_ndtr(-f), np.log(-log_ndtr(np.minimum(f, 5))))


EXACT = {
    "probit": (mpmath.ncdf, log_ndtr, log_ndtr_mp, log_size_probit),
    "logit": (logistic, log_expit, log_logistic, log_size_logit),
}


@stored
def exact_log_average(link: str, mean: float, sd: float) -> np.ndarray:
    """h and its derivatives."""
    density, log_density, _, _ = EXACT[link]
    return np.array(log_average(density, log_density, mean, sd), dtype=float)


@stored
def exact_average_log(link: str, mean: float, sd: float) -> np.ndarray:
    """g and its derivatives."""
    _, _, log_density, log_size = EXACT[link]
    return np.array(average_log(log_density, log_size, mean, sd), dtype=float)
