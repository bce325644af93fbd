"""Find the site of precision Π = diag π − ππᵀ/1ᵀπ with π > 0 that is nearest to a tilted distribution.

Differences g = μ + F t have the prior t ~ N(0, I). The tilted covariance of t is I − Ω. The site minimises

    f(π) = −log|I + M| + tr (I − Ω) M,   M = Fᵀ Π F.

Up to constants, f is the Kullback–Leibler divergence (Seeger and Jordan 2004, section 4.3 and appendix C). With x = π /
1ᵀπ and z_a = e_a − x, ∂Π/∂π_a = z_a z_aᵀ. For w_a = Fᵀ z_a, Σ = (I + M)⁻¹ and G = M Σ − Ω the derivatives are

    ∂f/∂π_a = w_aᵀ G w_a,   ∂²f/∂π_a∂π_e = (w_aᵀ Σ w_e)² − 2 w_aᵀ G w_e / 1ᵀπ.

At the minimum the contrasts f_a − xᵀf have their tilted variances. For three classes any Π with negative
couplings has this form, and all moments match at the minimum. For more classes the minimum is the best
approximation, and f need not be convex. Newton's method in log π, with a positive definite Hessian, still descends. If
the minimum is at π = 0 or ∞, the method stops close to it.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.small_matrices import eigenvectors

_STEPS = 100
_HALVINGS = 40
_CLOSE = 1e-12  # The search ends if slopes in log π are below this share of their terms.
_LONGEST = 2.0  # A longer step in log π is shortened to this length.
_FLOOR = 1e-7  # Smaller eigenvalues of the Hessian are replaced by this share of the largest.
_SERIES = 1e-2  # For smaller λ a series replaces λ − log(1 + λ), since the difference loses digits.
_FURTHEST = 300.0  # Larger |log π| are replaced by this number, so that π² does not overflow.
_ENOUGH = 1e-4  # A step is accepted if f decreases by this share of the prediction from the slope.
_ROUNDING = 1e-15


@kernel
def difference_precision(pi, y, precision):
    """Write the site precision of the differences f_y − f_a, a ≠ y, into `precision` (d, d), from `pi` (c,)."""
    c = pi.shape[0]
    total = 0.0
    for a in range(c):
        total += pi[a]
    for j in range(c - 1):
        a = j + (j >= y)
        precision[j, j] = pi[a] * pi[y] / total
        for k in range(c - 1):
            e = k + (k >= y)
            if k != j:
                precision[j, k] = -pi[a] * pi[e] / total
                precision[j, j] += pi[a] * pi[e] / total


@kernel
def _excess(value):
    """Return λ − log(1 + λ) for λ = `value`, without cancellation at small λ."""
    if abs(value) > _SERIES:
        return value - math.log1p(value)
    total = 0.0
    for k in range(9, 1, -1):
        total = value * total + (1.0 if k % 2 == 0 else -1.0) / k
    return value * value * total


@kernel
def _contrasts(pi, y, factor, w):
    """Write w_a = Fᵀ z_a into the rows of `w` (c, c), up to a common sign; the row of F for class y is 0."""
    c = pi.shape[0]
    total = 0.0
    for a in range(c):
        total += pi[a]
    for k in range(c):
        average = 0.0
        for j in range(c - 1):
            average += pi[j + (j >= y)] / total * factor[j, k]
        for a in range(c):
            w[a, k] = -average
        for j in range(c - 1):
            w[j + (j >= y), k] += factor[j, k]


@kernel
def _value(pi, w, loss, m, vectors):
    """Return f up to a constant; write eigenvalues of M = Σ_a π_a w_a w_aᵀ to the diagonal of `m`, and `vectors`."""
    c = pi.shape[0]
    value = 0.0
    for j in range(c):
        for k in range(j + 1):
            total = 0.0
            for a in range(c):
                total += pi[a] * w[a, j] * w[a, k]
            m[j, k] = total
            m[k, j] = total
            value -= (1.0 if j == k else 2.0) * loss[j, k] * total
    eigenvectors(m, vectors)
    for j in range(c):
        m[j, j] = max(m[j, j], 0.0)
        value += _excess(m[j, j])
    return value


@kernel
def project_site(factor, loss, y, log_pi):
    """Minimise f from `log_pi`, and overwrite `log_pi`. Return the largest final slope in log π, relative to its terms.

    Parameters
    ----------
    factor : array (c − 1, c)
        Factor F of the covariance of g = μ + F t.
    loss : array (c, c)
        Ω = I − Cov t, from the tilted covariance of t.
    y : int
        Label; differences are g_j = f_y − f_a, a ≠ y.
    log_pi : array (c,)
    """
    c = log_pi.shape[0]
    rows = np.empty((4, c))
    pi, slope, step, trial = rows[0], rows[1], rows[2], rows[3]
    rows = np.empty((5, c, c))
    w, m, vectors, hessian, axes = rows[0], rows[1], rows[2], rows[3], rows[4]
    rows = np.empty((2, c, c))
    kept, match = rows[0], rows[1]
    for a in range(c):
        pi[a] = math.exp(log_pi[a])
    if c == 2:
        return _two_classes(factor, loss, log_pi)
    _contrasts(pi, y, factor, w)
    value = _value(pi, w, loss, m, vectors)
    left = np.inf
    for _ in range(_STEPS):
        # Write w_aᵀ Σ w_e into `kept` and w_aᵀ G w_e into `match`.
        total = 0.0
        for a in range(c):
            total += pi[a]
            for k in range(c):
                axes[a, k] = 0.0
                for j in range(c):
                    axes[a, k] += vectors[j, k] * w[a, j]
        scale = 0.0
        for a in range(c):
            own = 0.0
            for e in range(a + 1):
                within = 0.0
                gain = 0.0
                lost = 0.0
                for k in range(c):
                    product = axes[a, k] * axes[e, k] / (1.0 + m[k, k])
                    within += product
                    gain += product * m[k, k]
                    for j in range(c):
                        lost += w[a, j] * loss[j, k] * w[e, k]
                kept[a, e] = within
                match[a, e] = gain - lost
                own = lost
            slope[a] = pi[a] * match[a, a]
            scale = max(scale, pi[a] * (abs(own) + abs(match[a, a])))
        left = 0.0
        for a in range(c):
            left = max(left, abs(slope[a]))
            for e in range(a + 1):
                entry = pi[a] * pi[e] * (kept[a, e] * kept[a, e] - 2.0 * match[a, e] / total)
                if a == e:
                    entry += slope[a]
                hessian[a, e] = entry
                hessian[e, a] = entry
        left = left / scale if scale > 0.0 else 0.0
        if not left > _CLOSE:
            break
        eigenvectors(hessian, axes)
        largest = 0.0
        for k in range(c):
            largest = max(largest, abs(hessian[k, k]))
        step[:] = 0.0
        for k in range(c):
            along = 0.0
            for a in range(c):
                along += axes[a, k] * slope[a]
            along /= max(abs(hessian[k, k]), _FLOOR * largest)
            for a in range(c):
                step[a] -= axes[a, k] * along
        longest = 0.0
        for a in range(c):
            longest = max(longest, abs(step[a]))
        length = 1.0 if longest <= _LONGEST else _LONGEST / longest
        promised = 0.0
        for a in range(c):
            promised += slope[a] * step[a]
        old = value
        better = False
        for _ in range(_HALVINGS):
            for a in range(c):
                trial[a] = min(max(log_pi[a] + length * step[a], -_FURTHEST), _FURTHEST)
                pi[a] = math.exp(trial[a])
            _contrasts(pi, y, factor, w)
            value = _value(pi, w, loss, m, vectors)
            if value <= old + _ENOUGH * length * promised + _ROUNDING * abs(old):
                better = True
                break
            length *= 0.5
        if not better:
            for a in range(c):
                pi[a] = math.exp(log_pi[a])
            break
        for a in range(c):
            log_pi[a] = trial[a]
    return left


@kernel
def _two_classes(factor, loss, log_pi):
    """Set both π to twice the precision of the difference. Many other pairs of π have the same precision."""
    variance = 0.0
    lost = 0.0
    for j in range(2):
        variance += factor[0, j] * factor[0, j]
        for k in range(2):
            lost += factor[0, j] * loss[j, k] * factor[0, k]
    if variance > 0.0:
        # With the precision λ the variance V = F Fᵀ becomes V / (1 + λ V) = V − F Ω Fᵀ.
        kept = variance - lost
        if not (lost > 0.0 and kept > 0.0):
            return np.inf
        log_pi[:] = min(max(math.log(2.0 * lost) - math.log(variance) - math.log(kept), -_FURTHEST), _FURTHEST)
    return 0.0
