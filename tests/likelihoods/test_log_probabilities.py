"""Log probabilities of observations and of censored or truncated observations, as graphs of the model's variables."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.traversal import ancestors
from scipy import stats

from pymc_gpep.likelihoods.log_probabilities import log_above, log_below, log_probability

Y = np.array([-1.0, 0.2, 0.7, 2.0])
D = np.float64  # PyTensor gives Python numbers the smallest type that holds them, and would compute in single precision
FAST = "FAST_COMPILE"
UPPER = np.array([np.inf, 0.2, np.inf, 2.0])


@pytest.mark.parametrize(
    ("declare", "exact"),
    [(lambda f: pm.Normal.dist(f, D(0.5)), stats.norm), (lambda f: pm.Logistic.dist(f, D(0.5)), stats.logistic)],
    ids=["normal", "logistic"],
)
def test_log_probabilities_beyond_bounds_and_their_derivatives_match_scipy(declare, exact):
    with pm.Model() as model:
        f = pm.Normal("f", shape=4)
        y = pm.Censored("y", declare(f), lower=-1.0, upper=UPPER, observed=Y)
    found = log_probability(y, pt.constant(Y))
    assert model["f"] in ancestors([found])
    at = np.array([0.3, -0.4, 40.0, -60.0])
    value = pt.vector("value", dtype="float64")
    (by_value,) = model.replace_rvs_by_values([found])
    log_p = pytensor.graph.replace.graph_replace(by_value, {model.rvs_to_values[f]: value})
    both = pytensor.function([value], [log_p, pytensor.grad(log_p.sum(), value)], mode="FAST_COMPILE")
    first, last = exact(at, 0.5).logcdf(-1.0)[0], exact(at, 0.5).logsf(Y)
    # PyMC stores √2 in single precision.
    assert_allclose(both(at)[0], [first, last[1], exact(at, 0.5).logpdf(Y)[2], last[3]], rtol=1e-7)
    step = 1e-5
    assert_allclose(both(at)[1], (both(at + step)[0] - both(at - step)[0]) / (2.0 * step), rtol=1e-5)


@pytest.mark.parametrize(
    ("dist", "exact"),
    [
        (pm.Weibull.dist(D(1.5), D(0.01)), stats.weibull_min(1.5, scale=0.01)),
        (pm.Exponential.dist(D(100.0)), stats.expon(scale=0.01)),
    ],
    ids=["weibull", "exponential"],
)
def test_survival_is_positive_if_the_distribution_function_rounds_to_one(dist, exact):
    y = pm.Censored.dist(dist, lower=None, upper=10.0)
    found = log_probability(y, pt.constant(D(10.0))).eval()
    assert found == pytest.approx(exact.logsf(10.0), rel=1e-12)


TAILS = {
    "normal": (pm.Normal.dist(D(1.0), D(0.5)), stats.norm(1.0, 0.5), [-20.0, 1.2, 20.0]),
    "student_t": (pm.StudentT.dist(nu=D(3.0), mu=D(1.0), sigma=D(0.5)), stats.t(3.0, 1.0, 0.5), [-900.0, 1.2, 900.0]),
    "logistic": (pm.Logistic.dist(D(1.0), D(0.5)), stats.logistic(1.0, 0.5), [-90.0, 1.2, 90.0]),
    "gamma": (pm.Gamma.dist(D(2.5), D(1.5)), stats.gamma(2.5, scale=1.0 / 1.5), [1e-9, 1.2, 90.0]),
    "beta": (pm.Beta.dist(D(2.5), D(1.5)), stats.beta(2.5, 1.5), [1e-9, 0.4, 1.0 - 1e-9]),
    "poisson": (pm.Poisson.dist(D(4.0)), stats.poisson(4.0), [-1.0, 0.0, 3.0, 90.0]),
    "negative_binomial": (
        pm.NegativeBinomial.dist(D(4.0), D(2.0)),
        stats.nbinom(2.0, 1.0 / 3.0),
        [-1.0, 0.0, 3.0, 90.0],
    ),
    "binomial": (pm.Binomial.dist(6, D(0.3)), stats.binom(6, 0.3), [-1.0, 0.0, 3.0, 6.0]),
}


@pytest.mark.parametrize("name", TAILS)
def test_log_probabilities_keep_their_digits_in_both_tails(name):
    dist, exact, values = TAILS[name]
    y = np.array(values)
    assert_allclose(log_above(dist, pt.constant(y)).eval(mode=FAST), exact.logsf(y), rtol=1e-7, atol=1e-15)
    assert_allclose(log_below(dist, pt.constant(y)).eval(mode=FAST), exact.logcdf(y), rtol=1e-7, atol=1e-15)


def test_underflowing_tails_have_finite_logarithms():
    """For a gamma distribution in the tail, the ratio of survival function to density approaches the scale."""
    above = log_above(pm.Gamma.dist(D(2.5), D(1.5)), pt.constant(np.array([500.0, 1e6]))).eval(mode=FAST)
    assert_allclose(above, stats.gamma.logpdf([500.0, 1e6], 2.5, scale=1.0 / 1.5) - np.log(1.5), atol=3e-3)
    below = log_below(pm.Poisson.dist(1e4), pt.constant(D(3.0))).eval(mode=FAST)
    assert below == pytest.approx(stats.poisson.logpmf(3, 1e4), rel=1e-6)


def test_counts_censored_at_an_upper_bound_have_the_upper_tail():
    found = log_probability(pm.Censored.dist(pm.Poisson.dist(D(4.0)), 1, 3), pt.constant([1, 2, 3]))
    exact = stats.poisson(4.0)
    assert_allclose(found.eval(mode=FAST), [exact.logcdf(1), exact.logpmf(2), exact.logsf(2)], rtol=1e-12)


def test_truncated_densities_are_normalised():
    """Some bounds are infinite. A censored time can also be truncated from below."""
    y, lower, upper = np.array([0.5, 1.0, 2.0]), np.array([-np.inf, 0.0, 0.7]), np.array([1.0, np.inf, 3.0])
    found = log_probability(pm.Truncated.dist(pm.Gamma.dist(D(2.0), D(1.5)), lower, upper), pt.constant(y))
    exact = stats.gamma(2.0, scale=1.0 / 1.5)
    mass = exact.cdf(upper) - exact.cdf(lower)
    assert_allclose(found.eval(mode=FAST), exact.logpdf(y) - np.log(mass), rtol=1e-12)
    late = pm.Truncated.dist(pm.Weibull.dist(D(2.0), D(1.5)), lower=0.3)
    found = log_probability(
        pm.Censored.dist(late, None, np.array([2.0, 1.0, 1.9])), pt.constant(np.array([1.0, 1.0, 2.0]))
    )
    exact = stats.weibull_min(2.0, scale=1.5)
    begun = exact.logsf(0.3)
    assert_allclose(found.eval(mode=FAST), [exact.logpdf(1.0) - begun, exact.logsf(1.0) - begun, np.nan], rtol=1e-12)
    counts = pm.Truncated.dist(pm.Poisson.dist(D(2.0)), lower=1, upper=4)
    each = log_probability(counts, pt.constant(np.arange(1, 5))).eval(mode=FAST)
    assert np.exp(each).sum() == pytest.approx(1.0, rel=1e-12)
