"""Results of slow references: their storage, and comparison with computed values."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.approximations import test_binary_reference, test_sparse_ep
from tests.kernels.test_independent_classes import by_mpmath
from tests.kernels.test_logistic import exact
from tests.kernels.test_orthant import given_first
from tests.kernels.test_scalar_counts_and_categories import exact_average_of_counts
from tests.reference import stored as module
from tests.reference.multinomial_probit import gradient, hessian, log_probability
from tests.reference.scalar_averages import exact_average_log, exact_log_average
from tests.rivals import test_independent_ep
from tests.samplers import exactness


def test_stored_value_is_returned_and_missing_value_is_computed_and_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FILE", tmp_path / "numbers.json")
    monkeypatch.setattr(module, "_numbers", {})
    monkeypatch.setattr(module, "_new", {})
    calls = []

    @module.stored
    def twice(x, name):
        calls.append(name)
        return 2 * np.asarray(x)

    for _ in range(2):
        assert_allclose(twice(np.array([0.1, 3.0]), "a"), [0.2, 6.0])
        assert twice(0.1, "b") == 0.2
    assert calls == ["a", "b"]
    module._store()
    assert sorted(json.loads((tmp_path / "numbers.json").read_text()).values(), key=str) == [0.2, [0.2, 6.0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (log_probability, ([0.5, 0.125, -1.0], 1)),
        (gradient, ([0.5, 0.125, -1.0], 1)),
        (hessian, ([0.25, -0.5], 0)),
        (exact_log_average, ("probit", 0.4, 0.5)),
        (exact_average_log, ("logit", 0.4, 0.5)),
        (exact, (0.3, 8.0)),
        (given_first, ((0.0, 1.0), np.array([[2.0, 0.7], [0.7, 3.0]]))),
        (by_mpmath, (np.array([0.1, -0.4, 1.0]), np.array([1.0, 0.5, 2.0]))),
        (exact_average_of_counts, (0.4, 0.5, 3)),
        (test_binary_reference.dense_numbers, ("ep", "probit", 4, 10.0)),
        (test_independent_ep.dense_numbers, ("inner_ep", 6, 3, 1.0, True)),
        (test_sparse_ep.papers_numbers, ("pairwise", True)),
        (exactness.moments, ("bernoulli", np.array([0, 1, 1, 0]), False, exactness.X, exactness.JITTER)),
    ],
)
def test_stored_numbers_equal_computed_numbers(function, arguments):
    computed = np.asarray(function.__wrapped__(*arguments), dtype=float)
    assert_allclose(function(*arguments), computed, rtol=1e-11, atol=1e-13)
