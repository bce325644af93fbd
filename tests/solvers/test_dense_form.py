"""The posterior of one latent function from its covariance matrix."""

import numpy as np
import pytest

from pymc_gpep.gaussians.prior import DensePrior


@pytest.mark.parametrize("unsure", [[], [0, 7, 39], list(range(20)), list(range(40))], ids=len)
@pytest.mark.parametrize("least", [0.0, 1e-9, 2e-5])
def test_variances_match_the_inverse_for_weak_sites(unsure, least):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    K = 4.0 * np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1)) + 1e-6 * np.eye(40)
    precision = rng.uniform(0.1, 5.0, 40)
    precision[unsure] = least
    precision[[13, 31]] = 1e6
    posterior = DensePrior(K[None], np.zeros((1, 40))).posterior(np.zeros(40))
    assert posterior.update(precision, np.zeros(40))
    dense = np.linalg.solve(np.eye(40) + K * precision, K)
    np.testing.assert_allclose(posterior.variance, np.diag(dense), rtol=1e-7)
    # the inverse, which derivatives use
    posterior.gradient()
    posterior.spread()
    np.testing.assert_allclose(posterior.variance, np.diag(dense), rtol=1e-7)
