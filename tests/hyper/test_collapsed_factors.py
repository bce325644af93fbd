"""Covariances by `pm.LKJCholeskyCov` with effects that do not vary: maximum of the log posterior, and messages."""

import numpy as np
import pymc as pm
import pytest

from pymc_gpep.approximations import EP
from pymc_gpep.hyper.optimum import collapsed
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier

J, M = 20, 4
RNG = np.random.default_rng(2)
GROUP = np.repeat(np.arange(J), M)
X = RNG.normal(size=(J * M, 2))
Y = (RNG.random(J * M) < 1 / (1 + np.exp(-RNG.normal(size=J)[GROUP]))).astype(int)


def slopes(n, sd_dist):
    """Model of binary responses with a level and slopes for each group. The data were generated without slopes."""
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=n, eta=2, sd_dist=sd_dist())
        u = pm.Normal("z", shape=(J, n)) @ chol.T
        pm.Bernoulli("y", logit_p=u[GROUP, 0] + (u[GROUP, 1:] * X[:, : n - 1]).sum(axis=1), observed=Y)
    return model


def exponential():
    return pm.Exponential.dist(1.0)


def along(log_density, n):
    """Differences of a log density along decreasing last standard deviations, with correlations of 0."""
    found = []
    for last in (-8.0, -10.0, -12.0):
        packed = np.zeros(n * (n + 1) // 2)
        packed[-1] = last
        found.append(float(log_density(packed)))
    return np.diff(found)


@pytest.mark.parametrize("n", [2, 3])
def test_density_of_pymc_rises_towards_a_standard_deviation_of_0(n):
    """The log density rises to a bound with two effects, and without a bound with three."""
    with pm.Model() as model:
        pm.LKJCholeskyCov("chol", n=n, eta=2, sd_dist=exponential())
    logp, name = model.compile_logp(), model.value_vars[0].name
    np.testing.assert_allclose(along(lambda packed: logp({name: packed}), n), 2.0 * (n - 2), atol=1e-3)


@pytest.mark.variation
@pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")
def test_standard_deviation_that_runs_to_0_is_reported():
    n = 3
    model = slopes(n, exponential)
    log_posterior = DenseLogPosterior(read_classifier(model), EP())
    assert (along(lambda packed: log_posterior(packed).log_posterior, n) > -1e-3).all()
    message = r"a standard deviation of 'chol' ran to .*not exist.*pm\.LogNormal\.dist\(-1, 1\).*gpep\.marginalize"
    with model, pytest.warns(RuntimeWarning, match=message):
        fit = pm.fit(method="ep", hyper="map", progressbar=False)
    assert not fit.converged


@pytest.mark.parametrize(
    ("n", "sd_dist"), [(2, lambda: pm.InverseGamma.dist(3, 1)), (3, lambda: pm.LogNormal.dist(-1, 1))]
)
@pytest.mark.filterwarnings("ignore:The fit learned next to nothing:UserWarning")
def test_log_posteriors_with_the_advised_priors_have_a_maximum(n, sd_dist):
    with slopes(n, sd_dist):
        fit = pm.fit(method="ep", hyper="map", progressbar=False)
    assert fit.converged
    assert np.abs(fit.trace.best.gradient).max() < 0.02


def test_small_standard_deviation_at_a_maximum_is_not_reported():
    log_posterior = DenseLogPosterior(read_classifier(slopes(2, exponential)), EP())
    best = log_posterior(np.array([0.0, 0.0, -7.0]))
    assert "no maximum" in collapsed(log_posterior.space, log_posterior, best)
    higher = best._replace(log_posterior=best.log_posterior + 0.1)
    assert collapsed(log_posterior.space, log_posterior, higher) == ""
    large = log_posterior(np.array([0.0, 0.0, -1.0]))
    assert collapsed(log_posterior.space, log_posterior, large) == ""
