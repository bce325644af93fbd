"""Counts y ~ Poisson(exp(f + o)), with the logarithm o of the exposure as row 0 of the parameters.

Arrays as in `pymc_gpep.likelihoods.local_computations`. An exposure adds to f, so that all slopes in o are slopes in f.
An exposure of 0 is `NO_EXPOSURE`: a count of 0 then has the probability 1 at any f. Other counts, which cannot be, give
NaN.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.unimodal_average import RATE, ROOM, log_unimodal_normal

NO_EXPOSURE = -1e100
"""What stands for the logarithm of an exposure of 0: a number, with derivatives, that no latent value comes near to."""


@kernel
def _log_rate(f, offset, count):
    """f + o; NaN where there can be no such count."""
    return f + offset if count == 0 or (count > 0 and offset > NO_EXPOSURE) else math.nan


@kernel
def derivatives(f, y, parameters, out):
    """log p(y_i | f_i) and its first three derivatives into `out` (4, n)."""
    for i in range(len(f)):
        argument = _log_rate(f[i], parameters[0, i], y[i])
        rate = math.exp(argument)
        out[0, i] = y[i] * argument - rate - math.lgamma(y[i] + 1.0)
        out[1, i] = y[i] - rate
        out[2, i] = -rate
        out[3, i] = -rate


@kernel
def average(mean, variance, y, parameters, out):
    """log ∫ p(y | f) N(f | μ, D) df and its first four derivatives in μ into `out` (5, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        argument = _log_rate(mean[i], parameters[0, i], y[i])
        terms = log_unimodal_normal(RATE, float(y[i]), 0.0, argument, variance[i], room)
        for k in range(5):
            out[k, i] = terms[k]
        out[0, i] -= math.lgamma(y[i] + 1.0)


@kernel
def average_slopes(mean, variance, y, parameters, out):
    """The derivative of `average` in o into `out` (1, n)."""
    room = np.empty(ROOM)
    for i in range(len(mean)):
        argument = _log_rate(mean[i], parameters[0, i], y[i])
        out[0, i] = log_unimodal_normal(RATE, float(y[i]), 0.0, argument, variance[i], room)[1]


@kernel
def average_log(mean, variance, y, parameters, out):
    """∫ log p(y | f) N(f | m, v) df = y (m + o) − exp(m + o + v/2) − log y! and its derivatives into `out` (3, n)."""
    for i in range(len(mean)):
        argument = _log_rate(mean[i], parameters[0, i], y[i])
        rate = math.exp(argument + 0.5 * variance[i]) if variance[i] >= 0.0 else math.nan
        out[0, i] = y[i] * argument - rate - math.lgamma(y[i] + 1.0)
        out[1, i] = y[i] - rate
        out[2, i] = -0.5 * rate


@kernel
def parameter_derivatives(f, y, parameters, out):
    """The derivatives in o of log p and of its first two derivatives in f into `out` (1, 3, n)."""
    for i in range(len(f)):
        rate = math.exp(_log_rate(f[i], parameters[0, i], y[i]))
        out[0, 0, i] = y[i] - rate
        out[0, 1, i] = -rate
        out[0, 2, i] = -rate


@kernel
def average_log_slopes(mean, variance, y, parameters, out):
    """The derivative of `average_log` in o into `out` (1, n)."""
    for i in range(len(mean)):
        rate = math.exp(_log_rate(mean[i], parameters[0, i], y[i]) + 0.5 * variance[i])
        out[0, i] = y[i] - rate if variance[i] >= 0.0 else math.nan


@kernel
def moments(mean, variance, parameters, out):
    """Mean and variance of a count under N(f | m, v), those of a log-normal rate and the rate's noise, into (2, n)."""
    for i in range(len(mean)):
        rate = math.exp(mean[i] + parameters[0, i] + 0.5 * variance[i])
        out[0, i] = rate
        out[1, i] = rate + rate * rate * math.expm1(variance[i])
