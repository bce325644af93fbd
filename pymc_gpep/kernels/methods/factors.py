"""Factors of a likelihood under independent normal latent values: bounds, log normalisers and derivatives.

Variational methods use the average log probability of a label with noise ε, P log(1 − ε + ε/c) + (1 − P) log(ε/c). Here
P is the probability that the observed one of the utilities u_k ~ N(m_k, v_k + noise) is the largest (equations 14 to 17
of Villacampa-Calvo and Hernández-Lobato 2017). Without label noise it has no bound from below. Girolami and Rogers
(2006) leave the utilities a distribution of their own. As log ∫ p(u) exp(mᵀu − ½ uᵀu) du is convex in m, log p(y | f)
averages to log p(y | m) − ½ Σ v or more.

EP uses the normaliser Z = ∫ t(f) ∏ N(f_k | m_k, v_k) df of a factor t, and ρ_k = ∂ log Z / ∂m_k. It also needs γ_k =
ρ_k² − 2 ∂ log Z / ∂v_k, which by the heat equation is −∂² log Z / ∂m_k².
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient
from pymc_gpep.kernels.methods.class_independent import quadrature_tilted
from pymc_gpep.kernels.sparse_step.point_terms import FINE, average_labels, whole_points
from pymc_gpep.kernels.special.largest_of_independent import log_largest
from pymc_gpep.kernels.special.normal import probit_moments

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


@kernel
def point_derivatives(mean, variance, y, parameters, log_z, rho, gamma):
    """Treat a point's whole multinomial probit as one factor, by one integral.

    Parameters
    ----------
    mean, variance : (n, c) array
        Moments of the latent values.
    y : (n,) array
        Classes.
    parameters : (0, n) array
    log_z : (n,) array
        Overwritten.
    rho, gamma : (n, c) array
        Overwritten.
    """
    n, c = mean.shape
    settings = (np.empty(c), np.empty(c), np.empty(c), np.empty((4, c)))
    nothing, site, room = np.zeros((2, c)), np.empty((2, c)), np.empty(c)
    for i in range(n):
        log_z[i], _ = quadrature_tilted(settings, mean[i], variance[i], y[i], nothing, site, room)
        for k in range(c):
            stretch = 1.0 + site[0, k] * variance[i, k]
            gamma[i, k] = site[0, k] / stretch
            rho[i, k] = (site[1, k] - site[0, k] * mean[i, k]) / stretch


@kernel
def rough_log_normalisers(mean, variance, y, parameters, log_z):
    """Compute the log normalisers of `point_derivatives` alone, to about 1e-6 in a small part of the time.

    Parameters
    ----------
    mean, variance : (n, c) array
        Moments of the latent values.
    y : (n,) array
        Classes.
    parameters : (0, n) array
    log_z : (n,) array
        Overwritten.
    """
    n, c = mean.shape
    room, utility_variance = np.empty((3, c)), np.empty(c)
    for i in range(n):
        for k in range(c):
            utility_variance[k] = 1.0 + variance[i, k]
        log_z[i] = log_largest(mean[i], utility_variance, y[i], room)


@kernel
def _pair_derivatives(noise, mean, variance, log_z, rho, gamma):
    n, _, p = mean.shape
    for i in range(n):
        log_z[i] = 0.0
        for j in range(p):
            scale = 1.0 / math.sqrt(noise + variance[i, 0, j] + variance[i, 1, j])
            log_p, h, curvature, _ = probit_moments(scale * (mean[i, 0, j] - mean[i, 1, j]))
            log_z[i] += log_p
            rho[i, 0, j] = scale * h
            rho[i, 1, j] = -scale * h
            gamma[i, 0, j] = scale * scale * curvature
            gamma[i, 1, j] = scale * scale * curvature


@kernel
def pair_derivatives(mean, variance, log_z, rho, gamma):
    """One factor Φ((f − g) / √2) for every pair of utilities, of the observed class and of another.

    Both utilities have unit noise. Villacampa-Calvo and Hernández-Lobato (2017), equations 6 to 8.

    Parameters
    ----------
    mean, variance : (n, 2, p) array
        Moments of f and g of p pairs at n points.
    log_z : (n,) array
        Overwritten with the sums over pairs.
    rho, gamma : (n, 2, p) array
        Overwritten.
    """
    _pair_derivatives(2.0, mean, variance, log_z, rho, gamma)


@kernel
def step_pair_derivatives(mean, variance, log_z, rho, gamma):
    """The same with utilities that have no noise: one factor Θ(f − g) for every pair."""
    _pair_derivatives(_LEAST, mean, variance, log_z, rho, gamma)
