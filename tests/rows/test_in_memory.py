"""Rows in memory: returned values, and refusals."""

import numpy as np
import pytest

from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.rows.rows import Rows

X = np.arange(10.0).reshape(5, 2)
Y = np.array([0, 1, 2, 0, 1])


def test_slices_return_rows():
    rows = InMemory(X, Y.astype(float))
    assert isinstance(rows, Rows)
    assert (rows.n_rows, rows.n_inputs, rows.chunk) == (5, 2, 5)
    np.testing.assert_array_equal(rows.inputs(slice(1, 3)), X[1:3])
    np.testing.assert_array_equal(rows.labels(slice(1, 3)), Y[1:3])
    assert rows.labels(slice(0, 5)).dtype == np.int64


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (X[:, 0], Y, r"inputs must be \(n, d\)"),
        (X, Y[:4], r"inputs must be \(n, d\)"),
        (X[:0], Y[:0], "n > 0"),
        (np.where(X == 4, np.nan, X), Y, "row 2 has nan in column 0, but inputs must be finite"),
        (X, Y + 0.5 * (Y == 2), "row 2 has the label 2.5, which is not a whole number"),
    ],
)
def test_invalid_arrays_are_refused(inputs, labels, message):
    with pytest.raises(ValueError, match=message):
        InMemory(inputs, labels)
