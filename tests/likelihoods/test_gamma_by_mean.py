"""Gamma distributions by mean and standard deviation. If the ratio of both is constant, so is the shape."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.reading import read_classifier

N = 8
X = np.linspace(-1.0, 1.0, N)[:, None]
Y = np.linspace(0.3, 2.0, N)
RATIO, EXPOSURE = 0.6, np.linspace(1.0, 2.0, N)


def model_of(observe, process):
    with pm.Model() as model:
        ratio = pm.Data("ratio", RATIO)
        if process:
            f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X)
        else:
            f = pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * X[:, 0]
        observe(f, ratio)
    return model


def with_name(f, ratio):
    mu = pm.Deterministic("mu", EXPOSURE * pm.math.exp(f))
    pm.Gamma("y", mu=mu, sigma=ratio * mu, observed=Y)


def by_square_root(f, ratio):
    mu = EXPOSURE * pm.math.exp(f)
    pm.Gamma("y", mu=mu, sigma=pm.math.sqrt(ratio**2 * mu**2.0), observed=Y)


def written_twice(f, ratio):
    pm.Gamma("y", mu=EXPOSURE * pm.math.exp(f), sigma=EXPOSURE * pm.math.exp(f) / (1 / ratio), observed=Y)


@pytest.mark.parametrize("process", [True, False])
@pytest.mark.parametrize("observe", [with_name, by_square_root, written_twice])
def test_shape_and_offset_are_recognised(observe, process):
    found = read_classifier(model_of(observe, process))
    assert found.kind == "gamma"
    assert found.n_functions == 1
    (parameters,) = evaluate([found.parameters])
    alpha = np.full(N, RATIO**-2)
    assert_allclose(parameters, [np.log(EXPOSURE / alpha), alpha], rtol=1e-6)
    rng = np.random.default_rng(1)
    f = rng.normal(size=N)
    mu = EXPOSURE * np.exp(f)
    expected = pm.logp(pm.Gamma.dist(mu=mu, sigma=RATIO * mu), Y).eval()
    likelihood = found.likelihood_model.given(parameters)
    assert_allclose(likelihood.log_densities(f[None], Y), expected, rtol=1e-6)


def test_gamma_whose_shape_depends_on_latent_values_uses_its_log_density():
    model = model_of(lambda f, ratio: pm.Gamma("y", mu=pm.math.exp(f), sigma=ratio, observed=Y), process=False)
    assert read_classifier(model).kind == "univariate"


def test_gamma_with_a_negative_ratio_of_sigma_and_mu_is_refused():
    model = model_of(
        lambda f, ratio: pm.Gamma("y", mu=pm.math.exp(f), sigma=-ratio * pm.math.exp(f), observed=Y), False
    )
    with pytest.raises(gpep.StructureError, match="of 'y' is not a number"):
        read_classifier(model)


@pytest.mark.parametrize(
    "p", [lambda f, n: n / (n + pm.math.exp(f)), lambda f, n: pm.math.invlogit(pm.math.log(n) - f)]
)
def test_negative_binomial_by_number_and_probability_is_recognised(p):
    counts = np.arange(N)
    model = model_of(lambda f, n: pm.NegativeBinomial("y", n=n, p=p(f, n), observed=counts), process=True)
    (parameters,) = evaluate([read_classifier(model).parameters])
    assert_allclose(parameters, [np.full(N, -np.log(RATIO)), np.full(N, RATIO)], rtol=1e-6)
