"""Sites of a batch under a Gaussian that is the same for all of them: cavities, and what follows from their factors."""

import math

from pymc_gpep.kernels.compile import kernel


@kernel
def cavities(mean, variance, t, nu, prior_mean, rest, cavity_mean, cavity_variance, latent_mean, latent_variance):
    """Means and variances of x without the sites t, ν, and of the latent values that factors see; all (B, d)."""
    for b in range(mean.shape[0]):
        for i in range(mean.shape[1]):
            keep = 1.0 - t[b, i] * variance[b, i]
            cavity_mean[b, i] = (mean[b, i] - nu[b, i] * variance[b, i]) / keep
            cavity_variance[b, i] = variance[b, i] / keep
            latent_mean[b, i] = prior_mean[b, i] + cavity_mean[b, i]
            latent_variance[b, i] = rest[b, i] + cavity_variance[b, i]


@kernel
def matching_sites(in_mean, in_variance, mean, variance, t, nu):
    """Sites t, ν that give cavities the moments of the tilted distributions; see `memories.memory.site_of`."""
    for b in range(mean.shape[0]):
        for i in range(mean.shape[1]):
            gamma = max(in_mean[b, i] * in_mean[b, i] - 2.0 * in_variance[b, i], 0.0)
            narrower = 1.0 - gamma * variance[b, i]
            t[b, i] = gamma / narrower
            nu[b, i] = (in_mean[b, i] + gamma * mean[b, i]) / narrower


@kernel
def bounded_sites(variance, largest, t, nu):
    """Hold precisions back so that t times the variance is `largest` at most; the means that sites have stay."""
    for b in range(variance.shape[0]):
        for i in range(variance.shape[1]):
            bound = largest / variance[b, i]
            if t[b, i] > bound:
                nu[b, i] *= bound / t[b, i]
                t[b, i] = bound


@kernel
def without_sites(
    mean, variance, t, nu, cavity_mean, cavity_variance, value, in_mean, in_variance, held_back, values, of_variance,
    floored,
):  # fmt: skip
    """Parts of points in EP's log normaliser, and its derivatives in variances of x, from those under cavities.

    `values` (B,) is `value` less the log normalisers of sites t, ν under cavities. `of_variance` is (B, d). `floored`
    (B,) is 1 where t times the variance of a site is `held_back` or more.
    """
    for b in range(mean.shape[0]):
        values[b] = value[b]
        floored[b] = 0.0
        for i in range(mean.shape[1]):
            site, shift, m, v = t[b, i], nu[b, i], cavity_mean[b, i], cavity_variance[b, i]
            stretch = 1.0 + site * v
            quadratic = shift * shift * v + 2.0 * shift * m - site * m * m
            values[b] -= 0.5 * (quadratic / stretch - math.log(stretch))
            keep = 1.0 - site * variance[b, i]
            without = (site * mean[b, i] - shift) / keep
            of_variance[b, i] = 0.5 * in_mean[b, i] * without + in_variance[b, i] / keep
            if site * variance[b, i] >= held_back:
                floored[b] = 1.0
