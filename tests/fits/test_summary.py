"""Summaries of fits, beside sums over grids and quantiles of SciPy's skew normal distribution."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pymc_gpep.fits.summary import SkewNormals

GROUP = np.repeat(np.arange(6), 2)
X = np.linspace(-1.0, 1.5, 30)
COUNTS = np.tile([0, 0, 1, 0, 0, 0, 1, 0, 0, 1], 3)


@pytest.fixture(scope="module")
def fit():
    with pm.Model(coords={"term": ["level", "slope"]}):
        b = pm.Normal("b", 0, 2, dims="term")
        pm.Poisson("y", mu=pm.math.exp(b[0] + b[1] * X), observed=COUNTS)
        return pm.fit(method="ep", progressbar=False)


def quantiles(values, weights, p):
    order = np.argsort(values)
    return np.interp(p, np.cumsum(weights[order]) / weights.sum(), values[order])


def test_intervals_are_those_of_sums_over_a_grid(fit):
    """The Gaussian's are off by 0.15 and more, and its standard deviations by 4 %."""
    b = np.stack(np.meshgrid(np.linspace(-3.5, 1, 501), np.linspace(-2, 3, 501), indexing="ij")).reshape(2, -1)
    eta = b[0][:, None] + b[1][:, None] * X
    log_p = stats.norm.logpdf(b, 0, 2).sum(axis=0) + (COUNTS * eta - np.exp(eta)).sum(axis=1)
    weights = np.exp(log_p - log_p.max())
    found = fit.summary(ci_prob=0.95)
    assert list(found.columns) == ["mean", "sd", "eti95_lb", "eti95_ub"]
    assert list(found.index) == ["b[level]", "b[slope]"]
    gaussian = []
    for own, values in zip(found.to_numpy(), b, strict=True):
        mean = weights @ values / weights.sum()
        sd = np.sqrt(weights @ (values - mean) ** 2 / weights.sum())
        assert_allclose(own[:2], [mean, sd], atol=0.01 * sd)
        ends = np.array([quantiles(values, weights, p) for p in (0.025, 0.975)])
        assert_allclose(own[2:], ends, atol=0.05 * sd)
        gaussian.append(np.abs(mean + sd * stats.norm.ppf([0.025, 0.975]) - ends) / sd)
    assert np.max(gaussian) > 0.15


def test_quantiles_of_mixtures_are_those_of_scipy():
    alpha, weights = np.array([-3.0, 1.0, 8.0]), np.array([0.2, 0.5, 0.3])
    parts = [stats.skewnorm(a, loc, 1.5) for a, loc in zip(alpha, (0.0, 1.0, 3.0), strict=True)]
    moments = np.array([part.stats(moments="mvs") for part in parts])[:, :, None]
    mixture = SkewNormals(weights, moments[:, 0], np.sqrt(moments[:, 1]), moments[:, 2])
    for p in (0.025, 0.5, 0.975):
        (found,) = mixture.quantiles(p)
        assert sum(w * part.cdf(found) for w, part in zip(weights, parts, strict=True)) == pytest.approx(p, abs=1e-9)
    point = SkewNormals(np.ones(1), np.ones((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)))
    assert point.quantiles(0.1) == pytest.approx(1.0)


def test_hyperparameters_have_intervals_of_their_exact_posterior():
    y = np.random.default_rng(4).normal(size=6)[GROUP] + 0.5 * np.random.default_rng(5).normal(size=12)
    with pm.Model():
        s = pm.HalfNormal("s", 1)
        z = pm.Normal("z", 0, 1, shape=6)
        pm.Normal("y", mu=s * z[GROUP], sigma=0.5, observed=y)
        fit = pm.fit(method="ep", hyper="ccd", progressbar=False)
    grid = np.linspace(0.01, 4.0, 400)
    same = (GROUP[:, None] == GROUP).astype(float)
    evidence = [stats.multivariate_normal.logpdf(y, cov=t**2 * same + 0.25 * np.eye(12)) for t in grid]
    weights = np.exp(evidence + stats.halfnorm.logpdf(grid))
    mean = weights @ grid / weights.sum()
    sd = np.sqrt(weights @ (grid - mean) ** 2 / weights.sum())
    found = fit.summary("s", ci_prob=0.9).loc["s"].to_numpy()
    ends = [quantiles(grid, weights, p) for p in (0.05, 0.95)]
    assert_allclose(found, [mean, sd, *ends], atol=0.1 * sd)


def test_names_and_probabilities_are_checked(fit):
    assert fit.summary("b").columns[2] == f"eti{round(100 * az.rcParams['stats.ci_prob'])}_lb"
    with pytest.raises(ValueError, match="ci_prob is 95, but"):
        fit.summary(ci_prob=95)
    with pytest.raises(ValueError, match="no variable 'a'"):
        fit.summary("a")
