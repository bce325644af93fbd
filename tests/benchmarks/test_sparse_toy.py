"""Active rows for the toy data of Girolami and Rogers, and the report on artificial runs."""

import numpy as np
import pytest

from benchmarks.active_sets.sparse_toy import COUNTS, FIGURE_5A, STARTS, VARIANTS, SparseToy, errors, scatter


def test_more_active_rows_leave_fewer_errors() -> None:
    found = errors(0, "utility sites, probability", 120, 200)
    assert found["radius"].shape == (50,)
    assert found["error"][-1] < min(0.1, found["error"][0])


def test_report_has_a_row_for_each_method() -> None:
    variant = next(iter(VARIANTS))
    runs = {
        f"{variant} {seed}": {"error": np.full(len(COUNTS), error), "radius": np.array([0.1, 0.3])}
        for seed, error in enumerate((0.01, 0.03))
    }
    record, text = SparseToy().report(runs)
    assert f"| {variant} | 2 | {'2.0 % ± 1.0 | ' * len(COUNTS)}50 % |" in text
    assert record[variant]["error"] == pytest.approx([0.02] * len(COUNTS))
    assert text.count("not computed") == (1 + len(COUNTS)) * (len(VARIANTS) - 1)
    assert SparseToy().draw({}) is None
    figure = SparseToy().draw(runs)
    assert figure is not None
    assert len(figure.axes[1].containers) == 1
    assert len(SparseToy().cells("", quick=False)) == STARTS * len(VARIANTS) + 1


def test_active_rows_of_the_scatter_lie_near_boundaries() -> None:
    found = scatter(120, 9)
    assert found["x"].shape == (120, 2)
    assert len(set(found["active"])) == 50
    np.testing.assert_allclose(found["p"].sum(axis=0), 1.0, atol=2e-3)
    labels = found["p"].argmax(axis=0)  # Class at each point of the grid; a row has one value of the second input.
    assert labels[4, 4] == 2  # the class in the middle
    assert found["axis"][4] == pytest.approx(0.0, abs=1e-12)
    runs = {"figure 5(a)": found, f"{FIGURE_5A} 0": {"error": np.full(len(COUNTS), 0.1), "radius": np.ones(3)}}
    figure = SparseToy().draw(SparseToy().pictured(runs))
    assert figure is not None
    assert figure.axes[0].get_xlabel() == "input 1"
