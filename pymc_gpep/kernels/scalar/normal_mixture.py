"""Averages of p(u) / N(u | base) over a normal u, for a mixture p of K normal distributions.

The ratio of the cavity N(m, v) to the base has the precision r and the slope b at m. A component has the mean m + e and
the variance s. The log integral of its product with this ratio is

    log w + (b − ½ r e) e + ½ (b − r e)² s / g − ½ log g,   g = 1 + r s,

The product is a normal distribution with mean m + e + s (b − r e) / g and variance s / g. For g ≤ 0 the integral does
not exist.
"""

import math

from pymc_gpep.kernels.compile import kernel

_NOTHING = -37.0  # Log share of a component below which it is left out.


@kernel
def average(components, of, cavities, bases, limits, scratch, out):
    """Write the logarithm of the average and its first four derivatives in the cavity mean to `out` (5, n).

    If neither cavity nor mixture determines a variance, derivatives are 0. If the integral of a component does not
    exist, the logarithm is NaN and derivatives are 0.

    Parameters
    ----------
    components : array (3, c, K)
        Logarithms of weights, means and variances of c mixtures.
    of : array (n,)
        Index of the mixture of each u.
    cavities, bases : array (2, n)
        Means and variances.
    limits : tuple of float
        Three limits. Values of r and b, relative to the base, that count as 0. Fall of the weights of rare components.
        Largest share of rare components in a variance.
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
            # The square is computed from the slope at the component, since other formulas cancel for large variances.
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
