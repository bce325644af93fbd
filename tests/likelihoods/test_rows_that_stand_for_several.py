"""One row that represents several equal rows: same posterior and hyperparameters, evidence up to a known constant."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.special import gammaln

RNG = np.random.default_rng(6)
N = 6
X, TIMES = np.linspace(-1.0, 1.0, N), np.array([1, 3, 2, 4, 1, 2])
ROW = np.repeat(np.arange(N), TIMES)
MANY = ROW.size


def total(values):
    return np.bincount(ROW, values)


def fit(observe, x):
    with pm.Model():
        s = pm.HalfNormal("s", 1.0)
        level, slope = pm.Normal("level", 0, s), pm.Normal("slope", 0, 1)
        observe(level + slope * x)
        return pm.fit(method="laplace", hyper="map", progressbar=False)


def counts():
    y = RNG.poisson(np.exp(X[ROW]))
    constant = (total(y) * np.log(TIMES) - gammaln(total(y) + 1.0)).sum() + gammaln(y + 1.0).sum()
    return (
        lambda f: pm.Poisson("y", mu=TIMES * pm.math.exp(f), observed=total(y).astype(int)),
        lambda f: pm.Poisson("y", mu=pm.math.exp(f), observed=y),
        constant,
    )


def lifetimes():
    y = RNG.exponential(np.exp(X[ROW]))
    constant = ((TIMES - 1.0) * np.log(total(y)) - gammaln(TIMES)).sum()
    return (
        lambda f: pm.Gamma("y", alpha=TIMES, beta=pm.math.exp(-f), observed=total(y)),
        lambda f: pm.Exponential("y", scale=pm.math.exp(f), observed=y),
        constant,
    )


def zeros_and_ones():
    y = RNG.integers(0, 2, MANY)
    k = total(y)
    constant = (gammaln(TIMES + 1.0) - gammaln(k + 1.0) - gammaln(TIMES - k + 1.0)).sum()
    return (
        lambda f: pm.Binomial("y", n=TIMES, logit_p=f, observed=k.astype(int)),
        lambda f: pm.Bernoulli("y", logit_p=f, observed=y),
        constant,
    )


def numbers():
    y = X[ROW] + 0.5 * RNG.normal(size=MANY)
    mean = total(y) / TIMES
    squares = ((y - mean[ROW]) ** 2).sum()

    def of_means(f):
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", f, sigma / np.sqrt(TIMES), observed=mean)
        pm.Potential("within", -(MANY - N) * pm.math.log(sigma) - squares / (2 * sigma**2))

    def of_rows(f):
        pm.Normal("y", f, pm.HalfNormal("sigma", 1.0), observed=y)

    return of_means, of_rows, 0.5 * np.log(TIMES).sum() + 0.5 * (MANY - N) * np.log(2 * np.pi)


@pytest.mark.variation(but=["counts"])
@pytest.mark.parametrize("response", [counts, lifetimes, zeros_and_ones, numbers], ids=lambda each: each.__name__)
def test_hyperparameters_and_posterior_of_grouped_rows_match_all_rows(response):
    of_sums, of_rows, constant = response()
    few, many = fit(of_sums, X), fit(of_rows, X[ROW])
    for name, value in many.hyperparameters.items():
        assert_allclose(few.hyperparameters[name], value, rtol=1e-4)
    for name in ("level", "slope"):
        assert_allclose(few.mean_data[name], many.mean_data[name], atol=1e-4)
        assert_allclose(few.std_data[name], many.std_data[name], atol=1e-4)
    # The constant is a `pm.Potential` for `numbers`: a term of the log posterior and not of the evidence.
    if response is not numbers:
        assert few.log_evidence - many.log_evidence == pytest.approx(constant, abs=1e-4)
