"""The Gaussian posterior that given inner sites imply: the outer half of every scheme for nested EP.

A `problem` is (prior covariance (1 or c, n, n), prior mean (c, n), labels (n,)); `sites` are α and β (2, n, c − 1); a
`space` holds what is computed: π, ν (c, n), the factors A_k⁻¹ (c, n, n) and P (n, n), work (c, n, n), the weights
b (c, n), and the posterior mean (c, n) and marginal covariances (n, c, c) of the latent values.
"""

import numpy as np
from numba import carray

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.coupled import evidence_gradient, factorise, latent_weights, marginal_moments
from pymc_gpep.kernels.lapack import copy_into

__all__ = ["posterior_space", "site_parameters", "site_posterior", "write_derivatives"]


@kernel
def site_parameters(y, alpha, beta, pi, nu):
    """π and ν (c, n) of the sites of f from the inner sites α, β (n, c − 1) (equations 12 and 15).

    Returns Σ_i (1ᵀβ_i)² / (2 1ᵀπ_i), what is left of the sites when f is zero and u is integrated out.
    """
    n, others = alpha.shape
    constant = 0.0
    for i in range(n):
        total = 1.0
        location = 0.0
        for j in range(others):
            total += alpha[i, j]
            location += beta[i, j]
        a = location / total
        constant += 0.5 * location * a
        pi[y[i], i] = 1.0
        nu[y[i], i] = a
        for j in range(others):
            k = j + (j >= y[i])
            pi[k, i] = alpha[i, j]
            nu[k, i] = a * alpha[i, j] - beta[i, j]
    return constant


@kernel
def site_posterior(problem, sites, space):
    """Compute the posterior. Returns success and log ∫ p(f) p(u) ∏ sites, what the factors' own terms leave over."""
    k, prior_mean, y = problem
    pi, nu, inverses, p, work, b, mean, cov = space
    c, n = pi.shape
    constant = site_parameters(y, sites[0], sites[1], pi, nu)
    ok, log_det = factorise(k, pi, inverses, p)
    if not ok:
        return False, np.nan
    # Everything is relative to the prior mean: ν becomes ν − Π m, and the sites have a value at m.
    for i in range(n):
        total = 0.0
        average = 0.0
        for a in range(c):
            total += pi[a, i]
            average += pi[a, i] * prior_mean[a, i]
        average /= total
        for a in range(c):
            pull = pi[a, i] * (prior_mean[a, i] - average)
            constant += prior_mean[a, i] * (nu[a, i] - 0.5 * pull)
            nu[a, i] -= pull
    latent_weights(inverses, p, pi, nu, b)
    marginal_moments(k, inverses, p, pi, b, work, mean, cov)
    for a in range(c):
        for i in range(n):
            constant += 0.5 * nu[a, i] * mean[a, i]
            mean[a, i] += prior_mean[a, i]
    return True, constant - 0.5 * log_det


@kernel
def posterior_space(c, n, weights_, mean_, cov_, precision_):
    """A space, with a solver's outputs in it."""
    return (
        carray(precision_, (c, n)), np.empty((c, n)), np.empty((c, n, n)), np.empty((n, n)), np.empty((c, n, n)),
        carray(weights_, (c, n)), carray(mean_, (c, n)), carray(cov_, (n, c, c)),
    )  # fmt: skip


@kernel
def write_derivatives(matrices, space, gradient_, gradient_mean_):
    """Derivatives of the evidence at a fixed point into a solver's outputs, from its space."""
    pi, inverses, p, work, b = space[0], space[2], space[3], space[4], space[5]
    c, n = pi.shape
    evidence_gradient(inverses, p, pi, b, work[0], carray(gradient_, (matrices, n, n)))
    copy_into(carray(gradient_mean_, (c, n)), b)
