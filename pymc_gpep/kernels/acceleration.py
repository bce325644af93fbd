"""Anderson acceleration of a fixed-point iteration x ← x + f(x), and starts of an iteration from similar problems.

A memory stores the last steps. Acceleration combines past points so that the residual f is smallest, and adds `mixing`
times this residual (Walker and Ni 2011, SIAM J. Numer. Anal. 49, type II). A memory is two ring buffers (memory,
dimension): past steps `dx`, and past changes of the residual `df`.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import cholesky, solve_with_cholesky

_RIDGE = 1e-12  # Ridge relative to the trace, since residuals of a converged iteration are parallel.


@kernel
def _weighted_dot(weight, a, b):
    total = 0.0
    for i in range(weight.shape[0]):
        total += weight[i] * a[i] * b[i]
    return total


@kernel
def weighted_norm(weight, f):
    """Return Σ weight · f²."""
    return _weighted_dot(weight, f, f)


@kernel
def residual_products(weight, f, df, used):
    """Return weighted inner products of the first `used` rows of `df` with each other, and with the residual `f`."""
    gram = np.empty((used, used))
    rhs = np.empty(used)
    for a in range(used):
        for e in range(a + 1):
            gram[a, e] = _weighted_dot(weight, df[a], df[e])
            gram[e, a] = gram[a, e]
        rhs[a] = _weighted_dot(weight, df[a], f)
    return gram, rhs


@kernel
def combination(gram, rhs):
    """Return the weights of past changes that minimise the residual; `gram` of `residual_products` is overwritten."""
    used = rhs.shape[0]
    trace = 0.0
    for a in range(used):
        trace += gram[a, a]
    for a in range(used):
        gram[a, a] += _RIDGE * trace
    return solve_with_cholesky(gram, rhs) if cholesky(gram) else np.zeros(used)


@kernel
def combined_step(f, dx, df, gamma, mixing, step):
    """Write the step from the combination of past points with weights `gamma` into `step`."""
    for i in range(step.shape[0]):
        step[i] = mixing * f[i]
        for a in range(gamma.shape[0]):
            step[i] -= gamma[a] * (dx[a, i] + mixing * df[a, i])


@kernel
def accelerated_step(weight, f, dx, df, used, mixing, step):
    """Write the accelerated step into `step`, from the first `used` rows of the memory."""
    gram, rhs = residual_products(weight, f, df, used)
    combined_step(f, dx, df, combination(gram, rhs), mixing, step)


@kernel
def interpolated_sites(starts, weights, nearest, far, start):
    """Write the combination of sites of similar problems into `start` (2n,).

    `starts` (s, 2n) has n precisions α > 0 and n locations β for each problem. Average log α and β / √α with weights
    (s,), which sum to 1. A predicted log √α is at most `far` outside the range of the combined values. Where an α is 0
    or negative, write the site of problem `nearest`.
    """
    n = starts.shape[1] // 2
    roots = np.empty(starts.shape[0])
    for i in range(n):
        base = math.sqrt(max(starts[nearest, i], 0.0))
        total = 0.0
        low = 0.0
        high = 0.0
        largest = 0.0
        location = 0.0
        positive = True
        for s in range(starts.shape[0]):
            positive = positive and starts[s, i] > 0.0
            roots[s] = math.sqrt(max(starts[s, i], 0.0))
        if not positive:
            start[i] = starts[nearest, i]
            start[n + i] = starts[nearest, n + i]
            continue
        for s in range(starts.shape[0]):
            u = (roots[s] - base) / (roots[s] + base)
            if abs(u) < 0.1:
                square = u * u
                log_ratio = 2.0 * u * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square / 7.0)))
            else:
                log_ratio = math.log(roots[s] / base)
            total += weights[s] * log_ratio
            low = min(low, log_ratio)
            high = max(high, log_ratio)
            largest = max(largest, starts[s, i])
            location += weights[s] * starts[s, n + i] / roots[s]
        root = base * math.exp(min(max(total, low - far), high + far))
        start[i] = min(root * root, largest)
        start[n + i] = root * location
