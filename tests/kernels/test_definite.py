"""Validation of prior covariances."""

import numpy as np
import pytest

from pymc_gpep.kernels.linalg.lapack import is_covariance

LINE = np.linspace(-1.0, 2.0, 5)
RANK_ONE = np.outer(LINE, LINE)


def corner(value, other=None):
    matrix = np.eye(5)
    matrix[0, 1], matrix[1, 0] = value, value if other is None else other
    return matrix


@pytest.mark.parametrize("scale", [1e-280, 1e-8, 1.0, 1e8, 1e300])
@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (np.eye(5), True),
        (np.zeros((5, 5)), True),
        (np.ones((5, 5)), True),
        (RANK_ONE, True),
        (RANK_ONE - 1e-10 * np.eye(5), True),
        (RANK_ONE - 1e-6 * np.eye(5), False),
        (corner(0.999), True),
        (corner(1.001), False),
        (corner(-1.001), False),
        (corner(0.5, 0.5 + 1e-12), True),
        (corner(0.5, 0.5 + 1e-6), False),
        (-np.eye(5), False),
        (np.ones((5, 5)) - np.eye(5), False),
    ],
)
def test_only_symmetric_positive_semi_definite_matrices_are_accepted_as_covariances(matrix, expected, scale):
    assert is_covariance(scale * matrix, np.empty((5, 5))) == expected
