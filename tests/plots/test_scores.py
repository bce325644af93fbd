"""Plots of scores of held-out points."""

import pandas as pd
import pytest

from pymc_gpep.plots import plot_scores

TABLE = pd.DataFrame(
    {
        f"{score}{of}{which}": [base + shift, base - 0.1 + shift]
        for base, score in ((-0.3, "mlpd"), (0.9, "accuracy"))
        for of in ("", "_difference")
        for shift, which in ((0.0, ""), (-0.05, "_low"), (0.02, "_high"))
    },
    index=["EP", "VB"],
)


def test_plot_shows_scores_and_intervals(given):
    axes = given(2, 2)
    assert (plot_scores(TABLE, axes=axes) == axes).all()
    for row, score in zip(axes, ("mlpd", "accuracy"), strict=True):
        for ax, name in zip(row, (score, f"{score}_difference"), strict=True):
            for container, method in zip(ax.containers, TABLE.index, strict=True):
                point, _, (interval,) = container.lines
                assert point.get_xdata() == TABLE[name][method]
                low, high = interval.get_segments()[0][:, 0]
                assert (low, high) == pytest.approx((TABLE[f"{name}_low"][method], TABLE[f"{name}_high"][method]))
        assert [text.get_text() for text in row[0].get_yticklabels()] == ["EP", "VB"]


def test_axis_of_accuracies_ends_at_one():
    axes = plot_scores(TABLE + 0.1)
    assert axes[1, 0].get_xlim()[1] == 1.0


def test_table_without_scores_is_refused():
    with pytest.raises(ValueError, match="has no scores"):
        plot_scores(TABLE[["mlpd_low"]])


def test_counts_have_a_separate_score():
    axes = plot_scores(TABLE.rename(columns=lambda name: name.replace("accuracy", "squared_error")))
    assert [row[0].get_xlabel() for row in axes] == ["mean log predictive density", "squared error"]
