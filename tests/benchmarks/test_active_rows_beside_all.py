"""Comparison of active rows with all rows: the model of simulated data, and reports on artificial runs."""

import numpy as np
import pytest

from benchmarks.active_sets import all_rows
from benchmarks.active_sets.all_rows import DIGITS, LIQUID, MAXIMUM, NAMES, SCORES, WHOLE, WINDOW, AllRows
from benchmarks.active_sets.recovery import CLASSES, INPUTS, METHODS, SEEDS, TRUE, Recovery, draw_data


def test_report_contains_differences_between_active_rows_and_all_rows() -> None:
    name = NAMES[0]
    right = np.array([1.0, 1.0, 0.0, 1.0])
    runs = {
        f"{name}, {WHOLE}": {"found": np.array([[[-0.1, -0.1, -0.3, -0.3], right]]), "counts": np.array([2100])},
        f"{name}, {SCORES[0]}": {
            "found": np.array([[[-0.3, -0.3, -0.5, -0.5], right], [[-0.1, -0.1, -0.3, -0.5], right]]),
            "counts": np.array([50, 100]),
        },
    }
    runs = {key: run | {"converged": np.array(True), "seconds": np.array(3.0)} for key, run in runs.items()}
    runs[f"{name}, {MAXIMUM}"] = {"hyper": np.array([4.87, 1.58])}
    record, text = AllRows().report(runs)
    assert f"| {name} | 2100 |  | -0.2000 |  | 0.7500 | 3 |" in text
    assert f"| {name} | 50 | {SCORES[0]} | -0.4000 | 0.2000 ± 0.0000 | 0.7500 | 3 |" in text
    assert f"| {name} | 100 | {SCORES[0]} | -0.2500 | 0.0500 ± 0.0433 |" in text
    assert f"{name}: 4.87, 1.58 (4.90, 1.60)" in text
    assert record[f"{name}, {SCORES[0]}"]["found"][1]["gap"] == pytest.approx(0.05)
    assert AllRows().draw({}) is None
    figure = AllRows().draw(runs)
    assert figure is not None
    assert len(figure.axes[0].lines) == 2


def test_experiment_skips_fits_of_all_rows_of_the_digits() -> None:
    cells = {cell.name: cell.arguments for cell in AllRows().cells("", quick=False)}
    assert f"{DIGITS}, {WHOLE}" not in cells
    assert cells[f"{DIGITS}, random"]["counts"][-1] == 1000
    assert len(cells) == 4 * (2 + len(SCORES)) - 1 + 16


def test_table_of_moving_sites_has_averages_of_choices_before_and_after_iteration() -> None:
    name = NAMES[0]
    found = {
        f"{WINDOW}, {name}, expected, 50, liquid {liquid}": {"found": np.array([[-0.4, -0.3], [-0.6, -0.5]]) / liquid}
        for liquid in LIQUID
    }
    (row,) = AllRows().tables(found)[WINDOW].cells
    assert row == ["segmentation, 1000 rows", "expected", "50", "-0.500 → -0.400", "-0.020 → -0.016"]
    del found[f"{WINDOW}, {name}, expected, 50, liquid 25"]
    assert AllRows().tables(found) == {}


@pytest.mark.parametrize("liquid", LIQUID)
def test_choices_with_moving_sites_are_iterated_to_one_fixed_point(monkeypatch, liquid) -> None:
    split = draw_data(0, 60, 40)
    monkeypatch.setattr(all_rows, "load", lambda data, name, size: split)
    found = all_rows.by_window("", NAMES[0], "information", 60, liquid, 2, [60, 40])["found"]
    whole = all_rows.by_all_rows("", NAMES[0], [60, 40])["found"][0, 0].mean()
    np.testing.assert_allclose(found[:, 1], whole, atol=1e-4)
    np.testing.assert_allclose(found[:, 0], whole, atol=0.1)


def test_simulated_classes_depend_on_relevant_inputs_only() -> None:
    split = draw_data(0, 300, 200)
    assert split.X.shape == (300, INPUTS)
    assert split.ynew.shape == (200,)
    assert split.classes == CLASSES

    def of_neighbours(columns: slice) -> float:
        """Fraction of points whose nearest neighbour in some columns has the same label."""
        apart = ((split.X[:, None, columns] - split.X[None, :, columns]) ** 2).sum(axis=-1)
        apart.flat[:: len(apart) + 1] = np.inf
        return float((split.y[apart.argmin(axis=1)] == split.y).mean())

    assert of_neighbours(slice(3)) > 0.6
    assert of_neighbours(slice(3, 6)) < 0.5


def test_report_of_recovered_relevances_has_all_columns() -> None:
    def run(shift: float) -> dict[str, np.ndarray]:
        hyper = np.array([0.0, 0.4, 0.7, 3.0, 3.2, 3.4, 1.0])
        return {
            "hyper": hyper + shift * np.array([1.0, 0.0, 0.0, 5.0, 0.0, 0.0, -2.0]),
            "density": np.array([-0.4, -0.6]) - shift,
            "right": np.array([True, False]),
            "converged": np.array(shift == 0.0),
            "seconds": np.array(5.0),
        }

    names = list(METHODS)
    record, text = Recovery().report({f"{names[0]} 0": run(0.0), f"{names[1]} 0": run(0.1)})
    assert (
        f"| 0 | {names[1]} (not converged) | 0.10, 0.40, 0.70 | 3.50, 3.20, 3.40 | 0.80 | 0.20 | -0.6000 | -0.1000 |"
        in text
    )
    assert record[f"{names[1]} 0"]["ranked"]
    assert np.exp(TRUE[-1]) == pytest.approx(3.0)
    assert len(Recovery().cells("", quick=False)) == SEEDS * len(METHODS)
