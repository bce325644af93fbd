"""Log densities of observations at draws of a fit, against SciPy, and leave-one-out from these draws."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

_rng = np.random.default_rng(3)
X = _rng.normal(size=40)
COUNTS = _rng.poisson(np.exp(0.3 + 0.5 * X))
SCORES = _rng.normal(size=(12, 3))
COVARIANCE = np.eye(3) + 0.5


def counts():
    a, b = pm.Normal("a"), pm.Normal("b")
    pm.Poisson("y", pm.math.exp(a + b * X), observed=COUNTS)


def value_of_each_row():
    u = pm.Normal("u", 0, 2, shape=40)
    pm.Poisson("y", pm.math.exp(u), observed=COUNTS)


def array():
    u = pm.Normal("u", dims="item")
    pm.Normal("y", u, 1.5, observed=SCORES, dims=("person", "item"))


def vectors():
    u = pm.Normal("u", dims="item")
    pm.MvNormal("y", u, cov=COVARIANCE, observed=SCORES, dims=("person", "item"))


def fitted(declare):
    with pm.Model(coords={"person": range(12), "item": list("abc")}) as model:
        declare()
        return model, pm.fit(method="ep", progressbar=False)


def test_draws_have_the_log_densities_of_observations():
    _, fit = fitted(counts)
    draws = fit.sample(400, log_likelihood=True, random_seed=1)
    own = draws["posterior"]
    rates = np.exp(own["a"].values[..., None] + own["b"].values[..., None] * X)
    assert_allclose(draws["log_likelihood"]["y"], stats.poisson.logpmf(COUNTS, rates), rtol=1e-7)
    assert az.loo(draws).elpd == pytest.approx(fit.loo().elpd, abs=0.3)
    assert "log_likelihood" not in fit.sample(5)


def test_misleading_leave_one_out_of_draws_causes_a_warning():
    _, fit = fitted(value_of_each_row)
    with pytest.warns(UserWarning, match=r"az\.loo of these draws has an elpd of .* Compare models by the fits"):
        fit.sample(300, log_likelihood=True, random_seed=1)
    table = az.compare({"a": fit.loo(), "b": fit.loo()})  # the advice of the warning
    assert len(table) == 2


@pytest.mark.parametrize("declare", [array, vectors])
def test_log_densities_of_arrays_have_their_dims(declare):
    _, fit = fitted(declare)
    draws = fit.sample(50, log_likelihood=True, random_seed=1)
    found, u = draws["log_likelihood"]["y"], draws["posterior"]["u"].values[0]
    if declare is array:
        assert found.dims == ("chain", "draw", "person", "item")
        expected = stats.norm(u[:, None], 1.5).logpdf(SCORES)
    else:
        assert found.dims == ("chain", "draw", "person")
        expected = [stats.multivariate_normal(each, COVARIANCE).logpdf(SCORES) for each in u]
    assert_allclose(found[0], expected, rtol=1e-7)


def test_vectors_are_drawn_jointly_at_new_data():
    model, fit = fitted(vectors)
    with model:
        drawn = pm.sample_posterior_predictive(fit.sample(4000, random_seed=1), progressbar=False, random_seed=2)
    found = np.cov(drawn["posterior_predictive"]["y"].values[0, :, 0].T)
    posterior = np.linalg.inv(np.eye(3) + 12 * np.linalg.inv(COVARIANCE))
    assert_allclose(found, COVARIANCE + posterior, atol=0.12)


@pytest.mark.parametrize("more", [{"Xnew": np.zeros((2, 1))}, {"return_inferencedata": False}])
def test_log_densities_without_a_dim_are_refused(more):
    _, fit = fitted(counts)
    with pytest.raises(TypeError, match="log_likelihood=True is for a DataTree"):
        fit.sample(5, log_likelihood=True, **more)
