"""The fits of measured times."""

import numpy as np
import pytest

from benchmarks.paper.table2 import Table2, line_of, slope_of


def test_slope_is_the_exponent_of_large_sizes():
    rows = [{"n": n, "iteration": 1e-9 * n**3 + (1.0 if n < 800 else 0.0)} for n in (200.0, 800.0, 1600.0)]
    slope, used = slope_of(rows)
    assert slope == pytest.approx(3.0)
    assert used == "800–1600"


def test_line_has_the_matrices_that_do_not_grow_with_the_classes():
    a, b = line_of([{"c": c, "iteration": 2.0 * (c + 1.0)} for c in (2.0, 3.0, 5.0)])
    assert a / b == pytest.approx(1.0)


def test_report_says_what_was_not_computed():
    _, text = Table2().report({})
    assert text.count("not computed") == 7
    sizes = {"n": [800, 1600], "c": [3, 3], "iteration": [1.0, 8.0], "first": [1.0, 8.0], "floor": [0.5, 4.0]}
    record, text = Table2().report({"EP": {"seconds": np.array(1.0)} | {k: np.array(v) for k, v in sizes.items()}})
    assert record["EP"]["slope"] == pytest.approx(3.0)
    assert text.count("not computed") == 6
