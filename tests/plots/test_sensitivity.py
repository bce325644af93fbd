"""Plots of fits under other priors."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.plots import plot_sensitivity

TABLE = pd.concat(
    {
        name: pd.DataFrame(
            {"mean": [1.0 + d, -2.0 + d], "sd": [0.5, 2.0], "eti89_lb": [0.0, -5.0], "eti89_ub": [2.0, 0.0]},
            index=["level", "u[0]"],
        )
        for name, d in (("as fitted", 0.0), ("wide", 0.4))
    },
    names=["prior", "variable"],
)


def test_means_and_intervals_are_relative_to_the_fit(given):
    (ax,) = np.ravel(given(1, 1))
    assert plot_sensitivity(TABLE, ax=ax) is ax
    fitted, wide = (container.lines for container in ax.containers)
    assert_allclose(fitted[0].get_xdata(), [0.0, 0.0])
    assert_allclose(wide[0].get_xdata(), [0.8, 0.2])
    assert_allclose(np.array(wide[2][0].get_segments())[:, :, 0], [[-2.0, 2.0], [-1.5, 1.0]])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["level", "u[0]"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["as fitted", "wide"]


def test_chosen_rows_are_drawn_and_unknown_rows_raise_value_error():
    ax = plot_sensitivity(TABLE, ["u[0]"])
    assert [text.get_text() for text in ax.get_yticklabels()] == ["u[0]"]
    with pytest.raises(ValueError, match="no row 'v'"):
        plot_sensitivity(TABLE, ["v"])
