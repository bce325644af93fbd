"""Few rows with sites that couple classes: sampling of rows, and a fit for each kind of sites."""

import numpy as np
import pytest

from benchmarks.few_rows import KINDS, draw, drawn, log_loss


@pytest.fixture(scope="module")
def split():
    X, y = drawn(3, 8.0)
    X[:2000, 0] = 0.0
    return draw(X[:2000], y[:2000], 30, 0)


def test_rows_are_standardised_without_constant_columns(split):
    X, y, others, labels = split
    assert X.shape == (30, 9)
    assert others.shape == (600, 9)
    assert len(y) == 30
    assert len(labels) == 600
    np.testing.assert_allclose((X.mean(axis=0), X.std(axis=0)), (np.zeros(9), np.ones(9)), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_fit_with_each_kind_of_sites_has_a_lower_log_loss_than_equal_probabilities(split, kind):
    assert log_loss(split, kind) < np.log(3)
