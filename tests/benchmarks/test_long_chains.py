"""Verdicts on long chains that agree and on chains that do not."""

import numpy as np
import pytest

from benchmarks.paper import long_chains, predictive


def chains(name: str, apart: float) -> dict[str, dict[str, np.ndarray]]:
    """Results of two chains of independent draws. Their first length scales differ by `apart`."""
    found = {}
    for seed in range(2):
        rng = np.random.default_rng(seed)
        found[f"{name}.0.MCMC.{seed}"] = {
            "magnitude": np.exp(rng.normal(size=400)),
            "length_scale": np.exp(0.1 * rng.normal(size=(400, 2)) + [apart * (seed - 1), 0.0]),
            "p": np.tile([[0.8, 0.2], [0.3, 0.7]], (5, 1, 1)),
            "y": np.array([0, 0]),
        }
    return found


def test_agreeing_chains_pass():
    record, text = long_chains.EXPERIMENT.report(chains("teaching", 0.0))
    assert "2 chains of 400 draws: **mixed**." in text
    assert record["teaching"]["agreement"][1.0][0] < 1.02
    assert record["teaching"]["mlpd"] == pytest.approx(np.log([0.8, 0.3]).mean())
    assert record["teaching"]["chains"][0]["accuracy"] == 0.5


def test_separate_chains_fail():
    found = chains("glass", 3.0)
    record, text = long_chains.EXPERIMENT.report(found)
    assert "**not mixed**" in text
    assert "| length scale 0 |" in text
    assert [row["short"] for row in record["glass"]["chains"]] == [[0], []]
    figure = long_chains.EXPERIMENT.draw(found)
    assert figure is not None
    assert figure.axes[0].get_ylabel() == "log of length scale 0"


def test_starts_of_chains_are_overdispersed(monkeypatch: pytest.MonkeyPatch):
    started = []

    class StopError(Exception):
        pass

    def sample(*args, initvals, **kwargs):
        started.append(initvals)
        raise StopError

    monkeypatch.setattr(predictive.pm, "sample", sample)
    split = predictive.data.Split(np.eye(3), np.arange(3), np.eye(3), np.arange(3))
    monkeypatch.setattr(predictive, "load", lambda *_: split)
    for spread in (0.0, 1.0):
        with pytest.raises(StopError):
            predictive.chain("", "teaching", 0, 1, 1, seed=0, hyper_moves=1, spread=spread)
    assert started[0] == {}
    assert started[1]["length_scale"].shape == (3,)
    assert np.ptp(started[1]["length_scale"]) > 0.1
