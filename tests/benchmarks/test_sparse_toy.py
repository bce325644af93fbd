"""The active rows of Girolami and Rogers' toy data, and the report on runs that were made up."""

import numpy as np
import pytest

from benchmarks.active_sets.sparse_toy import COUNTS, STARTS, VARIANTS, SparseToy, errors


def test_more_active_rows_leave_fewer_errors() -> None:
    found = errors(0, "utility sites, probability", 120, 200)
    assert found["radius"].shape == (50,)
    assert found["error"][-1] < min(0.1, found["error"][0])


def test_report() -> None:
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
    assert len(figure.axes[0].containers) == 1
    assert len(SparseToy().cells("", quick=False)) == STARTS * len(VARIANTS)
