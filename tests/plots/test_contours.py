"""Contours contain the probabilities that they are drawn for."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.path import Path

from pymc_gpep.plots.canvas import MASSES, draw_density, draw_gaussian

MEAN, COV = np.array([1.0, -2.0]), np.array([[2.0, 1.2], [1.2, 1.0]])


def draws(count: int) -> np.ndarray:
    return np.random.default_rng(1).multivariate_normal(MEAN, COV, size=count)


def test_ellipses_contain_their_probability():
    _, ax = plt.subplots()
    draw_gaussian(ax, MEAN, COV, MASSES, {}, "")
    inside = [Path(line.get_xydata()).contains_points(draws(40_000)).mean() for line in ax.lines]
    np.testing.assert_allclose(inside, MASSES, atol=0.01)


def test_contours_of_draws_contain_their_probability():
    _, ax = plt.subplots()
    draw_density(ax, draws(4000), MASSES, True, {}, {}, "")
    inside = [path.contains_points(draws(40_000)).mean() for path in ax.collections[-1].get_paths()]
    # A smoothed density is wider than the density itself. The outermost contours have the smallest levels.
    np.testing.assert_allclose(sorted(inside), MASSES, atol=0.03)
