"""Plots that compare moments of latent values between methods."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.plots import plot_latent_comparison


def drawn(ax):
    return {points.get_label(): np.asarray(points.get_offsets()) for points in ax.collections}


def test_one_function_is_compared_with_draws(one_function, given):
    draws = one_function["ep"].sample(200, random_seed=1)
    axes = given(1, 2)
    assert (plot_latent_comparison({"MCMC": draws, **one_function}, axes=axes) == axes).all()
    f = draws.posterior["f"].values.reshape(200, -1)
    for ax, (name, fit) in zip(axes, one_function.items(), strict=True):
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("latent values, MCMC", f"latent values, {name}")
        points = drawn(ax)
        assert_allclose(points["means"], np.stack([f.mean(axis=0), fit.latent["mean"]], axis=1))
        expected = np.stack([f.std(axis=0, ddof=1), np.sqrt(fit.latent["variance"])], axis=1)
        assert_allclose(points["standard deviations"], expected)
        (line,) = ax.lines
        assert line.get_slope() == 1
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[0].get_ylim() == axes[1].get_ylim()


def test_several_functions_are_compared_with_a_fit(shared, shared_iep):
    (ax,) = plot_latent_comparison({"EP": shared.fit, "IEP": shared_iep}, "IEP", point_kwargs={"s": 9}, legend=False)
    means, deviations = drawn(ax).values()
    contrasts = np.array([[2, -1, -1], [-1, 2, -1], [-1, -1, 2]]) / 3  # subtracts the mean of the three functions
    for at, fit in enumerate((shared_iep, shared.fit)):
        assert_allclose(means[:, at], (contrasts @ fit.solution.mean).ravel(), atol=1e-12)
        variances = [[row @ cov @ row for cov in fit.solution.cov] for row in contrasts]
        assert_allclose(deviations[:, at], np.sqrt(variances).ravel())
    assert ax.get_xlabel() == "latent values minus their mean, IEP"
    assert ax.collections[0].get_sizes() == [9]
    assert ax.get_legend() is None


def test_invalid_arguments_raise_errors(shared, one_function):
    with pytest.raises(ValueError, match="reference is 'NUTS'"):
        plot_latent_comparison(one_function, "NUTS")
    with pytest.raises(ValueError, match="nothing to compare 'ep' with"):
        plot_latent_comparison({"ep": one_function["ep"]})
    with pytest.raises(ValueError, match=r"'probit' has latent values of shape \(1, 30\), but 'EP' of shape \(3, 30\)"):
        plot_latent_comparison({"EP": shared.fit, "probit": one_function["ep"]})
