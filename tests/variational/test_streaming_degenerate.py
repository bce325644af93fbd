"""Batch fits of degenerate problems: half or none of the labels of a step likelihood are noise."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests.variational.test_streaming_inference import NEW, X, Y, fit

WAYS = {
    "stateless": ("sparse_ep", {}),
    "sites": ("sparse_ep", {"memory": "sites"}),
    "stochastic": ("sparse_sep", {}),
}


def noisy(epsilon):
    def build():
        with pm.Model() as model:
            ls = pm.InverseGamma("ls", 3, 3)
            gp = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(2, ls=ls) + pm.gp.cov.WhiteNoise(1e-2))
            gpep.RobustMax("y", gp.prior("f", X=X, n_outputs=3).T, epsilon=epsilon, observed=Y)
        return model, gp

    return build


@pytest.mark.variation
@pytest.mark.parametrize(("epsilon", "way"), [(0.5, "stateless"), *((0.0, way) for way in WAYS)])
def test_fits_with_label_noise_converge(epsilon, way):
    method, options = WAYS[way]
    _, found = fit(12, method, noisy(epsilon), sites="quadrature", inducing=4, **options)
    assert found.message.startswith("Ended after 12 steps")
    assert np.isfinite(found.hist).all()
    p = found.predict(NEW)["p"].values
    assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)
    assert (p >= epsilon / 3 - 1e-12).all()
