"""Entries of sparse linear maps, found by few evaluations, against the matrices."""

import re

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.log_posteriors import dense_log_posterior
from pymc_gpep.prior_moments import precision_sum
from pymc_gpep.sums import affine_map
from pymc_gpep.sums.affine_map import coefficients_of, entries_of, every_entry

Q, N = 60, 300


def matrix(per_row, rng):
    """A matrix (N, Q) with at most `per_row` entries in a row. Some entries fall on the same place and add up."""
    found = np.zeros((N, Q))
    for _ in range(per_row):
        np.add.at(found, (np.arange(N), rng.integers(Q, size=N)), rng.choice([1.0, -1.0, 0.5], size=N))
    return found


def in_full(entries):
    found = np.zeros((len(entries.cells), entries.q))
    np.add.at(found, (np.arange(len(found))[:, None], entries.cells), entries.values)
    return found


@pytest.mark.parametrize("blocks", [[(Q,)], [(Q // 2, 2)], [(20,), (30,), (5, 2)]])
@pytest.mark.parametrize("per_row", [1, 2, 4])
def test_entries_by_probes_equal_the_matrix(per_row, blocks):
    a = matrix(per_row, np.random.default_rng(per_row))
    a[0] = 0.0
    entries = entries_of(lambda x: x @ a.T, blocks)
    assert entries is not None
    assert entries.cells.shape[1] <= per_row
    assert_allclose(in_full(entries), a, atol=1e-12)


def test_entries_of_a_dense_linear_map_are_not_enumerated():
    a = np.random.default_rng(1).normal(size=(20, 80))
    assert entries_of(lambda x: x @ a.T, [(80,)]) is None
    assert_allclose(in_full(every_entry(lambda x: x @ a.T, [(80,)])), a, atol=1e-12)


@pytest.mark.parametrize("functions", [1, 3])
@pytest.mark.parametrize("blocks", [[(Q,)], [(20,), (30,), (5, 2)]])
def test_coefficients_of_functions_equal_the_matrix(blocks, functions):
    rng = np.random.default_rng(functions)
    a = matrix(2, rng)
    a[:, 50:] += rng.normal(size=(N, 10))  # each row depends on ten of these values
    a[: N // 3, :20] = 0.0  # the first function does not depend on these values
    found = coefficients_of(lambda x: x @ a.T, blocks, functions)
    assert_allclose(found.some(np.arange(N)), a, atol=1e-12)
    weights = rng.normal(size=N)
    gram = np.tril(found.gram(weights))
    assert_allclose(gram, np.tril(a.T @ (weights[:, None] * a)), atol=1e-9)


def test_probes_are_evaluated_in_batches_of_limited_size(monkeypatch):
    a, most = np.random.default_rng(2).normal(size=(50, 40)), []
    monkeypatch.setattr(affine_map, "_AT_ONCE", 500)

    def linear(x):
        most.append(len(x))
        return x @ a.T

    assert_allclose(in_full(entries_of(linear, [(40,)])), a, atol=1e-12)
    assert max(most[1:]) <= 10


@pytest.mark.variation
def test_differences_of_levels_by_sparse_precision_equal_dense_fits():
    rng = np.random.default_rng(2)
    first, second = rng.integers(40, size=(2, 200))
    with pm.Model(coords={"player": range(40)}) as model:
        one, other = pm.Data("one", first), pm.Data("other", second)
        s = pm.HalfNormal("s", 1)
        ability = pm.Normal("ability", 0, s, dims="player")
        home = pm.Normal("home", 0, 1)
        win = rng.random(200) < 0.6
        pm.Bernoulli("win", logit_p=home + ability[one] - ability[other], observed=win)
    options = {"method": "laplace", "hyper": "map", "progressbar": False, "model": model}
    dense = pm.fit(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_log_posterior, "_MANY", 1)
        patch.setattr(precision_sum, "_DENSE", np.inf)
        fit = pm.fit(**options)
    # 185 pairs of players are different. In four rows both players are equal; rounding decides whether these rows are
    # grouped.
    assert re.search("By a sparse precision: 18[2-5] rows of 41 numbers", str(fit))
    assert_allclose(fit.log_evidence, dense.log_evidence, rtol=1e-7)
    theta = dense.theta + 0.3
    ours, theirs = fit.log_posterior(theta), dense.log_posterior(theta)
    assert_allclose(ours.log_posterior, theirs.log_posterior, rtol=1e-10)
    assert_allclose(ours.gradient, theirs.gradient, rtol=1e-6)
    assert_allclose(fit.effects(["ability"])["ability"], dense.effects(["ability"])["ability"], atol=1e-5)
    new = {"one": [0, 1], "other": [2, 2]}
    assert_allclose(fit.predict(data=new)["p"], dense.predict(data=new)["p"], atol=1e-5)
    sets = {"0 - 1": {"ability": {0: 1, 1: -1}}}
    assert_allclose(fit.contrast(sets)["sd"], dense.contrast(sets)["sd"], atol=1e-5)
    again = gpep.from_datatree(fit.to_datatree(), model)
    assert_allclose(again.effects(["ability"])["ability"], dense.effects(["ability"])["ability"], atol=1e-5)
