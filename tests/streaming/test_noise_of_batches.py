"""What is left of the noise of batches, and how far stochastic EP is from EP, where hyperparameters stay.

What is common to all functions of a point the likelihood does not see. Steps of EP move it slowly, sweeps over all rows
by a rule of their own: compared are the functions without it.
"""

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep


def problem(n):
    rng = np.random.default_rng(2)
    X = rng.uniform(-2, 2, size=(n, 2))
    f = 2.0 * np.stack([np.sin(2 * X[:, 0]), np.cos(1.5 * X[:, 1]), X.prod(axis=1) / 4])
    y = (f + rng.standard_normal(f.shape)).argmax(axis=0)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(2, ls=1.0))
        gpep.MultinomialProbit("y", gp.prior("f", X=X[:10], n_outputs=3).T, observed=y[:10])
    return model, gp, (X, y), X[:12]


def shift(n, method, steps, batch_size, **options):
    """Root mean square over functions and points of the difference of posterior means from EP's, in deviations."""
    model, gp, data, inducing = problem(n)
    common = {"gp": gp, "data": data, "inducing": inducing, "shared_inducing": True, "learn_inducing": False,
              "sites": "pairwise", "progressbar": False}  # fmt: skip
    with model:
        ep = pm.fit(method="sparse_ep", **common).predict(gp, data[0][:200])
        found = pm.fit(steps, method=method, batch_size=batch_size, **common, **options).predict(gp, data[0][:200])
    deviation = np.sqrt(np.diagonal(ep["cov"].values, axis1=1, axis2=2))
    apart = (found["mean"] - ep["mean"]).values
    apart = (apart if apart.shape == deviation.shape else apart.T).copy()
    apart -= apart.mean(axis=1, keepdims=True)
    return float(np.sqrt(((apart / deviation) ** 2).mean()))


@pytest.mark.slow
def test_the_noise_of_batches_dies_away():
    assert shift(3000, "sparse_ep", 600, 150, decay=0.3) < 0.1


@pytest.mark.slow
def test_stochastic_ep_is_near_ep():
    assert shift(300, "sparse_sep", 60, None) < 0.1
