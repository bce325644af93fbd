"""E softmax(f) for classes that are independent given one or two factors, by dense grids with errors of about 1e-8.

A softmax is the distribution of the largest of f_k + g_k with independent standard Gumbel variables g_k (Luce 1959;
McFadden 1974).
"""

from itertools import product

import numpy as np
from scipy.interpolate import CubicSpline

__all__ = ["softmax_average"]

_MARGIN = 7.0  # standard deviations beyond which the integrand is dropped
_STEP = 0.25  # step of the trapezoid rule over utilities


def softmax_average(mean, variance, root, nodes=15):
    """E softmax(f) at one point, f = mean + root z + √variance e with standard normal z (factors,) and e (c,)."""
    c, factors = root.shape
    grid = np.linspace(-6.0, 6.0, nodes)
    weight = np.exp(-0.5 * grid**2)
    weight /= weight.sum()
    sd = np.sqrt(variance)
    moved = np.array([root @ np.array(z) for z in product(grid, repeat=factors)])
    weights = np.array([np.prod(w) for w in product(weight, repeat=factors)])
    kept = weights > 1e-10
    means, weights = mean + moved[kept], weights[kept]
    laws = [_utility(each) for each in sd]
    p = np.zeros(c)
    for centre, share in zip(means, weights, strict=True):
        x = np.arange((centre - _MARGIN * sd).max() - 4.0, (centre + _MARGIN * sd).max() + 20.0, _STEP)
        below = np.array([law(x - m) for law, m in zip(laws, centre, strict=True)])
        density = np.array([law(x - m, 1) for law, m in zip(laws, centre, strict=True)])
        total = np.log(np.maximum(below, 1e-300)).sum(0)
        p += share * _STEP * (np.exp(total) * density / np.maximum(below, 1e-300)).sum(1)
    return p


def _utility(sd):
    """Distribution function of a normal plus a Gumbel variable, as a spline. Outside of its range it is 0 or 1."""
    x = np.arange(-_MARGIN * sd - 6.0, _MARGIN * sd + 24.0, 0.05)
    e = np.linspace(-8.5, 8.5, 801)
    weight = np.exp(-0.5 * e**2)
    weight /= weight.sum()
    with np.errstate(over="ignore"):
        spline = CubicSpline(x, np.exp(-np.exp(-(x[:, None] - sd * e))) @ weight)

    def law(at, derivative=0):
        inside = spline(np.clip(at, x[0], x[-1]), derivative)
        return np.where((at < x[0]) | (at > x[-1]), float(derivative == 0) * (at > x[-1]), inside)

    return law
