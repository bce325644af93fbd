"""Anderson acceleration of a fixed-point iteration x ← x + f(x), with a memory of the last steps.

The next point is the mixed step from the combination of past points whose residual is smallest in a weighted norm
(Walker and Ni 2011, SIAM J. Numer. Anal. 49, type II). A memory is a pair of arrays, past steps `dx` and past changes
of the residual `df`, (memory, dimension), used as a ring.
"""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import cholesky, solve_with_cholesky

_RIDGE = 1e-12  # relative to the trace: residuals of a converged iteration are parallel to rounding


@kernel
def _weighted_dot(weight, a, b):
    total = 0.0
    for i in range(weight.shape[0]):
        total += weight[i] * a[i] * b[i]
    return total


@kernel
def weighted_norm(weight, f):
    """Σ weight · f²."""
    return _weighted_dot(weight, f, f)


@kernel
def residual_products(weight, f, df, used):
    """Weighted inner products of the first `used` changes of the residual, and of these with the residual `f`."""
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
    """How much of each past change makes the residual smallest; `gram` is overwritten."""
    used = rhs.shape[0]
    trace = 0.0
    for a in range(used):
        trace += gram[a, a]
    for a in range(used):
        gram[a, a] += _RIDGE * trace
    return solve_with_cholesky(gram, rhs) if cholesky(gram) else np.zeros(used)


@kernel
def combined_step(f, dx, df, gamma, mixing, step):
    """Write the mixed step from a combination of past points into `step`."""
    for i in range(step.shape[0]):
        step[i] = mixing * f[i]
        for a in range(gamma.shape[0]):
            step[i] -= gamma[a] * (dx[a, i] + mixing * df[a, i])


@kernel
def accelerated_step(weight, f, dx, df, used, mixing, step):
    """Write the accelerated step into `step`; the first `used` rows of the memory count."""
    gram, rhs = residual_products(weight, f, df, used)
    combined_step(f, dx, df, combination(gram, rhs), mixing, step)
