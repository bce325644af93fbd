"""Classes that share effects: quadrature over the effects, and Laplace's method on PyMC's log density."""

from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax
from scipy.stats import multivariate_normal

import pymc_gpep as gpep
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.reading import StructureError, read_classifier
from tests.reference.laplace_of_model import laplace_of_model

N, C = 40, 3
RNG = np.random.default_rng(2)
PRICE = RNG.normal(size=(N, C))
UTILITY = np.array([0.0, 0.5, -0.3]) - PRICE + RNG.gumbel(size=(N, C))
CHOICE = UTILITY.argmax(axis=1)


@cache
def choices(softmax=True):
    """A conditional logit or probit with one coefficient of the price for all alternatives."""
    with pm.Model(coords={"way": ["bus", "car", "train"]}) as model:
        price = pm.Data("price", PRICE)
        sd = pm.HalfNormal("sd", 1.0)
        level, beta = pm.Normal("level", 0.0, 1.0, dims="way"), pm.Normal("beta", 0.0, sd)
        f = level + beta * price
        if softmax:
            pm.Categorical("way_taken", logit_p=f, observed=CHOICE)
        else:
            gpep.MultinomialProbit("way_taken", f, observed=CHOICE)
    return model


@cache
def fit_of(method, softmax=True):
    with choices(softmax):
        return pm.fit(method=method, hyper="map", progressbar=False)


def test_laplace_matches_the_log_density_of_the_model():
    fit = fit_of("laplace")
    exact = laplace_of_model(choices(), ("level", "beta"), fit.hyperparameters)
    found = fit.effects(["level", "beta"])
    assert_allclose(fit.solution.evidence, exact.evidence, atol=1e-7)
    for moment, wanted in (("mean", exact.mode), ("sd", exact.sd)):
        ours = np.append(found["level"].sel(moment=moment), found["beta"].sel(moment=moment))
        assert_allclose(ours, wanted, atol=1e-7)
    assert isinstance(fit.solution.posterior.prior, RowPrior)


def test_qep_matches_quadrature_over_effects():
    fit = fit_of("qep")
    sd = float(fit.hyperparameters["sd"])
    of_levels, of_beta = np.linspace(-4.5, 4.5, 61), np.linspace(-2.6, 0.4, 61)
    second, third, beta = np.meshgrid(of_levels, of_levels, of_beta, indexing="ij")
    f = np.stack([0.0 * second, second, third], axis=-1)[..., None, :] + beta[..., None, None] * PRICE
    density = log_softmax(f, axis=-1)[..., np.arange(N), CHOICE].sum(axis=-1) - 0.5 * (beta / sd) ** 2
    # differences of levels from the first level
    prior = multivariate_normal([0.0, 0.0], [[2.0, 1.0], [1.0, 2.0]])
    weights = np.exp(density) * prior.pdf(np.stack([second, third], axis=-1)) / (sd * np.sqrt(2.0 * np.pi))
    total = weights.sum()
    mean = (weights * beta).sum() / total
    spread = np.sqrt((weights * (beta - mean) ** 2).sum() / total)
    cell = (of_levels[1] - of_levels[0]) ** 2 * (of_beta[1] - of_beta[0])
    assert_allclose(fit.solution.evidence, np.log(total * cell), atol=0.02)
    found = fit.effects(["beta"])["beta"].values
    assert_allclose(found[0], mean, atol=0.02 * spread)
    assert_allclose(found[1], spread, rtol=0.03)


@pytest.mark.parametrize(("method", "softmax"), [("laplace", True), ("qep", True), ("nested_ep", False)])
def test_gradient_matches_differences(method, softmax):
    fit = fit_of(method, softmax)
    log_posterior, step = fit.log_posterior, 1e-4
    at = fit.theta + 0.3
    low, high = (log_posterior(log_posterior.theta(at + h)).log_posterior for h in (-step, step))
    slope = log_posterior(log_posterior.theta(at)).gradient
    assert_allclose(slope, (high - low) / (2.0 * step), rtol=1e-3)


def test_predictions_have_the_labels_of_alternatives():
    found = fit_of("laplace").predict(data={"price": [[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]})
    p = found["p"]
    assert list(p["way"].values) == ["bus", "car", "train"]
    assert float(p[0].sel(way="train")) < 0.5 * float(p[1].sel(way="train"))


def test_covariances_of_single_functions_are_refused():
    with pytest.raises(StructureError, match="share effects"):
        read_classifier(choices()).prior.covariances()


def test_level_shared_by_all_classes_keeps_its_prior():
    with pm.Model():
        common, own = pm.Normal("common", 0.0, 1.5), pm.Normal("own", shape=C)
        pm.Categorical("y", logit_p=common + own * np.ones((N, 1)), observed=CHOICE)
        fit = pm.fit(method="laplace", progressbar=False)
    assert_allclose(fit.effects(["common"])["common"], [0.0, 1.5], atol=1e-8)


LOADINGS = np.arange(6.0).reshape(C, 2)
PROCESSES = {
    "centred": lambda f, g, s: f - f.mean(axis=0),
    "shared and own": lambda f, g, s: s + f,
    "mixed": lambda f, g, s: LOADINGS @ g,
    "mixed by a sum": lambda f, g, s: pt.einsum("cl,ln->cn", LOADINGS, g),
}


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing")
@pytest.mark.parametrize("case", PROCESSES)
def test_processes_shared_by_classes_match_the_laplace_approximation_of_the_model(case):
    inputs, process = np.linspace(0.0, 1.0, 6)[:, None], pm.gp.Latent(cov_func=9.0 * pm.gp.cov.ExpQuad(1, ls=0.3))
    with pm.Model() as model:
        f, g = (process.prior(name, X=inputs, n_outputs=outputs) for name, outputs in (("f", C), ("g", 2)))
        functions = PROCESSES[case](f, g, process.prior("s", X=inputs))
        pm.Categorical("y", logit_p=functions.T, observed=np.repeat(np.arange(C), 2))
    found = pm.fit(method="laplace", model=model, progressbar=False).log_evidence
    assert found == pytest.approx(laplace_of_model(model, [rv.name for rv in model.free_RVs], {}).evidence, abs=1e-9)
