"""Contrasts of variables with two axes, by labels and by arrays."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

GROUPS, SIDES = list("abc"), [10, 20]


@pytest.fixture(scope="module")
def fit():
    rng = np.random.default_rng(1)
    with pm.Model(coords={"group": GROUPS, "side": SIDES}):
        level = pm.Normal("level", 0, 1)
        v = pm.Normal("v", 0, 1, dims=("group", "side"))
        cell = rng.integers(0, 6, size=24)
        pm.Bernoulli("y", logit_p=level + v[cell // 2, cell % 2], observed=rng.integers(0, 2, 24))
        return pm.fit(method="laplace", progressbar=False)


@pytest.mark.parametrize(
    ("labels", "weights"),
    [
        ({"c": {10: 1, 20: -1}}, [[0, 0], [0, 0], [1, -1]]),
        ({"a": {20: 2}, "b": {20: -1}}, [[0, 2], [0, -1], [0, 0]]),
        ({"b": [0.5, 0.5]}, [[0, 0], [0.5, 0.5], [0, 0]]),
    ],
    ids=["second axis", "first axis", "an array along the second axis"],
)
def test_contrast_accepts_labels_of_two_axes(labels, weights, fit):
    found = fit.contrast({"labels": {"v": labels, "level": 1}, "array": {"v": weights, "level": 1}})
    assert_allclose(found["mean"][0], found["mean"][1], atol=1e-12)
    assert_allclose(found["cov"], np.full((2, 2), found["cov"][1, 1]), atol=1e-12)
    # The mean equals the combination of the effects.
    effects = fit.effects(["v", "level"]).sel(moment="mean")
    assert_allclose(found["mean"][0], (effects["v"] * np.array(weights)).sum() + effects["level"], atol=1e-12)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"v": {"d": {10: 1}}}, r"'v' has no entry 'd' along 'group', only 'a', 'b', 'c'\.$"),
        ({"v": {"a": {30: 1}}}, r"'v' at 'a' has no entry 30, only 10, 20\.$"),
        ({"v": {("a", 10): 1}}, r"'v' has no entry \('a', 10\) along 'group', only 'a', 'b', 'c'\.$"),
        ({"v": {"a": 1}}, r"Weights of 'v' at 'a' must have the shape \(2,\).*labels along 'side': 10, 20\.$"),
        ({"v": [1, 2]}, r"Weights of 'v' must have the shape \(3, 2\).*as in {'v': {'a': {10: 1}}}\.$"),
        ({"level": {"a": 1}}, r"'level' is one number and has no labels"),
        ({"v": {"a": {10: {"x": 1}}}}, r"'v' at 'a', 10 is one number and has no labels"),
    ],
)
def test_unknown_labels_are_refused(weights, message, fit):
    with pytest.raises(ValueError, match=message):
        fit.contrast({"one": weights})
