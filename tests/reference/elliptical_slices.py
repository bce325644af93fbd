"""Exact posterior of latent values by elliptical slice sampling about a Gaussian.

R. Nishihara, I. Murray and R. P. Adams (2014). Parallel MCMC with generalized elliptical slice sampling. *Journal of
Machine Learning Research* 15, 2087–2112. The Gaussian is the posterior of a fit. The slices are of the likelihood
divided by the sites.
"""

import numpy as np

__all__ = ["slices"]


def slices(posterior, likelihood, y, *, chains=50, steps=300, burn=50):
    """Draws (draws, c, n) of the exact posterior, from a Gaussian approximation of it and its sites."""
    rng = np.random.default_rng(0)

    def log_weight(x):
        return likelihood.log_density(posterior.mean + x, y) - posterior.relative_site_log_density(x)

    x, kept = posterior.draw(rng, chains) - posterior.mean, []
    for step in range(steps):
        other = posterior.draw(rng, chains) - posterior.mean
        level = log_weight(x) - rng.exponential(size=chains)
        angle = rng.uniform(0, 2 * np.pi, chains)
        low, high, todo, moved = angle - 2 * np.pi, angle.copy(), np.arange(chains), x.copy()
        while todo.size:
            at = angle[todo][:, None, None]
            moved[todo] = np.cos(at) * x[todo] + np.sin(at) * other[todo]
            todo = todo[log_weight(moved[todo]) <= level[todo]]
            low[todo] = np.where(angle[todo] < 0, angle[todo], low[todo])
            high[todo] = np.where(angle[todo] < 0, high[todo], angle[todo])
            angle[todo] = rng.uniform(low[todo], high[todo])
        x = moved
        if step >= burn:
            kept.append(posterior.mean + x)
    return np.concatenate(kept)
