"""Regressions of measured times on sizes."""

import numpy as np
import pytest

from benchmarks.paper.table2 import Table2, slope_of


def timed(points: list[int]) -> dict[str, dict[str, np.ndarray]]:
    """Times of EP: (c + 1) / 2 times the lower limit `floor`, which is 1e-9 n³."""
    sizes = [(n, 3) for n in points] + [(points[0], c) for c in (2, 4)]
    n, c = np.array(sorted(sizes), dtype=float).T
    floor = 1e-9 * n**3
    return {"EP": {"n": n, "c": c, "iteration": floor * (c + 1) / 2, "first": floor, "floor": floor}}


def test_slope_is_the_exponent_at_large_sizes():
    rows = [{"n": n, "iteration": 1e-9 * n**3 + (1.0 if n < 800 else 0.0)} for n in (200.0, 800.0, 1600.0)]
    slope, used = slope_of(rows)
    assert slope == pytest.approx(3.0)
    assert used == "800–1600"


def test_report_names_cells_without_results():
    _, text = Table2().report({})
    assert text.count("not computed") == 8
    record, text = Table2().report(timed([800, 1600]))
    assert record["EP"]["slope"] == pytest.approx(3.0)
    assert text.count("not computed") == 7


def test_report_has_ratios_to_the_fastest_time_at_the_sizes_in_the_header():
    _, text = Table2().report(timed([800, 1600]))
    assert "| over F, c = 3, n = 800, 1600 | over F, n = 800, c = 2, 3, 4 |" in text
    assert "| 2.00, 2.00 | 1.50, 2.00, 2.50 |" in text
    assert "not meaningful" not in text


def test_too_small_sizes_are_reported():
    assert "not meaningful" in Table2().report(timed([100, 200]))[1]


def test_picture_names_the_fixed_size():
    figure = Table2().draw(timed([800, 1600]))
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes] == ["c = 3", "n = 800"]


def test_exponent_of_classes_in_table_2_is_fitted_to_many_classes():
    classes = np.array([2, 6, 10, 20])
    cell = {"classes": classes, "points": np.array(100), "likelihood": 1e-7 * np.where(classes < 6, 50.0, classes**3)}
    rows = Table2().tables({"likelihood, EP": cell})["likelihood"].cells
    assert rows == [["EP", "n n_in (c − 1)³", "0.05", "", "", "", "0.216", "1", "8", "", "3.00"]]
    assert not Table2().tables({})
