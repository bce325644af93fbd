"""Axes with square frames of equal limits."""

import matplotlib.pyplot as plt

from pymc_gpep.plots.canvas import diagonal, same_frame


def test_all_axes_have_the_same_square_frame():
    _, axes = plt.subplots(1, 2)
    axes[0].plot([0, 1], [0, 4])
    axes[1].plot([2, 3], [1, 2])
    same_frame(axes)
    limits = [(ax.get_xlim(), ax.get_ylim()) for ax in axes]
    assert limits[0] == limits[1]
    (left, right), (bottom, top) = limits[0]
    assert right - left == top - bottom
    assert left < 0 < 3 < right
    assert bottom < 0 < 4 < top


def test_frame_limits_follow_the_data_and_not_the_diagonal():
    _, ax = plt.subplots()
    ax.plot([10, 12], [11, 13])
    diagonal(ax)
    same_frame([ax])
    assert ax.lines[-1].get_slope() == 1
    assert min(*ax.get_xlim(), *ax.get_ylim()) > 9
