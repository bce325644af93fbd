"""Rules that factorise a likelihood for EP with inducing inputs: derivatives, and the averages they compute."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from pymc_gpep.approximations import SparseEP
from pymc_gpep.approximations.site_rules import RULES, Pairs, ScalarSites, WholePoint, chosen_rule
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.bernoulli import ProbitLikelihood
from pymc_gpep.likelihoods.label_noise import RobustMaxLikelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from tests.likelihoods.with_parameters import EVERY
from tests.reference.independent_ep import quadrature_moments

PROBIT = MultinomialProbitLikelihood()
every = pytest.mark.parametrize(
    ("rule", "likelihood"),
    [
        (rule(), likelihood)
        for rule in RULES
        for likelihood in LIKELIHOODS
        if issubclass(rule, ScalarSites) and rule.fits(likelihood)
    ],
    ids=lambda each: getattr(each, "name", None),
)


def random_moments(rule, likelihood, n=40, c=4):
    """Means and variances (n, d) of the rule's latent values, and labels."""
    rng = np.random.default_rng(1)
    c = c if likelihood.function_axis else 1
    labels = rng.integers(max(likelihood.n_classes(c), 2), size=n)
    if likelihood.name in EVERY:
        labels = np.resize(EVERY[likelihood.name].y, n)
    d = rule.functions(labels, c).shape[1]
    return 3.0 * rng.normal(size=(n, d)), np.exp(rng.normal(size=(n, d))), labels


def bound(likelihood, n=40):
    """Return the likelihood with parameters (p, n): ε of label noise, numbers of trials, dispersions."""
    if likelihood.name in EVERY:
        parameters = EVERY[likelihood.name].parameters
        return likelihood.given(parameters[:, np.arange(n) % parameters.shape[1]])
    return likelihood.given(np.full((1, n), 0.02))


@every
def test_derivatives_match_differences(rule, likelihood):
    mean, variance, labels = random_moments(rule, likelihood)
    likelihood = bound(likelihood)
    found = rule.tilted(likelihood, mean, variance, labels)
    step = 1e-5
    for site in range(mean.shape[1]):
        h = step * (np.arange(mean.shape[1]) == site)

        def log_z(of_mean=0.0, of_variance=0.0):
            return rule.tilted(likelihood, mean + of_mean, variance + of_variance, labels).log_z

        slope = (log_z(h) - log_z(-h)) / (2 * step)
        in_variance = (log_z(0.0, h) - log_z(0.0, -h)) / (2 * step)
        assert_allclose(found.rho[:, site], slope, rtol=1e-6, atol=1e-8)
        assert_allclose(0.5 * (found.rho[:, site] ** 2 - found.gamma[:, site]), in_variance, rtol=1e-6, atol=1e-8)


@every
def test_sites_of_log_concave_likelihoods_have_positive_precisions(rule, likelihood):
    mean, variance, labels = random_moments(rule, likelihood)
    gamma = rule.tilted(bound(likelihood), mean, variance, labels).gamma
    assert (gamma >= 0.0).all() == (likelihood.log_concave or not rule.exact)
    assert (gamma / (1.0 - gamma * variance) < likelihood.largest_precision).all()


def test_log_normaliser_of_the_whole_point_rule_matches_quadrature():
    mean, variance, labels = random_moments(WholePoint(), PROBIT)
    log_z = WholePoint().tilted(PROBIT, mean, variance, labels).log_z
    expected = [quadrature_moments(m, v, y).log_normaliser for m, v, y in zip(mean, variance, labels, strict=True)]
    assert_allclose(log_z, expected, atol=1e-10)


def test_pairwise_sites_couple_the_observed_class_with_each_class():
    functions = Pairs().functions(np.array([0, 2, 1]), 3)
    assert_allclose(functions, [[0, 0, 1, 2], [2, 2, 0, 1], [1, 1, 0, 2]])


@given(st.integers(2, 10), st.integers(0, 2**32 - 1), st.floats(0.0, 10.0), st.floats(-4.0, 4.0))
@settings(max_examples=60, deadline=None)
def test_normaliser_of_pairs_is_at_most_the_normaliser_of_the_whole_point(c, seed, apart, wide):
    """Equation 6 of the paper: comparisons of one class with the other classes are positively associated."""
    rng = np.random.default_rng(seed)
    n = 30
    labels = rng.integers(c, size=n)
    mean, variance = apart * rng.normal(size=(n, c)), np.exp(wide + 2.0 * rng.normal(size=(n, c)))
    functions = Pairs().functions(labels, c)
    of_pairs = [np.take_along_axis(values, functions, axis=1) for values in (mean, variance)]
    step = RobustMaxLikelihood().given(np.zeros((1, n)))
    for likelihood in (PROBIT, step):
        pairs = Pairs().tilted(likelihood, *of_pairs, labels).log_z
        whole = WholePoint().tilted(likelihood, mean, variance, labels).log_z
        assert (pairs <= whole + 1e-9 * (1 + np.abs(whole))).all()
        if c == 2:
            assert_allclose(pairs, whole, rtol=1e-8, atol=1e-12)


def test_normaliser_of_pairs_with_equal_classes_is_a_power_of_one_half():
    labels, c = np.zeros(1, np.int64), 10
    log_z = Pairs().tilted(PROBIT, np.zeros((1, 18)), np.zeros((1, 18)), labels).log_z
    assert_allclose(np.exp(log_z), 2.0 ** -(c - 1))


@pytest.mark.parametrize(
    ("likelihood", "c", "size", "name"),
    [
        (PROBIT, 3, 50, "nested"),
        (PROBIT, 6, 666, "nested"),
        (PROBIT, 6, 667, "quadrature"),
        (PROBIT, 7, 50, "quadrature"),
        (PROBIT, 2, 50, "quadrature"),
        (ProbitLikelihood(), 1, 50, "quadrature"),
    ],
)
def test_likelihood_and_size_determine_the_default_rule(likelihood, c, size, name):
    assert chosen_rule(likelihood, c, size) == name
    assert SparseEP().named(likelihood, c, size).sites == name
    assert SparseEP(sites="quadrature").named(likelihood, c, size).sites == "quadrature"
    assert SparseEP().rule(likelihood, c, size).name == name
