"""Distribution functions of observations with noise much narrower or much wider than the latent distribution."""

from itertools import cycle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad

from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import UNBOUNDED

# For a noise of some width: parameters of the likelihood, and distribution of y − f, or of log y − f.
NOISE = {
    "logistic": (lambda width: [width, -UNBOUNDED, UNBOUNDED], lambda width: stats.logistic(scale=width)),
    "asymmetric_laplace": (
        lambda width: [1.0 / width, 1.5],
        lambda width: stats.laplace_asymmetric(1.5, scale=width),
    ),
    "gamma": (lambda width: [0.2, width**-2], lambda width: stats.loggamma(width**-2, loc=0.2)),
    "weibull": (lambda width: [0.2, 1.0 / width, -UNBOUNDED, UNBOUNDED], lambda width: stats.gumbel_l(0.2, width)),
}


@pytest.mark.variation(but=["gamma-1.0", "weibull-0.001", "asymmetric_laplace-1e-05"])
@pytest.mark.parametrize(
    ("name", "width"), list(zip(cycle(NOISE), [1e-5, 1.0, 0.03, 1e-3, 5.0, 1e-5, 1.0, 0.03], strict=False))
)
def test_distribution_function_matches_average_over_quantiles_of_the_noise(name, width):
    """The reference integrates over quantiles of the noise, so that the integrand is smooth for any width."""
    parameters, noise = NOISE[name][0](width), NOISE[name][1](width)
    likelihood = next(each for each in LIKELIHOODS if each.name == name)
    mean, sd, levels = 0.3, 0.8, (0.02, 0.5, 0.9)
    at = np.array([mean + noise.mean() + np.hypot(sd, noise.std()) * stats.norm.ppf(level) for level in levels])
    y = np.exp(at) if likelihood.least == 0.0 else at
    m = len(levels)
    given = likelihood.given(np.repeat(np.array(parameters)[:, None], m, axis=1))
    found = given.cumulative(y, np.full((m, 1), mean), np.full((m, 1, 1), sd**2))
    expected = [
        quad(lambda u, x=x: stats.norm.cdf(x - noise.ppf(u), mean, sd), 0.0, 1.0, epsabs=1e-10, limit=500)[0]
        for x in at
    ]
    assert_allclose(found, expected, atol=2e-8)
