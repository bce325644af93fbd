"""Iterations without acceleration: their count, and the table."""

import numpy as np
import pytest

from benchmarks.paper.nine_values import EXPERIMENT, IEP_OF_THE_PAPER, MOST, iterations_to


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ([-5.0, -3.0, -2.005, -2.0], 2),
        ([-5.0, -2.0, -3.0, -2.0], 3),  # The third evidence is outside of the tolerance again.
        ([-2.0, -2.0], 0),
        ([-5.0, -3.0], None),
        ([-2.0, np.nan], None),
    ],
)
def test_iterations_are_counted_until_the_evidence_converges(evidence, expected):
    assert iterations_to(np.array(evidence), -2.0) == expected


def test_table_shows_the_distance_without_convergence():
    runs = {"EP": np.array([-9.0, -7.0, -7.0]), "EP, limit": np.array(-7.0), "IEP, limit": np.array(-8.0)}
    runs |= {"IEP": np.array([-9.0, -8.0]), IEP_OF_THE_PAPER: np.array([-9.0, -8.5])}
    table = EXPERIMENT.tables({"plain, 2.5, 6": runs, "2.5, 6": {}})["iterations"]
    assert table.rows == [("2.5, 6", "1", "1", f"more than {MOST}, 0.5 off")]
    assert EXPERIMENT.tables({"2.5, 6": {}}) == {}
