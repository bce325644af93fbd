"""The log posterior of grouped rows against the log posterior of all rows, for approximations that agree on both."""

import numpy as np
import pymc as pm
import pytest

from pymc_gpep.approximations import EP, KL, ScalarLaplace
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.prior_moments import precision_sum
from pymc_gpep.reading import read_classifier

RNG = np.random.default_rng(3)
N, GROUPS = 60, 6
GROUP, X = RNG.integers(0, GROUPS, N), RNG.integers(0, 3, N).astype(float)
NUMBERS = RNG.normal(size=N) + GROUP
COUNTS = RNG.poisson(2.0, N)
CLASSES = RNG.integers(0, 3, N)


def poisson(eta):
    pm.Poisson("y", mu=pm.math.exp(eta + pm.HalfNormal("o") * np.linspace(0.0, 1.0, N)), observed=COUNTS)


def normal(eta):
    pm.Normal("y", eta, pm.HalfNormal("e") * np.where(np.arange(N) % 3 == 0, 2.0, 1.0), observed=NUMBERS)


def ordered(eta):
    cuts = pm.Normal("c", 0.0, 2.0, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
    pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=CLASSES)


def negative_binomial(eta):
    pm.NegativeBinomial("y", mu=pm.math.exp(eta), alpha=pm.HalfNormal("alpha", 3.0), observed=COUNTS)


def two_variables(eta):
    pm.Bernoulli("y", logit_p=eta, observed=CLASSES > 0)
    pm.Normal("z", eta, pm.HalfNormal("e"), observed=NUMBERS)


LIKELIHOODS = {
    "bernoulli": lambda eta: pm.Bernoulli("y", logit_p=eta, observed=CLASSES > 0),
    "binomial": lambda eta: pm.Binomial("y", n=COUNTS + 2, logit_p=eta, observed=np.minimum(COUNTS, 2)),
    "poisson": poisson,
    "normal": normal,
    "ordered": ordered,
    "negative binomial": negative_binomial,
    "two variables": two_variables,
}


def log_posteriors(observe, approximator, repeats=1):
    """Return log posteriors with and without grouping of rows.

    The model has `repeats` copies of the rows: other forms of the prior are used for more rows.
    """
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, pm.HalfNormal("s", 2.0), shape=GROUPS * repeats)
        group = (np.arange(repeats)[:, None] * GROUPS + GROUP).ravel()
        observe(pm.Normal("a") + pm.Normal("b") * np.tile(X, repeats) + u[group])
    classifier = read_classifier(model)
    made = [DenseLogPosterior(classifier, approximator, grouped=grouped) for grouped in (True, False)]
    assert made[0].classifier.groups is not None
    assert made[1].classifier.groups is None
    return made


@pytest.mark.variation(but=["poisson-laplace", "ordered-kl", "normal-kl", "two variables-laplace"])
@pytest.mark.parametrize("approximator", [ScalarLaplace(tolerance=1e-10), KL(tolerance=1e-10)], ids=["laplace", "kl"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_laplace_and_kl_of_groups_equal_rows(name, approximator):
    own, rows = log_posteriors(LIKELIHOODS[name], approximator)
    theta = own.space.initial_point() + 0.1
    found, expected = own(theta), rows(theta)
    assert found.evidence == pytest.approx(expected.evidence, abs=1e-7)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.variation(but=["poisson", "normal", "ordered"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_of_ep_match_differences(name):
    own, _ = log_posteriors(LIKELIHOODS[name], EP(tolerance=1e-9))
    theta = own.space.initial_point() + 0.1
    direction = np.random.default_rng(1).normal(size=theta.size)
    h = 1e-4
    low, high = (own(theta + side * direction).log_posterior for side in (-h, h))
    assert own(theta).gradient @ direction == pytest.approx((high - low) / (2 * h), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("dense", "form"), [(0.0, "By rows"), (1.0 / 3.0, "By a sparse precision")])
def test_groups_with_large_priors_equal_rows(dense, form, monkeypatch):
    repeats = 50
    monkeypatch.setattr(precision_sum, "_DENSE", dense)
    own, rows = log_posteriors(
        lambda eta: pm.Poisson("y", mu=pm.math.exp(eta), observed=np.tile(COUNTS, repeats)),
        ScalarLaplace(tolerance=1e-10),
        repeats,
    )
    theta = own.space.initial_point() + 0.1
    assert own(theta).evidence == pytest.approx(rows(theta).evidence, rel=1e-10)
    assert form in own.algebra
