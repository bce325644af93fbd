"""Fits with wide normal priors end at the maximum of the likelihood, for every form of the prior."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy import special

from pymc_gpep.approximations import Laplace
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.reading import read_classifier

RNG = np.random.default_rng(5)
N, Q, NOISE = 120, 30, 0.9
HEIGHT, MALE = RNG.normal(170.0, 9.0, size=N), RNG.integers(2, size=N)
COLUMNS = np.column_stack([np.ones(N), HEIGHT, MALE, HEIGHT * MALE])
Y = 6.0 + 0.02 * HEIGHT + 0.2 * MALE + NOISE * RNG.normal(size=N)
GROUP = RNG.integers(Q, size=N)


def least_squares(columns, y):
    return np.linalg.lstsq(columns, y, rcond=None)[0]


@pytest.mark.parametrize("width", [1e4, 1e8])
@pytest.mark.parametrize("method", ["ep", "laplace", "kl"])
def test_fit_by_rows_under_a_wide_normal_prior_equals_least_squares(method, width):
    with pm.Model():
        b = pm.Normal("b", 0, width, shape=4)
        pm.Normal("y", COLUMNS @ b, NOISE, observed=Y)
        fit = pm.fit(method=method, progressbar=False)
    found, expected = fit.effects("b")["b"], least_squares(COLUMNS, Y)
    error = NOISE * np.sqrt(np.linalg.inv(COLUMNS.T @ COLUMNS).diagonal())
    assert fit.converged
    assert_allclose(found.sel(moment="mean").values, expected, atol=1e-5 * error.min(), rtol=1e-6)
    assert_allclose(found.sel(moment="sd").values, error, rtol=1e-5)


def test_scale_of_noise_is_found_under_wide_priors():
    """For n rows and q flat coefficients, the mode of σ² is nearly the residual sum of squares / (n − q)."""
    with pm.Model():
        b, log_s = pm.Normal("b", 0, 1e8, shape=4), pm.Flat("log_s")
        pm.Normal("y", COLUMNS @ b, pm.math.exp(log_s), observed=Y)
        fit = pm.fit(method="laplace", hyper="map", progressbar=False)
    residual = Y - COLUMNS @ least_squares(COLUMNS, Y)
    assert fit.converged
    assert_allclose(np.exp(fit.hyperparameters["log_s"]), np.sqrt(residual @ residual / (N - 4)), rtol=1e-5)


@pytest.mark.parametrize("method", ["laplace", "ep"])
def test_wide_normal_prior_with_many_levels_gives_generalised_least_squares(monkeypatch, method):
    monkeypatch.setattr("pymc_gpep.log_posteriors.dense_log_posterior._MANY", 1)
    levels = np.eye(Q)[GROUP]
    with pm.Model():
        b, u = pm.Normal("b", 0, 1e7, shape=2), pm.Normal("u", 0, 0.5, shape=Q)
        pm.Normal("y", b[0] + b[1] * HEIGHT + u[GROUP], NOISE, observed=Y)
        fit = pm.fit(method=method, progressbar=False)
    # Generalised least squares with the covariance of rows that levels imply.
    covariance = NOISE**2 * np.eye(N) + 0.25 * levels @ levels.T
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    expected = least_squares(root @ COLUMNS[:, :2], root @ Y)
    assert_allclose(fit.effects("b")["b"].sel(moment="mean").values, expected, rtol=1e-6)


def test_mode_of_classes_under_wide_priors_maximises_the_likelihood():
    """Newton's method for a softmax by rows, against plain Newton's method for its few coefficients."""
    softmax = next(each for each in LIKELIHOODS if each.name == "softmax")
    columns = np.column_stack([np.ones(N), HEIGHT - 170.0])
    labels = RNG.integers(3, size=N)
    rows = np.einsum("kl,np->knlp", np.eye(3), columns).reshape(3, N, 6)
    found = Laplace().solve(1e6 * rows, np.zeros((3, N)), labels, likelihood=softmax, prior_type=RowPrior)
    b = np.zeros((3, 2))
    for _ in range(30):
        eta = columns @ b.T
        p = np.exp(eta - eta.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        slope = ((np.eye(3)[labels] - p).T @ columns).ravel() - 1e-12 * b.ravel()
        weights = np.einsum("nk,kl->nkl", p, np.eye(3)) - p[:, :, None] * p[:, None, :]
        curvature = np.einsum("nkl,np,nr->kplr", weights, columns, columns).reshape(6, 6)
        b += np.linalg.solve(curvature + 1e-12 * np.eye(6), slope).reshape(3, 2)
    assert found.convergence.converged
    assert_allclose(found.mean - found.mean.mean(axis=0), (columns @ (b - b.mean(axis=0)).T).T, atol=1e-6)


def test_error_for_variances_beyond_double_precision_advises_scaling_that_works():
    """For twelve rows with fourteen standard normals, the prior is a covariance matrix."""
    raw = np.column_stack([np.ones(12), RNG.normal(8000.0, 100.0, size=(12, 9))])
    y, group = RNG.integers(2, size=12), np.arange(12) % 4

    def fitted(columns):
        with pm.Model():
            b, u = pm.Normal("b", 0, 1e6, shape=10), pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=4)
            pm.Bernoulli("y", logit_p=pm.math.dot(columns, b) + u[group], observed=y)
            return pm.fit(method="kl", progressbar=False)

    with pytest.raises(ValueError, match=r"The largest prior variance is .*e\+.*\(x - x\.mean\(\)\) / x\.std\(\)"):
        fitted(raw)
    assert fitted(np.column_stack([np.ones(12), (raw[:, 1:] - raw[:, 1:].mean(0)) / raw[:, 1:].std(0)])).converged


@pytest.mark.parametrize("prior", [pm.HalfNormal, pm.HalfCauchy])
def test_single_effect_with_another_prior_matches_quadrature(prior):
    x, y = HEIGHT[:40] - 170.0, (RNG.random(40) < special.expit(0.1 * (HEIGHT[:40] - 170.0))).astype(int)
    with pm.Model():
        b = prior("b", 1.0)
        pm.Bernoulli("y", logit_p=b * x, observed=y)
        found = pm.fit(method="ep", progressbar=False).summary(["b"])
    grid = np.linspace(0.0, 3.0, 3001)
    weight = special.expit((2 * y - 1) * x * grid[:, None]).prod(axis=1)
    weight *= np.exp(-0.5 * grid**2) if prior is pm.HalfNormal else 1.0 / (1.0 + grid**2)
    mean = np.average(grid, weights=weight)
    sd = np.sqrt(np.average((grid - mean) ** 2, weights=weight))
    assert_allclose(found.to_numpy()[0, :2], [mean, sd], rtol=0.01)


def test_argument_hyperparameters_accepts_a_list_a_name_or_none():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a") + pm.Normal("slope") * MALE, NOISE, observed=Y)
    for given, expected in ((None, []), ("slope", ["slope"]), (("slope",), ["slope"])):
        assert [rv.name for rv in read_classifier(model, hyperparameters=given).hyperparameters] == expected
    with pytest.raises(TypeError, match="hyperparameters must be a list of names, but is 3"):
        read_classifier(model, hyperparameters=3)


def test_half_flat_dispersion_of_counts_is_refused_before_a_search(monkeypatch):
    """The limit of the likelihood is a Poisson density, which is not 0."""
    monkeypatch.setattr("pymc_gpep.variational.plans.all_rows.Climb.run", None)
    with pm.Model():
        f = pm.Flat("a") + pm.Normal("u", 0, 1, shape=3)[GROUP[:30] % 3]
        pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=pm.HalfFlat("alpha"), observed=GROUP[:30])
        with pytest.raises(ValueError, match="'alpha' is improper: its log posterior rises without end"):
            pm.fit(method="laplace", progressbar=False)
