"""Factor rules in kernels and in JAX, against factors of sweeps over all rows, quadrature and differences."""

from itertools import pairwise

import numpy as np
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import erfcx, expit, log_expit, log_ndtr
from scipy.stats import norm

from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.local_computations import PointAverage
from pymc_gpep.likelihoods.log_probabilities import scaled_erfc
from pymc_gpep.streaming.rules import RULES, WholePointNormaliser, rule_for

NAMED = {likelihood.name: likelihood for likelihood in LIKELIHOODS}
CASES = [(kind, likelihood) for kind in RULES for likelihood in LIKELIHOODS if kind.fits(likelihood)]
CASES = [
    # probability of a wrong label; trials of a binomial; offset and alpha of a negative binomial
    (kind, likelihood.given(np.full((max(1, len(likelihood.rows)), 6), 0.05 if likelihood.function_axis else 3.0)))
    for kind, likelihood in CASES
]
IDS = [f"{kind.__name__} of {likelihood.name}" for kind, likelihood in CASES]
LIBRARIES = pytest.mark.parametrize("library", ["NumPy", "JAX"])
"""Tests of JAX are skipped if it is not installed."""


def terms_of(library, rule, labels):
    """Return the terms as a function of means and variances."""
    if library == "NumPy":
        return rule.kernel().of(labels)
    jax = pytest.importorskip("jax")
    from pymc_gpep.streaming import jax_step

    compiled = jax.jit(jax_step.traced_terms(rule, labels))

    def terms(mean, variance):
        found = [np.asarray(each) for each in compiled(mean, variance)]
        assert all(each.dtype == np.float64 for each in found)
        return found

    return terms


def evaluated(library, rule, likelihood, spread=1.0):
    """Labels, latent functions of the sites, means, variances, and the rule as a function of means and variances."""
    rng = np.random.default_rng(1)
    c = 4 if likelihood.function_axis else 1
    y = rng.integers(likelihood.n_classes(c) or 4, size=6)
    functions = rule.expresses().functions(y, c)
    mean, variance = 2.0 * rng.normal(size=functions.shape), spread * rng.exponential(size=functions.shape)
    return y, functions, mean, variance, terms_of(library, rule, y)


@LIBRARIES
@pytest.mark.variation(
    but=[
        "LogitNormaliser of logit-JAX",
        "ProbitNormaliser of probit-NumPy",
        "PairNormalisers of multinomial_probit-NumPy",
        "PairNormalisers of multinomial_probit-JAX",
        "WholePointNormaliser of multinomial_probit-JAX",
    ]
)
@pytest.mark.parametrize(("kind", "likelihood"), CASES, ids=IDS)
def test_log_normalisers_of_steps_match_tilted_moments_of_the_rule(kind, likelihood, library):
    rule = kind.of(likelihood)
    y, _, mean, variance, terms = evaluated(library, rule, likelihood, 3.0)
    if kind.functional == "log normaliser":
        found = rule.expresses().tilted(likelihood, mean, variance, y)
        value, rho, delta = terms(mean, variance)
        # Steps use a rule of 16 nodes.
        few = 1e3 if library == "NumPy" and kind is WholePointNormaliser else 1.0
        assert_allclose(value, found.log_z, atol=few * 1e-8)
        assert_allclose(rho, found.rho, atol=few * 1e-7)
        assert_allclose(delta, 0.5 * (found.rho**2 - found.gamma), atol=few * 1e-7)


def test_scaled_erfc_matches_scipy_where_its_formula_changes():
    x = np.concatenate([np.linspace(-26.0, 40.0, 300), np.geomspace(40.0, 1e150, 20)])
    assert_allclose(scaled_erfc(pt.constant(x)).eval(), erfcx(x), rtol=1e-13)


@LIBRARIES
@pytest.mark.variation(
    but=[
        "LogitNormaliser of logit-NumPy",
        "ExpectedLogPairs of multinomial_probit-NumPy",
        "ExpectedLogPairs of multinomial_probit-JAX",
        "ExpectedLogProbit of probit-JAX",
    ]
)
@pytest.mark.parametrize(("kind", "likelihood"), CASES, ids=IDS)
def test_derivatives_match_differences_of_the_values(kind, likelihood, library):
    _, functions, mean, variance, terms = evaluated(library, kind.of(likelihood), likelihood)
    _, in_mean, in_variance = terms(mean, variance)
    # Integrals by a kernel have errors of 1e-6, which are larger in a difference.
    few = 1e3 if library == "NumPy" and functions.shape[1] == 4 else 1.0
    for site in sorted({0, functions.shape[1] - 1}):
        h = 1e-5 * (np.arange(functions.shape[1]) == site)
        of_mean = (terms(mean + h, variance)[0] - terms(mean - h, variance)[0]) / 2e-5
        of_variance = (terms(mean, variance * (1 + h))[0] - terms(mean, variance * (1 - h))[0]) / 2e-5
        assert_allclose(in_mean[:, site], of_mean, atol=few * 1e-7)
        assert_allclose((in_variance * variance)[:, site], of_variance, atol=few * 1e-7)


