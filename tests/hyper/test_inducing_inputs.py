"""Initial inducing inputs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.hyper.inducing_inputs import initial_inducing
from pymc_gpep.rows.in_memory import InMemory

X = np.random.default_rng(1).normal(size=(40, 2))
ROWS = InMemory(X, np.zeros(40))


def test_number_of_inducing_inputs_selects_distinct_rows():
    z = initial_inducing(10, ROWS, 3, False, 1)
    assert z.shape == (3, 10, 2)
    for own in z:
        assert len(np.unique(own, axis=0)) == 10
        assert {tuple(row) for row in own} <= {tuple(row) for row in X}
    assert not np.array_equal(z[0], z[1])
    assert initial_inducing(10, ROWS, 3, True, 1).shape == (1, 10, 2)
    assert_allclose(initial_inducing(10, ROWS, 3, False, 1), z)


def test_few_distinct_rows_may_be_selected_twice():
    z = initial_inducing(5, InMemory(np.repeat([[0.0, 1.0], [2.0, 3.0]], 10, axis=0), np.zeros(20)), 2, True, 1)
    assert len(np.unique(z[0], axis=0)) == 2


def test_inducing_inputs_are_spread():
    clusters = np.repeat(np.arange(5.0)[:, None] * 100, 8, axis=0) + 0.01 * X[:, :1]
    assert len(np.unique(initial_inducing(5, InMemory(clusters, np.zeros(40)), 1, True, 1)[0].round(-1))) == 5


def test_array_of_inducing_inputs_is_unchanged():
    assert_allclose(initial_inducing(X[:4], ROWS, 3, False, 1), np.stack([X[:4]] * 3))
    own = np.stack([X[:4], X[4:8], X[8:12]])
    assert_allclose(initial_inducing(own, ROWS, 3, False, 1), own)
    many = np.random.default_rng(2).normal(size=(100, 2))
    assert_allclose(initial_inducing(many, ROWS, 3, True, 1), many[None])


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (0, ValueError, "inducing must be from 1 to 40, the number of rows, but is 0"),
        (41, ValueError, "inducing must be from 1 to 40, the number of rows, but is 41. A fit without"),
        (X[:, :1], ValueError, r"an array \(M, 2\) or \(3, M, 2\), but has shape \(40, 1\)"),
        (np.stack([X, X]), ValueError, r"but has shape \(2, 40, 2\)"),
        (X[:0], ValueError, r"but has shape \(0, 2\)"),
        (np.full((3, 2), np.nan), ValueError, "inducing must be finite, but has 6 values"),
        ("many", TypeError, "inducing must be a whole number or an array of inputs, but is a str"),
        (True, ValueError, r"inducing must be a whole number or an array \(M, 2\).*, but is True"),
        (2.5, ValueError, r"is 2\.5"),
    ],
)
def test_invalid_inducing_inputs_raise_errors(given, kind, message):
    with pytest.raises(kind, match=message):
        initial_inducing(given, ROWS, 3, False, 1)
