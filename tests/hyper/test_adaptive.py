"""Adaptive integration over hyperparameters: interpolated log densities against quadrature of the exact densities."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp

from pymc_gpep.hyper import adaptive
from pymc_gpep.hyper.adaptive import quadrature_weights
from pymc_gpep.hyper.cells import Coordinates
from pymc_gpep.hyper.surrogate import Points, Surrogate
from pymc_gpep.hyper.weights import weighted_draws
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.log_posteriors.evaluation import Evaluation
from tests.hyper.given_density import Given

LEVELS = np.array([0.025, 0.25, 0.5, 0.75, 0.975])
SCHOOLS = np.array([2.8, 0.8, -0.3, 0.7, -0.1, 0.1, 1.8, 1.2])
ERRORS = np.array([1.5, 1.0, 1.6, 1.1, 0.9, 1.1, 1.0, 1.8])
ROWS, SQUARES = 40, 58.0


def schools(x):
    """Log density of log s for normal effects of eight groups with known errors. The prior of s is half-normal."""
    s = np.exp(x[0])
    v = s**2 + ERRORS**2
    mean = (SCHOOLS / v).sum() / (1 / v).sum()
    fit = np.log(v).sum() + ((SCHOOLS - mean) ** 2 / v).sum() + np.log((1 / v).sum())
    return -0.5 * fit - 0.5 * (s / 5) ** 2 + x[0]


def one_row_a_group(x):
    """Log density of log s and log e if the data depend on s² + e² alone."""
    v = np.exp(2 * x).sum()
    return -0.5 * (ROWS * np.log(v) + SQUARES / v) - 0.5 * (np.exp(2 * x) / 4).sum() + x.sum()


def quantiles_on_a_grid(function, axes, of):
    """Quantiles and standard deviation of exp(coordinate `of`), on a dense grid of natural values."""
    mesh = np.meshgrid(*axes, indexing="ij")
    logs = np.array(
        [function(np.log(np.array(each))) - np.log(each).sum() for each in zip(*map(np.ravel, mesh), strict=True)]
    )
    weights = np.exp(logs - logs.max()).reshape([len(axis) for axis in axes])
    own = weights.sum(axis=tuple(axis for axis in range(len(axes)) if axis != of))
    own /= own.sum()
    mean = own @ axes[of]
    sd = np.sqrt(own @ (axes[of] - mean) ** 2)
    return np.interp(LEVELS, np.cumsum(own) - 0.5 * own, axes[of]), sd


def test_quantiles_of_the_scale_of_eight_groups_are_exact():
    given = Given(schools, ["s"])
    found = given.integrated()
    exact, sd = quantiles_on_a_grid(schools, [np.linspace(1e-3, 12, 8000)], 0)
    assert_allclose((np.quantile(np.exp(found.density[:, 0]), LEVELS) - exact) / sd, 0, atol=0.03)
    assert found.converged
    assert given.count < 25


def test_quantiles_of_scales_with_a_common_effect_are_exact():
    found = Given(one_row_a_group, ["s", "e"]).integrated()
    axis = np.linspace(2e-3, 4, 250)
    exact, sd = quantiles_on_a_grid(one_row_a_group, [axis, axis], 0)
    for draws in np.exp(found.density).T:
        assert_allclose((np.quantile(draws, LEVELS) - exact) / sd, 0, atol=0.1)
    # The weighted nodes reproduce the moments of the density.
    natural = np.exp(found.theta)
    mean = found.weights @ natural
    assert_allclose(mean, np.exp(found.density).mean(axis=0), atol=0.05 * sd)
    assert_allclose(np.sqrt(found.weights @ (natural - mean) ** 2), np.exp(found.density).std(axis=0), rtol=0.1)


def test_log_evidence_is_the_integral():
    found = Given(schools, ["s"]).integrated()
    axis = np.linspace(-12, 4, 20_000)
    exact = logsumexp([schools([x]) for x in axis]) + np.log(axis[1] - axis[0])
    assert found.log_evidence == pytest.approx(exact, abs=0.01)


@pytest.mark.variation
def test_six_skewed_hyperparameters_have_their_quantiles():
    """The hyperparameters are linear combinations of independent logarithms of gamma variables.

    Draws give the quantiles.
    """
    rng = np.random.default_rng(1)
    mix = np.eye(6) + 0.1 * rng.normal(size=(6, 6))
    shapes = np.linspace(2.0, 6.0, 6)

    def mixed(x):
        u = mix @ x
        return float((shapes * (u - np.log(shapes)) - np.exp(u)).sum())

    found = Given(mixed, list("abcdef")).integrated()
    draws = np.log(rng.gamma(shapes, size=(400_000, 6))) @ np.linalg.inv(mix).T
    for scale in (np.asarray, np.exp):
        wide, exact = scale(found.density), scale(draws)
        error = (np.quantile(wide, LEVELS, axis=0) - np.quantile(exact, LEVELS, axis=0)) / exact.std(axis=0)
        assert_allclose(error, 0, atol=0.08)
    assert found.converged


def test_quantiles_of_two_scales_and_a_normal_hyperparameter_are_exact():
    """Small values of one scale are likely if the other scale is large.

    This mass is far from the axes at the maximum.
    """

    def pair(x):
        w, s = np.exp(x)
        v = w + s + 0.05
        return float(-3.0 * np.log(v) - 0.6 / v + x.sum() - 0.5 * (w**2 + s**2))

    found = Given(lambda x: pair(x[:2]) - 0.5 * float(x[2:] @ x[2:]), list("wsa")).integrated()
    axis = np.exp(np.linspace(-12, 2.5, 300))
    w, s = np.meshgrid(axis, axis, indexing="ij")
    v = w + s + 0.05
    own = np.exp(-3.0 * np.log(v) - 0.6 / v + np.log(w * s) - 0.5 * (w**2 + s**2)).sum(axis=0)
    own /= own.sum()
    sd = np.sqrt(own @ axis**2 - (own @ axis) ** 2)
    exact = np.interp(LEVELS, np.cumsum(own) - 0.5 * own, axis)
    for draws in np.exp(found.density[:, :2]).T:
        assert_allclose((np.quantile(draws, LEVELS) - exact) / sd, 0, atol=0.1)
    assert found.doubt == ""


def test_uneven_log_density_is_reported_as_rough(monkeypatch):
    # an interpolation without convergence has a larger error than the limit
    monkeypatch.setattr(adaptive, "_UNSURE", 10.0)
    found = Given(lambda x: -0.5 * float(x @ x) + 0.5 * float(np.sin(9.0 * x).sum()), ["a"])
    found = found.integrated(at=[0.0], evaluations=20)
    assert found.doubt.startswith("marginals of hyperparameters are rough")
    assert "hyper_options={'evaluations':" in found.doubt


def test_flat_hyperparameter_stays_at_the_maximum_and_is_named():
    found = Given(lambda x: schools(x[:1]), ["s", "open"]).integrated(at=[0.0, 0.3])
    assert found.message.startswith("open stay at the maximum")
    assert_allclose(found.density[:, 1], 0.3)
    assert found.density[:, 0].std() > 0.3


def test_maximum_without_curvature_is_integrated():
    """The log density is −x⁴."""
    found = Given(lambda x: -float(x[0] ** 4), ["x"]).integrated(at=[0.0])
    grid = np.linspace(-3, 3, 4001)
    weights = np.exp(-(grid**4))
    assert found.density.std() == pytest.approx(np.sqrt(weights @ grid**2 / weights.sum()), rel=0.02)


def test_points_where_the_approximation_fails_are_left_out():
    found = Given(lambda x: np.nan if x[0] > 2.5 else -0.5 * float(x @ x), ["a", "b"]).integrated(at=[0.0, 0.0])
    assert_allclose(found.density.std(axis=0), 1, atol=0.08)


def test_node_above_the_maximum_is_reported():
    found = Given(lambda x: float(np.logaddexp(-0.5 * x[0] ** 2, 3 - 2 * (x[0] - 3.5) ** 2)), ["x"]).integrated(
        at=[0.0]
    )
    assert "above the maximum that the search found" in found.message


def test_too_few_evaluations_are_reported():
    found = Given(one_row_a_group, ["s", "e"]).integrated(evaluations=1)
    assert not found.converged
    assert "hyper_options={'evaluations':" in found.message


def test_gradients_of_the_interpolation_match_differences():
    rng = np.random.default_rng(3)
    z = np.concatenate([np.zeros((1, 2)), 2.0 * np.eye(2), -1.5 * np.eye(2), rng.normal(size=(4, 2))])

    def value(z):
        return -0.5 * (z**2).sum(axis=-1) - 0.1 * z[..., 0] ** 3 * (z[..., 0] > 0) + 0.1 * np.sin(z[..., 0] * z[..., 1])

    step = 1e-6
    slope = np.array([(value(z + step * e) - value(z - step * e)) / (2 * step) for e in np.eye(2)]).T
    surrogate = Surrogate(Points(z, value(z), slope), np.array([[-1.0, 0.1], [0.1, -1.0]]))
    assert_allclose(surrogate(z), value(z), atol=1e-4)
    x = rng.normal(size=(5, 2))
    expected = [
        (surrogate._density(x + step * e)[0] - surrogate._density(x - step * e)[0]) / (2 * step) for e in np.eye(2)
    ]
    assert_allclose(surrogate._density(x)[1], np.transpose(expected), atol=2e-4)


def test_weighted_draws_have_the_weighted_quantiles_without_repeated_values():
    rng = np.random.default_rng(2)
    points = rng.normal(size=(20_000, 4))
    log_weights = points @ np.array([0.6, -0.4, 0.2, 0.0])  # a linear function of the point
    log_weights[7] += 6.0  # alone this point would be drawn a hundred times
    draws = weighted_draws(log_weights - log_weights.max(), points, 1, 1000)
    assert all(len(np.unique(column)) == 1000 for column in draws.T)
    weights = np.exp(log_weights)
    for column, values in zip(draws.T, points.T, strict=True):
        order = np.argsort(values)
        exact = np.interp(LEVELS, np.cumsum(weights[order]) / weights.sum(), values[order])
        assert_allclose(np.quantile(column, LEVELS), exact, atol=0.02)


@pytest.mark.parametrize("d", [1, 3, 8])
def test_weights_of_nodes_reproduce_moments_of_draws(d):
    rng = np.random.default_rng(d)
    root = np.eye(d) + 0.3 * rng.normal(size=(d, d))
    draws = rng.normal(size=(4000, d)) @ root.T + 2.0
    places = rng.normal(scale=1.3, size=(20 + 15 * d, d)) @ root.T + 2.0
    weights = quadrature_weights(places, draws)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    mean, sd = draws.mean(axis=0), draws.std(axis=0)
    assert_allclose((weights @ places - mean) / sd, 0, atol=0.03)
    assert_allclose(np.sqrt(weights @ (places - mean) ** 2) / sd, 1, atol=0.05)


def test_coordinates_of_a_cholesky_factor_keep_its_density():
    """The determinant of the map gives the change of volume, and differences give the derivatives."""
    with pm.Model() as model:
        pm.LKJCholeskyCov("chol", eta=2, n=4, sd_dist=pm.HalfNormal.dist(1.0), compute_corr=False)
        pm.HalfNormal("e")
    owners = ["chol"] * 10 + ["e"]
    classifier = SimpleNamespace(model=model, hyperparameters=list(model.free_RVs))
    coordinates = Coordinates(SimpleNamespace(owners=owners, classifier=classifier))
    phi, step = np.random.default_rng(0).normal(scale=0.7, size=11), 1e-6
    assert not coordinates.trivial
    assert_allclose(coordinates.phi(coordinates.theta(phi)), phi, atol=1e-12)

    def pulled(phi):
        theta = coordinates.theta(phi)
        value, slope = np.sin(theta).sum() + (theta**2).sum(), np.cos(theta) + 2 * theta
        return coordinates.pulled(phi, Evaluation(theta, value, slope, 0.0, 1, CONVERGED, np.empty(0)))

    theta = coordinates.theta(phi)
    jacobian = [(coordinates.theta(phi + e) - coordinates.theta(phi - e)) / (2 * step) for e in step * np.eye(11)]
    volume = np.linalg.slogdet(np.array(jacobian))[1]
    assert pulled(phi).log_posterior == pytest.approx(np.sin(theta).sum() + (theta**2).sum() + volume, abs=1e-6)
    slopes = [(pulled(phi + e).log_posterior - pulled(phi - e).log_posterior) / (2 * step) for e in step * np.eye(11)]
    assert_allclose(pulled(phi).gradient, slopes, atol=1e-6)
    # The coordinates are log standard deviations and partial correlations. The first partial correlation is a
    # correlation.
    factor = np.zeros((4, 4))
    factor[np.tril_indices(4)] = theta[:10]
    factor[np.diag_indices(4)] = np.exp(factor.diagonal())
    cov = factor @ factor.T
    assert_allclose(phi[[0, 2, 5, 9]], 0.5 * np.log(cov.diagonal()))
    assert np.tanh(phi[1]) == pytest.approx(cov[1, 0] / np.sqrt(cov[0, 0] * cov[1, 1]))


def test_rough_values_of_far_cells_do_not_change_the_integral(monkeypatch):
    rng = np.random.default_rng(3)
    group = rng.integers(0, 15, 220)
    y = (rng.random(220) < 1.0 / (1.0 + np.exp(-rng.normal(size=15)[group]))).astype(int)
    found = []
    for far in (adaptive._FAR, np.inf):
        monkeypatch.setattr(adaptive, "_FAR", far)
        with pm.Model():
            s = pm.HalfNormal("s", 1.0)
            x = pm.Data("x", np.linspace(-1, 1, 220))
            pm.Bernoulli("y", logit_p=0.3 * x + pm.Normal("u", 0.0, s, shape=15)[group], observed=y)
            fit = pm.fit(method="ep", progressbar=False, random_seed=1)
        found.append((fit.hyper_posterior.log_evidence, *np.quantile(fit.hyper_posterior.density, LEVELS)))
    assert_allclose(found[0], found[1], atol=2e-4)


@pytest.mark.parametrize(("method", "function"), [("ccd", one_row_a_group), ("laplace", schools)])
def test_marginals_by_few_nodes_are_reported_as_rough_unless_the_density_is_normal(method, function):
    skewed = Given(function, ["s", "e"] if method == "ccd" else ["s"]).integrated(method=method)
    assert skewed.doubt.endswith("Use hyper='adaptive'")
    assert skewed.converged
    normal = Given(lambda x: -0.5 * float(x @ x), ["a", "b"]).integrated(at=np.zeros(2), method=method)
    exact = np.array([-1.96, -0.674, 0.0, 0.674, 1.96])
    for draws in normal.density.T:
        assert_allclose(np.quantile(draws, LEVELS), exact, atol=0.05)
    assert normal.doubt == ""
