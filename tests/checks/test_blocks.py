"""Blocks of correlated points, on draws with weights that have closed-form moments."""

import numpy as np
import pytest

from pymc_gpep.checks import importance
from pymc_gpep.checks.importance import block_check


@pytest.mark.parametrize("signs", [(-1, -1), (1, 1), (1, -1)], ids=str)
def test_negatively_correlated_points_are_neighbours(signs):
    """Of 20 points, two points are correlated, up to a sign for each function.

    The likelihood of one point changes the weights of the other point.

    The likelihoods of the first function are exp(0.3 x) at both points. With a correlation r, the weighted mean at the
    first point is exp(0.045 + 0.09 r).
    """
    correlation = 0.9 * np.array(signs)
    x = np.random.default_rng(0).standard_normal((4000, 2, 20))
    x[:, :, 1] = correlation * x[:, :, 0] + np.sqrt(1.0 - correlation**2) * x[:, :, 1]
    log_likelihood, log_sites = np.zeros((2, 4000, 20))
    log_likelihood[:, :2] = 0.3 * x[:, 0, :2]
    log_sites[:, 0] = log_likelihood[:, 0]
    check = block_check(log_likelihood, log_sites, x)
    assert (check.size == 16).all()
    expected = np.exp(0.045) * (np.exp(0.09 * correlation[0]) - 1.0)
    assert check.shift[0] == pytest.approx(expected, abs=4.0 * check.standard_error[0])
    assert abs(check.shift[0]) > 6.0 * check.standard_error[0]


def test_neighbours_found_in_batches_equal_neighbours_found_at_once(monkeypatch):
    rng = np.random.default_rng(1)
    x = np.einsum("scm,mn->scn", rng.standard_normal((300, 2, 5)), rng.standard_normal((5, 40)))
    correlation = sum(np.corrcoef(x[:, k].T) ** 2 for k in range(2))
    np.fill_diagonal(correlation, np.inf)
    expected = np.argsort(-correlation, axis=1)[:, :16]
    for entries in (1, 300, 10_000):
        monkeypatch.setattr(importance, "_ENTRIES", entries)
        np.testing.assert_array_equal(importance._near(x, 16), expected)
