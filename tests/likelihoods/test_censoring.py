"""Log probabilities of censored observations, in terms of the variables of their model."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.traversal import ancestors
from scipy import stats

from pymc_gpep.likelihoods.censoring import censored_log_probability

Y = np.array([-1.0, 0.2, 0.7, 2.0])
UPPER = np.array([np.inf, 0.2, np.inf, 2.0])


@pytest.mark.parametrize(
    ("declare", "exact"),
    [(lambda f: pm.Normal.dist(f, 0.5), stats.norm), (lambda f: pm.Logistic.dist(f, 0.5), stats.logistic)],
    ids=["normal", "logistic"],
)
def test_all_beyond_a_bound_counts_with_a_derivative(declare, exact):
    with pm.Model() as model:
        f = pm.Normal("f", shape=4)
        y = pm.Censored("y", declare(f), lower=-1.0, upper=UPPER, observed=Y)
    found = censored_log_probability(y, pt.constant(Y))
    assert model["f"] in ancestors([found])
    at = np.array([0.3, -0.4, 40.0, -60.0])
    value = pt.vector("value", dtype="float64")
    (by_value,) = model.replace_rvs_by_values([found])
    log_p = pytensor.graph.replace.graph_replace(by_value, {model.rvs_to_values[f]: value})
    both = pytensor.function([value], [log_p, pytensor.grad(log_p.sum(), value)], mode="FAST_COMPILE")
    first, last = exact(at, 0.5).logcdf(-1.0)[0], exact(at, 0.5).logsf(Y)
    # PyMC has √2 in single precision.
    assert_allclose(both(at)[0], [first, last[1], exact(at, 0.5).logpdf(Y)[2], last[3]], rtol=1e-7)
    step = 1e-5
    assert_allclose(both(at)[1], (both(at + step)[0] - both(at - step)[0]) / (2.0 * step), rtol=1e-5)


def test_what_is_not_censored_is_none_of_them():
    assert censored_log_probability(pm.Normal.dist(), pt.constant(0.0)) is None


@pytest.mark.parametrize(
    ("dist", "exact"),
    [
        (pm.Weibull.dist(1.5, 0.01), stats.weibull_min(1.5, scale=0.01)),
        (pm.Exponential.dist(100.0), stats.expon(scale=0.01)),
    ],
    ids=["weibull", "exponential"],
)
def test_survival_is_a_number_where_the_distribution_function_rounds_to_one(dist, exact):
    y = pm.Censored.dist(dist, lower=None, upper=10.0)
    found = censored_log_probability(y, pt.constant(10.0)).eval()
    assert found == pytest.approx(exact.logsf(10.0), rel=1e-12)
