"""How a coupled posterior grows by one point, seen from many others (Seeger and Jordan 2004, section 4.2).

The l points included have B_k = L_k⁻¹ D_k^½, A_k = L_k L_kᵀ, and H = Σ_k B_kᵀ B_k = L Lᵀ. Another point j has the stubs
m_k = B_k K_k,j and q_k = L⁻¹ B_kᵀ m_k. The posterior covariance of its functions is diag(K_k,jj − m_kᵀm_k) + q_kᵀq_l.
A new point appends a row b_k to each B_k, so that H gets Σ b_k b_kᵀ. Rotations bring L up to date, and the q along with
it. The moments change by the rest that rotations leave of each row.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel


@kernel
def append_coupled(size, lower, weights, stubs, new, rows, own, new_weights, mean, cov):
    """Include one more point after `size` others: bring `lower`, `weights`, `stubs` and the moments up to date.

    Parameters
    ----------
    size : int
    lower : (d, d) array
        Cholesky factor L.
    weights : (d,) array
        L⁻¹ Σ B_kᵀ β_k, β_k = L_k⁻¹ D_k^{-½} ν_k.
    stubs : (c, d, p) array
        Stubs q of p points.
    new : (c, p) array
        Entries that the m of these points get.
    rows : (c, d) array
        Row that B_k gets, but for its last entry; overwritten.
    own : (c,) array
        Last entry of that row.
    new_weights : (c,) array
        Entries that the β_k get.
    mean : (c, p) array
        Means of p points.
    cov : (p, c, c) array
        Covariances of p points.
    """
    c, p = new.shape
    last = np.zeros(size)
    corner = 0.0
    location = 0.0
    for k in range(c):
        corner += own[k] * own[k]
        location += own[k] * new_weights[k]
        for i in range(size):
            last[i] += own[k] * rows[k, i]
    left = np.empty((c, p))
    for k in range(c):
        of_weights = new_weights[k]
        row = rows[k]
        for a in range(c):
            for j in range(p):
                left[a, j] = new[k, j] if a == k else 0.0
        for i in range(size):
            r = math.hypot(lower[i, i], row[i])
            cosine = lower[i, i] / r
            sine = row[i] / r
            lower[i, i] = r
            for e in range(i + 1, size):
                old = lower[e, i]
                lower[e, i] = cosine * old + sine * row[e]
                row[e] = cosine * row[e] - sine * old
            old = weights[i]
            weights[i] = cosine * old + sine * of_weights
            of_weights = cosine * of_weights - sine * old
            for a in range(c):
                stub = stubs[a, i]
                rest = left[a]
                for j in range(p):
                    old = stub[j]
                    stub[j] = cosine * old + sine * rest[j]
                    rest[j] = cosine * rest[j] - sine * old
        for a in range(c):
            for j in range(p):
                mean[a, j] += left[a, j] * of_weights
                for e in range(a + 1):
                    change = left[a, j] * left[e, j]
                    cov[j, a, e] -= change
                    if e < a:
                        cov[j, e, a] -= change
    # The new row of L, and what the stubs have for it.
    for i in range(size):
        for e in range(i):
            last[i] -= lower[i, e] * last[e]
        last[i] /= lower[i, i]
        corner -= last[i] * last[i]
        location -= last[i] * weights[i]
        lower[size, i] = last[i]
    root = math.sqrt(corner)
    lower[size, size] = root
    weights[size] = location / root
    for a in range(c):
        stub = stubs[a, size]
        for j in range(p):
            stub[j] = own[a] * new[a, j]
        for i in range(size):
            factor = last[i]
            earlier = stubs[a, i]
            for j in range(p):
                stub[j] -= factor * earlier[j]
        for j in range(p):
            stub[j] /= root
            mean[a, j] -= stub[j] * weights[size]
    for j in range(p):
        for a in range(c):
            for e in range(c):
                cov[j, a, e] += stubs[a, size, j] * stubs[e, size, j]
