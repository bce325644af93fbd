"""The probability that one of c independent normal utilities is the largest, with derivatives, whatever their widths.

In units of the observed class y, x = (u − m_y) / τ, it is P = ∫ φ(x) ∏_{j≠y} Φ(a_j x + d_j) dx. Here a_j = τ / σ_j and
d_j = (m_y − m_j) / σ_j. Where no other utility is much narrower than that of y, the trapezoid rule of
`pymc_gpep.kernels.special.probit_product` computes it with a few dozen nodes. Else Gauss-Legendre rules do on pieces
that are no wider than the narrowest utility which still varies there. They integrate only where the integrand is not
negligible: it is log-concave, so that this is an interval around its mode.

Sums are taken relative to the integrand at the mode: right to nearly full precision however small P is.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import LOG_2PI, probit_moments
from pymc_gpep.kernels.special.probit_product import LOWEST_LOG_WEIGHT, log_integrand, near_mode, trapezoid_rule

LEGENDRE = np.polynomial.legendre.leggauss(12)
"""Nodes and weights of the rule for a piece."""
_STEEP = 300.0  # curvature in x from which on pieces are cheaper than the trapezoid rule
_WIDTH = 1.5  # of a piece, in standard deviations
_REACH = 8.3  # standard deviations until a Φ is 1
_LOOSE = 1.5 * LOWEST_LOG_WEIGHT  # the ends of the interval may be as far out as this
_HALVINGS = 200
_MOST_PIECES = 10_000  # dozens are wanted; where rounding hides the mode there is no end to them


@kernel
def _add_node(x, width, slopes, offsets, y, mode, peak, at_mode, scales, moments):
    """Add the terms of node x to the sums; return the log weight without `width`.

    `moments` (6, c) holds for class y: x less the mode, its square, Σ_j h_j / σ_j less that at the mode, and its
    square. For the others it holds the hazard less that at the mode, its square, and the curvature of log Φ. The last
    row holds the present hazards.
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
    """Where the log integrand, left or right of its mode, has fallen to between the lowest weight and a bit less."""
    inside = 0.0
    outside = narrowest
    while log_integrand(mode + side * outside, slopes, offsets, y, hazards) - peak > LOWEST_LOG_WEIGHT:
        inside = outside
        outside *= 2.0
    for _ in range(_HALVINGS):
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
    """Return log P; write its derivatives in the means, first ones to `rho` (c,), minus the second to `gamma` (c,).

    Parameters
    ----------
    mean, variance : (c,) array
        Moments of the utilities; variances are positive.
    y : int
    nodes, weights : (q,) array
        `LEGENDRE`.
    rho, gamma : (c,) array
        Overwritten.
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
                if j != y and slopes[j] * x + offsets[j] < _REACH:
                    piece = min(piece, _WIDTH / slopes[j])
            if x + piece == x:  # narrower than rounding: a step, which the piece before has met
                piece = abs(x) * 1e-15
            for q in range(nodes.shape[0]):
                at = x + 0.5 * piece * (1.0 + nodes[q])
                _add_node(at, 0.5 * piece * weights[q], slopes, offsets, y, mode, peak, at_mode, scales, moments)
            x += piece
        if x < end or not moments[4, y] > 0.0:  # rounding is all that there is around the mode
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
    else:  # the same without a difference of what is nearly equal
        shift = moments[2, y] / total
        gamma[y] = max(0.0, bend - (moments[3, y] / total - shift * shift))
    return peak + math.log(total) - 0.5 * LOG_2PI
