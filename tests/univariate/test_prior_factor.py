"""Priors that are not normal, as factors of EP: averages against quadrature, slopes against differences."""

from itertools import pairwise

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.replace import graph_replace
from scipy import special, stats

from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.kernels.scalar.normal_mixture import quantiles
from pymc_gpep.likelihoods.local_computations import GaussianAverage, ParameterSlopes
from pymc_gpep.reading import read_classifier
from pymc_gpep.univariate.local_scales import _AROUND, _FINE, _PLACES

N = 3
X = np.random.default_rng(1).normal(size=(12, N))
Y = X.sum(axis=1)
MEAN, VARIANCE = np.array([0.2, 1.1, 0.7]), np.array([0.4, 2.0, 1e-3])


def _normal(u, mean, sd):
    return np.exp(-0.5 * ((u - mean) / sd) ** 2) / (np.sqrt(2 * np.pi) * sd)


PRIORS = {
    "StudentT": (lambda s: pm.StudentT("u", 4, mu=0.1, sigma=s, shape=N), lambda s: stats.t(4, 0.1, s).pdf),
    "Cauchy": (lambda s: pm.Cauchy("u", 0.1, s, shape=N), lambda s: stats.cauchy(0.1, s).pdf),
    "Laplace": (lambda s: pm.Laplace("u", 0.1, s, shape=N), lambda s: stats.laplace(0.1, s).pdf),
    "AsymmetricLaplace": (
        lambda s: pm.AsymmetricLaplace("u", kappa=0.7, mu=0.1, b=1 / s, shape=N),
        lambda s: stats.laplace_asymmetric(0.7, 0.1, s).pdf,
    ),
    "Logistic": (lambda s: pm.Logistic("u", 0.1, s, shape=N), lambda s: stats.logistic(0.1, s).pdf),
    "Gumbel": (lambda s: pm.Gumbel("u", 0.1, s, shape=N), lambda s: stats.gumbel_r(0.1, s).pdf),
    "SkewNormal": (
        lambda s: pm.SkewNormal("u", mu=0.1, sigma=s, alpha=3, shape=N),
        lambda s: stats.skewnorm(3, 0.1, s).pdf,
    ),
    "NormalMixture": (
        lambda s: pm.NormalMixture("u", w=[0.4, 0.6], mu=[0.0, 0.3], sigma=pm.math.stack([0.05 * s, s]), shape=N),
        lambda s: lambda u: 0.4 * _normal(u, 0, 0.05 * s) + 0.6 * _normal(u, 0.3, s),
    ),
    "Uniform": (lambda s: pm.Uniform("u", -s, 3 * s, shape=N), lambda s: stats.uniform(-s, 4 * s).pdf),
    "HalfNormal": (lambda s: pm.HalfNormal("u", s, shape=N), lambda s: stats.halfnorm(0, s).pdf),
    "HalfCauchy": (lambda s: pm.HalfCauchy("u", s, shape=N), lambda s: stats.halfcauchy(0, s).pdf),
    "Exponential": (lambda s: pm.Exponential("u", scale=s, shape=N), lambda s: stats.expon(0, s).pdf),
    "Gamma": (lambda s: pm.Gamma("u", 0.7, 1 / s, shape=N), lambda s: stats.gamma(0.7, 0, s).pdf),
    "InverseGamma": (lambda s: pm.InverseGamma("u", 2, s, shape=N), lambda s: stats.invgamma(2, 0, s).pdf),
    "LogNormal": (lambda s: pm.LogNormal("u", 0, s, shape=N), lambda s: stats.lognorm(s).pdf),
    "Beta": (lambda s: pm.Beta("u", 2, s, shape=N), lambda s: stats.beta(2, s).pdf),
    "TruncatedNormal": (
        lambda s: pm.TruncatedNormal("u", 0.3, s, lower=-1.0, upper=2.0, shape=N),
        lambda s: stats.truncnorm((-1.0 - 0.3) / s, (2.0 - 0.3) / s, 0.3, s).pdf,
    ),
}


