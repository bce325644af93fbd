"""Factors, solves, selected inverses and draws of sparse precision matrices, against dense matrices."""

import time

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import block_diag

from benchmarks.common import best_time
from pymc_gpep.gaussians.precision_prior import PrecisionPrior, PrecisionStructure
from pymc_gpep.prior_moments.precision_sum import _DENSE
from pymc_gpep.solvers import sparse_precision as factor_pattern
from pymc_gpep.solvers.sparse_precision import FactorPattern, SparsePrecision, pairs_of_rows


def chain(n):
    return np.eye(n, k=1)


def lattice(n):
    return np.kron(np.eye(n), chain(n)) + np.kron(chain(n), np.eye(n))


def arrow(n):
    edges = np.zeros((n, n))
    edges[0, 1:] = 1.0
    return edges


def at_random(n, share, seed):
    return np.random.default_rng(seed).random((n, n)) < share


PATTERNS = {
    "one number": np.zeros((1, 1)),
    "two numbers apart": np.zeros((2, 2)),
    "a diagonal": np.zeros((7, 7)),
    "a chain": chain(30),
    "a ring": chain(12) + np.eye(12, k=11),
    "a second difference": chain(20) + np.eye(20, k=2),
    "an arrow": arrow(20),
    "an arrow turned round": arrow(20)[::-1, ::-1],
    "a lattice": lattice(6),
    "a tree": np.array([[i > 0 and j == (i - 1) // 2 for i in range(31)] for j in range(31)]),
    "two lattices": block_diag(lattice(3), lattice(4)),
    "a chain, an arrow and one number": block_diag(chain(5), arrow(6), 0.0),
    "two groups, crossed": np.block([[np.zeros((9, 9)), at_random(9, 0.4, 3)[:, :5]], [np.zeros((5, 14))]]),
    "a lattice with leaves and two full columns": np.block(
        [
            [lattice(6), np.eye(36), np.ones((36, 2))],
            [np.zeros((36, 72)), np.ones((36, 2))],
            [np.zeros((2, 72)), np.ones((2, 2))],
        ]
    ),
    "all": np.ones((8, 8)),
    **{
        f"at random, {share}": at_random(25, share, seed) for seed, share in enumerate((0.02, 0.05, 0.1, 0.2, 0.4, 0.7))
    },
}


def matrix_on(edges, seed):
    """A positive definite matrix with nonzero entries at the edges."""
    there = np.triu(edges, 1) != 0
    p = np.where(there, np.random.default_rng(seed).normal(size=edges.shape), 0.0)
    p = p + p.T
    return p + np.diag(np.abs(p).sum(axis=0) + 0.1)


def factorised(p, columns=None, widths=()):
    """The sparsity pattern of a matrix, and its factor."""
    q = len(p)
    first, second = np.nonzero(np.tril(p))
    pattern = FactorPattern(q, first, second)
    entries = np.zeros(pattern.entries + 1)
    entries[pattern.slots(first, second)] = p[first, second]
    columns = np.zeros((0, q)) if columns is None else columns
    return pattern, SparsePrecision.factorised(pattern, entries, columns, np.asarray(widths, float))


@pytest.mark.parametrize("dense", [1, 100], ids=["last block dense", "all sparse"])
@pytest.mark.parametrize("edges", PATTERNS.values(), ids=PATTERNS)
def test_factor_solves_and_has_the_entries_of_the_inverse(edges, dense, monkeypatch):
    monkeypatch.setattr(factor_pattern, "_DENSE", dense)
    p = matrix_on(edges, 1)
    q, inverse = len(p), np.linalg.inv(p)
    pattern, factor = factorised(p)
    right = np.random.default_rng(2).normal(size=(11, q))
    assert factor.log_det == pytest.approx(np.linalg.slogdet(p)[1], abs=1e-12 * q)
    assert_allclose(factor.solve(right), right @ inverse, atol=1e-12 * np.abs(inverse).max() * q)
    assert_allclose(factor.solve(right[0]), inverse @ right[0], atol=1e-12 * np.abs(inverse).max() * q)
    assert_allclose(factor.halved(right) @ factor.halved(right).T, right @ inverse @ right.T, rtol=1e-11, atol=1e-12)
    root = factor.spread(np.eye(q))
    assert_allclose(root.T @ root, inverse, rtol=1e-11, atol=1e-12)
    first, second = np.nonzero(p)
    slots = pattern.slots(first, second)
    assert (slots < pattern.nothing).all()
    assert_allclose(factor.entries(slots, first, second), inverse[first, second], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["a chain", "an arrow", "a tree", "a second difference"])
def test_elimination_order_without_additional_entries_is_found(name):
    p = matrix_on(PATTERNS[name], 3)
    again = np.random.default_rng(4).permutation(len(p))
    assert factorised(p[again][:, again])[0].entries == np.count_nonzero(np.tril(p))


def test_factor_of_a_lattice_has_few_extra_entries():
    n = 30
    first, second = np.nonzero(lattice(n))
    pattern = FactorPattern(n * n, first, second)
    assert pattern.entries < 0.4 * n**3  # a band matrix has n³


@pytest.mark.parametrize("widths", [(0.3, 2.0), (0.0, 0.0), (0.0, -0.05)], ids=["soft", "hard", "negative width"])
def test_dense_columns_next_to_a_sparse_matrix_are_factorised(widths):
    p, rng = matrix_on(PATTERNS["a lattice"], 5), np.random.default_rng(6)
    q = len(p)
    p[4, 4] += 20.0 * (widths[1] < 0.0)  # a column of negative width lowers this entry
    columns = np.stack([np.ones(q), np.eye(q)[4]])
    pull = np.linalg.solve(p, columns.T)
    middle = np.diag(widths) + columns @ pull
    inverse = np.linalg.inv(p) - pull @ np.linalg.solve(middle, pull.T)
    if min(widths) > 0.0:
        assert_allclose(np.linalg.inv(p + (columns.T / widths) @ columns), inverse, atol=1e-12)
    pattern, factor = factorised(p, columns, widths)
    right = rng.normal(size=(4, q))
    assert factor.log_det == pytest.approx(np.linalg.slogdet(p)[1] + np.linalg.slogdet(middle)[1], abs=1e-11)
    assert_allclose(factor.solve(right), right @ inverse, atol=1e-12)
    assert_allclose(factor.halved(right) @ factor.halved(right).T, right @ inverse @ right.T, atol=1e-11)
    root = factor.spread(np.eye(q))
    assert_allclose(root.T @ root, inverse, atol=1e-11)
    cells = np.array([[i, i + 1] for i in range(q - 1)])
    cells = cells[p[cells[:, 0], cells[:, 1]] != 0.0]
    values = rng.normal(size=cells.shape)
    slots = pattern.slots(*pairs_of_rows(cells))
    a = np.zeros((len(cells), q))
    np.put_along_axis(a, cells, values, axis=1)
    assert_allclose(factor.row_variances(slots, cells, values), (a @ inverse * a).sum(axis=1), atol=1e-12)
    assert_allclose(
        factor.row_products(slots, cells, values), np.take_along_axis(a @ inverse, cells, axis=1), atol=1e-12
    )
    first, second = np.nonzero(p)
    assert_allclose(factor.entries(pattern.slots(first, second), first, second), inverse[first, second], atol=1e-12)


@pytest.mark.parametrize("wrong", ["not positive", "not a number", "infinite"])
def test_indefinite_matrix_has_no_factor(wrong):
    p = matrix_on(PATTERNS["a lattice"], 7)
    p[5, 5] = {"not positive": -1.0, "not a number": np.nan, "infinite": np.inf}[wrong]
    assert factorised(p)[1] is None


def test_entries_between_components_are_zero():
    _, factor = factorised(matrix_on(PATTERNS["two lattices"], 8))
    pattern = factor.pattern
    slots = pattern.slots(np.array([0, 3]), np.array([20, 11]))
    assert (slots == pattern.nothing).all()
    assert_allclose(factor.entries(slots, np.array([0, 3]), np.array([20, 11])), 0.0)
    assert pattern.components[0] != pattern.components[20]


def test_crossed_factors_have_a_dense_corner_and_the_right_inverse():
    """The dense corner is large enough for LAPACK. No ordering of `_orders` has clearly fewer entries."""
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 240, 4000), 240 + rng.integers(0, 110, 4000)
    pattern = FactorPattern(350, first, second)
    assert pattern.size - pattern.dense >= 100
    there = factor_pattern.coo_array((np.ones(8000), (np.r_[first, second], np.r_[second, first])), shape=(350, 350))
    order, counts = factor_pattern._bipartite_order(there.tocsc())
    assert sorted(order) == list(range(350))
    for other in factor_pattern._orders(there.tocsc()):
        parent, seen = np.empty((2, 350), np.int64)
        own = np.zeros(350, np.int64)
        factor_pattern.count_rows(
            *factor_pattern._earlier(there.tocsc(), other), np.iinfo(np.int64).max, parent, own, seen
        )
        assert counts.sum() <= 1.01 * own.sum()
    edges = np.zeros((350, 350))
    edges[first, second] = 1.0
    p = matrix_on(edges, 2)
    _, found = factorised(p)
    inverse = np.linalg.inv(p)
    assert_allclose(found.log_det, np.linalg.slogdet(p)[1], rtol=1e-12)
    slots = found.pattern.slots(first, second)
    assert_allclose(found.entries(slots, first, second), inverse[first, second], atol=1e-12)
    own = np.arange(350)
    assert_allclose(found.entries(found.pattern.slots(own, own), own, own), inverse.diagonal(), rtol=1e-10)


def test_lattice_is_not_ordered_by_an_independent_set():
    edges = np.argwhere(lattice(6))
    ones = np.ones(2 * len(edges))
    there = factor_pattern.coo_array((ones, (np.r_[edges[:, 0], edges[:, 1]], np.r_[edges[:, 1], edges[:, 0]])))
    assert factor_pattern._bipartite_order(there.tocsc()) is None


def crossed(one, other, rows):
    rng = np.random.default_rng(4)
    edges = np.zeros((one + other, one + other))
    edges[rng.integers(one, size=rows), one + rng.integers(other, size=rows)] = 1.0
    return edges


TIMED = {
    "groups": np.zeros((1500, 1500)),
    "a walk": chain(1500),
    "a sum of a walk": chain(1500) + np.eye(1500, k=2),
    "a small lattice": lattice(25),
    "a lattice": lattice(38),
    "few crossed levels": crossed(400, 200, 4000),
    "many crossed levels": crossed(1000, 500, 8000),
    "sparse columns": at_random(800, 0.004, 5),
    "columns": at_random(800, 0.03, 6),
    "all": np.ones((700, 700)),
}


def test_predicted_work_orders_factorisations_by_measured_time():
    """Sparse and dense factorisations are compared if their predicted work differs by a factor of four."""
    work, seconds = [], []
    for edges in TIMED.values():
        p = matrix_on(edges, 1)
        pattern, _ = factorised(p)
        first, second = np.nonzero(np.tril(p))
        entries = np.zeros(pattern.entries + 1)
        entries[pattern.slots(first, second)] = p[first, second]
        nothing = np.zeros((0, len(p))), np.zeros(0)
        ways = {
            pattern.work: lambda e=entries, w=pattern, o=nothing: SparsePrecision.factorised(w, e.copy(), *o),
            _DENSE * len(p) ** 3: lambda p=p: np.linalg.cholesky(p),
        }
        for size, way in ways.items():
            work.append(size)
            seconds.append(best_time(way, 3, time.process_time))
    work, seconds = np.array(work), np.array(seconds)
    more = work[:, None] > 4.0 * np.maximum(work, 1e6)
    assert more.sum() > 50
    assert (seconds[:, None] > seconds)[more].all()


def test_equal_precisions_share_a_factor_and_different_precisions_do_not():
    first, second = np.nonzero(np.tril(lattice(4).T))
    first, second = np.r_[np.arange(16), first], np.r_[np.arange(16), second]
    cells = np.stack([np.arange(16), (np.arange(16) + 1) % 16], axis=1)
    structure = PrecisionStructure(cells, first, second, np.zeros((0, 16)), np.zeros(0))
    values, rng = np.ones(cells.shape), np.random.default_rng(7)
    entries = np.where(first == second, 5.0, -1.0)
    dense = []
    for scale in (1.0, 1.0, 2.0, 1.0):
        own = np.concatenate([values.ravel() * rng.normal(), scale * entries])
        prior = PrecisionPrior(own[None, None], np.zeros((1, 16)), structure)
        q = np.zeros((16, 16))
        q[first, second] = q[second, first] = scale * entries
        a = np.zeros((16, 16))
        np.put_along_axis(a, cells, prior.values, axis=1)
        dense.append(prior.factor)
        assert_allclose(prior.variances[0], (a @ np.linalg.inv(q) * a).sum(axis=1), rtol=1e-12)
    assert dense[0] is dense[1]
    assert dense[2] is not dense[1]
