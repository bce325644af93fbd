"""Mean and variance of new observations, against SciPy's formulas averaged over a fine grid of latent values."""

import numpy as np
import pymc as pm
import pytensor
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import expit

from pymc_gpep.fits.mixture import Prediction, average_predictions, warn_of_moments
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.reading import read_classifier
from pymc_gpep.univariate.outcomes import count_moments

MEAN, SD = np.array([-1.0, 0.3, 1.2]), np.array([0.0, 1.5, 3.0])
RATE = lambda f: np.exp(np.minimum(f, 300.0))  # noqa: E731


def raw(distribution):
    mean, variance = distribution.stats("mv")
    return np.stack([mean, variance + mean**2])


def of_rate(f, share, inverse_size, at_least_one):
    """First two raw moments of counts that are 0 except for a `share`, with mean exp(f) and an overdispersion."""
    mu = RATE(f)
    log_zero = -np.log1p(mu * inverse_size) / inverse_size if inverse_size else -mu
    whole = -np.expm1(log_zero) if at_least_one else 1.0
    return share / whole * np.stack([mu, mu + (1.0 + inverse_size) * mu**2])


def own(distribution, **given):
    return lambda f, y: pm.CustomDist("y", f, logp=lambda y, f: pm.logp(distribution(f), y), observed=y, **given)


UNIT, COUNTS, NUMBERS = np.array([0.2, 0.5, 0.9]), np.array([0, 2, 1]), np.array([0.3, 2.0, 1.0])
CASES = {
    "beta": (
        lambda f, y: pm.Beta("y", mu=pm.math.sigmoid(f), nu=3.0, observed=y),
        UNIT,
        lambda f: np.stack([expit(f), 0.25 * expit(f) * expit(-f) + expit(f) ** 2]),
    ),
    "zero-inflated Poisson": (
        lambda f, y: pm.ZeroInflatedPoisson("y", psi=0.7, mu=pm.math.exp(f), observed=y),
        COUNTS,
        lambda f: of_rate(f, 0.7, 0.0, at_least_one=False),
    ),
    "zero-inflated negative binomial": (
        lambda f, y: pm.ZeroInflatedNegativeBinomial("y", psi=0.7, mu=pm.math.exp(f), alpha=2.0, observed=y),
        COUNTS,
        lambda f: of_rate(f, 0.7, 0.5, at_least_one=False),
    ),
    "hurdle Poisson": (
        lambda f, y: pm.HurdlePoisson("y", psi=0.7, mu=pm.math.exp(f), observed=y),
        COUNTS,
        lambda f: of_rate(f, 0.7, 0.0, at_least_one=True),
    ),
    "hurdle negative binomial": (
        lambda f, y: pm.HurdleNegativeBinomial("y", psi=0.7, mu=pm.math.exp(f), alpha=2.0, observed=y),
        COUNTS,
        lambda f: of_rate(f, 0.7, 0.5, at_least_one=True),
    ),
    "hurdle gamma": (
        lambda f, y: pm.HurdleGamma("y", psi=0.7, alpha=2.0, beta=2.0 * pm.math.exp(-f), observed=y),
        NUMBERS,
        lambda f: 0.7 * np.stack([RATE(f), 1.5 * RATE(f) ** 2]),
    ),
    "beta-binomial": (
        lambda f, y: pm.BetaBinomial(
            "y", n=10, alpha=3.0 * pm.math.sigmoid(f), beta=3.0 * pm.math.sigmoid(-f), observed=y
        ),
        COUNTS,
        lambda f: np.stack([10.0 * expit(f), 32.5 * expit(f) * expit(-f) + 100.0 * expit(f) ** 2]),
    ),
    "two means": (
        lambda f, y: pm.NormalMixture("y", w=[0.2, 0.8], mu=f[:, None] + np.array([0.0, 30.0]), sigma=1.0, observed=y),
        NUMBERS,
        lambda f: np.stack([f + 24.0, 0.2 * f**2 + 0.8 * (f + 30.0) ** 2 + 1.0]),
    ),
    "inverse gamma": (
        lambda f, y: pm.InverseGamma("y", alpha=3.0, beta=pm.math.exp(f), observed=y),
        NUMBERS,
        lambda f: 0.5 * np.stack([RATE(f), RATE(f) ** 2]),
    ),
    "skew normal": (
        lambda f, y: pm.SkewNormal("y", mu=f, sigma=0.5, alpha=2.0, observed=y),
        NUMBERS,
        lambda f: raw(stats.skewnorm(2.0, f, 0.5)),
    ),
    "ex-Gaussian": (
        lambda f, y: pm.ExGaussian("y", mu=f, sigma=0.5, nu=2.0, observed=y),
        NUMBERS,
        lambda f: np.stack([f + 2.0, (f + 2.0) ** 2 + 4.25]),
    ),
    "Gumbel": (
        lambda f, y: pm.Gumbel("y", f, 0.5, observed=y),
        NUMBERS,
        lambda f: raw(stats.gumbel_r(f, 0.5)),
    ),
    "Kumaraswamy": (
        lambda f, y: pm.Kumaraswamy("y", a=1.0, b=1.0 + pm.math.sigmoid(f), observed=y),
        UNIT,
        lambda f: raw(stats.beta(1.0, 1.0 + expit(f))),
    ),
    "Pareto": (
        lambda f, y: pm.Pareto("y", alpha=3.0, m=pm.math.exp(f), observed=y),
        NUMBERS + 9.0,
        lambda f: np.stack([1.5 * RATE(f), 3.0 * RATE(f) ** 2]),
    ),
    "Wald": (
        lambda f, y: pm.Wald("y", mu=1.0 + pm.math.sigmoid(f), lam=2.0, observed=y),
        NUMBERS,
        lambda f: np.stack([1.0 + expit(f), 0.5 * (1.0 + expit(f)) ** 3 + (1.0 + expit(f)) ** 2]),
    ),
    "geometric": (
        lambda f, y: pm.Geometric("y", pm.math.sigmoid(f), observed=y),
        COUNTS + 1,
        lambda f: np.stack([1.0 + RATE(-f), (1.0 + RATE(-f)) * (1.0 + 2.0 * RATE(-f))]),
    ),
    "half Student t": (
        lambda f, y: pm.HalfStudentT("y", nu=4.0, sigma=pm.math.exp(f), observed=y),
        NUMBERS,
        lambda f: np.stack([RATE(f), 2.0 * RATE(f) ** 2]),  # the mean of |t| is 4 Γ(5/2) / (3 √π Γ(2)) = 1
    ),
    "own zero-inflated": (
        own(lambda f: pm.ZeroInflatedPoisson.dist(psi=0.7, mu=pm.math.exp(f)), dtype="int64"),
        COUNTS,
        lambda f: of_rate(f, 0.7, 0.0, at_least_one=False),
    ),
    "own Student t": (
        own(lambda f: pm.StudentT.dist(nu=2.2, mu=f, sigma=0.5)),
        NUMBERS,
        lambda f: np.stack([f, f**2 + 2.75]),
    ),
    "softplus of log1p": (
        lambda f, y: pm.Poisson("y", mu=pm.math.log1pexp(f), observed=y),
        COUNTS,
        lambda f: np.stack([np.logaddexp(0.0, f), np.logaddexp(0.0, f) + np.logaddexp(0.0, f) ** 2]),
    ),
}


