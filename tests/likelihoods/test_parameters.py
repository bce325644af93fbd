"""Likelihoods that are given more than latent values: counts with an exposure, ordered classes with cutpoints."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import expit, ndtr

import pymc_gpep as gpep
from pymc_gpep.approximations import APPROXIMATIONS
from pymc_gpep.likelihoods.log_predictive import log_predictive
from pymc_gpep.likelihoods.registry import LIKELIHOODS
from pymc_gpep.structure import StructureError

X = np.linspace(-2.0, 2.0, 12)[:, None]
EXPOSURE = np.linspace(0.5, 3.0, 12)
COUNTS = np.array([0, 1, 0, 2, 3, 2, 5, 4, 3, 6, 2, 1])
ORDERED = np.array([0, 0, 1, 0, 1, 2, 1, 2, 2, 1, 2, 2])
CUTS = np.array([-0.7, 0.9])


def poisson(f):
    slope = pm.Normal("slope", 0.1, 0.5)
    pm.Poisson("y", mu=pm.math.exp(f + slope * X[:, 0] + np.log(EXPOSURE)), observed=COUNTS)


def ordered(kind):
    def observe(f):
        cut = pm.Normal("cut", 0, 2, shape=2, initval=CUTS, transform=pm.distributions.transforms.ordered)
        kind("y", eta=f, cutpoints=cut, observed=ORDERED)

    return observe


class Given(NamedTuple):
    observe: Callable[[Any], Any]
    parameters: np.ndarray
    probability: Callable[[Any, Any, Any], Any]
    """p(y | f, parameters) of one point."""


def interval(distribution):
    def probability(y, f, cuts):
        bounds = np.array([-np.inf, *cuts, np.inf])
        return distribution(bounds[y + 1] - f) - distribution(bounds[y] - f)

    return probability


CASES = {
    "poisson": Given(
        poisson,
        (0.1 * X[:, 0] + np.log(EXPOSURE))[None],
        lambda y, f, offset: stats.poisson.pmf(y, np.exp(f + offset[0])),
    ),
    "ordered_probit": Given(ordered(pm.OrderedProbit), np.repeat(CUTS[:, None], 12, 1), interval(ndtr)),
    "ordered_logit": Given(ordered(pm.OrderedLogistic), np.repeat(CUTS[:, None], 12, 1), interval(expit)),
}
cases = pytest.mark.parametrize("name", CASES)


def model_of(observe):
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 1.0, initval=1.2)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.2), cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=1.0))
        observe(gp.prior("f", X=X))
    return model, gp


@pytest.fixture(scope="module")
def fits():
    made = {}

    def fit(name, method="ep"):
        if (name, method) not in made:
            model, gp = model_of(CASES[name].observe)
            with model:
                made[name, method] = model, gp, pm.fit(method=method, progressbar=False, random_seed=1)
        return made[name, method]

    return fit


def test_all_that_have_parameters_are_here():
    assert set(CASES) == {each.name for each in LIKELIHOODS if each.has_parameters}


@cases
def test_parameters_are_read(name):
    model, _ = model_of(CASES[name].observe)
    found = gpep.read_classifier(model)
    assert (found.kind, found.n_functions) == (name, 1)
    assert found.n_classes == (0 if name == "poisson" else 3)
    values = {model[each]: value for each, value in (("slope", 0.1), ("cut", CUTS)) if each in model.named_vars}
    assert_allclose(found.parameters.eval(values), CASES[name].parameters, atol=1e-12)


@cases
def test_density_is_that_of_the_model(name):
    _, parameters, probability = CASES[name]
    likelihood = next(each for each in LIKELIHOODS if each.name == name).given(parameters)
    y = COUNTS if name == "poisson" else ORDERED
    f = np.random.default_rng(1).normal(size=(3, 1, 12))
    expected = [sum(np.log(probability(y[i], g[0, i], parameters[:, i])) for i in range(12)) for g in f]
    assert_allclose(likelihood.log_density(f, y), expected, rtol=1e-12)
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    mean, cov = f[0].T, np.linspace(0.1, 1.5, 12)[:, None, None]
    average = [
        np.log(weights @ probability(y[i], mean[i] + np.sqrt(cov[i, 0]) * nodes, parameters[:, i]) / weights.sum())
        for i in range(12)
    ]
    assert_allclose(log_predictive(likelihood, mean, cov, y), average, atol=1e-8)


@cases
@pytest.mark.parametrize("method", ["laplace", "ep", "kl"])
def test_gradient_in_hyperparameters_of_prior_and_likelihood(name, method, fits):
    _, _, fit = fits(name, method)
    assert fit.converged
    log_posterior = fit.log_posterior
    theta = fit.optimum.best.theta + 0.2
    gradient = log_posterior(theta).gradient
    for i in range(theta.size):
        step = 1e-4 * np.eye(theta.size)[i]
        difference = log_posterior(theta + step).log_posterior - log_posterior(theta - step).log_posterior
        assert gradient[i] == pytest.approx(difference / 2e-4, abs=2e-4)


def test_methods_without_slopes_in_parameters_are_not_offered():
    for likelihood in (each for each in LIKELIHOODS if each.has_parameters):
        assert {kind.name for kind in APPROXIMATIONS if kind.approximates(likelihood)} == {"ep", "laplace", "kl", "fv"}


def test_predictions_of_counts_are_moments(fits):
    _, gp, fit = fits("poisson")
    predicted = fit.predict(gp, X[:4] + 0.1)
    mean, variance = predicted["mean"].values, predicted["variance"].values
    expected = np.exp(mean + variance / 2)
    assert_allclose(predicted["y_mean"], expected, rtol=1e-12)
    assert_allclose(predicted["y_variance"], expected + expected**2 * np.expm1(variance), rtol=1e-9)
    assert "p" not in predicted


@pytest.mark.parametrize("name", ["ordered_probit", "ordered_logit"])
def test_predictions_of_ordered_classes_are_probabilities(name, fits):
    _, gp, fit = fits(name)
    predicted = fit.predict(gp, X[:4] + 0.1)
    cut = fit.hyperparameters["cut"].values
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    for i in range(4):
        f = predicted["mean"].values[i] + np.sqrt(predicted["variance"].values[i]) * nodes
        expected = [weights @ CASES[name].probability(y, f, cut) / weights.sum() for y in range(3)]
        assert_allclose(predicted["p"][i], expected, atol=1e-8)


@cases
def test_a_fit_is_whole(name, fits):
    """Leave-one-out, importance, files and draws know the parameters."""
    model, _, fit = fits(name)
    loo = fit.loo(refit_above=0.2)
    assert np.isfinite(loo.elpd_i).all()
    assert np.isfinite(fit.importance(200, random_seed=1).log_evidence)
    with model:
        again = gpep.from_datatree(fit.to_datatree())
    assert again.log_evidence == pytest.approx(fit.log_evidence, abs=1e-6)
    theta = fit.optimum.best.theta
    marginal = gpep.marginalize(model)
    point = fit.log_posterior.point(theta)
    assert marginal.compile_logp(mode="FAST_COMPILE")(point) == pytest.approx(fit.optimum.best.log_posterior, abs=1e-6)


RATES = {
    "exposure in front": lambda f: EXPOSURE * pm.math.exp(f),
    "divided": lambda f: pm.math.exp(f) / (1 / EXPOSURE),
    "named": lambda f: pm.Deterministic("rate", pt.exp(np.log(EXPOSURE) + f)),
    "less": lambda f: pt.exp(f - np.log(1 / EXPOSURE)),
}


@pytest.mark.parametrize("rate", RATES)
def test_rates_however_they_are_written(rate):
    model, _ = model_of(lambda f: pm.Poisson("y", mu=RATES[rate](f), observed=COUNTS))
    found = gpep.read_classifier(model)
    assert_allclose(found.parameters.eval(), np.log(EXPOSURE)[None], atol=1e-12)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (lambda f: pm.Poisson("y", mu=pt.softplus(f), observed=COUNTS), "rate is not the exponential of one latent"),
        (lambda f: pm.Poisson("y", mu=1 + pt.exp(f), observed=COUNTS), "rate is not the exponential of one latent"),
        (lambda f: pm.Poisson("y", mu=pt.exp(2 * f), observed=COUNTS), "'f' is scaled"),
        (lambda f: pm.OrderedProbit("y", eta=f, cutpoints=CUTS, observed=ORDERED + 1), "must be integers 0…2"),
    ],
)
def test_what_is_refused(observe, message):
    model, _ = model_of(observe)
    with pytest.raises(StructureError, match=message):
        gpep.read_classifier(model)
