"""Scatter plots of class probabilities of two methods."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose

from pymc_gpep.plots import plot_probability_comparison

P = {name: np.random.default_rng(i).dirichlet(np.ones(3), size=12) for i, name in enumerate(("MCMC", "EP", "VB"))}
LABELS = np.arange(12) % 3


def test_scatter_shows_all_classes(given):
    axes = given(1, 2)
    drawn = plot_probability_comparison(P, "MCMC", axes=axes)
    assert (drawn == axes).all()
    for ax, name in zip(axes, ("EP", "VB"), strict=True):
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("class probability, MCMC", f"class probability, {name}")
        for k, points in enumerate(ax.collections):
            assert_allclose(points.get_offsets(), np.column_stack([P["MCMC"][:, k], P[name][:, k]]))


def test_scatter_shows_only_the_true_class():
    arrays = {name: xr.DataArray(p, dims=("i", "band"), coords={"band": list("abc")}) for name, p in P.items()}
    axes = plot_probability_comparison(arrays, "VB", LABELS, point_kwargs={"s": 9})
    assert axes[0].get_xlabel() == "probability of the label, VB"
    for k, points in enumerate(axes[0].collections):
        assert_allclose(points.get_offsets(), np.column_stack([P[n][k == LABELS, k] for n in ("VB", "MCMC")]))
        assert points.get_sizes() == [9]
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == list("abc")


def test_diagonal_of_equal_probabilities_is_drawn():
    (ax,) = plot_probability_comparison({name: P[name] for name in ("MCMC", "EP")}, "MCMC")
    (line,) = ax.lines
    assert line.get_slope() == 1
    assert line.get_xy1() == (0, 0)


def test_invalid_arguments_raise_errors():
    with pytest.raises(ValueError, match="'NUTS' must be among at least two methods"):
        plot_probability_comparison(P, "NUTS")
    with pytest.raises(ValueError, match="must be at the same points"):
        plot_probability_comparison(P | {"EP": P["EP"][:5]}, "MCMC")
    with pytest.raises(ValueError, match="one label for each of 12 points"):
        plot_probability_comparison(P, "MCMC", LABELS[:5])
