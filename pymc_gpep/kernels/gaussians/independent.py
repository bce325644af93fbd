"""Gaussian posterior of one class under scalar sites, independent of other classes, in O(n³).

The prior is f ~ N(m, K). Sites have locations ν and precisions π ≥ 0: exp(νᵀf − fᵀDf/2) with D = diag(π). With

    A = I + D^½ K D^½,   B = D^½ A⁻¹ D^½,

the covariance is Cov f = K − K B K. The matrix D^{-½} A⁻¹ D^½ = I − K B is accurate for any π, as for coupled sites. So
is Cov f = (I − K B) K, unless π_i K_ii is large. Then the form π_i⁻¹ (1 − A⁻¹_ii) of the variance is accurate.

Arrays: `prior` (n, n), `pi` (n,), and `inverse` (n, n), which is A⁻¹ with its lower triangle in use.

Newton's direction for the mode of latent values f ~ N(m, K) is computed from matrix products with K. W (n, c, c) is
minus the second derivatives of the log likelihood at each point. The direction d solves (W + K⁻¹) d = r. It is computed
together with K⁻¹ d, which determines the latent values even if K is singular.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import (
    cholesky,
    copy_into,
    inverse_from_cholesky,
    multiply_functions,
    multiply_symmetric,
    multiply_triangular,
    solve_with_cholesky,
)

_TINY = 1e-200  # Smaller precisions π are replaced by this one, since formulas divide by their roots.
_TILE = 64  # Number of rows and columns of the square tiles in which a triangle is copied.


@kernel
def site_roots(pi):
    """Return the square roots (n,) of the site precisions π ≥ 0 of one class."""
    root = np.empty(pi.shape[0])
    for i in range(pi.shape[0]):
        root[i] = math.sqrt(max(pi[i], _TINY))
    return root


@kernel
def decompose_function(prior, pi, lower):
    """Write the Cholesky factor of A = I + D^½ K D^½ into `lower`. Return whether it exists, and log|A|."""
    n = pi.shape[0]
    root = site_roots(pi)
    for i in range(n):
        for j in range(i + 1):
            lower[i, j] = root[i] * prior[i, j] * root[j]
        lower[i, i] += 1.0
    if not cholesky(lower):
        return False, np.nan
    log_det = 0.0
    for i in range(n):
        log_det += 2.0 * math.log(lower[i, i])
    return True, log_det


@kernel
def factorise_function(prior, pi, inverse):
    """Write the inverse of A = I + D^½ K D^½ into `inverse`. Return whether A is positive definite, and log|A|."""
    ok, log_det = decompose_function(prior, pi, inverse)
    if ok:
        inverse_from_cholesky(inverse)
    return ok, log_det


@kernel
def decomposed_product(lower, pi, r, out):
    """Write (I + DK)⁻¹ r = D^½ A⁻¹ D^{-½} r into `out` (n,). `lower` is the Cholesky factor of A."""
    n = pi.shape[0]
    root = site_roots(pi)
    for i in range(n):
        out[i] = r[i] / root[i]
    solved = solve_with_cholesky(lower, out)
    for i in range(n):
        out[i] = root[i] * solved[i]


@kernel
def kept_variance(root_of_inverse, kept):
    """Write the diagonal of A⁻¹ into `kept` (n,). `root_of_inverse` is the inverse of the Cholesky factor of A."""
    kept[:] = 0.0
    for i in range(kept.shape[0]):
        for j in range(i + 1):
            kept[j] += root_of_inverse[i, j] * root_of_inverse[i, j]


@kernel
def root_product(root_of_inverse, pi, r, out):
    """Write (I + DK)⁻¹ r into `out` (n,). `root_of_inverse` is the inverse of the Cholesky factor of A."""
    root = site_roots(pi)
    for i in range(pi.shape[0]):
        out[i] = r[i] / root[i]
    multiply_triangular(root_of_inverse, out, False)
    multiply_triangular(root_of_inverse, out, True)
    for i in range(pi.shape[0]):
        out[i] *= root[i]


@kernel
def function_variance(prior, pi, inverse, variance):
    """Write posterior variances of the latent values into `variance` (n,)."""
    n = pi.shape[0]
    root = site_roots(pi)
    variance[:] = 0.0
    for i in range(n):
        total = 0.0
        for j in range(i):
            part = inverse[i, j] * prior[i, j]
            total += part * root[j]
            variance[j] += part * root[i]
        variance[i] += total
    for i in range(n):
        variance[i] = variance[i] / root[i] + inverse[i, i] * prior[i, i]
        precision = root[i] * root[i]
        if precision * prior[i, i] > 1.0:
            variance[i] = (1.0 - inverse[i, i]) / precision


@kernel
def add_function_gradient(pi, inverse, b, gradient):
    """Add ½ (b bᵀ − B) with B = D^½ A⁻¹ D^½ to both triangles of `gradient` (n, n); `b` is (n,).

    This is the derivative of the log evidence with respect to K at fixed sites.
    """
    n = pi.shape[0]
    root = site_roots(pi)
    for top in range(0, n, _TILE):
        for left in range(0, top + 1, _TILE):
            for i in range(top, min(top + _TILE, n)):
                for j in range(left, min(left + _TILE, i + 1)):
                    gradient[i, j] += 0.5 * (b[i] * b[j] - root[i] * inverse[i, j] * root[j])
                    gradient[j, i] = gradient[i, j]


@kernel
def function_weights(inverse, pi, nu, prior_mean, b):
    """Write b = D^½ A⁻¹ D^{-½} (ν − D m) into `b` (n,). The posterior mean is m + K b."""
    n = pi.shape[0]
    root = site_roots(pi)
    scaled = np.empty(n)
    for i in range(n):
        scaled[i] = (nu[i] - pi[i] * prior_mean[i]) / root[i]
    multiply_symmetric(inverse, scaled, b)
    for i in range(n):
        b[i] *= root[i]


@kernel
def inner_product(x, y):
    """Return the sum of the products of the elements of two (c, n) arrays."""
    total = 0.0
    for a in range(x.shape[0]):
        for i in range(x.shape[1]):
            total += x[a, i] * y[a, i]
    return total


@kernel
def newton_direction(k, w, r, reduction, limit, d, pull, left):
    """Solve (W + K⁻¹) d = r for d and `pull` = K⁻¹ d, (c, n), approximately. d is always an ascent direction.

    The method is conjugate gradients with the preconditioner K. Convergence then depends on the spectrum of I + KW. W
    is nearly 0 at points that are classified with certainty, so a large prior variance hardly slows the iteration.

    Parameters
    ----------
    k : (1 or c, n, n) array
    w : (n, c, c) array
    r : (c, n) array
    reduction : float
        Target of √(sᵀ K s) for the residual s, relative to its value for s = r.
    limit : int
        Limit on steps.
    d, pull, left : (c, n) arrays
        Overwritten with the direction d, K⁻¹ d, and the residual r − (W + K⁻¹) d.
    """
    c, n = r.shape
    d[:] = 0.0
    pull[:] = 0.0
    copy_into(left, r)
    conditioned = np.empty((c, n))
    multiply_functions(k, left, conditioned)
    search = conditioned.copy()
    search_pull = left.copy()
    curved = np.empty((c, n))
    size = inner_product(left, conditioned)
    enough = reduction * reduction * size
    gain = np.inf
    total = 0.0
    for _ in range(limit):
        if not (size > 0.0 and (size > enough or gain > reduction * reduction * total)):
            break
        for i in range(n):
            for a in range(c):
                curved[a, i] = search_pull[a, i]
                for e in range(c):
                    curved[a, i] += w[i, a, e] * search[e, i]
        length = size / inner_product(search, curved)
        gain = length * size
        total += gain
        for a in range(c):
            for i in range(n):
                d[a, i] += length * search[a, i]
                pull[a, i] += length * search_pull[a, i]
                left[a, i] -= length * curved[a, i]
        multiply_functions(k, left, conditioned)
        new_size = inner_product(left, conditioned)
        ratio = new_size / size
        size = new_size
        for a in range(c):
            for i in range(n):
                search[a, i] = conditioned[a, i] + ratio * search[a, i]
                search_pull[a, i] = left[a, i] + ratio * search_pull[a, i]
