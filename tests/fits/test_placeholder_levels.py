"""Placeholders for new levels in several data of a row, against exact posteriors, and data without levels."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

N, SD = 24, 1.5
RNG = np.random.default_rng(6)
Y = RNG.normal(size=N)
A, B = (np.concatenate([np.arange(4), RNG.integers(0, 4, N - 4)]) for _ in range(2))


def fitted(mean, levels=4, method="ep", coords=None, **data):
    with pm.Model(coords=coords) as model:
        given = {name: pm.Data(name, values) for name, values in data.items()}
        u = pm.Normal("u", 0, SD, **({"dims": "group"} if coords else {"shape": levels}))
        pm.Normal("y", mean(u, **given), 1.0, observed=np.resize(Y, len(next(iter(data.values())))))
        return pm.fit(method=method, progressbar=False, model=model)


def exact(rows):
    """Mean and covariance of u given rows (n, levels) of coefficients."""
    cov = np.linalg.inv(np.eye(rows.shape[1]) / SD**2 + rows.T @ rows)
    return cov @ rows.T @ np.resize(Y, len(rows)), cov


def check(fit, new, known, own, exact_posterior):
    """Compare predictions for coefficients `known` (m, levels) of fitted levels and `own` (m, k) of new levels."""
    mean, cov = exact_posterior
    found = fit.predict(data=new, new_levels=True, progressbar=False)
    known, own = np.array(known, float), np.array(own, float)
    assert_allclose(found["mean"], known @ mean, atol=1e-8)
    variance = ((known @ cov) * known).sum(axis=1) + SD**2 * (own**2).sum(axis=1)
    assert_allclose(found["variance"], variance, atol=1e-8)


def one_hot(values, levels=4):
    return np.eye(levels)[values]


@pytest.mark.parametrize("weights", [(0.5, 0.5), (1.0, -1.0)], ids=["mean", "difference"])
def test_equal_new_levels_in_a_row_are_one_level(weights):
    v, w = weights
    fit = fitted(lambda u, a, b: v * u[a] + w * u[b], a=A, b=B)
    rows = v * one_hot(A) + w * one_hot(B)
    new = {"a": [9, 9, 9, -1, 2, 9], "b": [9, 8, 1, -1, 3, 0]}
    known = [[0] * 4, [0] * 4, [0, w, 0, 0], [0] * 4, [0, 0, v, w], [w, 0, 0, 0]]
    own = [[v + w, 0], [v, w], [v, 0], [v + w, 0], [0, 0], [v, 0]]
    check(fit, new, known, own, exact(rows))


def test_two_placeholder_levels_serve_two_new_levels():
    a, b = A % 2, B % 2
    fit = fitted(lambda u, a, b: u[a] - u[b], levels=2, a=a, b=b)
    rows = one_hot(a, 2) - one_hot(b, 2)
    new = {"a": [9, 9, 9, 0], "b": [9, 8, 0, 7]}
    check(fit, new, [[0, 0], [0, 0], [-1, 0], [1, 0]], [[0, 0], [1, -1], [1, 0], [0, -1]], exact(rows))


@pytest.mark.parametrize("number", [np.int64, bool], ids=["integers", "booleans"])
def test_unrelated_covariate_does_not_change_a_new_level(number):
    a, k = A % 2, (3 * B).astype(number)
    fit = fitted(lambda u, a, k: u[a] + 0.1 * k, levels=2, a=a, k=k)
    for value in (0, 1):
        found = fit.predict(data={"a": [9], "k": [number(value)]}, new_levels=True, progressbar=False)
        assert_allclose(found["variance"], SD**2, atol=1e-8)


@pytest.mark.parametrize(
    ("mean", "b", "level"),
    [
        (lambda u, a, b: u[a] + u[0] + 0 * b, np.zeros(N), 0),
        (lambda u, a, b: u[a] + u[b.astype("int64")], B > 1, 1),
        (lambda u, a, b: u[a] + u[b - 1], B + 1, 2),
    ],
    ids=["a fixed level", "booleans", "a computed index"],
)
def test_placeholder_differs_from_the_other_levels_of_its_row(mean, b, level):
    fit = fitted(mean, a=A, b=b)
    other = {0: np.zeros(N, int), 1: (B > 1).astype(int), 2: B}[level]
    value = {0: 0.0, 1: True, 2: level + 1}[level]
    check(fit, {"a": [9], "b": [value]}, one_hot([level]), [[1.0]], exact(one_hot(A) + one_hot(other)))


def test_new_level_is_refused_if_the_model_expression_uses_the_only_level():
    a = np.zeros(N, int)
    check(fitted(lambda u, a: u[a], levels=1, a=a), {"a": [9]}, [[0]], [[1.0]], exact(one_hot(a, 1)))
    with pytest.raises(ValueError, match="depends on all levels of the model"):
        fitted(lambda u, a: u[a] + u[0], levels=1, a=a).predict(data={"a": [9]}, new_levels=True, progressbar=False)


def test_placeholder_among_two_levels_differs_from_the_level_in_the_model_expression():
    a, b = A % 2, B % 2
    fit = fitted(lambda u, a, b: u[a] - u[b] + u[0], levels=2, a=a, b=b)
    rows = one_hot(a, 2) - one_hot(b, 2) + one_hot([0], 2)
    check(fit, {"a": [9, 9], "b": [9, 0]}, [[1, 0], [0, 0]], [[0.0], [1.0]], exact(rows))
    for value in (8, 1):
        with pytest.raises(ValueError, match="depends on all levels of the model"):
            fit.predict(data={"a": [9], "b": [value]}, new_levels=True, progressbar=False)


@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_placeholder_differs_from_the_level_in_the_model_expression(levels):
    fit = fitted(lambda u, a: u[a] + 2 * u[levels], a=A)
    fixed = 2 * one_hot([levels])
    check(fit, {"a": [9]}, fixed, [[1.0]], exact(one_hot(A) + fixed))


def test_row_with_several_memberships_averages_its_levels():
    fit = fitted(lambda u, w: u[w].mean(axis=1), w=np.column_stack([A, B]))
    rows = (one_hot(A) + one_hot(B)) / 2
    known = [[0] * 4, [0] * 4, [0, 0.5, 0, 0]]
    check(fit, {"w": [[9, 9], [9, 8], [9, 1]]}, known, [[1, 0], [0.5, 0.5], [0.5, 0]], exact(rows))


def test_two_effects_of_one_index_share_the_new_level():
    x = RNG.normal(size=N)
    with pm.Model():
        a, column = pm.Data("a", A), pm.Data("x", x)
        u, v = pm.Normal("u", 0, SD, shape=4), pm.Normal("v", 0, 1, shape=4)
        pm.Normal("y", u[a] + v[a] * column, 1.0, observed=Y)
        fit = pm.fit(method="ep", progressbar=False)
    found = fit.predict(data={"a": [9, 7], "x": [0.0, 2.0]}, new_levels=True, progressbar=False)
    assert_allclose(found["variance"], [SD**2, SD**2 + 4.0], atol=1e-8)


@pytest.mark.parametrize("method", ["laplace", "ep"])
def test_equal_new_levels_in_a_row_are_one_level_with_a_sparse_precision(method):
    many = 600
    a, b = np.arange(many), np.roll(np.arange(many), 1)
    fit = fitted(lambda u, a, b: 0.5 * u[a] + 0.5 * u[b], levels=many, method=method, a=a, b=b)
    rows = (one_hot(a, many) + one_hot(b, many)) / 2
    known = np.zeros((3, many))
    known[2, 1] = 0.5
    check(fit, {"a": [999, 999, 999], "b": [999, 888, 1]}, known, [[1, 0], [0.5, 0.5], [0.5, 0]], exact(rows))


def test_too_few_levels_for_placeholders_are_refused_and_one_more_level_works():
    data = {"a": A % 2, "b": B % 2, "c": 1 - A % 2}
    new = {"a": [2], "b": [0], "c": [1]}

    def mean(u, a, b, c):
        return u[a] - u[b] + u[c]

    with pytest.raises(ValueError, match=r"all 2 levels of the model\. Add a level without"):
        fitted(mean, levels=2, **data).predict(data=new, new_levels=True, progressbar=False)
    found = fitted(mean, levels=3, **data).predict(data=new, progressbar=False)
    rows = one_hot(data["a"], 3) - one_hot(data["b"], 3) + one_hot(data["c"], 3)
    row, (_, cov) = np.array([-1.0, 1.0, 1.0]), exact(rows)
    assert_allclose(found["variance"], row @ cov @ row, atol=1e-8)


def test_levels_in_another_order_are_refused():
    fit = fitted(lambda u, a, b: u[a] - u[pt.constant([2, 0, 3, 1])][b], a=A, b=B)
    with pytest.raises(ValueError, match=r"data\['b'\] numbers the same levels in another order"):
        fit.predict(data={"a": [9], "b": [0]}, new_levels=True, progressbar=False)


def test_computed_index_out_of_range_is_refused():
    fit = fitted(lambda u, b: u[b - 1], b=B + 1)
    for value, index in ((0, -1), (5, 4)):
        with pytest.raises(
            ValueError, match=rf"index that the model computes from data\['b'\] is {index} at a new row"
        ):
            fit.predict(data={"b": [value]}, progressbar=False)
    mean, cov = exact(one_hot(B))
    assert_allclose(fit.predict(data={"b": [1, 4]}, progressbar=False)["mean"], mean[[0, 3]], atol=1e-8)
    # As advised, the index is computed before the model.
    check(fitted(lambda u, b: u[b], b=B), {"b": [-1]}, [[0] * 4], [[1.0]], (mean, cov))


@pytest.mark.parametrize("labels", [list("abcd"), [2001, 2002, 2003, 2004]], ids=["words", "years"])
def test_labels_of_levels_are_refused_with_advice_on_positions(labels):
    fit = fitted(lambda u, a: u[a], coords={"group": labels}, a=A)
    for new_levels in (False, True):
        with pytest.raises(ValueError, match=r"label .*pd\.Index\(model\.coords\['group'\]\)\.get_indexer\(labels\)"):
            fit.predict(data={"a": labels[1:3]}, new_levels=new_levels, progressbar=False)
    positions = pd.Index(fit.classifier.model.coords["group"]).get_indexer([labels[2], "nobody"])
    check(fit, {"a": positions}, [[0, 0, 1, 0], [0] * 4], [[0.0], [1.0]], exact(one_hot(A)))


def test_new_level_with_a_covariate_of_levels_is_refused_and_advised_covariate_of_rows_works():
    uranium = np.array([0.1, 0.5, -0.3, 0.8])

    def fit(by_row):
        with pm.Model():
            g, x = pm.Data("g", A), pm.Data("x", uranium[A])
            gamma = pm.Normal("gamma", 0, 1)
            u = pm.Normal("u", 0.0 if by_row else gamma * uranium, SD, shape=4)
            pm.Normal("y", u[g] + (gamma * x if by_row else 0.0), 1.0, observed=Y)
            return pm.fit(method="ep", progressbar=False)

    with pytest.raises(ValueError, match=r"different priors.*move it to the rows: u\[g\] \+ gamma \* x"):
        fit(by_row=False).predict(data={"g": [9]}, new_levels=True, progressbar=False)
    rows = np.column_stack([one_hot(A), uranium[A]])
    cov = np.linalg.inv(np.diag([*[1 / SD**2] * 4, 1.0]) + rows.T @ rows)
    found = fit(by_row=True).predict(data={"g": [9, 1], "x": [0.4, 0.5]}, new_levels=True, progressbar=False)
    there = np.array([[0, 0, 0, 0, 0.4], [0, 1, 0, 0, 0.5]])
    assert_allclose(found["mean"], there @ cov @ rows.T @ Y, atol=1e-8)
    variance = np.array([SD**2, 0.0]) + ((there @ cov) * there).sum(axis=1)
    assert_allclose(found["variance"], variance, atol=1e-8)


def test_index_that_is_also_a_covariate_is_refused():
    fit = fitted(lambda u, a: u[a] + 0.1 * a, a=A)
    with pytest.raises(ValueError, match=r"uses values of 'a' as numbers.*pm\.Data\('a_value', \.\.\.\)"):
        fit.predict(data={"a": [9]}, new_levels=True, progressbar=False)
