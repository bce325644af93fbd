"""The report on convergence from artificial iterations."""

import numpy as np

from benchmarks.paper.figure8 import ACCELERATED, DAMPING, Figure8, cell_name


def iterated(count: int) -> dict[str, np.ndarray]:
    values = -1.0 - 0.5 ** np.arange(count)
    return {"evidence": values, "mlpd": values / 10, "converged": np.array(True)}


FOUND = {
    cell_name("glass", "EP", ACCELERATED, 1.0): iterated(40),
    cell_name("glass", "EP", "standard", DAMPING[1]): iterated(8),
}


def test_quick_form_omits_rows_and_columns_without_results() -> None:
    _, text = Figure8().report(FOUND)
    assert f"| {DAMPING[0]} |" not in text
    assert f"Nothing was computed with δ = {DAMPING[0]}" in text
    assert "after 5 iterations" in text
    assert "after 10 iterations" not in text
    assert "| Glass | EP | standard | 0.5 | -1.000 (39) | +0.0312 | -0.0031 |" in text


def test_missing_cells_are_reported() -> None:
    assert Figure8().report(FOUND)[1].count("not computed |") == 11
    assert Figure8().report({})[1].count("not computed |") == 24


def test_picture_omits_panels_with_only_accelerated_iterations() -> None:
    figure = Figure8().draw(FOUND)
    assert figure is not None
    assert [ax.get_title() for ax in figure.axes if ax.axison] == 2 * ["Glass, standard, δ = 0.5"]
    assert Figure8().draw({name: x for name, x in FOUND.items() if ACCELERATED in name}) is None


def test_table_has_the_distance_from_the_limit_with_about_three_digits() -> None:
    (row,) = Figure8().tables(FOUND)["convergence"].cells
    assert row == ["Glass", "EP", "standard", "0.5", "0.0312", "", "", "", ""]
    far = FOUND | {cell_name("glass", "EP", "standard", DAMPING[1]): iterated(40)}
    far[cell_name("glass", "EP", "standard", DAMPING[1])]["evidence"][10] = -151.234
    (row,) = Figure8().tables(far)["convergence"].cells
    assert row[4:] == ["0.0312", "150", "0.0000", "0.0000", "0.0000"]
    assert Figure8().tables({}) == {}