_NODES, _WEIGHTS = special.roots_legendre(20)


def _integral(function, ends, halvings=40):
    """Integrate a function from the first to the last end, by panels that become narrower toward each end.

    The function may be singular at an end. It receives the nodes, and returns an array whose last axis is over nodes.
    """
    fractions = np.r_[0.0, 0.5 ** np.arange(halvings, 0, -1)]
    fractions = np.r_[fractions, 1.0 - fractions[-2::-1]]
    edges = np.unique(np.concatenate([a + (b - a) * fractions for a, b in pairwise(ends)]))
    half = 0.5 * np.diff(edges)[:, None]
    nodes = edges[:-1, None] + half * (1.0 + _NODES)
    return function(nodes.ravel()) @ (half * _WEIGHTS).ravel()


def _variances(s, w, mean=0.1):
    return pm.Normal("u", mean, s * pm.math.sqrt(w), shape=N)


def _indicator(s):
    shown = pm.Bernoulli("shown", 0.3, shape=N)
    return 0.1 + pm.Normal("z", 0, 1, shape=N) * pm.math.switch(shown, s, 0.05 * s)


SCALES = {
    "inverse gamma variances": (
        lambda s: _variances(s, pm.InverseGamma("w", 2, 2, shape=N)),
        lambda s: stats.t(4, 0.1, s).pdf,
    ),
    "gamma precisions": (
        lambda s: pm.Normal("u", 0.1, tau=pm.Gamma("w", 2, 2, shape=N) / s**2, shape=N),
        lambda s: stats.t(4, 0.1, s).pdf,
    ),
    "exponential variances": (
        lambda s: _variances(s, pm.Exponential("w", 0.5, shape=N)),
        lambda s: stats.laplace(0.1, s).pdf,
    ),
    "horseshoe": (
        lambda s: pm.Normal("z", 0, 1, shape=N) * s * pm.HalfCauchy("w", 1, shape=N),
        lambda s: lambda u: (2 * np.pi**3) ** -0.5 / s * special.exp1(0.5 * (u / s) ** 2) * np.exp(0.5 * (u / s) ** 2),
    ),
    "two normal variables": (
        lambda s: pm.Normal("z", 0, 1, shape=N) * pm.Normal("w", 0, s, shape=N),
        lambda s: lambda u: special.k0(np.abs(u) / s) / (np.pi * s),
    ),
    "scales on an interval": (
        lambda s: _variances(s, pm.Uniform("w", 1.0, 3.0, shape=N)),
        lambda s: lambda u: _integral(lambda w: 0.5 * _normal(u[:, None], 0.1, s * np.sqrt(w)), [1.0, 3.0]),
    ),
    "logarithms of scales": (
        lambda s: s * pm.Normal("z", 0, 1, shape=N) * pm.math.exp(pm.Normal("w", 0, 1, shape=N)),
        lambda s: (
            lambda u: _integral(lambda w: _normal(w, 0, 1) * _normal(u[:, None], 0, s * np.exp(w)), [-9.0, 0.0, 9.0], 6)
        ),
    ),
    "indicator": (
        _indicator,
        lambda s: lambda u: 0.7 * _normal(u, 0.0, 0.05 * s) + 0.3 * _normal(u, 0.0, s),
    ),
}


