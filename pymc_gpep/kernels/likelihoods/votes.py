"""The softmax likelihood of votes, p(y | f) = N! / Π_a y_a! Π_a π_a^(y_a), N = Σ_a y_a and π the softmax of f.

Arrays are as in `pymc_gpep.kernels.likelihoods.softmax`, but votes `y` are (n, c), and `pi` (c, n) is N π. The
curvature is N (diag(π) − ππᵀ), the precision of a coupled site of numbers N π.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.softmax import curvature_slope as of_one_vote
from pymc_gpep.kernels.likelihoods.softmax import label_along_line

_NO_VOTE = 1e-100  # It replaces N for a point without votes, so that log N is finite.


@kernel
def log_ways(y):
    """Return log N! / Π_a y_a! for the votes of one point (c,)."""
    total = 0
    value = 0.0
    for a in range(y.shape[0]):
        total += y[a]
        if y[a] > 1:
            value -= math.lgamma(y[a] + 1.0)
    return value + math.lgamma(total + 1.0) if total > 1 else 0.0


@kernel
def point_log_density(f, y, pi, gradient):
    """Write the softmax π of f (c,) into `pi`, and y − N π into `gradient`. Return Σ_a y_a log π_a.

    It is NaN for negative votes y; N = Σ y. With w = exp f the gradient is Σ_e (y_a w_e − y_e w_a) / Σ_e w_e.
    """
    c = f.shape[0]
    best = 0
    for a in range(1, c):
        if f[a] > f[best]:
            best = a
    others = 0.0
    for a in range(c):
        pi[a] = math.exp(f[a] - f[best])
        if a != best:
            others += pi[a]
    total = 1.0 + others
    votes = 0
    value = 0.0
    for a in range(c):
        if y[a] < 0:
            return np.nan
        votes += y[a]
        if y[a] > 0:
            value += y[a] * (f[a] - f[best])
        gradient[a] = 0.0
        for e in range(c):
            if e != a:
                gradient[a] += (y[a] * pi[e] - y[e] * pi[a]) / total
    for a in range(c):
        pi[a] /= total
    return value - votes * math.log1p(others)


@kernel
def log_density(f, y, pi, gradient):
    """Write votes times probabilities into `pi`, and gradients into `gradient`. Return Σ_i log p(y_i | f_i)."""
    c, n = f.shape
    rows = np.empty((3, c))
    at, own, slope = rows[0], rows[1], rows[2]
    value = 0.0
    for i in range(n):
        votes = 0
        for a in range(c):
            at[a] = f[a, i]
            votes += y[i, a]
        value += point_log_density(at, y[i], own, slope) + log_ways(y[i])
        for a in range(c):
            pi[a, i] = max(float(votes), _NO_VOTE) * own[a]
            gradient[a, i] = slope[a]
    return value


@kernel
def along_line(f, y, direction, t):
    """Return derivatives in t of Σ_i log p(y_i | f_i + t d_i), d = `direction`: the first, and minus the second."""
    c, n = f.shape
    slope = 0.0
    curvature = 0.0
    for i in range(n):
        own = 0
        votes = 0
        for a in range(c):
            votes += y[i, a]
            if y[i, a] > y[i, own]:
                own = a
        # Σ_a y_a log π_a = N log π_own − Σ_a y_a (f_own − f_a), where `own` is the class with most votes.
        first, second = label_along_line(f, own, direction, t, i)
        slope += votes * first
        curvature += votes * second
        for a in range(c):
            slope -= y[i, a] * (direction[own, i] - direction[a, i])
    return slope, curvature


@kernel
def curvature_slope(pi, cov, slope):
    """Write −½ Σ_kl S_i[k, l] ∂W_i[k, l] / ∂f_i into `slope` (c, n), for covariances S_i and W_i = N (diag(π) − ππᵀ).

    The result is N times the result for one vote.
    """
    c, n = pi.shape
    votes = np.zeros(n)
    own = np.empty((c, n))
    for a in range(c):
        for i in range(n):
            votes[i] += pi[a, i]
    for a in range(c):
        for i in range(n):
            own[a, i] = pi[a, i] / votes[i]
    of_one_vote(own, cov, slope)
    for a in range(c):
        for i in range(n):
            slope[a, i] *= votes[i]
