"""Rows that are read in chunks, against arrays that are read at once."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import chunks, column_deviations, sample_inputs

X = np.random.default_rng(1).normal(size=(23, 3)) * [1.0, 1e-3, 5.0] + [1e6, 0.0, -3.0]


class InChunks(InMemory):
    """Arrays that are read a few rows at a time."""

    chunk = 5

    def inputs(self, rows):
        assert rows.stop - rows.start <= self.chunk
        return super().inputs(rows)


@pytest.fixture
def rows():
    return InChunks(X, np.zeros(23))


def test_chunks_cover_all_rows(rows):
    assert [(each.start, each.stop) for each in chunks(rows)] == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 23)]


def test_standard_deviations_by_chunks_match_standard_deviations_of_all_rows(rows):
    assert_allclose(column_deviations(rows), X.std(axis=0), rtol=1e-9)


def test_sample_has_distinct_rows(rows):
    found = sample_inputs(rows, 9, np.random.default_rng(2))
    assert len(np.unique(found, axis=0)) == 9
    assert {tuple(row) for row in found} <= {tuple(row) for row in X}
    assert_array_equal(found, sample_inputs(InMemory(X, np.zeros(23)), 9, np.random.default_rng(2)))
    assert_array_equal(sample_inputs(rows, 30, np.random.default_rng(2)), X)
    often = np.concatenate([sample_inputs(rows, 5, np.random.default_rng(seed)) for seed in range(200)])
    assert len(np.unique(often, axis=0)) == 23