def likelihood_of(observe, y):
    with pm.Model() as model:
        observe(pm.Normal("f", 0, 1, shape=len(y)), y)
    found = read_classifier(model)
    (parameters,) = evaluate([found.parameters])
    return found.likelihood_model.given(parameters)


def averaged(moments, mean, sd):
    z = np.linspace(-30.0, 30.0, 12001)
    with np.errstate(over="ignore"):
        found = moments(mean + sd * z[:, None])
    return np.einsum("k,jkm->jm", stats.norm.pdf(z) * (z[1] - z[0]), found)


@pytest.mark.variation(
    but=["beta", "zero-inflated Poisson", "hurdle negative binomial", "own zero-inflated", "own Student t"]
)
@pytest.mark.parametrize("name", CASES)
def test_moments_of_observations_match_a_fine_grid(name):
    observe, y, moments = CASES[name]
    sd = np.minimum(SD, 2.0) if name.startswith("own") else SD
    found = likelihood_of(observe, y).outcome_moments(MEAN[:, None], (sd**2)[:, None, None])
    assert_allclose(found, averaged(moments, MEAN, sd), rtol=1e-5)


@pytest.mark.parametrize("distribution", ["formula", "density"])
def test_moments_that_do_not_exist_are_infinite_or_nan(distribution):
    cauchy, heavy = (
        lambda f: {"alpha": f, "beta": 0.5},
        lambda f: {"nu": 2.0, "mu": f, "sigma": 0.5},
    )
    kinds = ((pm.Cauchy, cauchy), (pm.StudentT, heavy))
    found = []
    for kind, given in kinds:
        observe = (
            (lambda f, y, kind=kind, given=given: kind("y", **given(f), observed=y))
            if distribution == "formula"
            else own(lambda f, kind=kind, given=given: kind.dist(**given(f)))
        )
        found.append(likelihood_of(observe, NUMBERS).outcome_moments(MEAN[:, None], np.full((3, 1, 1), 0.25)))
    assert np.isnan(found[0][0]).all()
    assert_allclose(found[1][0], MEAN, atol=1e-6)
    assert np.isposinf([found[0][1], found[1][1]]).all()


