"""The table of the synthetic example from made-up sets of points."""

import numpy as np

from benchmarks.paper.figures2_4 import EXPERIMENT, METHODS


def made_up(first: float) -> dict[str, np.ndarray]:
    """A set of two points of class 1 and one of class 2, whose probabilities by the three methods differ by 0.1."""
    found = {
        "x": np.array([0.5, -2.0, 2.0]),
        "y": np.array([0, 0, 1]),
        "boundary": np.array([2.5]),
        "r_hat": np.array(1.0),
        "effective": np.array(900.0),
        "converged": np.array(True),
    }
    for i, method in enumerate(METHODS):
        p = np.full((3, 3), 1 / 3)
        p[1, 0] = first - 0.1 * i
        found[f"p {method}"] = p
        found[f"boundary {method}"] = np.array([0.1, 0.5 - 0.1 * i, 0.4])
    return found


def test_table_has_the_leftmost_point_of_class_1_and_ranges_over_sets():
    found = {"seed 2": made_up(0.9), "seed 1": made_up(0.7), "seed 3": made_up(0.8)}
    rows = {row[0]: row[1:] for row in EXPERIMENT.tables(found)["probabilities"].cells[:4]}
    assert rows["set of the picture"] == ["0.900", "0.800", "0.700"]
    assert rows["3 sets, median"] == ["0.800", "0.700", "0.600"]
    assert rows["3 sets, smallest to largest"] == ["0.700 to 0.900", "0.600 to 0.800", "0.500 to 0.700"]
    *_, paper, median, spread = EXPERIMENT.tables(found)["probabilities"].cells
    assert paper[1:] == ["0.47", "0.47 (chosen)", "0.47"]
    assert median[1:] == ["0.500", "0.400", "0.300"]
    assert spread[1:] == ["0.500 to 0.500", "0.400 to 0.400", "0.300 to 0.300"]


def test_sets_without_that_of_the_picture_have_no_table():
    assert EXPERIMENT.tables({"seed 1": made_up(0.7)}) == {}
