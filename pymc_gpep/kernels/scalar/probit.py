"""The probit likelihood of two classes, p(y | f) = Φ((2y − 1) f), and its averages over a normal f.

Arrays as in `pymc_gpep.likelihoods.local_computations`; classes are 0 and 1. With s = 2y − 1 the likelihood is Φ(sf).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import log_ndtr_and_hazard, log_ndtr_derivatives, write_derivatives
from pymc_gpep.kernels.special.probit import log_probit_normal


@kernel
def class_sign(label):
    """Return 1 for class 1, −1 for class 0, NaN otherwise."""
    return math.nan if label < 0 or label > 1 else 2.0 * label - 1.0


@kernel
def derivatives(f, y, parameters, out):
    """Write log p(y_i | f_i) and its first three derivatives into `out` (4, n)."""
    for i in range(len(f)):
        sign = class_sign(y[i])
        write_derivatives(out, i, sign, log_ndtr_derivatives(sign * f[i]))


@kernel
def average(mean, variance, y, parameters, out):
    """Write log ∫ Φ(sf) N(f | m, v) df = log Φ(sm / √(1 + v)) and its first four derivatives in m into `out` (5, n)."""
    for i in range(len(mean)):
        slope = class_sign(y[i]) / math.sqrt(1.0 + variance[i])
        write_derivatives(out, i, slope, log_ndtr_derivatives(slope * mean[i]))


@kernel
def average_log(mean, variance, y, parameters, out):
    """Write ∫ log Φ(sf) N(f | m, v) df and its derivatives in m and v into `out` (3, n)."""
    for i in range(len(mean)):
        sign = class_sign(y[i])
        centre = sign * mean[i]
        if not (0.0 <= variance[i] < math.inf and math.isfinite(centre)):
            out[:, i] = np.nan
            continue
        value, hazard, curvature = log_probit_normal(centre, variance[i])
        out[0, i] = -value
        out[1, i] = sign * hazard
        out[2, i] = -0.5 * curvature


@kernel
def bound(mean, variance, y, parameters, out):
    """Write the lower bound log Φ(sm) − ½ v of the average log density, and its derivatives, into `out` (3, n).

    The bound holds since −(log Φ)″ ≤ 1 (Nickisch and Rasmussen 2008, equation 14, with the optimal quadratic function).
    """
    for i in range(len(mean)):
        sign = class_sign(y[i])
        log_p, hazard = log_ndtr_and_hazard(sign * mean[i])
        out[0, i] = log_p - 0.5 * variance[i]
        out[1, i] = sign * hazard
        out[2, i] = -0.5 * sign * sign
