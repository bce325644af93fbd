"""The logistic likelihood of two classes, p(y | f) = σ((2y − 1) f), σ(x) = 1 / (1 + e⁻ˣ), and its averages.

Arrays as in `pymc_gpep.likelihoods.local_computations`; classes are 0 and 1, without parameters. With s = 2y − 1 the
likelihood is σ(sf).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.scalar.probit import class_sign
from pymc_gpep.kernels.special.logistic_average import (
    ROOM,
    average_log_logistic,
    log_logistic,
    log_logistic_mixture,
    log_logistic_normal,
    mixture_scales,
    scale_mixture,
)
from pymc_gpep.kernels.special.normal import write_derivatives


@kernel
def derivatives(f, y, parameters, out):
    """Write log p(y_i | f_i) and its first three derivatives into `out` (4, n)."""
    for i in range(len(f)):
        sign = class_sign(y[i])
        log_p, p, other = log_logistic(sign * f[i])
        out[0, i] = log_p
        out[1, i] = sign * other
        out[2, i] = -p * other * sign * sign
        out[3, i] = sign * p * other * (p - other)


@kernel
def average(mean, variance, y, parameters, out):
    """Write log ∫ σ(sf) N(f | m, v) df and its first four derivatives in the mean m into `out` (5, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        sign = class_sign(y[i])
        centre = sign * mean[i]
        if not (0.0 <= variance[i] < math.inf and math.isfinite(centre)):
            out[:, i] = np.nan
            continue
        write_derivatives(out, i, sign, log_logistic_normal(centre, variance[i], room))


@kernel
def rough_average(mean, variance, y, parameters, out):
    """Write the first three rows of the `out` of `average`, to nine digits, in a fifth of the time."""
    scales = mixture_scales(0.0)
    for i in range(len(mean)):
        sign = class_sign(y[i])
        centre = sign * mean[i]
        if not (0.0 <= variance[i] < math.inf and math.isfinite(centre)):
            out[:3, i] = np.nan
            continue
        scale_mixture(variance[i], scales)
        out[0, i], first, out[2, i] = log_logistic_mixture(centre, variance[i], scales)
        out[1, i] = sign * first


@kernel
def average_log(mean, variance, y, parameters, out):
    """Write ∫ log σ(sf) N(f | m, v) df and its derivatives in m and v into `out` (3, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        sign = class_sign(y[i])
        centre = sign * mean[i]
        if not (0.0 <= variance[i] < math.inf and math.isfinite(centre)):
            out[:, i] = np.nan
            continue
        value, slope, curvature = average_log_logistic(centre, variance[i], room)
        out[0, i] = value
        out[1, i] = sign * slope
        out[2, i] = 0.5 * curvature


@kernel
def bound(mean, variance, y, parameters, out):
    """Write the bound log σ(ς) + ½ (sm − ς) with ς² = m² + v (Jaakkola and Jordan 2000) and slopes into `out`.

    The quadratic function below log σ(sf) is log σ(ς) + ½ (sf − ς) − λ (f² − ς²), λ = tanh(ς/2) / 4ς. Derivatives of
    the bound are derivatives of its average at fixed ς.
    """
    for i in range(len(mean)):
        sign = class_sign(y[i])
        width = math.sqrt(mean[i] * mean[i] + variance[i])
        log_p, p, other = log_logistic(width)
        # λ = (σ(ς) − ½) / 2ς. A series replaces it for small ς, since the difference loses digits.
        half = (p - other) / (4.0 * width) if width > 1e-3 else 0.125 - width * width / 96.0
        out[0, i] = log_p + 0.5 * (sign * mean[i] - width)
        out[1, i] = 0.5 * sign - 2.0 * half * mean[i]
        out[2, i] = -half * sign * sign
