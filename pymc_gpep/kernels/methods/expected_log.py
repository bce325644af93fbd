"""Lower bounds of the log likelihood of a point averaged over independent normal latent values, with derivatives.

See equations 14 to 17 of Villacampa-Calvo and Hernández-Lobato (2017). The observed one of the utilities
u_k ~ N(m_k, v_k + noise) is the largest with probability P. The average log probability of a label with noise ε is
P log(1 − ε + ε/c) + (1 − P) log(ε/c).

Without label noise that has no bound from below. Girolami and Rogers (2006) leave the utilities a distribution of their
own. As log ∫ p(u) exp(mᵀu − ½ uᵀu) du is convex in m, log p(y | f) averages to log p(y | m) − ½ Σ v or more.
"""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient
from pymc_gpep.kernels.sparse_step.point_terms import FINE, average_labels, whole_points

_LEAST = 1e-12  # variance of latent values that have none


@kernel
def _step_average(noise, mean, variance, y, parameters, value, of_mean, of_variance):
    whole_points(mean, variance, y, noise, 0.0, FINE, np.zeros(mean.shape[0]), value, of_mean, of_variance)
    average_labels(parameters[0], mean.shape[1], value, of_mean, of_variance)


@kernel
def noisy_probit_average(mean, variance, y, parameters, value, of_mean, of_variance):
    """Bound the average of the multinomial probit with label noise, whose utilities have unit noise.

    Parameters
    ----------
    mean, variance : (n, c) array
        Moments of the latent values.
    y : (n,) array
        Classes.
    parameters : (1, n) array
        Label noise ε.
    value : (n,) array
        Overwritten.
    of_mean, of_variance : (n, c) array
        Overwritten with the derivatives.
    """
    _step_average(1.0, mean, variance, y, parameters, value, of_mean, of_variance)


@kernel
def noisy_step_average(mean, variance, y, parameters, value, of_mean, of_variance):
    """The same of the step likelihood, whose utilities are the latent values: no bound, but the average itself."""
    _step_average(_LEAST, mean, variance, y, parameters, value, of_mean, of_variance)


@kernel
def utility_average(mean, variance, y, parameters, value, of_mean, of_variance):
    """The same of the multinomial probit without label noise; `parameters` are not read."""
    n, c = mean.shape
    for i in range(n):
        value[i] = log_probability_and_gradient(mean[i], y[i], of_mean[i])
        for k in range(c):
            value[i] -= 0.5 * variance[i, k]
            of_variance[i, k] = -0.5
