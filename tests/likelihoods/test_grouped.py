"""Groups of rows as one factor, against integrals of the product of the densities of the rows."""

from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import expit, ndtr

from pymc_gpep.likelihoods.bernoulli import ComplementaryLogLogLikelihood, LogitLikelihood, ProbitLikelihood
from pymc_gpep.likelihoods.counts import BinomialLikelihood, NegativeBinomialLikelihood, PoissonLikelihood
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    ParameterSlopes,
    ScalarDensity,
)
from pymc_gpep.likelihoods.ordered import OrderedLogitLikelihood
from pymc_gpep.likelihoods.pooled_rows import PooledRows, grouped_rows
from pymc_gpep.likelihoods.positive import GammaLikelihood
from pymc_gpep.likelihoods.real import LogisticLikelihood, LogNormalLikelihood, NormalLikelihood

OF = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 3])
MEAN, VARIANCE = np.array([0.3, -0.5, 1.2, 0.1]), np.array([0.8, 2.0, 0.5, 4.0])
N = len(OF)
BITS = np.array([1, 0, 1, 1, 0, 0, 1, 0, 1, 1])
COUNTS = np.array([3, 0, 2, 1, 5, 1, 0, 0, 2, 4])
NUMBERS = np.array([0.3, -0.7, 1.9, 0.2, 0.4, 0.4, -1.0, 2.0, 0.1, 0.1])
UNEQUAL = np.array([0.5, 0.5, 1.5, 1.0, 0.7, 0.7, 2.0, 2.0, 1.0, 1.0])
UNBOUNDED = np.repeat([[-1e300], [1e300]], N, axis=1)


@dataclass
class Case:
    likelihood: object
    y: np.ndarray
    parameters: np.ndarray
    log_p: object
    """Log density of y given f and parameters, each (k, n)."""
    learned: bool = False


def by_class(link):
    return lambda f, y, _: np.log(np.where(y == 1, link(f), link(-f)))


def ordered(f, y, cuts):
    cuts = [np.broadcast_to(cut, y.shape) for cut in cuts]
    ends = np.stack([np.full(y.shape, -np.inf), *cuts, np.full(y.shape, np.inf)])
    low, high = np.take_along_axis(ends, y[None], 0)[0], np.take_along_axis(ends, y[None] + 1, 0)[0]
    return np.log(expit(high - f) - expit(low - f))


CASES = {
    "logit": Case(LogitLikelihood(), BITS, np.empty((0, N)), by_class(expit)),
    "probit": Case(ProbitLikelihood(), BITS, np.empty((0, N)), by_class(ndtr)),
    "complementary log-log": Case(
        ComplementaryLogLogLikelihood(), BITS, np.empty((0, N)),
        lambda f, y, _: np.where(y == 1, np.log(-np.expm1(-np.exp(f))), -np.exp(f)),
    ),
    "binomial": Case(
        BinomialLikelihood(), COUNTS, COUNTS[None] + 3.0, lambda f, y, p: stats.binom.logpmf(y, p[0], expit(f))
    ),
    "poisson": Case(
        PoissonLikelihood(), COUNTS, np.log(UNEQUAL)[None],
        lambda f, y, p: stats.poisson.logpmf(y, np.exp(f + p[0])), learned=True,
    ),
    "normal": Case(
        NormalLikelihood(), NUMBERS, np.vstack([UNEQUAL, UNBOUNDED]), lambda f, y, p: stats.norm.logpdf(y, f, p[0]),
        learned=True,
    ),
    "log-normal": Case(
        LogNormalLikelihood(), np.exp(NUMBERS), np.vstack([np.full(N, 0.6), UNBOUNDED]),
        lambda f, y, p: stats.norm.logpdf(np.log(y), f, p[0]) - np.log(y), learned=True,
    ),
    "negative binomial": Case(
        NegativeBinomialLikelihood(), COUNTS, np.vstack([np.log(UNEQUAL), np.full(N, 1.7)]),
        lambda f, y, p: stats.nbinom.logpmf(y, p[1], 1.0 / (1.0 + np.exp(f + p[0]))), learned=True,
    ),
    "negative binomial of one exposure": Case(
        NegativeBinomialLikelihood(), COUNTS, np.repeat([[0.3], [1.7]], N, axis=1),
        lambda f, y, p: stats.nbinom.logpmf(y, p[1], 1.0 / (1.0 + np.exp(f + p[0]))), learned=True,
    ),
    "gamma": Case(
        GammaLikelihood(), np.exp(NUMBERS), np.vstack([np.log(UNEQUAL), UNEQUAL]),
        lambda f, y, p: stats.gamma.logpdf(y, p[1], scale=np.exp(f + p[0])), learned=True,
    ),
    "logistic": Case(
        LogisticLikelihood(), NUMBERS, np.vstack([UNEQUAL, UNBOUNDED]),
        lambda f, y, p: stats.logistic.logpdf(y, f, p[0]), learned=True,
    ),
    "ordered": Case(
        OrderedLogitLikelihood(), np.minimum(COUNTS, 2), np.repeat([[-0.5], [1.0]], N, axis=1), ordered, learned=True
    ),
}  # fmt: skip


