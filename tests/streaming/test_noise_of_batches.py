"""Noise of batch fits, and distance of stochastic EP from EP, at fixed hyperparameters."""

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


def shift(n, method, steps, batch_size, shared=True, **options):
    """Root mean squared difference of posterior means from EP's means, in standard deviations.

    The second number leaves out the part that is common to all functions of a point.
    """
    model, gp, data, inducing = problem(n)
    common = {"gp": gp, "data": data, "inducing": inducing, "shared_inducing": shared, "learn_inducing": False,
              "sites": "pairwise", "progressbar": False}  # fmt: skip
    with model:
        ep = pm.fit(method="sparse_ep", **common).predict(gp, data[0][:200])
        found = pm.fit(steps, method=method, batch_size=batch_size, **common, **options).predict(gp, data[0][:200])
    deviation = np.sqrt(np.diagonal(ep["cov"].values, axis1=1, axis2=2))
    apart = (found["mean"] - ep["mean"]).values
    apart = apart if apart.shape == deviation.shape else apart.T
    between = apart - apart.mean(axis=1, keepdims=True)
    return tuple(float(np.sqrt(((each / deviation) ** 2).mean())) for each in (apart, between))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_noise_of_batches_decreases(shared):
    assert max(shift(3000, "sparse_ep", 600, 150, shared, decay=0.3)) < 0.02


@pytest.mark.slow
def test_stochastic_ep_is_close_to_ep():
    apart, between = shift(300, "sparse_sep", 60, None)
    assert between < 0.1
    assert apart < 0.15  # the fixed points differ most in the common part, where the likelihood is flat


@pytest.mark.slow
def test_stochastic_ep_of_few_rows_has_larger_error_but_close_evidence():
    """The evidence of recovered sites is close to EP's evidence. The objective of the fit is far above."""
    _, between = shift(60, "sparse_sep", 60, None)
    assert between < 0.3
    model, gp, data, inducing = problem(60)
    common = {"gp": gp, "data": data, "inducing": inducing, "shared_inducing": True, "learn_inducing": False,
              "sites": "quadrature", "progressbar": False}  # fmt: skip
    with model:
        ep = pm.fit(method="sparse_ep", **common)
        found = pm.fit(60, method="sparse_sep", batch_size=None, **common)
    assert abs(found.log_evidence - ep.log_evidence) < 5.0
    assert found.objective > ep.log_evidence
