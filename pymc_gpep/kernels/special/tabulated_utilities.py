"""The largest of independent utilities by tables: each is a normal variable plus noise that is a mixture of normals.

With H_j the distribution function of utility j, p_k = ∫ (∏_j H_j) (log H_k)′ dx, for all classes at once. Averages over
common factors of utilities move their means and leave their shapes. So log H_j is tabulated once and is a sum of cubics
ever after. The trapezoid rule integrates a smooth density that ends at zero with few nodes (Trefethen and Weideman
2014). Between two nodes a table has a whole number of cells. So all nodes are at the same place of theirs, and entries
that they look up stand side by side.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel, summing_kernel
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

FROM = -5.5
"""Where a table begins, in widths of its utility."""
_TO, _PER_WIDTH = 9.5, 8  # where it ends, and cells, for a width
_NOTHING = 1e-9  # what a distribution function may begin at
_ALL = 1.0 - 2e-7  # and end at
_STEP = 1.05  # of the trapezoid rule, in standard deviations of the largest of c narrowest utilities
_MOST_CELLS = 8  # between two nodes
_LANES, _ONE = np.uint64(8), np.uint64(1)  # nodes that are looked up at a time
MOST_NODES = 4000
"""Of the trapezoid rule."""
ROOM = 4 * (MOST_NODES + 16)
"""Numbers of a table."""
_ROOM = np.uint64(ROOM)
_LOWEST = math.log(_NOTHING)
_REACH = 8.9  # of `cdf_and_density`
_HALVINGS = 6  # of an exponent


@kernel
def node_step(width):
    """Distance of the nodes for utilities with these widths (c,)."""
    finest = _STEP * np.min(width) / math.sqrt(1.0 + math.log(width.shape[0]))  # as wide is the largest of c
    return max(finest, (_TO - FROM) * np.max(width) / MOST_NODES)


@kernel
def tabulate(variance, noise_weights, noise_means, noise_variances, width, step, shape, table):
    """Tabulate the log of a utility's distribution function about its mean, a cubic in each cell.

    Parameters
    ----------
    variance : float
        Variance of the normal variable.
    noise_weights, noise_means, noise_variances : (components,) array
        Mixture of the noise: weights sum to 1 and may be negative.
    width : float
        Scale of the utility, a standard deviation of about its own.
    step : float
        Distance of the nodes.
    shape : (2,) array of int
        Overwritten: the number s of cells between two nodes, and the number q of every s-th entry.
    table : (ROOM,) array
        Overwritten: coefficients (4, s, q) of powers 0 to 3 of the place within a cell of length 1. They end in zeros.

    Returns
    -------
    float
        Place at which the distribution function is 1, beside the mean.
    """
    cells = min(max(math.ceil(_PER_WIDTH * step / width), 1), _MOST_CELLS)
    entries = int((_TO - FROM) * width * cells / step) + 1
    each = entries // cells + 1 + np.int64(_LANES)
    powers = table[: 4 * cells * each].reshape((4, cells, each))
    powers[:] = 0.0
    for j in range(noise_weights.shape[0]):
        weight = noise_weights[j]
        precision = 1.0 / math.sqrt(noise_variances[j] + variance)
        first = (FROM * width - noise_means[j]) * precision
        cell = step / cells * precision
        for i in range(max(0, int((-_REACH - first) / cell) + 1), entries):
            s = first + i * cell
            if s < _REACH:
                below, height = cdf_and_density(s)
                powers[0, i % cells, i // cells] += weight * below
                powers[1, i % cells, i // cells] += weight * height * cell
            else:
                powers[0, i % cells, i // cells] += weight
    end = entries - 1
    for i in range(entries):
        p, q = i % cells, i // cells
        cdf = powers[0, p, q]
        if i > end or cdf > _ALL:
            end = min(end, i)
            powers[0, p, q] = 0.0
            powers[1, p, q] = 0.0
            continue
        powers[0, p, q] = math.log(cdf) if cdf > _NOTHING else _LOWEST
        powers[1, p, q] = powers[1, p, q] / cdf if cdf > _NOTHING else 0.0
    for i in range(end):  # values and slopes at both ends of a cell are those of one cubic
        p, q = i % cells, i // cells
        p_next, q_next = (i + 1) % cells, (i + 1) // cells
        rise = powers[0, p_next, q_next] - powers[0, p, q]
        left, right = powers[1, p, q], powers[1, p_next, q_next]
        powers[2, p, q] = 3.0 * rise - 2.0 * left - right
        powers[3, p, q] = left + right - 2.0 * rise
    shape[0] = cells
    shape[1] = each
    return FROM * width + end * step / cells


@summing_kernel
def largest_of_tabulated(mean, low, high, step, shapes, tables, probabilities, room):
    """Compute P(v_k is the largest of v) of independent utilities, for one point.

    Parameters
    ----------
    mean, low, high : (c,) array
        Means of the utilities, and where tables begin and end, beside these.
    step : float
        Distance of the nodes.
    shapes : (c, 2) array of int
        Cells between two nodes and entries for each, as `tabulate` wrote them for each table.
    tables : (c ROOM,) array
        One table after another that `tabulate` wrote for this step.
    probabilities : (c,) array
        Overwritten; their sum departs from 1 by as much as the rule errs.
    room : (MOST_NODES + 16,) array
    """
    c = mean.shape[0]
    first = -np.inf
    last = -np.inf
    for k in range(c):
        first = max(first, mean[k] + low[k])
        last = max(last, mean[k] + high[k])
        probabilities[k] = 0.0
    nodes = np.uint64((last - first) / step) + _ONE
    for n in range(_whole_lanes(nodes)):
        room[n] = 0.0
    first += step
    for k in range(c):
        start, apart, count, t = _entries(k, first - mean[k] - low[k], step, nodes, shapes)
        square = start + apart + apart
        cubic = square + apart
        for n in range(count):
            cell = tables[start + apart + n] + t * (tables[square + n] + t * tables[cubic + n])
            room[n] += tables[start + n] + t * cell
    for n in range(nodes):
        x = max(room[n], 2.0 * _LOWEST) * 0.5**_HALVINGS
        e = 1.0 + x * (1.0 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720))))))
        for _ in range(_HALVINGS):
            e *= e
        room[n] = e
    for n in range(nodes, _whole_lanes(nodes)):
        room[n] = 0.0
    for k in range(c):
        start, apart, count, t = _entries(k, first - mean[k] - low[k], step, nodes, shapes)
        square = start + apart + apart
        cubic = square + apart
        total = 0.0
        for n in range(count):
            slope = tables[start + apart + n] + t * (2.0 * tables[square + n] + 3.0 * t * tables[cubic + n])
            total += room[n] * slope
        probabilities[k] = total * shapes[k, 0]


@kernel
def _entries(k, place, step, nodes, shapes):
    """Where entries for nodes begin in all tables, how far powers are apart, how many there are, and t in their cells.

    The first node is at `place` of table k.
    """
    cells, each = shapes[k, 0], shapes[k, 1]
    place /= step
    skipped = np.uint64(place)
    within = (place - skipped) * cells
    phase = np.uint64(within)
    count = _whole_lanes(min(nodes, each - _LANES - min(skipped, each - _LANES)))
    start = np.uint64(k) * _ROOM + phase * each + skipped
    return start, cells * each, count, within - phase


@kernel
def _whole_lanes(count):
    return (count + _LANES - _ONE) // _LANES * _LANES
