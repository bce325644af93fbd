"""What is shown of long work on rows, and what an interrupt of it says."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pymc_gpep import progress
from pymc_gpep.fits import prediction


def test_short_work_is_quiet(capsys):
    with progress.RowProgress("Predicting", 10, True) as shown:
        for _ in range(10):
            shown.advance(1)
    assert capsys.readouterr().out == ""


def test_long_work_says_what_is_done_and_what_is_left(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    clock = iter(np.arange(0.0, 100.0, 2.0))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress.RowProgress("Predicting", 40, True) as shown:
        for _ in range(4):
            shown.advance(10)
    # A quarter takes two seconds, so that six are left; the next line of text comes five seconds later.
    assert capsys.readouterr().out.splitlines() == ["Predicting: 10 of 40 rows, 0:00:06 left"]


def test_nothing_is_shown_unasked(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with progress.RowProgress("Predicting", 40, False) as shown:
        shown.advance(10)
    assert capsys.readouterr().out == ""


def test_an_interrupted_prediction_says_how_far_it_came_and_can_be_made_again(shared, monkeypatch):
    inputs = np.random.default_rng(1).uniform(-1.5, 1.5, size=(1200, 2))
    expected = shared.fit.predict(inputs, progressbar=False)
    given, calls = prediction.predict_given, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return given(*args, **kwargs)

    monkeypatch.setattr(prediction, "predict_given", interrupted)
    with pytest.raises(KeyboardInterrupt, match="1000 of 1200 rows were done"):
        shared.fit.predict(inputs)
    monkeypatch.undo()
    assert_array_equal(shared.fit.predict(inputs).p, expected.p)
