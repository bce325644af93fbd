"""The largest of independent utilities by tables: each is a normal variable plus noise that is a mixture of normals.

With H_j the distribution function of utility j, p_k = ∫ (∏_j H_j) (log H_k)′ dx, for all classes at once. Averages over
common factors of utilities move their means and leave their shapes. So log H_j is tabulated once and is a sum of cubics
ever after. The trapezoid rule integrates a smooth density that ends at zero with few nodes (Trefethen and Weideman
2014).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

__all__ = ["ENTRIES", "largest_of_tabulated", "tabulate"]

_FROM, _TO, _PER_WIDTH = -5.5, 9.5, 8  # in widths of a utility
ENTRIES = round((_TO - _FROM) * _PER_WIDTH) + 1
"""Of a table."""

_NOTHING = 1e-9  # what a distribution function may begin at
_ALL = 1.0 - 2e-7  # and end at
_STEP = 1.05  # of the trapezoid rule, in standard deviations of the largest of c narrowest utilities
_MOST_NODES = 2000
_LOWEST = math.log(_NOTHING)
_REACH = 8.9  # of `cdf_and_density`


@kernel
def tabulate(variance, noise_weights, noise_means, noise_variances, width, table):
    """Tabulate the log of a utility's distribution function about its mean, a cubic in each cell; return where it is 1.

    Parameters
    ----------
    variance : float
        Variance of the normal variable.
    noise_weights, noise_means, noise_variances : (components,) array
        Mixture of the noise: weights sum to 1 and may be negative.
    width : float
        Scale of the utility, a standard deviation of about its own.
    table : (ENTRIES, 4) array
        Overwritten: coefficients of powers 0 to 3 of the place within a cell of length 1.

    Returns
    -------
    float
        Place of that point, in widths.
    """
    table[:] = 0.0
    for j in range(noise_weights.shape[0]):
        weight = noise_weights[j]
        precision = 1.0 / math.sqrt(noise_variances[j] + variance)
        first = (_FROM * width - noise_means[j]) * precision
        step = width * precision / _PER_WIDTH
        for i in range(max(0, int((-_REACH - first) / step) + 1), ENTRIES):
            s = first + i * step
            if s < _REACH:
                below, height = cdf_and_density(s)
                table[i, 0] += weight * below
                table[i, 1] += weight * height * step
            else:
                table[i, 0] += weight
    end = ENTRIES - 1
    for i in range(ENTRIES):
        cdf = table[i, 0]
        if cdf > _ALL:
            table[i:] = 0.0
            end = i
            break
        table[i, 0] = math.log(cdf) if cdf > _NOTHING else _LOWEST
        table[i, 1] = table[i, 1] / cdf if cdf > _NOTHING else 0.0
    for i in range(end):  # values and slopes at both ends of a cell are those of one cubic
        rise, left, right = table[i + 1, 0] - table[i, 0], table[i, 1], table[i + 1, 1]
        table[i, 2] = 3.0 * rise - 2.0 * left - right
        table[i, 3] = left + right - 2.0 * rise
    return _FROM + end / _PER_WIDTH


@kernel
def largest_of_tabulated(mean, width, end, tables, probabilities, room):
    """Compute P(v_k is the largest of v) of independent utilities, for one point.

    Parameters
    ----------
    mean, width, end : (c,) array
        Means, widths and ends of the utilities.
    tables : (c, ENTRIES, 4) array
        Tables that `tabulate` wrote.
    probabilities : (c,) array
        Overwritten; their sum departs from 1 by as much as the rule errs.
    room : (4, c) array
    """
    c = mean.shape[0]
    slopes, cells, places, ends = room[0], room[1], room[2], room[3]
    first = -np.inf
    last = -np.inf
    for k in range(c):
        probabilities[k] = 0.0
        cells[k] = _PER_WIDTH / width[k]
        first = max(first, mean[k] + _FROM * width[k])
        last = max(last, mean[k] + end[k] * width[k])
    step = np.inf
    for k in range(c):
        if mean[k] + end[k] * width[k] > first:
            step = min(step, width[k])
    step *= _STEP / math.sqrt(1.0 + math.log(c))  # the largest of c normal variables has about this standard deviation
    step = max(step, (last - first) / _MOST_NODES)
    nodes = int((last - first) / step) + 1
    for k in range(c):
        places[k] = (first + nodes * step - mean[k]) * cells[k] - _FROM * _PER_WIDTH
        ends[k] = (end[k] - _FROM) * _PER_WIDTH
    for node in range(nodes, 0, -1):
        total = 0.0
        for k in range(c):
            place = places[k] - (nodes - node) * step * cells[k]
            slopes[k] = 0.0
            if place < ends[k]:
                i = np.uint32(place)
                t = place - i
                cubic = tables[k, i]
                total += cubic[0] + t * (cubic[1] + t * (cubic[2] + t * cubic[3]))
                slopes[k] = cells[k] * (cubic[1] + t * (2.0 * cubic[2] + t * 3.0 * cubic[3]))
        if not total > _LOWEST:  # nor is it further down
            break
        product = step * math.exp(total)
        for k in range(c):
            probabilities[k] += product * slopes[k]
