"""The likelihood factor of a point whose label is noise with probability ε: (1 − ε) p + ε / c.

The likelihood p is the probability that the utility of the observed class is the largest. Utilities of the multinomial
probit are latent values with unit noise, those of the step likelihood the latent values as they are.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.largest_of_independent import LEGENDRE, log_largest_and_derivatives

_LEAST = 1e-12
"""Variance that latent values are given besides their own, so that those which have none have a likelihood."""
_NODES, _WEIGHTS = LEGENDRE


@kernel
def _with_label_noise(log_p, rho, gamma, epsilon):
    """log Ẑ for log Ẑ₀, with its derivatives in place of those of log Ẑ₀."""
    c = rho.shape[0]
    if not epsilon > 0.0:
        return log_p
    right, noise = math.log1p(-epsilon) + log_p, math.log(epsilon / c)
    top = max(right, noise)
    log_z = top + math.log(math.exp(right - top) + math.exp(noise - top))
    share = math.exp(right - log_z)
    for k in range(c):
        gamma[k] = share * (gamma[k] - (1.0 - share) * rho[k] * rho[k])
        rho[k] *= share
    return log_z


@kernel
def _point_derivatives(noise, mean, variance, y, parameters, log_z, rho, gamma):
    n, c = mean.shape
    room, spread = np.empty((10, c)), np.empty(c)
    for i in range(n):
        valid = math.isfinite(parameters[0, i])
        for k in range(c):
            spread[k] = variance[i, k] + noise
            valid &= spread[k] > 0.0 and math.isfinite(spread[k]) and math.isfinite(mean[i, k])
        if not valid:
            log_z[i] = np.nan
            rho[i] = np.nan
            gamma[i] = np.nan
            continue
        log_p = log_largest_and_derivatives(mean[i], spread, y[i], _NODES, _WEIGHTS, rho[i], gamma[i], room)
        log_z[i] = _with_label_noise(log_p, rho[i], gamma[i], parameters[0, i])


@kernel
def noisy_probit_derivatives(mean, variance, y, parameters, log_z, rho, gamma):
    """A point's multinomial probit with label noise, as `point_derivatives`; `parameters` (1, n) holds ε."""
    _point_derivatives(1.0, mean, variance, y, parameters, log_z, rho, gamma)


@kernel
def noisy_step_derivatives(mean, variance, y, parameters, log_z, rho, gamma):
    """The same of the step likelihood, which has no noise of its own."""
    _point_derivatives(_LEAST, mean, variance, y, parameters, log_z, rho, gamma)
