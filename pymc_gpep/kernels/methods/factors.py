"""Factors of a likelihood under independent normal latent values: bounds, log normalisers and derivatives.

Variational methods use the average log probability of a label with noise ε, P log(1 − ε + ε/c) + (1 − P) log(ε/c). Here
P is the probability that the observed one of the utilities u_k ~ N(m_k, v_k + noise) is the largest (equations 14 to 17
of Villacampa-Calvo and Hernández-Lobato 2017). Without label noise it has no bound from below. Girolami and Rogers
(2006) leave the utilities a distribution of their own. As log ∫ p(u) exp(mᵀu − ½ uᵀu) du is convex in m, log p(y | f)
averages to log p(y | m) − ½ Σ v or more.

EP uses the normaliser Z = ∫ t(f) ∏ N(f_k | m_k, v_k) df of a factor t, and ρ_k = ∂ log Z / ∂m_k. It also needs
γ_k = ρ_k² − 2 ∂ log Z / ∂v_k, which by the heat equation is −∂² log Z / ∂m_k².

`quadrature_tilted` treats a point of the multinomial probit as one factor. With independent cavities N(μ_k, v_k) the
utilities f_k + e_k, e_k ~ N(0, 1), are independent too. Class y is observed if its utility t ~ N(μ_y, τ²),
τ² = 1 + v_y, is the largest (Girolami and Zhong 2007). Given t the rest has a closed form, and every moment is one
integral over x = (t − μ_y) / τ:

    Ẑ = ∫ φ(x) ∏_{j≠y} Φ(z_j) dx,   z_j = (μ_y + τ x − μ_j) / σ_j,   σ_j² = 1 + v_j.

Seeger, Lawrence and Herbrich (2006) use two two-dimensional quadratures and 2c − 1 one-dimensional ones, of a few
nodes. Girolami and Zhong use 2c + 1 two-dimensional ones, of a few nodes too. Here one trapezoid rule computes all
moments to nearly full precision.

Let V be the tilted variance of a class's standardised utility, and ρ the tilted mean of that over its deviation. The
tilted mean of f is then μ + v ρ and its variance v (1 + v V) / (1 + v). A site of precision (1 − V) / (1 + v V) matches
these. For class y, V is the variance of x. For the others it is E[1 − λ (λ + z)] + Var λ, λ the hazard at z, and their
ρ is −E[λ] / σ.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient
from pymc_gpep.kernels.sparse_step.point_terms import FINE, average_labels, whole_points
from pymc_gpep.kernels.special.normal import LOG_2PI, probit_moments
from pymc_gpep.kernels.special.probit import LOWEST_LOG_WEIGHT, log_integrand, near_mode, trapezoid_rule

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
def _add_node(x, log_z, slopes, offsets, y, mode, at_mode, moments):
    """Add the terms of node x to the sums of the standardised utilities' moments; return its weight.

    `log_z` is the log integrand at the mode up to the Gaussian's. `moments` (4, c) holds x or λ less that at the mode,
    its square, the truncated variance 1 − λ(λ + z), and room.
    """
    c = slopes.shape[0]
    log_weight = -0.5 * x * x - log_z
    for j in range(c):
        if j != y:
            log_p, moments[3, j], _, _ = probit_moments(slopes[j] * x + offsets[j])
            log_weight += log_p
    if not log_weight > LOWEST_LOG_WEIGHT:
        return 0.0
    weight = math.exp(log_weight)
    for j in range(c):
        if j == y:
            difference = x - mode
        else:
            _, h, _, truncated = probit_moments(slopes[j] * x + offsets[j])
            difference = h - at_mode[j]
            moments[2, j] += weight * truncated
        moments[0, j] += weight * difference
        moments[1, j] += weight * difference * difference
    return weight


@kernel
def quadrature_tilted(settings, mean, variance, y, old, new, scale):
    """Matched site of one point under independent cavities of `mean` and `variance` (c,); returns log Ẑ and 0.

    `settings` are scratch arrays, three (c,) and one (4, c). The site's π and ν are written into `new` (2, c); `old`
    and `scale` are not used. They belong to the signature of kernels which iterate inner sites.
    """
    slopes, offsets, at_mode, moments = settings
    c = mean.shape[0]
    tau = math.sqrt(1.0 + variance[y])
    curvature = 1.0
    for j in range(c):
        if j != y:
            sigma = math.sqrt(1.0 + variance[j])
            slopes[j] = tau / sigma
            offsets[j] = (mean[y] - mean[j]) / sigma
            curvature += slopes[j] * slopes[j]
    mode = near_mode(slopes, offsets, y, at_mode)
    peak = log_integrand(mode, slopes, offsets, y, at_mode)
    step, nodes = trapezoid_rule(curvature)
    moments[:] = 0.0
    total = _add_node(mode, peak, slopes, offsets, y, mode, at_mode, moments)
    for side in (-step, step):
        for node in range(1, nodes + 1):
            weight = _add_node(mode + node * side, peak, slopes, offsets, y, mode, at_mode, moments)
            if weight == 0.0:
                break
            total += weight
    for k in range(c):
        shift = moments[0, k] / total
        spread = moments[1, k] / total - shift * shift
        if k == y:
            rho = (mode + shift) / tau
        else:
            rho = -(at_mode[k] + shift) / math.sqrt(1.0 + variance[k])
            spread += moments[2, k] / total
        new[0, k] = max(0.0, 1.0 - spread) / (1.0 + variance[k] * spread)
        new[1, k] = new[0, k] * (mean[k] + variance[k] * rho) + rho
    return peak + math.log(total * step) - 0.5 * LOG_2PI, 0.0


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
