"""Gaussian posterior of c latent functions under sites with full c × c precisions W_i, in O((cn)³).

Point i has the precision W_i. Its rows sum to 0, so W_i = R_i R_iᵀ with R_i (c, c − 1). W and R are block diagonal
matrices of the W_i and R_i, and K is the prior covariance. The matrix B = I + Rᵀ K R = L Lᵀ is factorised:

    M = W (I + K W)⁻¹ = G Gᵀ,  G = R L⁻ᵀ,  Cov f = K − K M K,  log|I + K W| = log|B|.

(Rasmussen and Williams 2006, section 3.4.3). Arrays: `k` (1 or c, n, n) is K, `roots` (n, c, c − 1) the R_i, `lower`
(N, N) is L with N = n(c − 1). The posterior mean is m + K b with `b` (c, n). G and K G are (c, n, N).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import (
    add_outer_product,
    cholesky,
    dot,
    solve_right_transposed,
    solve_with_cholesky,
)


@kernel
def block_roots(precision, roots):
    """Write roots R_i with R_i R_iᵀ = W_i into `roots`. `precision` (n, c, c) contains the W_i; their rows sum to 0."""
    n, c, _ = precision.shape
    roots[:] = 0.0
    for i in range(n):
        for q in range(c - 1):
            pivot = precision[i, q, q]
            for p in range(q):
                pivot -= roots[i, q, p] ** 2
            if pivot > 0.0:
                root = math.sqrt(pivot)
                roots[i, q, q] = root
                for a in range(q + 1, c - 1):
                    entry = precision[i, a, q]
                    for p in range(q):
                        entry -= roots[i, a, p] * roots[i, q, p]
                    roots[i, a, q] = entry / root
            for a in range(c - 1):
                roots[i, c - 1, q] -= roots[i, a, q]


@kernel
def factorise_blocks(k, roots, lower):
    """Write the Cholesky factor of B = I + Rᵀ K R into `lower`. Return whether B is positive definite, and log|B|."""
    n, c, rank = roots.shape
    for i in range(n):
        for j in range(i + 1):
            for p in range(rank):
                for q in range(rank):
                    total = 0.0
                    for a in range(c):
                        total += roots[i, a, p] * k[a if k.shape[0] > 1 else 0, i, j] * roots[j, a, q]
                    lower[i * rank + p, j * rank + q] = total
        for p in range(rank):
            lower[i * rank + p, i * rank + p] += 1.0
    if not cholesky(lower):
        return False, np.nan
    log_det = 0.0
    for i in range(n * rank):
        log_det += 2.0 * math.log(lower[i, i])
    return True, log_det


@kernel
def project(k, roots, lower, r, image, out):
    """Write (I + W K)⁻¹ r = r − R B⁻¹ Rᵀ K r into `out` (c, n). `image` (c, n) contains K r."""
    n, c, rank = roots.shape
    inner = np.zeros(n * rank)
    for i in range(n):
        for p in range(rank):
            for a in range(c):
                inner[i * rank + p] += roots[i, a, p] * image[a, i]
    inner = solve_with_cholesky(lower, inner)
    for a in range(c):
        for i in range(n):
            out[a, i] = r[a, i]
            for p in range(rank):
                out[a, i] -= roots[i, a, p] * inner[i * rank + p]


@kernel
def smooth_blocks(k, roots, lower, smooth):
    """Write K G = K R L⁻ᵀ into `smooth` (c, n, N), where L is the factor in `lower`."""
    n, c, rank = roots.shape
    for a in range(c):
        for i in range(n):
            for j in range(n):
                for p in range(rank):
                    smooth[a, i, j * rank + p] = k[a if k.shape[0] > 1 else 0, i, j] * roots[j, a, p]
        solve_right_transposed(lower, smooth[a])


@kernel
def block_marginals(k, smooth, cov):
    """Write posterior covariances of the classes at each point into `cov` (n, c, c). `smooth` contains K G."""
    n, c, _ = cov.shape
    for i in range(n):
        for a in range(c):
            for e in range(a + 1):
                shared = -dot(smooth[a, i], smooth[e, i])
                if e == a:
                    shared += k[a if k.shape[0] > 1 else 0, i, i]
                cov[i, a, e] = shared
                cov[i, e, a] = shared


@kernel
def block_gradient(roots, lower, b, work, gradient):
    """Write the derivative of the log evidence in K_k, ½ (b_k b_kᵀ − M_kk), into `gradient` (c, n, n).

    A `gradient` (1, n, n) receives the sum over classes k. `work` (n, N) is scratch space.
    """
    n, c, rank = roots.shape
    gradient[:] = 0.0
    for a in range(c):
        out = gradient[a if gradient.shape[0] > 1 else 0]
        work[:] = 0.0
        for i in range(n):
            for p in range(rank):
                work[i, i * rank + p] = roots[i, a, p]
        solve_right_transposed(lower, work)
        for i in range(n):
            for j in range(i + 1):
                out[i, j] += 0.5 * b[a, i] * b[a, j]
        add_outer_product(-0.5, work, out)
    for a in range(gradient.shape[0]):
        for i in range(n):
            for j in range(i):
                gradient[a, j, i] = gradient[a, i, j]