def factor(make):
    """Return the factor of a prior, and its parameters as a function of the hyperparameter s."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        pm.Normal("y", a + X @ make(pm.HalfNormal("s", 1)), 0.7, observed=Y)
    found = read_classifier(model, starts=True, priors=True)
    assert [rv.name for rv in found.hyperparameters] == ["s"]
    assert found.response == "y"
    part = next(each for each in found.parts if each.is_prior)
    s = found.model["s"]

    with_value = s.type()
    graph = graph_replace([part.parameters], {s: with_value}, strict=False)
    return part.likelihood_model, lambda value: evaluate(graph, {with_value: np.asarray(value)})[0]


def log_averages(likelihood, parameters):
    out = np.empty((5, N))
    likelihood.computation(GaussianAverage).terms(MEAN, VARIANCE, np.zeros(N), parameters, out)
    return out


@pytest.mark.parametrize("name", [*PRIORS, *SCALES])
def test_averages_and_slopes_of_a_prior_match_quadrature(name):
    make, density = (PRIORS | SCALES)[name]
    likelihood, parameters = factor(make)
    given, step = parameters(0.8), 1e-4
    found = log_averages(likelihood, given)
    base_mean, base_sd = given[0, 0], given[1, 0]
    p = density(0.8)
    for i, (mean, sd) in enumerate(zip(MEAN, np.sqrt(VARIANCE), strict=True)):

        def moments(u, mean=mean, sd=sd):
            exponent = 0.5 * ((u - base_mean) / base_sd) ** 2 - 0.5 * ((u - mean) / sd) ** 2
            return p(u) * np.exp(exponent) * base_sd / sd * (u - mean) ** np.arange(3)[:, None]

        limits = mean + np.r_[-14, 14] * sd
        inside = np.clip([0.0, 0.1, 1.0, -1.0, -0.8, 2.0, 2.4, mean], *limits)
        zero, one, two = _integral(moments, np.unique(np.r_[limits, inside]))
        first = one / zero
        assert_allclose(found[0, i], np.log(zero), atol=2e-7)
        assert_allclose(found[1, i] * sd, first / sd, atol=2e-6)
        assert_allclose(found[2, i] * sd**2, (two / zero - first**2) / sd**2 - 1, atol=2e-6)
    slopes = np.empty_like(given)
    likelihood.computation(ParameterSlopes).average(MEAN, VARIANCE, np.zeros(N), given, slopes)
    up, down = parameters(0.8 + step), parameters(0.8 - step)
    differences = (log_averages(likelihood, up)[0] - log_averages(likelihood, down)[0]) / (2 * step)
    moving = (up - down) / (2 * step)
    assert_allclose(np.where(moving == 0.0, 0.0, slopes * moving).sum(axis=0), differences, atol=1e-5)


@pytest.mark.parametrize("name", ["StudentT", "Laplace", "Exponential"])
def test_unbounded_tilted_density_has_no_normaliser(name):
    likelihood, parameters = factor(PRIORS[name][0])
    given = parameters(0.8)
    out = np.empty((5, N))
    wide = given[1] ** 2 * [0.9, 1.1, 2.0]
    likelihood.computation(GaussianAverage).terms(given[0], wide, np.zeros(N), given, out)
    assert np.isnan(out[0]).tolist() == [False, True, True]
    assert_allclose(out[1:, 1:], 0.0)


def test_quantiles_of_a_mixture_invert_its_distribution_function():
    """The mixture has a spike and slabs. One slab is far narrower than the other slabs."""
    weights, means, sds = np.array([0.3, 0.2, 0.5]), np.array([0.2, 0.2, 0.9]), np.array([0.0, 0.01, 0.7])
    columns = [np.tile(each[:, None], 2) for each in (weights, means, sds**2)]
    levels = np.tile(np.linspace(0.001, 0.999, 400)[:, None], 2)
    centre = weights @ means
    sd = np.sqrt(weights @ (sds**2 + (means - centre) ** 2))
    found = np.empty_like(levels)
    ladders = _PLACES, _FINE, _AROUND
    quantiles(*columns, np.array([centre, np.nan]), np.full(2, sd), ladders, levels, found)
    for q in found.T:
        below = [weights[1:] @ stats.norm(means[1:], sds[1:]).cdf(each[:, None]).T for each in (q - 1e-9, q + 1e-9)]
        below = [each + weights[0] * (place > 0.2) for each, place in zip(below, (q - 1e-9, q + 1e-9), strict=True)]
        assert (below[0] < levels[:, 0] + 2e-5).all()
        assert (below[1] > levels[:, 0] - 2e-5).all()
        assert 0.29 < (np.abs(q - 0.2) < 1e-12).mean() < 0.31