@LIBRARIES
@pytest.mark.parametrize(
    ("name", "log_response"),
    [("probit", log_ndtr), ("logit", log_expit), ("multinomial_probit", lambda f: log_ndtr(f / np.sqrt(2)))],
)
def test_expected_logarithms_match_integrals(name, log_response, library):
    y, _, mean, variance, terms = evaluated(library, rule_for("expected log", None, NAMED[name]), NAMED[name])
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


@LIBRARIES
@pytest.mark.variation(but=["noisy_multinomial_probit-NumPy", "noisy_multinomial_probit-JAX"])
@pytest.mark.parametrize("name", ["noisy_multinomial_probit", "robust_max"])
def test_averages_with_label_noise_match_the_kernels(name, library):
    likelihood = NAMED[name].given(np.full((1, 6), 0.05))
    rule = rule_for("expected log", None, likelihood)
    y, _, mean, variance, terms = evaluated(library, rule, likelihood, 3.0)
    expected = np.empty(6), np.empty((6, 4)), np.empty((6, 4))
    likelihood.computation(PointAverage).terms(mean, variance, y, likelihood.parameters, *expected)
    for found, each in zip(terms(mean, variance), expected, strict=True):
        assert_allclose(found, each, atol=1e-5 if library == "NumPy" else 1e-8)
    with pytest.raises(ValueError, match="needs label noise, but epsilon is 0"):
        rule_for("expected log", None, NAMED[name].given(np.zeros((1, 6))))


@LIBRARIES
def test_far_tails_are_finite(library):
    rule = rule_for("log normaliser", "quadrature", NAMED["multinomial_probit"])
    terms = terms_of(library, rule, np.array([0, 0]))
    m, v = np.array([[-60.0, 60.0, 0.0], [80.0, 0.0, -80.0]]), np.full((2, 3), 0.5)
    found = rule.expresses().tilted(NAMED["multinomial_probit"], m, v, np.array([0, 0]))
    value, rho, _ = terms(m, v)
    assert_allclose(value, found.log_z, rtol=1e-8, atol=1e-7)
    assert_allclose(rho, found.rho, rtol=1e-6, atol=1e-7)


@LIBRARIES
@pytest.mark.parametrize("variance", [1e-4, 1e3, 1e6])
def test_logit_normaliser_of_a_wide_or_narrow_cavity_matches_an_integral(variance, library):
    """The integral is split at 0, where σ bends."""
    deviation, shifts = np.sqrt(variance), np.array([-4.0, -0.5, 0.0, 3.0])
    mean = shifts[:, None] * deviation + 0.3
    terms = terms_of(library, rule_for("log normaliser", None, NAMED["logit"]), np.ones(4, np.int64))
    value, in_mean, _ = terms(mean, np.full((4, 1), variance))
    for m, found, slope in zip(mean[:, 0], value, in_mean[:, 0], strict=True):
        ends = sorted({m - 12.0 * deviation, -40.0, -5.0, 0.0, 5.0, 40.0, m + 12.0 * deviation})
        ends = [each for each in ends if abs(each - m) <= 12.0 * deviation]

        def integral(of, m=m, ends=ends):
            return sum(
                quad(lambda f: norm.pdf(f, m, deviation) * of(f), *pair, epsabs=1e-14, limit=200)[0]
                for pair in pairwise(ends)
            )

        z = integral(expit)
        assert_allclose(found, np.log(z), rtol=1e-6, atol=1e-9)
        assert_allclose(slope, integral(lambda f: expit(f) * expit(-f)) / z, rtol=1e-6)


@LIBRARIES
def test_arguments_that_are_not_finite_return_nan(library):
    for kind, likelihood in CASES:
        if likelihood.name not in {"probit", "logit", "multinomial_probit"}:
            continue
        _, _, mean, variance, terms = evaluated(library, kind.of(likelihood), likelihood)
        mean[2] = np.nan
        value, in_mean, _ = terms(mean, variance)
        assert np.array_equal(np.isnan(value), np.arange(6) == 2), kind
        assert np.isnan(in_mean[2]).any()
        assert np.isfinite(np.delete(in_mean, 2, axis=0)).all()


def test_error_names_the_unknown_rule():
    with pytest.raises(ValueError, match="for batches of a multinomial_probit likelihood by expectation prop"):
        rule_for("log normaliser", "nested", NAMED["multinomial_probit"])
