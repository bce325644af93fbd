"""Leave-one-out probability integral transforms, against closed forms and SciPy's distributions."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import pymc_gpep  # noqa: F401  # for methods of `pm.fit`
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from tests.reference.dense_averages import normal_average

N = 8
RNG = np.random.default_rng(4)
K = np.exp(-0.5 * np.subtract.outer(np.arange(N), np.arange(N)) ** 2 / 4.0) + 1e-6 * np.eye(N)
Y = np.sin(np.arange(N)) + 0.3 * RNG.normal(size=N)
BY_NAME = {each.name: each for each in LIKELIHOODS}
MEAN, VARIANCE = np.array([0.4, -0.5, 1.0]), np.array([0.3, 0.1, 0.5])


def normal_model(sigma):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(N), K)
        pm.Normal("y", f, sigma, observed=Y)
    return model


def exact_transforms(sigma):
    """Return transforms by the leave-one-out moments of a Gaussian (Rasmussen and Williams 2006, equation 5.12)."""
    inverse = np.linalg.inv(K + sigma**2 * np.eye(N))
    variance = 1.0 / inverse.diagonal()
    return stats.norm.cdf(variance**0.5 * (inverse @ Y))


def test_transforms_of_a_normal_model_match_the_closed_form():
    fit = pm.fit(model=normal_model(0.3), method="ep", progressbar=False)
    loo = fit.loo(pit=True, progressbar=False)
    assert_allclose(loo.pit_i, exact_transforms(0.3), atol=1e-6)
    assert loo.pit_i.dims == loo.elpd_i.dims
    assert fit.loo(progressbar=False).pit_i is None
    with pytest.raises(TypeError, match="Remove groups="):
        fit.loo(groups=np.arange(N) % 2, pit=True)


def test_transforms_use_node_weights_without_the_label():
    with pm.Model():
        sigma = pm.HalfNormal("sigma", 0.5)
        f = pm.MvNormal("f", np.zeros(N), K)
        pm.Normal("y", f, sigma, observed=Y)
        fit = pm.fit(method="ep", hyper="grid", progressbar=False)
    sigmas, weights = fit.nodes["sigma"].values, fit.nodes["weight"].values
    inverse = [np.linalg.inv(K + s**2 * np.eye(N)) for s in sigmas]
    density = np.array([stats.norm.pdf(each @ Y / each.diagonal(), scale=each.diagonal() ** -0.5) for each in inverse])
    own = weights[:, None] / density
    expected = (own * np.array([exact_transforms(s) for s in sigmas])).sum(axis=0) / own.sum(axis=0)
    assert_allclose(fit.loo(pit=True, progressbar=False).pit_i, expected, atol=1e-5)
    assert len(sigmas) > 2


def test_transform_of_a_count_lies_between_two_probabilities():
    counts = np.array([0, 1, 5])
    likelihood = BY_NAME["poisson"].given(np.zeros((1, 3)))
    ends = likelihood.ends(counts, MEAN[:, None], VARIANCE[:, None, None])
    for shift, found in zip((-1, 0), ends, strict=True):
        expected = [
            normal_average(lambda f, y=y: stats.poisson(np.exp(f)).cdf(y), m, v)
            for y, m, v in zip(counts + shift, MEAN, VARIANCE, strict=True)
        ]
        assert_allclose(found, expected, atol=1e-8)


def test_transform_of_a_censored_observation_lies_beyond_its_bound():
    y, lower, upper = np.array([0.2, -1.0, 1.5]), np.full(3, -1.0), np.full(3, 1.5)
    likelihood = BY_NAME["normal"].given(np.stack([np.full(3, 0.5), lower, upper]))
    below, at = likelihood.ends(y, MEAN[:, None], VARIANCE[:, None, None])
    whole = stats.norm(MEAN, np.sqrt(VARIANCE + 0.25)).cdf(y)
    assert_allclose(below, [whole[0], 0.0, whole[2]])
    assert_allclose(at, [whole[0], whole[1], 1.0])


def test_transforms_of_classes_are_refused():
    with pytest.raises(TypeError, match="are classes, which have no order"):
        BY_NAME["probit"].ends(np.array([0, 1, 1]), MEAN[:, None], VARIANCE[:, None, None])
