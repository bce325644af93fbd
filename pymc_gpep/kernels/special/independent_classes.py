"""The probability that each of c independent normal utilities is the largest: one integral, for all classes at once.

p_k = ∫ φ_k(x) ∏_{j≠k} Φ_j(x) dx, with Φ_j and φ_j the distribution function and density of utility j. Gauss-Legendre
rules integrate on pieces that are no wider than the narrowest utility that still varies there. Pieces reach from where
the last of the Φ_j begins to where the last of them ends. The p_k sum to the rule's ∫ (∏ Φ_j)′ dx, so that the sum's
distance from 1 tells of the error.

That is right to 1e-13 of the largest of them. Small ones have an integral each, relative to where it is largest.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.largest_of_independent import LEGENDRE, log_largest_and_derivatives
from pymc_gpep.kernels.special.log_largest import log_largest
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

FINE = (np.polynomial.legendre.leggauss(12), 8.3, 1.5)
"""Nodes and weights, standard deviations until a Φ is 0 or 1, width of a piece in them: to about 1e-13."""

_SMALL = 1e-10  # smaller probabilities have an integral each
_LEAST_LOG = -740.0  # of what is a number
_UNEQUAL = 300.0  # ratio of variances, above which a trapezoid rule has too many nodes
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
        Overwritten; their sum departs from 1 by as much as the rule errs.
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
        if x + piece == x:  # narrower than rounding: a step, which the piece before has met
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
    """Run `largest_of_independent` at many points.

    Parameters
    ----------
    mean, variance : (m, c) array
        Moments of the utilities.
    nodes, weights, reach, width
        Settings as in `FINE`.
    probabilities : (m, c) array
        Overwritten. They sum to 1, and are right to 1e-6 of themselves or better. They are NaN where `mean` or
        `variance` are not finite or a variance is not positive.
    errors : (m,) array
        Overwritten with how far from 1 they summed before that.
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
