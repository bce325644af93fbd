"""Starting points of the search for hyperparameters."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.hyper.several_starts import pairs_by_kind, starting_points, view
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.reading import read_classifier
from tests import models


def log_posterior(build):
    model, _ = build()
    return DenseLogPosterior(read_classifier(model), NestedEP())


def test_data_suggest_length_scales_and_a_magnitude():
    """The start gives a squared exponential a chosen correlation at the median distance of some pairs of rows."""
    posterior = log_posterior(models.probit)
    with pm.Model() as model:
        X, y = models.data()
        scale = pm.LogNormal("scale", 2, 1)  # if parameters were sorted by name, this scale would not come first
        ls = pm.LogNormal("a", 0, 1)
        f = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    posterior = DenseLogPosterior(read_classifier(model), NestedEP())
    first = posterior.space.initial_point()
    points = starting_points(posterior, first, 6, random_seed=1)
    assert points.shape == (6, 2)
    assert_allclose(points[0], first)
    at = posterior.space.natural(points)
    assert_allclose(at["scale"][1:5], 3, rtol=1e-6)
    distances = cdist(X, X)
    same = y[:, None] == y
    np.fill_diagonal(distances, np.inf)
    nearest = np.where(distances > 1e-9, distances, np.inf).min(axis=1)
    wanted = [
        (nearest, 0.5),
        (distances[~same], 0.9),
        (distances[~same], 0.5),
        (distances[same & np.isfinite(distances)], 0.1),
    ]
    expected = [np.median(apart) / np.sqrt(-2 * np.log(correlation)) for apart, correlation in wanted]
    assert_allclose(at["a"][1:5], expected, rtol=0.15)


def test_subset_of_many_points_has_the_correlations_of_all_points():
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(450, 2)), rng.integers(3, size=450)
    k = 4 * np.exp(-0.5 * cdist(X, X, "sqeuclidean"))
    seen = view(k[None], pairs_by_kind(labels))
    same = labels[:, None] == labels
    assert seen.log_sd == pytest.approx(np.log(2))
    assert seen.correlation["between"] == pytest.approx(np.median(k[~same]) / 4, rel=0.05)
    assert seen.correlation["neighbours"] == pytest.approx(np.median(np.sort(k)[:, -2]) / 4, rel=0.01)


def test_starts_are_distinct_and_change_length_scales():
    posterior = log_posterior(models.shared)
    first = posterior.space.initial_point()
    points = starting_points(posterior, first, 7, random_seed=1)
    moved = points[1:5] - first
    assert_allclose(moved[:, 0], moved[:, 1])  # the two length scales; the magnitude is the last parameter
    assert np.abs(moved[:, 0]).min() > 0.05
    assert len({tuple(point) for point in points}) == 7
    assert np.isfinite([posterior(point).log_posterior for point in points]).all()
    assert_allclose(points, starting_points(posterior, first, 7, random_seed=1))


def test_starts_are_finite_under_improper_priors():
    X, y = models.data()
    with pm.Model() as model:
        eta = pm.HalfFlat("eta", initval=1.0)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    posterior = DenseLogPosterior(read_classifier(model), NestedEP())
    points = starting_points(posterior, posterior.space.initial_point(), 3)
    assert points.shape == (3, 1)
    assert np.isfinite(points).all()


def test_model_without_hyperparameters_has_one_start():
    model, _ = models.fixed()
    with model:
        fit = pm.fit(method="nested_ep", starts=4, progressbar=False)
    assert fit.message.startswith("No hyperparameters; nested_ep converged")