def test_moments_in_single_precision_match_double_precision():
    with pytensor.config.change_flags(floatX="float32"):
        likelihood = likelihood_of(
            lambda f, y: pm.StudentT("y", nu=5.0, mu=f, sigma=0.5, observed=y), NUMBERS.astype("float32")
        )
        found = likelihood.outcome_moments(MEAN[:, None], np.full((3, 1, 1), 0.25))
    assert_allclose(found, [MEAN, MEAN**2 + 0.25 + 0.25 * 5.0 / 3.0], rtol=1e-6)


def test_count_moments_match_sums_for_wide_and_inflated_counts():
    mu, size = np.array([3.0, 4e3, 5e6]), 0.4
    p = size / (size + mu)

    def log_density(y):
        with np.errstate(divide="ignore"):
            return np.log(0.3 * (y == 0) + 0.7 * np.exp(stats.nbinom.logpmf(y, size, p)))

    expected = 0.7 * np.stack([mu, mu + mu**2 * (1.0 + 1.0 / size)])
    assert_allclose(count_moments(log_density, np.log(mu)), expected, rtol=1e-5)


def test_average_ignores_undefined_moments_of_nodes_with_negligible_weight():
    parts = [Prediction(np.empty((2, 0)), np.zeros(2), np.zeros((2, 1)), outcome=np.array([[1.0, 3.0], [2.0, 5.0]]))]
    parts.append(parts[0]._replace(outcome=np.array([[np.nan, 3.0], [np.inf, np.nan]])))
    found = average_predictions(np.array([1.0, 0.0]), parts).outcome
    assert_allclose(found, parts[0].outcome)
    found = average_predictions(np.array([1.0 - 1e-9, 1e-9]), parts).outcome
    assert_allclose(found, [[1.0, 3.0], [np.inf, 5.0]], rtol=1e-8)
    assert np.isnan(average_predictions(np.array([0.9, 0.1]), parts).outcome).tolist() == [[True, False], [False, True]]


def predicted(log_rate, variance):
    likelihood = likelihood_of(lambda f, y: pm.Poisson("y", mu=pm.math.log1pexp(f), observed=y), COUNTS)
    outcome = np.stack([np.exp(log_rate + variance / 2), np.exp(2.0 * (log_rate + variance))], axis=1)
    n = len(log_rate)
    return (
        Prediction(np.empty((n, 0)), np.zeros(n), log_rate[:, None], variance[:, None, None], outcome=outcome),
        likelihood,
    )


def test_mean_above_most_counts_causes_a_warning():
    from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS

    (poisson,) = [each for each in LIKELIHOODS if each.name == "poisson"]
    likelihood = poisson.given(np.zeros((1, 3)))
    prediction, _ = predicted(np.array([0.0, -15.0, 2.0]), np.array([0.5, 0.1, 140.0]))
    with pytest.warns(UserWarning, match=r"y_mean is above 97.5% .* in 1 of 3 rows \(the largest mean is 1.9e\+31\)"):
        warn_of_moments(prediction, likelihood, "y")
    narrow, _ = predicted(np.array([0.0, -15.0, 2.0]), np.array([0.5, 0.1, 4.0]))
    warn_of_moments(narrow, likelihood, "y")


def test_mean_that_does_not_exist_causes_a_warning():
    prediction, likelihood = predicted(np.zeros(3), np.ones(3))
    outcome = np.array([[1.0, 2.0], [np.nan, np.inf], [1.0, np.inf]])
    with pytest.warns(UserWarning, match="y_mean is NaN in 1 of 3 rows"):
        warn_of_moments(prediction._replace(outcome=outcome), likelihood, "y")
