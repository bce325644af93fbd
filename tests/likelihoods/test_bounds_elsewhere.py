"""Bounds of censored observations at new points, given as data of the model."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

X = np.linspace(-1.0, 1.0, 12)
NEW = {"x": [0.2, 0.4, 0.6], "upper": [0.5, np.inf, 0.5]}
SIGMA = 0.5


@pytest.fixture(scope="module")
def censored():
    with pm.Model():
        x, upper = pm.Data("x", X), pm.Data("upper", np.full(len(X), 0.3))
        eta = pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * x
        pm.Censored("y", pm.Normal.dist(eta, SIGMA), None, upper, observed=np.minimum(X, 0.3))
        return pm.fit(method="ep", progressbar=False)


def test_new_observation_with_an_infinite_bound_is_scored_without_censoring(censored):
    found = censored.predict(data=NEW, observed=[0.5, 0.7, 0.1])
    noisy = stats.norm(found["mean"].values.ravel(), np.sqrt(found["variance"].values.ravel() + SIGMA**2))
    expected = np.where([True, False, False], noisy.logsf(0.5), noisy.logpdf([0.5, 0.7, 0.1]))
    assert_allclose(found["log_density"].values.ravel(), expected, rtol=1e-6)


def test_new_bound_that_is_nan_is_refused(censored):
    with pytest.raises(ValueError, match=r"data\['upper'\] must be numbers, like the data of the model"):
        censored.predict(data=NEW | {"upper": [0.5, np.nan, 0.5]})
