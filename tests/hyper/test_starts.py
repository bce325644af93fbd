"""Where the optimiser begins, and the best of several searches."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist

import pymc_gpep as gpep
from pymc_gpep.hyper.log_posterior import Evaluation, LogPosterior
from pymc_gpep.hyper.prior_view import pairs_by_kind, view
from pymc_gpep.hyper.several_starts import maximise_from
from pymc_gpep.hyper.starts import starting_points
from pymc_gpep.structure import read_classifier
from tests import models


def log_posterior(build):
    model, _ = build()
    return LogPosterior(read_classifier(model), gpep.NestedEP())


class TwoHills:
    """log(e^{−4(θ+2)²/2} + e^{3 − 4(θ−2)²/2}): a maximum of 0 near −2, one of 3 near 2."""

    def __init__(self, fails_below=-np.inf):
        self.fails_below = fails_below

    def __call__(self, theta, start=None):
        heights = np.array([0.0, 3.0]) - 2 * (theta[0] - np.array([-2.0, 2.0])) ** 2
        value = np.logaddexp(*heights)
        gradient = (np.exp(heights - value) * -4 * (theta[0] - np.array([-2.0, 2.0]))).sum()
        value = np.nan if theta[0] < self.fails_below else value
        return Evaluation(np.array(theta), value, np.array([gradient]), value, 1, 0, np.empty(0))

    def loosely(self):
        return self

    def check_moments(self, theta):
        raise ValueError("no start")


def test_the_best_of_several_searches_is_kept():
    found = maximise_from(TwoHills(), np.array([[-2.5], [1.0], [-1.5]]), 100)
    assert found.converged
    assert found.best.log_posterior == pytest.approx(3, abs=1e-5)
    assert found.history[0].theta == 1.0
    assert_allclose([end.log_posterior for end in found.ends], [0, 3, 0], atol=1e-2)
    assert found.agreement == "1 of 3 starts ended there, the others up to 3.00 below"


def test_agreement_in_words():
    def said(*points):
        return maximise_from(TwoHills(), np.array(points)[:, None], 100).agreement

    assert said(1.0, 2.5) == "both starts ended there"
    assert said(1.0, -2.5) == "1 of 2 starts ended there, the other 3.00 below"


def test_searches_that_come_to_an_earlier_end_stop_there():
    posterior = log_posterior(models.shared)
    points = starting_points(posterior, posterior.initial_point(), 4)
    alone = [len(maximise_from(posterior, point[None], 100).history) for point in points]
    lengths = [0] * len(points)

    def count(history, which):
        lengths[which] = len(history)

    together = maximise_from(posterior, points, 100, count)
    assert together.converged
    assert together.agreement == "all 4 starts ended there"
    assert {end.log_posterior for end in together.ends} == {together.best.log_posterior}
    assert lengths[0] == alone[0]
    assert sum(lengths[1:]) < 0.8 * sum(alone[1:])


def test_a_start_that_fails_is_counted_and_the_first_must_not():
    found = maximise_from(TwoHills(fails_below=-5.0), np.array([[1.0], [-6.0]]), 100)
    assert found.agreement == "1 of 2 starts ended there, 1 failed"
    with pytest.raises(ValueError, match="no start"):
        maximise_from(TwoHills(fails_below=-5.0), np.array([[-6.0], [1.0]]), 100)


@pytest.mark.parametrize(("error", "interrupted"), [(StopIteration, False), (KeyboardInterrupt, True)])
def test_what_ends_one_search_ends_all(error, interrupted):
    def callback(history, which):
        if which == 1:
            raise error("enough")

    found = maximise_from(TwoHills(), np.array([[1.0], [-2.5], [2.5]]), 100, callback)
    assert len(found.ends) == 2
    assert found.best.log_posterior == pytest.approx(3, abs=1e-5)
    assert (found.converged, found.interrupted) == (False, interrupted)


def test_an_interrupt_before_a_search_has_begun_keeps_the_earlier_ones():
    class Interrupted(TwoHills):
        def __call__(self, theta, start=None):
            if theta[0] == -2.5:
                raise KeyboardInterrupt
            return super().__call__(theta, start)

    found = maximise_from(Interrupted(), np.array([[1.0], [-2.5], [2.5]]), 100)
    assert found.best.log_posterior == pytest.approx(3, abs=1e-5)
    assert (found.converged, found.interrupted, len(found.ends)) == (False, True, 1)


def test_data_suggest_length_scales_and_a_magnitude():
    """Against distances: the median correlation of a squared exponential is that between points a median apart."""
    posterior = log_posterior(models.probit)
    with pm.Model() as model:
        X, y = models.data()
        scale = pm.LogNormal("scale", 2, 1)  # in the order of their names they are no length scale first
        ls = pm.LogNormal("a", 0, 1)
        f = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.ExpQuad(2, ls=ls)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    posterior = LogPosterior(read_classifier(model), gpep.NestedEP())
    first = posterior.initial_point()
    points = starting_points(posterior, first, 6, random_seed=1)
    assert points.shape == (6, 2)
    assert_allclose(points[0], first)
    at = posterior.natural(points)
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


def test_some_of_many_points_stand_for_all():
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(450, 2)), rng.integers(3, size=450)
    k = 4 * np.exp(-0.5 * cdist(X, X, "sqeuclidean"))
    seen = view(k[None], pairs_by_kind(labels))
    same = labels[:, None] == labels
    assert seen.log_sd == pytest.approx(np.log(2))
    assert seen.correlation["between"] == pytest.approx(np.median(k[~same]) / 4, rel=0.05)
    assert seen.correlation["neighbours"] == pytest.approx(np.median(np.sort(k)[:, -2]) / 4, rel=0.01)


def test_every_length_scale_is_moved_and_the_rest_is_drawn():
    posterior = log_posterior(models.shared)
    first = posterior.initial_point()
    points = starting_points(posterior, first, 7, random_seed=1)
    moved = points[1:5] - first
    assert_allclose(moved[:, 0], moved[:, 1])  # the length scales; the magnitude is the last
    assert np.abs(moved[:, 0]).min() > 0.05
    assert len({tuple(point) for point in points}) == 7
    assert np.isfinite([posterior(point).log_posterior for point in points]).all()
    assert_allclose(points, starting_points(posterior, first, 7, random_seed=1))


def test_improper_priors_are_no_obstacle():
    X, y = models.data()
    with pm.Model() as model:
        eta = pm.HalfFlat("eta", initval=1.0)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
    posterior = LogPosterior(read_classifier(model), gpep.NestedEP())
    points = starting_points(posterior, posterior.initial_point(), 3)
    assert points.shape == (3, 1)
    assert np.isfinite(points).all()


def test_a_fit_from_several_starts(tmp_path):
    seen = []
    model, _ = models.probit()
    with model:
        fit = pm.fit(
            method="nested_ep",
            starts=3,
            progressbar=False,
            callbacks=[lambda _, losses, i: seen.append((i, len(losses)))],
        )
        alone = pm.fit(method="nested_ep", progressbar=False)
    assert "; all 3 starts ended there; nested_ep" in str(fit)
    assert "start" not in alone.message.replace("started near", "")
    assert fit.log_evidence == pytest.approx(alone.log_evidence, abs=1e-3)
    assert [i for i, _ in seen] == list(range(1, len(seen) + 1))
    assert sum(length == 2 for _, length in seen) == 3
    assert fit.starts.sizes["start"] == 3
    assert_allclose(fit.starts["log_posterior"], -fit.hist[-1])
    assert_allclose(fit.starts["ls"], fit.hyperparameters["ls"])
    assert alone.starts.sizes["start"] == 1
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert str(again) == str(fit)
    xr.testing.assert_allclose(again.starts, fit.starts)
    with model, pytest.raises(ValueError, match="starts must be at least 1, but is 0"):
        pm.fit(method="nested_ep", starts=0)
    with model, pytest.raises(TypeError, match=r"starts must be a whole number, but is 2\.5"):
        pm.fit(method="nested_ep", starts=2.5)


def test_without_hyperparameters_there_is_one_start():
    model, _ = models.fixed()
    with model:
        fit = pm.fit(method="nested_ep", starts=4, progressbar=False)
    assert fit.message.startswith("No hyperparameters; nested_ep converged")
