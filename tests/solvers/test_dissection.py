"""Nested dissection of patterns with places, and merged runs of columns, against dense matrices and brute force."""

from itertools import combinations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array

from pymc_gpep.solvers import dissection
from pymc_gpep.solvers.neighbour_precision import NeighbourSets, PlaceTree
from pymc_gpep.solvers.sparse_precision import FactorPattern, SparsePrecision

HUBS = 2  # Rows without a place, such as effects of groups.


def pattern_of(n, m):
    """Places (HUBS + n, 2), and rows and columns of entries of a nearest-neighbour process with two groups."""
    rng = np.random.default_rng(n)
    x = rng.uniform(size=(n, 2))
    x = x[PlaceTree(x - x.mean(axis=0)).maximin()]
    sets = NeighbourSets.chosen(PlaceTree(x).nearest(x, m, np.arange(n)))
    places = np.concatenate([np.full((HUBS, 2), np.nan), x])
    first, second = (np.r_[np.arange(HUBS), HUBS + each] for each in (sets.first, sets.second))
    return places, np.r_[first, HUBS + np.arange(n)], np.r_[second, rng.integers(0, HUBS, n)]


@pytest.mark.parametrize(("n", "m"), [(5, 2), (130, 1), (400, 4)])
def test_factor_with_places_solves_and_has_the_entries_of_the_inverse(n, m):
    places, first, second = pattern_of(n, m)
    q = n + HUBS
    p, rng = np.zeros((q, q)), np.random.default_rng(1)
    p[first, second] = rng.normal(size=len(first))
    p = np.tril(p, -1) + np.tril(p, -1).T
    p += np.diag(np.abs(p).sum(axis=0) + 0.1)
    pattern = FactorPattern(q, first, second, places)
    assert sorted(pattern.order) == list(range(q))
    own, other = np.nonzero(np.tril(p))
    entries = np.zeros(pattern.entries + 1)
    slots = pattern.slots(own, other)
    assert (slots < pattern.nothing).all()
    entries[slots] = p[own, other]
    factor, inverse = SparsePrecision.factorised(pattern, entries, np.zeros((0, q)), np.zeros(0)), np.linalg.inv(p)
    assert factor.log_det == pytest.approx(np.linalg.slogdet(p)[1], abs=1e-11 * q)
    right = rng.normal(size=(11, q))
    assert_allclose(factor.solve(right), right @ inverse, atol=1e-11)
    assert_allclose(factor.halved(right) @ factor.halved(right).T, right @ inverse @ right.T, atol=1e-9)
    assert_allclose(factor.entries(slots, own, other), inverse[own, other], atol=1e-12)


def test_runs_of_columns_with_places_are_few_and_contain_the_pattern():
    places, first, second = pattern_of(3000, 10)
    wide, own = (FactorPattern(len(places), first, second, each) for each in (places, None))
    assert wide.entries < 1.3 * own.entries

    def runs(pattern):
        counts = np.diff(pattern.starts)
        starts = pattern.starts[:-2]
        below = pattern.rows[np.minimum(starts, len(pattern.rows) - 1)] == np.arange(1, pattern.size)
        return 1 + np.count_nonzero(~(below & (counts[:-1] == counts[1:] + 1)))

    assert runs(wide) < 0.3 * runs(own)


def test_separator_divides_and_is_a_smallest_cover():
    rng = np.random.default_rng(3)
    for _ in range(20):
        there = csr_array((rng.random((6, 5)) < 0.3).astype(float))
        rows, columns = dissection._cover(there)
        edges = np.argwhere(there.toarray())
        assert (rows[edges[:, 0]] | columns[edges[:, 1]]).all()
        every = [set(each) for size in range(12) for each in combinations(range(11), size)]
        least = min(len(each) for each in every if all(i in each or 6 + j in each for i, j in edges))
        assert rows.sum() + columns.sum() == least
    places, first, second = pattern_of(500, 6)
    full = np.zeros((502, 502))
    full[first, second] = full[second, first] = 1.0
    between, one, other = dissection._divided(csr_array(full), dissection._completed(csr_array(full), places))
    assert sorted(np.r_[between, one, other]) == list(range(502))
    assert not full[np.ix_(one, other)].any()
    assert min(len(one), len(other)) > 150
