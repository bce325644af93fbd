"""Probability that each of c independent normal utilities is the largest, accurately or by tables.

`log_largest_and_derivatives` is accurate, for the observed class y. With the standardised utility x = (u − m_y) / τ of
class y the probability is P = ∫ φ(x) ∏_{j≠y} Φ(a_j x + d_j) dx. Here a_j = τ / σ_j and d_j = (m_y − m_j) / σ_j. If no
other utility is much narrower than that of y, the trapezoid rule of `pymc_gpep.kernels.special.probit` computes P with
a few dozen nodes. Otherwise Gauss-Legendre rules are used on pieces. A piece is at most as wide as the narrowest
utility with a distribution function that varies on it. The integrand is log-concave, so it is negligible outside an
interval around its mode. Sums are relative to the integrand at the mode, for nearly full precision however small P is.
`log_largest` computes P with a relative error of about 1e-6, by one trapezoid rule with a wider step.

`largest_of_independent` computes the p_k of all classes, with errors of 1e-13 of the largest p_k. With Φ_j and φ_j the
distribution function and density of utility j, p_k = ∫ φ_k(x) ∏_{j≠k} Φ_j(x) dx. Gauss-Legendre rules cover the
interval in which the product of the Φ_j rises from 0 to 1. The sum of the p_k is the rule's value of ∫ (∏ Φ_j)′ dx, so
the distance of the sum from 1 measures the error. Each small probability is integrated separately.

`largest_of_tabulated` is for averages over common factors of utilities, which change means but not shapes. It computes
p_k = ∫ (∏_j Φ_j) (log Φ_k)′ dx for all classes at once. Each log Φ_j is tabulated once, as cubics in cells. The
trapezoid rule integrates a smooth density that ends at zero with few nodes (Trefethen and Weideman 2014). A table has
an integer number of cells between two nodes. So all nodes have the same position in their cells, and adjacent entries.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel, summing_kernel
from pymc_gpep.kernels.special.normal import LOG_2PI, probit_moments
from pymc_gpep.kernels.special.probit import LOWEST_LOG_WEIGHT, log_integrand, near_mode, trapezoid_rule
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

FROM = -5.5
"""A table of a utility begins at the mean plus this number of widths."""
_TO, _PER_WIDTH = 9.5, 8  # End of a table, in widths from the mean; smallest number of cells in a width.
_NOTHING = 1e-9  # Smaller values of a distribution function are treated as this value.
_ALL = 1.0 - 2e-7  # Larger values of a distribution function count as 1.
_STEP = 1.05  # Step of the trapezoid rule, in standard deviations of the largest of c utilities.
_MOST_CELLS = 8  # Largest number of cells between two nodes.
_LANES, _ONE = (
    np.uint64(8),
    np.uint64(1),
)  # Number of nodes that are read from a table together; the number 1 of this type.
MOST_NODES = 4000
"""Largest number of nodes of the trapezoid rule. If more were needed, its step is increased."""
ROOM = 4 * (MOST_NODES + 16)
"""Number of entries in the table of a utility."""
_ROOM = np.uint64(ROOM)
_LOWEST = math.log(_NOTHING)
_REACH = 8.9  # Largest absolute argument of `cdf_and_density`.
_HALVINGS = 6  # Number of halvings of an argument before the series of exp.


@kernel
def node_step(width):
    """Return the distance between nodes of the trapezoid rule, for utilities with these widths (c,)."""
    finest = _STEP * np.min(width) / math.sqrt(1.0 + math.log(width.shape[0]))  # Width of the largest of c utilities.
    return max(finest, (_TO - FROM) * np.max(width) / MOST_NODES)


@kernel
def tabulate(variance, noise_weights, noise_means, noise_variances, width, step, shape, table):
    """Tabulate the log of the distribution function of a utility, as a cubic function in each cell.

    Parameters
    ----------
    variance : float
        Variance of the normal variable.
    noise_weights, noise_means, noise_variances : (components,) array
        Mixture of the noise: weights sum to 1 and may be negative.
    width : float
        Scale of the utility, about its standard deviation.
    step : float
        Distance of the nodes.
    shape : (2,) array of int
        Overwritten: the number s of cells between two nodes, and the number q of cells divided by s.
    table : (ROOM,) array
        Overwritten: coefficients (4, s, q) of powers 0 to 3 of the position within a cell of length 1, padded by zeros.

    Returns
    -------
    float
        Distance from the mean at which the distribution function is 1.
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
    for i in range(end):  # Values and slopes at both ends of a cell define a cubic.
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
        Means of the utilities, and start and end of their tables relative to the means.
    step : float
        Distance of the nodes.
    shapes : (c, 2) array of int
        Numbers s and q of each table, written by `tabulate`.
    tables : (c ROOM,) array
        Tables written by `tabulate` for this step, one after another.
    probabilities : (c,) array
        Overwritten; the distance of their sum from 1 is the error of the rule.
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
    """Return four numbers for reading table k: first index, stride between powers, number of nodes, position t.

    The first node is at distance `place` from the start of table k, and t is its position within its cell.
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


_LOG_ERROR = math.log(1e-7)
_LOWEST_LOG_WEIGHT = -16.0


@kernel
def log_largest(mean, variance, y, room):
    """Return log P(v_y is the largest of v), v_j ~ N(mean_j, variance_j) independent, with a relative error of 1e-6.

    Parameters
    ----------
    mean, variance : (c,) array
        Variances positive.
    y : int
    room : (3, c) array
    """
    slopes, offsets, hazards = room[0], room[1], room[2]
    tau = math.sqrt(variance[y])
    curvature = 1.0
    for j in range(mean.shape[0]):
        if j != y:
            scale = 1.0 / math.sqrt(variance[j])
            slopes[j] = tau * scale
            offsets[j] = (mean[y] - mean[j]) * scale
            curvature += slopes[j] * slopes[j]
    mode = near_mode(slopes, offsets, y, hazards)
    peak = log_integrand(mode, slopes, offsets, y, hazards)
    step = math.pi * math.sqrt(-2.0 / (curvature * _LOG_ERROR))
    total = 1.0
    for side in (-step, step):
        x = mode + side
        log_weight = log_integrand(x, slopes, offsets, y, hazards) - peak
        while log_weight > _LOWEST_LOG_WEIGHT:
            total += math.exp(log_weight)
            x += side
            log_weight = log_integrand(x, slopes, offsets, y, hazards) - peak
    return peak + math.log(step * total) - 0.5 * LOG_2PI


LEGENDRE = np.polynomial.legendre.leggauss(12)
"""Nodes and weights of the rule for a piece."""
_STEEP = 300.0  # If the curvature in x is larger, pieces replace the trapezoid rule.
_WIDTH = 1.5  # Width of a piece, in standard deviations.
_CERTAIN = 8.3  # For larger x, Φ(x) is 1 in double precision.
_LOOSE = 1.5 * LOWEST_LOG_WEIGHT  # If the log weight at an end of the interval is below this, the end is moved inwards.
_MOST_HALVINGS = 200
_MOST_PIECES = 10_000  # Largest number of pieces. Without it, rounding could cause an endless loop.


@kernel
def _add_node(x, width, slopes, offsets, y, mode, peak, at_mode, scales, moments):
    """Add the terms of node x to the sums in `moments`. Return the log weight of the node without `width`.

    The rows of `moments` (6, c) are weighted sums. Let h_j be φ/Φ of class j minus its value at the mode. For class y
    the sums are of x − mode, its square, Σ_j h_j / σ_j, its square, and 1. For each other class they are of h_j, h_j²,
    and the curvature of log Φ. Rows 4 and 5 of these classes are workspace.
    """
    c = slopes.shape[0]
    log_weight = -0.5 * x * x - peak
    pull = 0.0
    for j in range(c):
        if j != y:
            log_p, h, curvature, _ = probit_moments(slopes[j] * x + offsets[j])
            log_weight += log_p
            moments[4, j] = h
            moments[5, j] = curvature
            pull += (h - at_mode[j]) * scales[j]
    if not log_weight > LOWEST_LOG_WEIGHT:
        return log_weight
    weight = width * math.exp(log_weight)
    for j in range(c):
        if j != y:
            difference = moments[4, j] - at_mode[j]
            moments[0, j] += weight * difference
            moments[1, j] += weight * difference * difference
            moments[2, j] += weight * moments[5, j]
    moments[0, y] += weight * (x - mode)
    moments[1, y] += weight * (x - mode) ** 2
    moments[2, y] += weight * pull
    moments[3, y] += weight * pull * pull
    moments[4, y] += weight
    return log_weight


@kernel
def _end(side, slopes, offsets, y, mode, peak, narrowest, hazards):
    """Return the x left or right of the mode at which the log integrand has fallen to about `LOWEST_LOG_WEIGHT`."""
    inside = 0.0
    outside = narrowest
    while log_integrand(mode + side * outside, slopes, offsets, y, hazards) - peak > LOWEST_LOG_WEIGHT:
        inside = outside
        outside *= 2.0
    for _ in range(_MOST_HALVINGS):
        if log_integrand(mode + side * outside, slopes, offsets, y, hazards) - peak > _LOOSE:
            break
        middle = 0.5 * (inside + outside)
        if log_integrand(mode + side * middle, slopes, offsets, y, hazards) - peak > LOWEST_LOG_WEIGHT:
            inside = middle
        else:
            outside = middle
    return mode + side * outside


@kernel
def log_largest_and_derivatives(mean, variance, y, nodes, weights, rho, gamma, room):
    """Return the log probability that utility y is the largest. Write derivatives in the means into `rho`, `gamma`.

    Parameters
    ----------
    mean, variance : (c,) array
        Moments of the utilities; variances are positive.
    y : int
    nodes, weights : (q,) array
        `LEGENDRE`.
    rho, gamma : (c,) array
        Overwritten with first, and minus second derivatives.
    room : (10, c) array
    """
    c = mean.shape[0]
    slopes, offsets, at_mode, scales, moments = room[0], room[1], room[2], room[3], room[4:]
    tau = math.sqrt(variance[y])
    curvature = 1.0
    steepest = 0.0
    for j in range(c):
        if j != y:
            scales[j] = 1.0 / math.sqrt(variance[j])
            slopes[j] = tau * scales[j]
            offsets[j] = (mean[y] - mean[j]) * scales[j]
            curvature += slopes[j] * slopes[j]
            steepest = max(steepest, slopes[j])
    mode = near_mode(slopes, offsets, y, at_mode)
    peak = log_integrand(mode, slopes, offsets, y, at_mode)
    moments[:] = 0.0
    if curvature < _STEEP:
        step, count = trapezoid_rule(curvature)
        _add_node(mode, step, slopes, offsets, y, mode, peak, at_mode, scales, moments)
        for side in (-step, step):
            for node in range(1, count + 1):
                x = mode + node * side
                at = _add_node(x, step, slopes, offsets, y, mode, peak, at_mode, scales, moments)
                if not at > LOWEST_LOG_WEIGHT:
                    break
    else:
        narrowest = 1.0 / math.sqrt(curvature)
        x = _end(-1.0, slopes, offsets, y, mode, peak, narrowest, moments[5])
        end = _end(1.0, slopes, offsets, y, mode, peak, narrowest, moments[5])
        for _ in range(_MOST_PIECES):
            if not x < end:
                break
            piece = min(_WIDTH, end - x)
            for j in range(c):
                if j != y and slopes[j] * x + offsets[j] < _CERTAIN:
                    piece = min(piece, _WIDTH / slopes[j])
            if x + piece == x:  # The piece is so short that x does not change. The step of Φ was before it.
                piece = abs(x) * 1e-15
            for q in range(nodes.shape[0]):
                at = x + 0.5 * piece * (1.0 + nodes[q])
                _add_node(at, 0.5 * piece * weights[q], slopes, offsets, y, mode, peak, at_mode, scales, moments)
            x += piece
        if x < end or not moments[4, y] > 0.0:  # The sum failed because of rounding errors.
            moments[4, y] = np.nan
    total = moments[4, y]
    pull = 0.0
    bend = 0.0
    for j in range(c):
        if j != y:
            shift = moments[0, j] / total
            spread = moments[1, j] / total - shift * shift
            rho[j] = -(at_mode[j] + shift) * scales[j]
            gamma[j] = max(0.0, moments[2, j] / total - spread) * scales[j] * scales[j]
            pull -= rho[j]
            bend += moments[2, j] / total * scales[j] * scales[j]
    rho[y] = pull
    shift = moments[0, y] / total
    if steepest > 1.0:
        spread = moments[1, y] / total - shift * shift
        gamma[y] = max(0.0, 1.0 - spread) / variance[y]
    else:  # This formula gives the same value, without cancellation.
        shift = moments[2, y] / total
        gamma[y] = max(0.0, bend - (moments[3, y] / total - shift * shift))
    return peak + math.log(total) - 0.5 * LOG_2PI


FINE = (np.polynomial.legendre.leggauss(12), 8.3, 1.5)
"""Nodes and weights, range of Φ and width of a piece in standard deviations, for errors of 1e-13."""

_SMALL = 1e-10  # If the probability of a class is smaller, its integral is computed separately.
_LEAST_LOG = -740.0  # Probabilities with a smaller logarithm are returned as 0.
_UNEQUAL = 300.0  # If variances differ by a larger factor, pieces replace the trapezoid rule.
_NODES, _WEIGHTS = LEGENDRE


@kernel
def largest_of_independent(mean, sd, nodes, weights, reach, width, probabilities, room):
    """Compute P(v_k is the largest of v), v_j ~ N(mean_j, sd_j²) independent, for one point.

    Parameters
    ----------
    mean, sd : (c,) array
        Finite; `sd` positive.
    nodes, weights : (q,) array
        Nodes and weights of Gauss and Legendre.
    reach, width : float
        As in `FINE`; `reach` less than 9.
    probabilities : (c,) array
        Overwritten; the distance of their sum from 1 is the error of the rule.
    room : (2, c) array
    """
    c = mean.shape[0]
    ratios, precisions = room[0], room[1]
    x = -np.inf
    end = -np.inf
    for j in range(c):
        probabilities[j] = 0.0
        precisions[j] = 1.0 / sd[j]
        x = max(x, mean[j] - reach * sd[j])
        end = max(end, mean[j] + reach * sd[j])
    negligible = cdf_and_density(-reach)[0]
    below = 0.0
    while x < end and below < 1.0 - negligible:
        piece = end - x
        for j in range(c):
            if mean[j] + reach * sd[j] > x:
                piece = min(piece, width * sd[j])
        if x + piece == x:  # The piece is below rounding of x. The step of Φ was in the previous piece.
            break
        below = 1.0
        for j in range(c):
            s = (x + piece - mean[j]) * precisions[j]
            if s < reach:
                below *= cdf_and_density(max(s, -reach))[0]
        if below > negligible:
            for q in range(nodes.shape[0]):
                at = x + 0.5 * piece * (1.0 + nodes[q])
                product = 0.5 * piece * weights[q]
                for j in range(c):
                    s = (at - mean[j]) * precisions[j]
                    ratios[j] = 0.0
                    if s < reach:
                        cdf, density = cdf_and_density(max(s, -reach))
                        product *= cdf
                        ratios[j] = density * precisions[j] / cdf
                for j in range(c):
                    probabilities[j] += product * ratios[j]
        x += piece


@kernel
def probabilities_of_independent(mean, variance, nodes, weights, reach, width, probabilities, errors):
    """Compute the probabilities of `largest_of_independent` at many points, and normalise them.

    Parameters
    ----------
    mean, variance : (m, c) array
        Moments of the utilities.
    nodes, weights, reach, width
        Settings as in `FINE`.
    probabilities : (m, c) array
        Overwritten. They sum to 1; relative errors are below 1e-6. They are NaN if `mean` or `variance` is not
        finite, or if a variance is not positive.
    errors : (m,) array
        Overwritten with the distance of the sum from 1 before normalisation.
    """
    m, c = mean.shape
    sd, room = np.empty(c), np.empty((10, c))
    slopes = np.empty((2, c))
    for i in range(m):
        valid = True
        for k in range(c):
            valid &= variance[i, k] > 0.0 and math.isfinite(variance[i, k]) and math.isfinite(mean[i, k])
            sd[k] = math.sqrt(variance[i, k])
        if not valid:
            probabilities[i] = np.nan
            errors[i] = np.nan
            continue
        largest_of_independent(mean[i], sd, nodes, weights, reach, width, probabilities[i], room)
        total = np.sum(probabilities[i])
        errors[i] = abs(total - 1.0)
        probabilities[i] /= total
        for k in range(c):
            if probabilities[i, k] < _SMALL:
                if variance[i, k] < _UNEQUAL * variance[i].min():
                    log_p = log_largest(mean[i], variance[i], k, room)
                else:
                    log_p = log_largest_and_derivatives(
                        mean[i], variance[i], k, _NODES, _WEIGHTS, slopes[0], slopes[1], room
                    )
                probabilities[i, k] = math.exp(log_p) if log_p > _LEAST_LOG else 0.0
