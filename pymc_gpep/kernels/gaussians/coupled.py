"""Gaussian posterior of c latent functions under sites that couple the classes of a point, in O((c + 1) n³).

The prior of class k is f_k ~ N(m_k, K_k). Point i has the site exp(νᵀf − fᵀΠf/2) with location ν, and with precision
Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i for numbers π_i (c,). With D_k = diag(π_k) (nested EP paper, appendix B):

    A_k = I + D_k^½ K_k D_k^½,   B_k = D_k^½ A_k⁻¹ D_k^½,   P = Σ_k B_k,   M_kl = δ_kl B_k − B_k P⁻¹ B_l,

and Cov f = K − K M K. Only the A_k and P are factorised.

Entry (i, j) of A_k⁻¹ is of order (π_i π_j)^½ for i ≠ j, and has full digits. So D_k^{-½} A_k⁻¹ D_k^½ = I − K_k B_k is
accurate even for π = 1e-100. Only the diagonal 1 − (A_k⁻¹)_ii loses digits if π_i K_ii is small. Then the variance is
computed as the diagonal of K − (K B) K. For a large K, means and differences between classes have a relative error of
about ε trace(K). Mean and Cov f include the common part of all classes, on which the sites do not depend.

Arrays: `pi`, `nu` (c, n), `inverses` (c, n, n) for the A_k⁻¹, and `p` (n, n) for the Cholesky factor of P. Only the
lower triangles of the matrices are used. Arrays of one class are `prior` (n, n), `pi` (n,), `inverse` (n, n). These
matrices and the scratch array `work` may be in single precision: operations on them take most of the time. All other
arrays are in double precision. `pymc_gpep.gaussians.dense_algebra` combines the classes.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.gaussians.independent import site_roots
from pymc_gpep.kernels.linalg.lapack import (
    add_outer_product,
    cholesky,
    dot,
    multiply_symmetric,
    solve_right_transposed,
    solve_with_cholesky,
)

_TILE = 64  # Number of rows and columns of the square tiles in which a triangle is copied.


@kernel
def factorise_sum(pi, inverses, p):
    """Write the Cholesky factor of P = Σ_k D_k^½ A_k⁻¹ D_k^½ into `p`. Return whether it exists, and log|P|."""
    c, n = pi.shape
    for a in range(c):
        root = site_roots(pi[a])
        inverse = inverses[a]
        for i in range(n):
            for j in range(i + 1):
                entry = root[i] * inverse[i, j] * root[j]
                p[i, j] = entry if a == 0 else p[i, j] + entry
    if not cholesky(p):
        return False, np.nan
    log_det = 0.0
    for i in range(n):
        log_det += 2.0 * math.log(p[i, i])
    return True, log_det


@kernel
def latent_weights(inverses, p, pi, nu, b):
    """Write b = (I − M K) ν into `b` (c, n). The posterior mean of latent values is m + K b.

    Here ν is the location of the sites minus Π m. Since ν sums to zero over classes,

        b_k = C_k ν_k − B_k P⁻¹ Σ_l C_l ν_l,   C_k = I − B_k K_k = D_k^½ A_k⁻¹ D_k^{-½}.
    """
    c, n = pi.shape
    total = np.zeros(n, p.dtype)
    scaled = np.empty(n, p.dtype)
    product = np.empty(n, p.dtype)
    for a in range(c):
        root = site_roots(pi[a])
        for i in range(n):
            scaled[i] = nu[a, i] / root[i]
        multiply_symmetric(inverses[a], scaled, product)
        for i in range(n):
            b[a, i] = product[i] * root[i]
            total[i] += b[a, i]
    shared = solve_with_cholesky(p, total)
    for a in range(c):
        root = site_roots(pi[a])
        for i in range(n):
            scaled[i] = shared[i] * root[i]
        multiply_symmetric(inverses[a], scaled, product)
        for i in range(n):
            b[a, i] -= product[i] * root[i]


@kernel
def _smoother(inverse, root, out):
    """Write K B = I − D^{-½} A⁻¹ D^½ into both triangles of `out` (n, n), from the lower triangle of A⁻¹."""
    n = root.shape[0]
    stretch = 1.0 / root
    for top in range(0, n, _TILE):
        for left in range(0, top + 1, _TILE):
            for i in range(top, min(top + _TILE, n)):
                for j in range(left, min(left + _TILE, i)):
                    out[i, j] = -inverse[i, j] * root[j] * stretch[i]
                    out[j, i] = -inverse[i, j] * root[i] * stretch[j]
    for i in range(n):
        out[i, i] = 1.0 - inverse[i, i]


@kernel
def function_moments(prior, inverse, pi, b, work, mean, cov, a):
    """Write K b of class a into `mean` (n,), and the diagonal of K − K B K into `cov[:, a, a]`.

    Here K is `prior` (n, n), and B = D^½ A⁻¹ D^½. On return, `work` (n, n) is K B.
    """
    n = pi.shape[0]
    multiply_symmetric(prior, b, mean)
    root = site_roots(pi)
    _smoother(inverse, root, work)
    for i in range(n):
        if root[i] * root[i] * prior[i, i] > 1.0:
            cov[i, a, a] = (1.0 - inverse[i, i]) / (root[i] * root[i])
        else:
            cov[i, a, a] = prior[i, i] - dot(work[i], prior[i].astype(work.dtype))


@kernel
def shared_moments(prior, work, cov, low, high):
    """Add the coupling terms K_k B_k P⁻¹ B_l K_l to `cov` (n, c, c), at the points from `low` to `high`.

    `work` (c or c − 1, n, n) is K_k B_k L⁻ᵀ, with P = LLᵀ. If the classes share a prior covariance, `prior` (1, n, n),
    the last class may be omitted. Its terms follow from Σ_k K B_k P⁻¹ B_l K = K B_l K.
    """
    c = cov.shape[1]
    last = work.shape[0]
    rest = np.zeros(c)
    for i in range(low, high):
        for a in range(c):
            rest[a] = prior[0, i, i] - cov[i, a, a]
        for a in range(last):
            for e in range(a):
                shared = dot(work[a, i], work[e, i])
                cov[i, a, e] = shared
                cov[i, e, a] = shared
                rest[a] -= shared
                rest[e] -= shared
            shared = dot(work[a, i], work[a, i])
            cov[i, a, a] += shared
            rest[a] -= shared
        if last < c:
            for e in range(last):
                cov[i, last, e] = rest[e]
                cov[i, e, last] = rest[e]
                rest[last] -= rest[e]
            cov[i, last, last] += rest[last]


@kernel
def add_gradient(inverse, p, pi, b, work, out):
    """Add ½ (b bᵀ − M_kk), the derivative of the log evidence in K_k, to the lower triangle of `out` (n, n)."""
    n = pi.shape[0]
    root = site_roots(pi)
    for top in range(0, n, _TILE):
        for left in range(0, top + 1, _TILE):
            for i in range(top, min(top + _TILE, n)):
                for j in range(left, min(left + _TILE, i + 1)):
                    entry = root[i] * inverse[i, j] * root[j]
                    work[i, j] = entry
                    work[j, i] = entry
                    out[i, j] += 0.5 * (b[i] * b[j] - entry)
    solve_right_transposed(p, work)
    add_outer_product(0.5, work, out)


@kernel
def mirror(matrix):
    """Copy the lower triangle of `matrix` (n, n) into the upper triangle."""
    n = matrix.shape[0]
    for top in range(0, n, _TILE):
        for left in range(0, top + 1, _TILE):
            for i in range(top, min(top + _TILE, n)):
                for j in range(left, min(left + _TILE, i)):
                    matrix[j, i] = matrix[i, j]


@kernel
def add_implicit_gradient(b, v, gradient):
    """Add ½ (v_k b_kᵀ + b_k v_kᵀ) to `gradient` (c, n, n), or the sum over classes to `gradient` (1, n, n).

    If the prior mean m and covariance K change, the mode moves by (I + K W)⁻¹ (dm + dK b) (Rasmussen and Williams 2006,
    equation 5.24). If −½ log|I + K W| has the derivative s in the mode, v = (I + W K)⁻¹ s is its derivative in m.
    """
    c, n = b.shape
    for a in range(c):
        out = gradient[a if gradient.shape[0] > 1 else 0]
        for i in range(n):
            for j in range(n):
                out[i, j] += 0.5 * (v[a, i] * b[a, j] + b[a, i] * v[a, j])
