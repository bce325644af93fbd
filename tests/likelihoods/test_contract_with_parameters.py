"""Every likelihood of one function with parameters, against its log density written with SciPy."""

import copy
import pickle
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import APPROXIMATIONS
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    ParameterSlopes,
    PlainDensity,
    ScalarDensity,
)
from pymc_gpep.likelihoods.local_likelihood import RowConstants
from pymc_gpep.likelihoods.standard_density import LOGISTIC_POWERS, StandardForm, standard_computations
from tests.likelihoods.with_parameters import EVERY, model_of
from tests.reference.dense_averages import normal_average

# Likelihoods of several functions with parameters are tested in `test_label_noise`.
WITH_PARAMETERS = [
    each for each in LIKELIHOODS if not each.function_axis and (each.has_parameters or not each.observes_classes(1))
]
likelihoods = pytest.mark.parametrize("likelihood", WITH_PARAMETERS, ids=lambda likelihood: likelihood.name)
N = 12
RNG = np.random.default_rng(3)
F = RNG.normal(size=N)
VARIANCE = np.geomspace(0.01, 4.0, N)
STEP = 1e-4


def observed(likelihood):
    return EVERY[likelihood.name].y


def bound(likelihood):
    """The likelihood with its parameters. Parameters that are hyperparameters differ from row to row."""
    _, parameters, _, _, data = EVERY[likelihood.name]
    noise = 0.1 * np.random.default_rng(5).normal(size=parameters.shape)
    noise[list(data)] = 0.0
    return likelihood.given(parameters + noise)


def density(likelihood):
    """The kernel of the log density and its derivatives."""
    kind = ScalarDensity if likelihood.offers(ScalarDensity) else PlainDensity
    return likelihood.computation(kind).derivatives


def log_density(likelihood, i):
    """Return log p(y_i | f) as a function of f."""
    y, parameters = observed(likelihood)[i], bound(likelihood).parameters[:, i]
    return lambda f: EVERY[likelihood.name].log_probability(y, f, parameters)


def terms(kernel, likelihood, *shape, moments, parameters=None):
    """Output of a kernel for the observations of a likelihood."""
    out = np.empty((*shape, N))
    given = bound(likelihood).parameters if parameters is None else parameters
    kernel(*moments, observed(likelihood), given, out)
    return out


def slope(value, likelihood, row):
    """Derivative with respect to one row of the parameters, by differences of four points."""
    shift = np.zeros_like(bound(likelihood).parameters)
    shift[row] = STEP
    up, down, far_up, far_down = (value(bound(likelihood).parameters + t * shift) for t in (1.0, -1.0, 2.0, -2.0))
    return (8.0 * (up - down) - far_up + far_down) / (12.0 * STEP)


@cache
def declared(name):
    """A model of each likelihood. It is shared: do not change it."""
    return model_of(EVERY[name].observe)[0]


@likelihoods
def test_likelihood_with_parameters_recognises_only_its_own_models(likelihood):
    for other in WITH_PARAMETERS:
        model = declared(other.name)
        assert (likelihood.read(model["y"], {model["f"]}) is not None) == (other == likelihood)


