"""Axes, colours, and the error without matplotlib."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from pymc_gpep.plots.canvas import colours, panels, single


def test_error_without_matplotlib_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pymc-gpep\[plot\]"):
        single(None)


def test_plot_is_drawn_on_the_given_axes(given):
    ax = given()
    assert single(ax) is ax
    axes = given(2, 3)
    assert (panels(axes, 2, 3) == axes).all()
    assert (panels(list(axes.flat), 2, 3) == axes).all()
    with pytest.raises(ValueError, match="2 × 2 axes, but contains 6"):
        panels(axes, 2, 2)


def test_new_axes_belong_to_one_new_figure():
    axes = panels(None, 2, 3)
    assert axes.shape == (2, 3)
    assert {ax.figure for ax in axes.flat} == {plt.figure(plt.get_fignums()[0])}


@pytest.mark.parametrize("count", [1, 3, 6, 10])
def test_colours_are_distinct(count):
    found = [to_rgb(colour) for colour in colours(count)]
    assert len(found) == count
    apart = [np.abs(np.subtract(a, b)).sum() for i, a in enumerate(found) for b in found[:i]]
    assert min(apart, default=1.0) > 0.1
