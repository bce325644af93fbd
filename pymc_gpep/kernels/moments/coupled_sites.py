"""Sites of f from inner sites of g, for nested EP and its like."""

from pymc_gpep.kernels.compile import kernel


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
def relative_location(prior_mean, pi, nu):
    """Make ν relative to the prior mean, ν − Π m; returns the log of the sites at m."""
    c, n = pi.shape
    constant = 0.0
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
    return constant
