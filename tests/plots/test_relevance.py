"""Plots of relevances."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.plots import plot_relevance


def labels(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def test_relevances_of_a_fit_are_drawn_as_points(shared, given):
    ax = given()
    assert plot_relevance(shared.fit, ax=ax, point_kwargs={"markersize": 9}) is ax
    (points,) = ax.lines
    relevance = np.sort(1 / shared.fit.hyperparameters["ls"].values)
    assert_allclose(points.get_xydata(), np.column_stack([relevance, [0, 1]]))
    assert points.get_markersize() == 9
    assert labels(ax) == ["width", "length"]
    assert ax.get_xlabel() == "relevance, 1 / ls"


def test_relevances_of_draws_have_intervals(shared, shared_mcmc):
    ax = plot_relevance({"MCMC": shared_mcmc, "EP": shared.fit}, prob=0.8, sort=False)
    assert labels(ax) == ["width", "length"]
    draws = 1 / shared_mcmc.posterior["ls"].sel(petal=["width", "length"])
    low, middle, high = draws.quantile([0.1, 0.5, 0.9], dim=("chain", "draw")).values
    assert_allclose(ax.lines[0].get_xdata(), middle)
    (intervals,) = [each for container in ax.containers for each in container.lines[2]]
    assert_allclose([segment[:, 0] for segment in intervals.get_segments()], np.column_stack([low, high]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["MCMC", "EP"]


def test_given_relevance_is_drawn_unchanged(shared):
    ax = plot_relevance(shared.fit, inverse=False)
    assert_allclose(ax.lines[0].get_xdata(), np.sort(shared.fit.hyperparameters["ls"].values))
    assert ax.get_xlabel() == "relevance, ls"


def test_intervals_of_integrated_fits_are_quantiles_of_the_density(shared, shared_ccd):
    ax = plot_relevance({"ccd": shared_ccd, "map": shared.fit}, prob=0.8, sort=False)
    place = [i for i, name in enumerate(shared_ccd.log_posterior.space.owners) if name == "ls"]
    relevance = 1 / np.exp(
        shared_ccd.hyper_posterior.density[:, place]
    )  # log length scales, over which the fit integrates
    low, middle, high = np.quantile(relevance[:, ::-1], [0.1, 0.5, 0.9], axis=0)  # the first input is at the top
    assert_allclose(ax.lines[0].get_xdata(), middle, rtol=1e-3)
    (intervals,) = [each for container in ax.containers for each in container.lines[2]]
    assert_allclose([segment[:, 0] for segment in intervals.get_segments()], np.array([low, high]).T, rtol=2e-3)


def test_inputs_without_names_are_numbered(shared):
    draws = shared.fit.sample(5, random_seed=1)
    draws["posterior"] = draws["posterior"].to_dataset().drop_vars("petal")
    assert sorted(labels(plot_relevance(draws))) == ["0", "1"]


def test_invalid_arguments_raise_errors(shared):
    with pytest.raises(ValueError, match=r"'scale' is not a hyperparameter\. The hyperparameters are: 'ls', 'eta'"):
        plot_relevance(shared.fit, "scale")
    with pytest.raises(ValueError, match="'eta' must be a vector"):
        plot_relevance(shared.fit, "eta")
    with pytest.raises(ValueError, match="prob must be"):
        plot_relevance(shared.fit, prob=90)
