"""The posterior of c independent latent functions under sites of EP, at the level that suits the prior.

A likelihood of differences does not see a function h added to all classes: the moments it asks for then shift by h, and
so the sites of class k become (π_k, ν_k + π_k h). Which h is best is for the prior to say, and a fixed point of EP has
Σ_k b_k = 0, the derivative of the evidence with respect to a mean that all classes share. An iteration that updates
each class given the others goes there in steps of a size of 1/(1 + πK), which for a large K is no progress. So that h
is solved for in every sweep: it changes Σ_k b_k by P h, P = Σ_k B_k, which is one more matrix to factorise than the c
of the classes.

A `problem` is (prior covariance (1 or c, n, n), prior mean (c, n), labels (n,)); a `space` holds what is computed:
π, ν (c, n), the weights b = K⁻¹ (mean − prior mean) (c, n), posterior means and variances (c, n), the A_k⁻¹ (c, n, n)
and the factor of P (n, n). The algebra is that of `pymc_gpep.kernels.coupled` and `pymc_gpep.kernels.independent`.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.coupled import factorise, site_roots
from pymc_gpep.kernels.independent import class_variance
from pymc_gpep.kernels.lapack import multiply_symmetric, solve_with_cholesky

__all__ = ["levelled_posterior"]


@kernel
def _weights(inverses, pi, nu, prior_mean, b):
    """b_k = D^½ A⁻¹ D^{-½} (ν − D m) into `b` (c, n); returns Σ_k b_k (n,)."""
    c, n = pi.shape
    total = np.zeros(n)
    scaled = np.empty(n)
    for a in range(c):
        root = site_roots(pi[a])
        for i in range(n):
            scaled[i] = (nu[a, i] - pi[a, i] * prior_mean[a, i]) / root[i]
        multiply_symmetric(inverses[a], scaled, b[a])
        for i in range(n):
            b[a, i] *= root[i]
            total[i] += b[a, i]
    return total


@kernel
def levelled_posterior(problem, sites, space):
    """Shift the locations in `sites` (2, n, ≥ c), π and ν first, and compute the posterior.

    Returns success and log ∫ p(f) ∏ sites.
    """
    k, prior_mean, _ = problem
    pi, nu, b, mean, variance, inverses, p = space
    c, n = pi.shape
    for a in range(c):
        for i in range(n):
            pi[a, i] = sites[0, i, a]
            nu[a, i] = sites[1, i, a]
    ok, log_det = factorise(k, pi, inverses, p)
    if not ok:
        return False, np.nan
    shift = solve_with_cholesky(p, _weights(inverses, pi, nu, prior_mean, b))
    for a in range(c):
        for i in range(n):
            nu[a, i] -= pi[a, i] * shift[i]
            sites[1, i, a] = nu[a, i]
    _weights(inverses, pi, nu, prior_mean, b)
    total = -0.5 * log_det  # of the A_k and P
    for i in range(n):
        total += math.log(p[i, i])
    for a in range(c):
        prior = k[a if k.shape[0] > 1 else 0]
        multiply_symmetric(prior, b[a], mean[a])
        class_variance(prior, pi[a], inverses[a], variance[a])
        # Relative to the prior mean the location is ν − π m, and the sites have a value at m.
        for i in range(n):
            location = nu[a, i] - pi[a, i] * prior_mean[a, i]
            total += 0.5 * (prior_mean[a, i] * (nu[a, i] + location) + location * mean[a, i])
            mean[a, i] += prior_mean[a, i]
    return True, total
