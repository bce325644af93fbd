"""Rules as expressions against the kernels that sweeps over all rows take, and against quadrature and differences."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import erfcx, log_expit, log_ndtr

from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.local_computations import PointAverage
from pymc_gpep.likelihoods.log_probabilities import scaled_erfc
from pymc_gpep.streaming.rules import RULES, rule_for

NAMED = {likelihood.name: likelihood for likelihood in LIKELIHOODS}
CASES = [(kind, likelihood) for kind in RULES for likelihood in LIKELIHOODS if kind.fits(likelihood)]
CASES = [(kind, likelihood.given(np.full((1, 6), 0.05))) for kind, likelihood in CASES]
IDS = [f"{kind.__name__} of {likelihood.name}" for kind, likelihood in CASES]


def evaluated(rule, likelihood, spread=1.0):
    """Labels, what sites act on, means, variances, and the rule as a function of the latter two."""
    rng = np.random.default_rng(1)
    c = 4 if likelihood.function_axis else 1
    y = rng.integers(likelihood.n_classes(c), size=6)
    labels = pt.constant(y)
    functions = pytensor.function([], rule.functions(labels, c))()
    shape = functions.shape
    mean, variance = (pt.tensor(shape=shape, dtype="float64") for _ in range(2))
    terms = pytensor.function([mean, variance], list(rule.terms(mean, variance, labels)), on_unused_input="ignore")
    return y, functions, 2.0 * rng.normal(size=shape), spread * rng.exponential(size=shape), terms


@pytest.mark.variation(
    but=["LogitNormaliser of logit", "ProbitNormaliser of probit", "PairNormalisers of multinomial_probit"]
)
@pytest.mark.parametrize(("kind", "likelihood"), CASES, ids=IDS)
def test_log_normalisers_are_those_of_the_kernels(kind, likelihood):
    rule = kind.of(likelihood)
    y, functions, mean, variance, terms = evaluated(rule, likelihood, 3.0)
    factors = rule.expresses()
    assert np.array_equal(functions, factors.functions(y, 4 if likelihood.function_axis else 1))
    if kind.functional == "log normaliser":
        found = factors.tilted(likelihood, mean, variance, y)
        value, rho, delta = terms(mean, variance)
        assert_allclose(value, found.log_z, atol=1e-8)
        assert_allclose(rho, found.rho, atol=1e-7)
        assert_allclose(delta, 0.5 * (found.rho**2 - found.gamma), atol=1e-7)


def test_the_scaled_complement_has_all_digits_where_it_changes_form():
    x = np.concatenate([np.linspace(-26.0, 40.0, 300), np.geomspace(40.0, 1e150, 20)])
    assert_allclose(scaled_erfc(pt.constant(x)).eval(), erfcx(x), rtol=1e-13)


@pytest.mark.variation(
    but=["LogitNormaliser of logit", "ExpectedLogPairs of multinomial_probit", "ProbitNormaliser of probit"]
)
@pytest.mark.parametrize(("kind", "likelihood"), CASES, ids=IDS)
def test_derivatives_are_those_of_the_values(kind, likelihood):
    _, functions, mean, variance, terms = evaluated(kind.of(likelihood), likelihood)
    _, in_mean, in_variance = terms(mean, variance)
    for site in sorted({0, functions.shape[1] - 1}):
        h = 1e-5 * (np.arange(functions.shape[1]) == site)
        of_mean = (terms(mean + h, variance)[0] - terms(mean - h, variance)[0]) / 2e-5
        of_variance = (terms(mean, variance * (1 + h))[0] - terms(mean, variance * (1 - h))[0]) / 2e-5
        assert_allclose(in_mean[:, site], of_mean, atol=1e-7)
        assert_allclose((in_variance * variance)[:, site], of_variance, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "log_response"),
    [("probit", log_ndtr), ("logit", log_expit), ("multinomial_probit", lambda f: log_ndtr(f / np.sqrt(2)))],
)
def test_expected_logarithms_are_integrals(name, log_response):
    y, _, mean, variance, terms = evaluated(rule_for("expected log", None, NAMED[name]), NAMED[name])
    value, *_ = terms(mean, variance)

    def integral(m, v):
        def integrand(x):
            return np.exp(-0.5 * x * x) * log_response(m + np.sqrt(v) * x)

        return quad(integrand, -10, 10, epsabs=1e-11)[0] / np.sqrt(2 * np.pi)

    half = mean.shape[1] // 2
    for i in range(3):
        if half:
            pairs = zip(mean[i, :half] - mean[i, half:], variance[i, :half] + variance[i, half:], strict=True)
        else:
            pairs = [((2 * y[i] - 1) * mean[i, 0], variance[i, 0])]
        assert_allclose(value[i], sum(integral(m, v) for m, v in pairs), atol=1e-7)


@pytest.mark.variation(but=["noisy_multinomial_probit"])
@pytest.mark.parametrize("name", ["noisy_multinomial_probit", "robust_max"])
def test_averages_with_label_noise_are_those_of_the_kernels(name):
    likelihood = NAMED[name].given(np.full((1, 6), 0.05))
    y, _, mean, variance, terms = evaluated(rule_for("expected log", None, likelihood), likelihood, 3.0)
    expected = np.empty(6), np.empty((6, 4)), np.empty((6, 4))
    likelihood.computation(PointAverage).terms(mean, variance, y, likelihood.parameters, *expected)
    for found, each in zip(terms(mean, variance), expected, strict=True):
        assert_allclose(found, each, atol=1e-8)
    with pytest.raises(ValueError, match="needs label noise, but epsilon is 0"):
        rule_for("expected log", None, NAMED[name].given(np.zeros((1, 6))))


def test_far_tails_are_finite():
    rule = rule_for("log normaliser", "quadrature", NAMED["multinomial_probit"])
    mean, variance = (pt.tensor(shape=(2, 3), dtype="float64") for _ in range(2))
    terms = pytensor.function([mean, variance], list(rule.terms(mean, variance, pt.constant([0, 0]))))
    m, v = np.array([[-60.0, 60.0, 0.0], [80.0, 0.0, -80.0]]), np.full((2, 3), 0.5)
    found = rule.expresses().tilted(NAMED["multinomial_probit"], m, v, np.array([0, 0]))
    with np.errstate(all="ignore"):
        value, rho, _ = terms(m, v)
    assert_allclose(value, found.log_z, rtol=1e-9, atol=1e-12)
    assert_allclose(rho, found.rho, rtol=1e-7, atol=1e-12)


def test_a_rule_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="for batches of a multinomial_probit likelihood by expectation prop"):
        rule_for("log normaliser", "nested", NAMED["multinomial_probit"])
