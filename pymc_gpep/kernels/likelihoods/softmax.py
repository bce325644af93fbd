"""The softmax likelihood p(y | f) = exp f_y / Σ_k exp f_k at many points: values and derivatives, also along a line.

Arrays: latent values `f`, probabilities `pi` and gradients (c, n), labels `y` (n,), covariances `cov` (n, c, c). The
curvature −∇∇ log p(y_i | f_i) is diag(π_i) − π_iπ_iᵀ, as of a coupled site (Williams and Barber 1998).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel


@kernel
def softmax(f, y, pi, gradient):
    """Write probabilities π into `pi`, and gradients of log p(y_i | f_i) into `gradient`. Return Σ_i log p(y_i | f_i).

    1 − π_y is computed as the sum over the other classes. So 1 − π_y and log p are accurate for π_y near 1.
    """
    c, n = f.shape
    value = 0.0
    for i in range(n):
        own = y[i]
        top = f[own, i]
        for a in range(c):
            top = max(top, f[a, i])
        others = 0.0
        for a in range(c):
            pi[a, i] = math.exp(f[a, i] - top)
            if a != own:
                others += pi[a, i]
        total = others + pi[own, i]
        for a in range(c):
            pi[a, i] /= total
            gradient[a, i] = -pi[a, i]
        gradient[own, i] = others / total
        value += f[own, i] - top - (math.log1p(others) if top == f[own, i] else math.log(total))
    return value


@inlined_kernel
def label_along_line(f, label, direction, t, i):
    """Return derivatives in t of the log probability of a label at f_i + t d_i: the first, and minus the second."""
    c = len(f)
    top = -np.inf
    for a in range(c):
        top = max(top, f[a, i] + t * direction[a, i])
    total = 0.0
    first = 0.0
    second = 0.0
    for a in range(c):
        weight = math.exp(f[a, i] + t * direction[a, i] - top)
        gap = direction[label, i] - direction[a, i]
        total += weight
        first += weight * gap
        second += weight * gap * gap
    first /= total
    return first, max(second / total - first * first, 0.0)


@kernel
def along_line(f, y, direction, t):
    """Return derivatives in t of Σ_i log p(y_i | f_i + t d_i), d = `direction`: the first, and minus the second."""
    slope = 0.0
    curvature = 0.0
    for i in range(len(y)):
        first, second = label_along_line(f, y[i], direction, t, i)
        slope += first
        curvature += second
    return slope, curvature


@kernel
def curvature_slope(pi, cov, slope):
    """Write −½ Σ_kl S_i[k, l] ∂W_i[k, l] / ∂f_i into `slope` (c, n), for covariances S_i and W_i = diag(π_i) − π_iπ_iᵀ.

    With d = diag S and q = S π, the result for each point is −½ π ∘ (d − 2q − πᵀ(d − 2q)).
    """
    c, n = pi.shape
    for i in range(n):
        average = 0.0
        for a in range(c):
            inner = cov[i, a, a]
            for e in range(c):
                inner -= 2.0 * cov[i, a, e] * pi[e, i]
            slope[a, i] = inner
            average += pi[a, i] * inner
        for a in range(c):
            slope[a, i] = -0.5 * pi[a, i] * (slope[a, i] - average)