def grouped(case, parameters=None, alike=None):
    given = case.parameters if parameters is None else parameters
    likelihood = case.likelihood.given(case.parameters)
    if alike is None:
        alike = np.unique(case.parameters, axis=1, return_inverse=True)[1].ravel() if len(case.parameters) else OF * 0
    return grouped_rows(likelihood, PooledRows(OF, case.y, alike, lambda at: pt.as_tensor_variable(given)[:, at]))


def evaluated(case):
    found = grouped(case)
    return found.likelihood.given(found.parameters.eval()), found.labels


def of_groups(case, f):
    """Log density of each group (k, g) at latent values (k, g), as a sum over its rows."""
    rows = case.log_p(f[:, OF], np.broadcast_to(case.y, (len(f), N)), case.parameters[:, None])
    return np.stack([rows[:, g == OF].sum(axis=1) for g in range(4)], axis=1)


def integrals(case):
    """log E p and E log p of each group, by a grid."""
    z = np.linspace(-10.0, 10.0, 20_001)
    weights = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    with np.errstate(all="ignore"):
        log_p = of_groups(case, MEAN + np.sqrt(VARIANCE) * z[:, None])
    top = log_p.max(axis=0)
    return top + np.log(weights @ np.exp(log_p - top)), log_p, weights


@pytest.mark.parametrize("name", CASES)
def test_density_of_a_group_is_the_product_of_its_rows(name):
    case = CASES[name]
    likelihood, labels = evaluated(case)
    out = np.empty((4, 4))
    likelihood.computation(ScalarDensity).derivatives(MEAN, labels, likelihood.parameters, out)
    h = 1e-5
    low, centre, high = of_groups(case, MEAN + h * np.array([[-1.0], [0.0], [1.0]]))
    np.testing.assert_allclose(out[0], centre, rtol=1e-10)
    np.testing.assert_allclose(out[1], (high - low) / (2 * h), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_average_of_a_group_matches_integral_of_the_product(name):
    case = CASES[name]
    likelihood, labels = evaluated(case)
    out = np.empty((5, 4))
    likelihood.computation(GaussianAverage).terms(MEAN, VARIANCE, labels, likelihood.parameters, out)
    expected, log_p, weights = integrals(case)
    np.testing.assert_allclose(out[0], expected, rtol=1e-8)
    tilted = weights[:, None] * np.exp(log_p - expected)
    z = np.linspace(-10.0, 10.0, len(weights))[:, None] * np.sqrt(VARIANCE)
    first = (tilted * z).sum(axis=0) / VARIANCE
    second = ((tilted * z**2).sum(axis=0) - (VARIANCE * first) ** 2) / VARIANCE**2 - 1.0 / VARIANCE
    np.testing.assert_allclose(out[1], first, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(out[2], second, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_average_log_density_of_a_group_is_the_sum_of_its_rows(name):
    case = CASES[name]
    likelihood, labels = evaluated(case)
    out = np.empty((3, 4))
    small = 0.1 * VARIANCE  # with a wide variance the densities of the reference underflow
    likelihood.computation(AverageLogDensity).terms(MEAN, small, labels, likelihood.parameters, out)
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    expected = weights @ of_groups(case, MEAN + np.sqrt(small) * z[:, None]) / weights.sum()
    np.testing.assert_allclose(out[0], expected, rtol=1e-8)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.learned])
def test_slopes_in_parameters_of_a_group_match_differences(name):
    case = CASES[name]
    given = pt.dmatrix("given")
    found = grouped(case, given)
    likelihood, labels = found.likelihood, found.labels
    direction = np.zeros_like(case.parameters)
    equal = np.unique(case.parameters, axis=1, return_inverse=True)[1].ravel()
    rows = len(case.parameters) if len(case.parameters) == 2 else 1
    direction[:rows] = np.random.default_rng(0).normal(size=(rows, equal.max() + 1))[:, equal]
    step = pt.dscalar("step")
    moved = pytensor.graph.graph_replace([found.parameters], {given: case.parameters + step * direction})[0]
    at = pytensor.function([step], moved)
    h = 1e-5
    own, change = at(0.0), (at(h) - at(-h)) / (2 * h)
    bound = likelihood.given(own)
    values = {}
    for kind, rows_out, of in (("average", 5, GaussianAverage), ("average_log", 3, AverageLogDensity)):
        out = np.empty((len(own), 4))
        getattr(bound.computation(ParameterSlopes), kind)(MEAN, VARIANCE, labels, own, out)
        values[kind] = (out * change).sum(axis=0)
        ends = []
        for side in (-h, h):
            terms = np.empty((rows_out, 4))
            likelihood.computation(of).terms(MEAN, VARIANCE, labels, at(side), terms)
            ends.append(terms[0])
        np.testing.assert_allclose(values[kind], (ends[1] - ends[0]) / (2 * h), rtol=1e-5, atol=1e-6)
    out = np.empty((len(own), 3, 4))
    bound.computation(ParameterSlopes).derivatives(MEAN, labels, own, out)
    ends = []
    for side in (-h, h):
        terms = np.empty((4, 4))
        likelihood.computation(ScalarDensity).derivatives(MEAN, labels, at(side), terms)
        ends.append(terms[:3])
    np.testing.assert_allclose((out * change[:, None]).sum(axis=0), (ends[1] - ends[0]) / (2 * h), rtol=1e-5, atol=1e-6)
