"""Averages of p(u) / N(u | base) over a normal u, the cavity, for a mixture p of K normal distributions.

The ratio of the cavity N(m, v) to the base has the precision r and the slope b at m. A component has the weight w, the
mean m + e and the variance s. The log integral of its product with this ratio is

    log w + (b − ½ r e) e + ½ (b − r e)² s / g − ½ log g,   g = 1 + r s.

The product is normal with mean m + e + s (b − r e) / g and variance s / g. If g ≤ 0, the integral diverges.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel

_NOTHING = -37.0  # A component is left out if the log of its share of the largest is below this.
_ROOT_HALF = math.sqrt(0.5)
_STEPS, _CLOSE = 12, 1e-5  # Largest number of steps for a quantile; a smaller error of its level ends them.
_LITTLE = 1e-7  # Components with a smaller weight are left out of quantiles.


@kernel
def average(components, of, cavities, bases, limits, scratch, out):
    """Write the logarithm of the average and its first four derivatives in the cavity mean into `out` (5, n).

    If the cavity equals the base and rare components have a large share of the variance, derivatives are 0. If the
    integral of a component does not exist, the logarithm is NaN and derivatives are 0.

    Parameters
    ----------
    components : array (3, c, K)
        Logarithms of weights, means and variances of c mixtures.
    of : array (n,)
        Index of the mixture of each u.
    cavities, bases : array (2, n)
        Means and variances.
    limits : tuple of float
        Three limits. r and b below the first, relative to the base, count as 0. A component is rare if its log weight
        is below the largest by the second. The third limits the share of rare components in a variance.
    scratch : array (3, K)
    """
    nothing, rare, share_of_rare = limits
    heights, deviations, left = scratch[0], scratch[1], scratch[2]
    for i in range(len(of)):
        log_weights, means, variances = components[0, of[i]], components[1, of[i]], components[2, of[i]]
        mean, v, base_mean, base = cavities[0, i], cavities[1, i], bases[0, i], bases[1, i]
        r = (base - v) / (v * base)
        force = (mean - base_mean) / base
        constant = 0.5 * (mean - base_mean) * force + 0.5 * math.log(base / v)
        alone = abs(r) * base < nothing and abs(force) * math.sqrt(base) < nothing
        diverges = False
        if not alone and r < 0.0:
            for k in range(len(means)):
                if 1.0 + r * variances[k] <= 0.0:
                    diverges = True
        if alone or diverges:
            r, force, constant = 0.0, 0.0, 0.0
        top, heaviest = -math.inf, -math.inf
        for k in range(len(means)):
            e, gain = means[k] - mean, 1.0 + r * variances[k]
            # `own` is the slope of log(cavity / base) at the component's mean, without cancellation.
            own, left[k] = force - r * e, variances[k] / gain
            height = log_weights[k] - 0.5 * math.log(gain) + 0.5 * own * own * left[k]
            height += (force - 0.5 * r * e) * e
            heights[k] = height
            deviations[k] = e + own * left[k]
            top = max(top, height)
            heaviest = max(heaviest, log_weights[k])
        if not math.isfinite(top):
            out[:, i] = math.nan
            continue
        total, first, whole, of_rare = 0.0, 0.0, 0.0, 0.0
        for k in range(len(means)):
            w = math.exp(heights[k] - top) if heights[k] - top > _NOTHING else 0.0
            heights[k] = w
            total += w
            first += w * deviations[k]
            whole += w * left[k]
            if log_weights[k] < heaviest - rare:
                of_rare += w * left[k]
        out[0, i] = math.nan if diverges else top + math.log(total) + constant
        if diverges or (alone and of_rare > share_of_rare * whole):
            out[1:, i] = 0.0
            continue
        first /= total
        second, third, fourth = 0.0, 0.0, 0.0
        for k in range(len(means)):
            if heights[k] == 0.0:
                continue
            w, d, s = heights[k] / total, deviations[k] - first, left[k]
            square = d * d
            second += w * (square + s)
            third += w * d * (square + 3.0 * s)
            fourth += w * (square * (square + 6.0 * s) + 3.0 * s * s)
        out[1, i] = first / v
        out[2, i] = (second / v - 1.0) / v
        out[3, i] = third / v**3
        out[4, i] = (fourth - 3.0 * second * second) / v**4


@kernel
def quantiles(weights, means, variances, middles, widths, ladders, levels, out):
    """Write quantiles of n normal mixtures at the probabilities `levels` (k, n) into `out` (k, n).

    A binary search finds two adjacent places around a quantile. Secant and bisection steps find the quantile between
    them. A component of variance 0 is a step of the distribution function.

    Parameters
    ----------
    weights, means, variances : array (K, n)
    middles, widths : array (n,)
        Means and standard deviations of the mixtures; NaN for a mean that does not exist.
    ladders : tuple of array
        Three arrays of offsets, in widths. The first is about the narrowest component, the third about the mean. If the
        mean does not exist, the second replaces the first.
    """
    count = len(weights)
    w, m, s = np.empty(count), np.empty(count), np.empty(count)
    places = np.empty(max(len(ladders[0]), len(ladders[1])) + len(ladders[2]) + 2 * count)
    below = np.empty_like(places)
    for i in range(len(widths)):
        size, total, centre, narrowest = 0, 0.0, 0.0, math.inf
        for k in range(count):
            if weights[k, i] > _LITTLE:
                w[size], m[size], s[size] = weights[k, i], means[k, i], math.sqrt(variances[k, i])
                total += w[size]
                if s[size] < narrowest:
                    narrowest, centre = s[size], m[size]
                size += 1
        lacking = math.isnan(middles[i])
        steps, middle = (ladders[1], centre) if lacking else (ladders[0], middles[i])
        last = 0
        for step in steps:
            places[last] = centre + step * widths[i]
            last += 1
        for step in ladders[2]:
            places[last] = middle + step * widths[i]
            last += 1
        for k in range(size):
            if s[k] == 0.0:  # The limits of a step from the left and from the right.
                places[last] = places[last + 1] = m[k]
                last += 2
        places[:last].sort()
        below[:last] = math.nan
        for j in range(len(levels)):
            wanted = levels[j, i] * total
            left, right = 0, last - 1
            while right - left > 1:
                at = (left + right) // 2
                if _below(at, places, below, w, m, s, size) < wanted:
                    left = at
                else:
                    right = at
            low = _below(left, places, below, w, m, s, size)
            high = _below(right, places, below, w, m, s, size)
            start, end = places[left], places[right]
            for step in range(_STEPS):
                share = (wanted - low) / (high - low) if high > low else 0.0
                # Alternate secant and bisection steps.
                share = min(max(share, 0.0), 1.0) if step % 2 == 0 else 0.5
                place = start + share * (end - start)
                if end <= start or high - low < _CLOSE * total:
                    break
                value = _distribution(place, False, w, m, s, size)
                if value < wanted:
                    start, low = place, value
                else:
                    end, high = place, value
                if abs(value - wanted) < _CLOSE * total:
                    break
            out[j, i] = place


@kernel
def _below(at, places, below, w, m, s, size):
    """Return the distribution function at a place, and store it. The second of two equal places is past a step."""
    if math.isnan(below[at]):
        past = at > 0 and places[at - 1] == places[at]
        below[at] = _distribution(places[at], past, w, m, s, size)
    return below[at]


@kernel
def _distribution(place, past, w, m, s, size):
    """Return the distribution function of a mixture at a place. `past` includes a step at the place itself."""
    total = 0.0
    for k in range(size):
        if s[k] == 0.0:
            total += w[k] if place > m[k] or (past and place == m[k]) else 0.0
        else:
            total += 0.5 * w[k] * math.erfc((m[k] - place) / s[k] * _ROOT_HALF)
    return total