@likelihoods
def test_parameters_do_not_change_equality_and_hash(likelihood):
    given = bound(likelihood)
    for other in (likelihood, copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert other == given
        assert hash(other) == hash(given)
    assert_allclose(pickle.loads(pickle.dumps(given)).parameters, given.parameters)
    assert_allclose(given.at([3, 1]).parameters, given.parameters[:, [3, 1]])
    assert [given == other for other in LIKELIHOODS].count(True) == 1


@likelihoods
def test_density_and_derivatives_match_reference(likelihood):
    kernel = density(likelihood)

    def values(f):
        return terms(kernel, likelihood, 4, moments=(f,))

    found = values(F)
    assert_allclose(found[0], [log_density(likelihood, i)(F[i]) for i in range(N)], rtol=1e-10)
    assert_allclose(found[1:], (values(F + STEP) - values(F - STEP))[:3] / (2.0 * STEP), rtol=1e-6, atol=1e-7)


@likelihoods
def test_averages_match_integrals_of_the_density(likelihood):
    moments = F, VARIANCE
    h = terms(likelihood.computation(GaussianAverage).terms, likelihood, 5, moments=moments)
    g = terms(likelihood.computation(AverageLogDensity).terms, likelihood, 3, moments=moments)
    each = [(log_density(likelihood, i), F[i], VARIANCE[i]) for i in range(N)]
    digits = 1e-9 if likelihood.offers(ScalarDensity) else 1e-5  # error of the reference where the density has a kink
    assert_allclose(h[0], np.log([normal_average(lambda f, p=p: np.exp(p(f)), *at) for p, *at in each]), rtol=digits)
    assert_allclose(g[0], [normal_average(*of) for of in each], rtol=digits)


@likelihoods
def test_derivatives_of_averages_match_differences(likelihood):
    h, g = (likelihood.computation(kind).terms for kind in (GaussianAverage, AverageLogDensity))

    def differences(kernel, rows, mean=0.0, variance=0.0):
        up, down = (
            terms(kernel, likelihood, rows, moments=(F + t * mean, VARIANCE + t * variance)) for t in (1.0, -1.0)
        )
        return (up - down) / (2.0 * (mean + variance))

    found = terms(h, likelihood, 5, moments=(F, VARIANCE))
    assert_allclose(found[1:], differences(h, 5, mean=STEP)[:4], rtol=1e-5, atol=1e-6)
    found = terms(g, likelihood, 3, moments=(F, VARIANCE))
    assert_allclose(found[1], differences(g, 3, mean=STEP)[0], rtol=1e-6, atol=1e-7)
    assert_allclose(found[2], differences(g, 3, variance=1e-5)[0], rtol=1e-5, atol=1e-6)
    assert_allclose(2.0 * found[2], differences(g, 3, mean=STEP)[1], rtol=1e-5, atol=1e-6)


@likelihoods
def test_slopes_in_parameters_match_differences(likelihood):
    slopes = likelihood.computation(ParameterSlopes)
    p = len(bound(likelihood).parameters)
    moments = F, VARIANCE
    of_density = terms(slopes.derivatives, likelihood, p, 3, moments=(F,))
    of_h = terms(slopes.average, likelihood, p, moments=moments)
    of_g = terms(slopes.average_log, likelihood, p, moments=moments)
    kernel = density(likelihood)
    h, g = (likelihood.computation(kind).terms for kind in (GaussianAverage, AverageLogDensity))
    data = list(EVERY[likelihood.name].data)
    assert not any(found[data].any() for found in (of_density, of_h, of_g))
    for row in set(range(p)) - set(data):
        for found, by, rows, at in ((of_density, kernel, 4, (F,)), (of_h, h, 5, moments), (of_g, g, 3, moments)):
            expected = slope(
                lambda given, by=by, rows=rows, at=at: terms(by, likelihood, rows, moments=at, parameters=given),
                likelihood,
                row,
            )
            wanted = expected[:3] if found.ndim == 3 else expected[0]
            assert_allclose(found[row], wanted, rtol=1e-7, atol=1e-8)


@likelihoods
def test_impossible_observation_returns_nan(likelihood):
    y = np.full(N, -1)
    if likelihood.name in ("normal", "logistic", "asymmetric_laplace"):
        y = np.full(N, np.nan)
    for kernel, rows, moments in (
        (density(likelihood), 4, (F,)),
        (likelihood.computation(GaussianAverage).terms, 5, (F, VARIANCE)),
        (likelihood.computation(AverageLogDensity).terms, 3, (F, VARIANCE)),
    ):
        out = np.zeros((rows, N))
        kernel(*moments, y, bound(likelihood).parameters, out)
        assert np.isnan(out[0]).all()


@pytest.mark.parametrize(
    ("likelihood", "approximation"),
    [(each, kind) for each in WITH_PARAMETERS for kind in APPROXIMATIONS if kind.approximates(each)],
    ids=lambda value: value.name,
)
def test_gradients_of_the_evidence_in_parameters_and_prior_match_differences(likelihood, approximation):
    """References are differences of evidences of separate solves."""
    x = np.linspace(-2.0, 2.0, N)[:, None]
    k = 1.5 * np.exp(-0.5 * (x - x.T) ** 2) + 0.05 * np.eye(N)
    mean, y = 0.2 * np.ones((1, N)), observed(likelihood)
    solver = approximation(tolerance=1e-10, max_iterations=500)
    start = solver.solve(k, mean, y, likelihood=bound(likelihood)).start

    def outcome(parameters, prior_mean=mean):
        found = solver.run(k[None], prior_mean, y, start.copy(), True, likelihood=likelihood.given(parameters))
        assert np.isfinite(found.evidence)
        return found

    at = outcome(bound(likelihood).parameters)
    direction = np.random.default_rng(1).normal(size=bound(likelihood).parameters.shape)
    direction[list(EVERY[likelihood.name].data)] = 0.0
    for step, gradient, evidence in (
        (direction, at.gradient_parameters, lambda t: outcome(bound(likelihood).parameters + t * direction).evidence),
        (np.ones((1, N)), at.gradient_mean, lambda t: outcome(bound(likelihood).parameters, mean + t).evidence),
    ):
        up, down, far_up, far_down = (evidence(t * 1e-3) for t in (1.0, -1.0, 2.0, -2.0))
        assert (gradient * step).sum() == pytest.approx((8.0 * (up - down) - far_up + far_down) / 12e-3, rel=1e-6)


@likelihoods
def test_averages_with_stored_row_constants_equal_averages_without_them(likelihood):
    """Constants of rows are reused for the arrays that they were computed from.

    Other arrays get constants of their own.
    """
    given, y = bound(likelihood), observed(likelihood)
    parameters = given.parameters.copy()
    solve = given.bound_to(y, parameters)
    assert solve == given
    assert solve.given(parameters).bound == ()
    for arrays in ((y, parameters), (y[::-1].copy(), parameters[:, ::-1].copy())):
        found, expected = np.empty((2, 5, N))
        solve.computation(GaussianAverage).terms(F, VARIANCE, *arrays, found)
        given.computation(GaussianAverage).terms(F, VARIANCE, *arrays, expected)
        np.testing.assert_array_equal(found, expected)


def test_row_constants_of_a_density_are_computed_once():
    calls = []

    def form(y, parameters):
        calls.append(len(y))
        return StandardForm(np.ones(len(y)), np.zeros(len(y)), np.ones((2, len(y))), np.zeros(len(y)))

    computations = standard_computations(LOGISTIC_POWERS, form)
    (rows,) = (each for each in computations if isinstance(each, RowConstants))
    y, parameters = np.zeros(N), np.empty((0, N))
    (average,) = (each for each in rows.bound_to(y, parameters) if isinstance(each, GaussianAverage))
    for _ in range(3):
        average.terms(F, VARIANCE, y, parameters, np.empty((5, N)))
    assert calls == [N]


@likelihoods
def test_scores_are_computed_for_each_point(likelihood):
    given = bound(likelihood)
    y = observed(likelihood)
    cov = VARIANCE[:, None, None]
    classes = given.n_classes(1)
    p = given.probabilities(F[:, None], cov)[0] if classes else np.empty((N, 0))
    moments = None if classes else given.outcome_moments(F[:, None], cov)
    scores = given.scores(y, p, moments)
    assert scores
    assert all(values.shape == (N,) and np.isfinite(values).all() for values in scores.values())
    assert "mlpd" not in scores


@likelihoods
def test_log_density_of_a_likelihood_equals_the_density_of_pymc(likelihood):
    """The draws come from PyMC's distribution of the observations given latent values."""
    model = declared(likelihood.name)
    expected, f = model.compile_fn(
        [*model.logp([model["y"]], sum=False), *model.replace_rvs_by_values([model["f"]])],
        inputs=model.value_vars,
        on_unused_input="ignore",
        mode="FAST_COMPILE",
    )(model.initial_point())
    given = likelihood.given(EVERY[likelihood.name].parameters)
    each = [given.at([i]).log_density(f[None, [i]], observed(likelihood)[[i]]) for i in range(N)]
    assert_allclose(each, expected, rtol=1e-6)
