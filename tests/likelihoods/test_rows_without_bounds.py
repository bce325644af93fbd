"""New rows of censored observations need no bounds, except to score observations there."""

import numpy as np
import pymc as pm
import pytest

UPPER = np.array([1.0, np.inf, 0.5, np.inf, np.inf, 0.8, np.inf, np.inf])
X = np.linspace(-1.0, 1.0, 8)
Y = np.minimum(np.sin(2.0 * X) + 0.4, UPPER)
NEW = {"x": [0.3, 0.6]}


def fit(upper):
    with pm.Model():
        x = pm.Data("x", X)
        slope = pm.Normal("slope", 0, 1)
        pm.Censored("y", pm.Normal.dist(0.2 + slope * x, 0.7), lower=None, upper=upper(), observed=Y)
        return pm.fit(method="ep", hyper="map", progressbar=False)


@pytest.mark.parametrize("upper", [lambda: UPPER, lambda: pm.Data("upper", UPPER)], ids=["numbers", "data"])
def test_predictions_of_censored_rows_are_for_uncensored_observations(upper):
    found = fit(upper).predict(data=NEW, quantiles=0.5)
    np.testing.assert_allclose(found["y_mean"], found["mean"])
    np.testing.assert_allclose(found["y_quantile"][:, 0], found["mean"], rtol=1e-6)
    np.testing.assert_allclose(found["y_variance"], found["variance"] + 0.49)


def test_scores_of_new_rows_require_their_bounds():
    with pytest.raises(ValueError, match="depend on data"):
        fit(lambda: pm.Data("upper", UPPER)).predict(data=NEW, observed=[0.1, 0.2])
