"""Progress of long work on rows, and messages of its interrupts."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_array_equal

import pymc_gpep as gpep
from pymc_gpep import progress
from pymc_gpep.comparison import fits_and_draws as draw_prediction
from pymc_gpep.fits import cross_validation, prediction
from tests import models


def test_short_work_shows_no_progress(capsys):
    with progress.RowProgress("Predicting", 10, True) as shown:
        for _ in range(10):
            shown.advance(1)
    assert capsys.readouterr().out == ""


def test_long_work_shows_its_fraction_and_the_remaining_time(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    clock = iter(np.arange(0.0, 100.0, 2.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress.RowProgress("Predicting", 40, True) as shown:
        for _ in range(4):
            shown.advance(10)
    # The second quarter takes two seconds, so that four remain. The next line is printed five seconds later.
    assert capsys.readouterr().out.splitlines() == ["Predicting: 50%, 0:00:04 left"]


@pytest.mark.parametrize("moves", [False, True])
def test_remaining_time_does_not_include_the_first_piece_with_compilation(capsys, monkeypatch, moves):
    monkeypatch.setenv("FORCE_COLOR" if moves else "NO_COLOR", "1")
    clock = iter(np.cumsum([60.0, 0.4, 0.4, 0.4]))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    with progress.RowProgress("Predicting", 100, True) as shown:
        for _ in range(3):
            shown.advance(20)
        assert capsys.readouterr().out == ""
        shown.advance(20)
        assert ("Predicting" if moves else "Predicting: 80%, 0:00:00 left\n") in capsys.readouterr().out


def test_nothing_is_shown_without_progressbar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with progress.RowProgress("Predicting", 40, False) as shown:
        shown.advance(10)
    assert capsys.readouterr().out == ""


def test_interrupted_prediction_reports_progress_and_can_be_repeated(shared, monkeypatch):
    inputs = np.random.default_rng(1).uniform(-1.5, 1.5, size=(1200, 2))
    expected = shared.fit.predict(inputs, progressbar=False)
    given, calls = prediction.predict_given, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return given(*args, **kwargs)

    monkeypatch.setattr(prediction, "predict_given", interrupted)
    with pytest.raises(KeyboardInterrupt, match="83% was done"):
        shared.fit.predict(inputs)
    monkeypatch.undo()
    assert_array_equal(shared.fit.predict(inputs).p, expected.p)


def interrupted_at(monkeypatch, module, name, call):
    """Interrupt a function of a module in one of its calls. Return the sizes of its arguments."""
    given, sizes = getattr(module, name), []

    def interrupted(likelihood, mean, *args, **kwargs):
        sizes.append(len(mean))
        if len(sizes) == call:
            raise KeyboardInterrupt
        return given(likelihood, mean, *args, **kwargs)

    monkeypatch.setattr(module, name, interrupted)
    return sizes


def test_interrupted_predictions_from_draws_can_be_repeated(shared, monkeypatch):
    inputs = np.random.default_rng(1).uniform(-1.5, 1.5, size=(700, 2))
    draws = shared.fit.sample(3, random_seed=1)

    def predicted():
        return gpep.predict_draws(draws, shared.gp, inputs, model=shared.model, progressbar=False)

    expected = predicted()
    sizes = interrupted_at(monkeypatch, draw_prediction, "predict_given", 4)
    with pytest.raises(KeyboardInterrupt, match="57% was done"):
        predicted()
    assert sizes == [500, 200, 500, 200]
    monkeypatch.undo()
    assert_array_equal(predicted().p, expected.p)


def test_interrupted_leave_one_out_can_be_repeated(shared_ccd, monkeypatch):
    expected = shared_ccd.loo(progressbar=False)
    nodes = len(shared_ccd.hyper_posterior)
    sizes = interrupted_at(monkeypatch, cross_validation, "log_predictive", 5)
    with pytest.raises(KeyboardInterrupt, match=f"{60 / (30 * nodes):.0%} was done"):
        shared_ccd.loo(progressbar=False)
    assert len(sizes) == 5
    monkeypatch.undo()
    assert_array_equal(shared_ccd.loo(progressbar=False).elpd_i, expected.elpd_i)


def test_interrupted_leave_one_out_by_parts_can_be_repeated(monkeypatch):
    model, _ = models.probit()
    with model:
        fit = pm.fit(method="sparse_ep", inducing=5, progressbar=False)
    expected = fit.loo(progressbar=False)
    interrupted_at(monkeypatch, cross_validation, "log_predictive", 2)
    with pytest.raises(KeyboardInterrupt, match=": 0% was done"):
        fit.loo(progressbar=False)
    monkeypatch.undo()
    assert_array_equal(fit.loo(progressbar=False).elpd_i, expected.elpd_i)


def test_many_rows_are_predicted_in_blocks(shared_ccd, monkeypatch):
    """Each of 20 blocks has 500 of 10 000 rows. The probabilities are artificial."""
    sizes = []

    def quickly(likelihood, mean, cov, **_):
        sizes.append(len(mean))
        return prediction.Prediction(np.full((len(mean), 3), 1 / 3), np.zeros(len(mean)), mean, cov)

    monkeypatch.setattr(prediction, "predict_given", quickly)
    inputs = np.random.default_rng(1).uniform(-1.5, 1.5, size=(10_000, 2))
    found = shared_ccd.predict(inputs, covariances=False, progressbar=False)
    assert found.sizes["new_point"] == 10_000
    assert sizes == [500] * (20 * len(shared_ccd.hyper_posterior))
