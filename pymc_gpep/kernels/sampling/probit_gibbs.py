"""Latent values given utilities, in Gibbs sampling of augmented probits (Girolami and Rogers 2006, appendix D).

The utilities are v_k = f_k + noise of variance 1. The label of a point is a function of them: the class of the largest,
or of one alone its sign. Given f they are independent between points (`cone`, `sign`); given v the latent values of
each class are Gaussian,

    f_k = m_k + G_k (v_k − m_k) + noise of covariance G_k,   G_k = K_k S_k = I − S_k,   S_k = (K_k + I)⁻¹.

They are drawn without a factor of G_k, which is nearly singular where K_k is. For prior draws f⁰ of the latent values
and v⁰ = f⁰ + noise of the utilities, with d_k = v_k − m_k − v⁰_k,

    f_k = m_k + f⁰_k + G_k d_k

has that distribution.

The class of the largest utility says nothing about the part that all utilities of a point have in common. Alternating
between f and v would move that part by small steps only. With f integrated out, the shift s of all utilities of a point
has the density ∏_k N(v_k + s; m_k, K_k + I). A draw of it is s = −(Σ_k S_k)⁻¹ Σ_k S_k d_k. If all classes have one
covariance, s is minus the mean of d_k over them. The same d_k may then serve to draw f given the shifted v. The part of
f⁰ that is left to chance is independent of v⁰.
"""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import (
    cholesky,
    copy_into,
    inverse_from_cholesky,
    multiply_symmetric,
    multiply_triangular,
    solve_with_cholesky,
)


@kernel
def utility_precisions(k, precisions, total):
    """Compute the matrices that `draw_latent_values` needs; return False if a covariance is far from positive definite.

    Parameters
    ----------
    k : ndarray, shape (1 or c, n, n)
    precisions : ndarray, shape of k
        S_k = (K_k + I)⁻¹ into the lower triangles.
    total : ndarray, shape (n, n)
        The Cholesky factor of Σ_k S_k into the lower triangle; left alone if all classes have one covariance.
    """
    n = k.shape[1]
    copy_into(precisions, k)
    definite = True
    for a in range(k.shape[0]):
        for i in range(n):
            precisions[a, i, i] += 1.0
        definite = definite and cholesky(precisions[a]) and inverse_from_cholesky(precisions[a])
    if definite and k.shape[0] > 1:
        for i in range(n):
            for j in range(i + 1):
                total[i, j] = 0.0
                for s in precisions:
                    total[i, j] += s[i, j]
        definite = cholesky(total)
    return definite


@kernel
def _common_shift(d, precisions, total):
    """(Σ_k S_k)⁻¹ Σ_k S_k d_k, shape (n,)."""
    c, n = d.shape
    shift = np.zeros(n)
    if precisions.shape[0] == 1:
        for a in range(c):
            for i in range(n):
                shift[i] += d[a, i] / c
        return shift
    product = np.empty(n)
    for a in range(c):
        multiply_symmetric(precisions[a], d[a], product)
        for i in range(n):
            shift[i] += product[i]
    return solve_with_cholesky(total, shift)


@kernel
def draw_latent_values(rng, mean, roots, precisions, total, shifted, f, v):
    """Draw latent values given utilities, after shifting the utilities of every point if these may be.

    Parameters
    ----------
    rng : numpy.random.Generator
    mean : ndarray, shape (c, n)
        Prior mean m.
    roots : ndarray, shape (1 or c, n, n)
        Cholesky factors of the prior covariances.
    precisions, total : ndarray
        As `utility_precisions` leaves them.
    shifted : bool
        Whether labels say nothing about what the utilities of a point have in common, so that it is drawn anew.
    f : ndarray, shape (c, n)
        The draw is put here.
    v : ndarray, shape (c, n)
        Utilities; a shift is in place.
    """
    c, n = v.shape
    d = np.empty((c, n))
    for a in range(c):
        for i in range(n):
            f[a, i] = rng.standard_normal()
        multiply_triangular(roots[a if roots.shape[0] > 1 else 0], f[a], False)
        for i in range(n):
            d[a, i] = v[a, i] - mean[a, i] - f[a, i] - rng.standard_normal()
    shift = _common_shift(d, precisions, total) if shifted else np.zeros(n)
    product = np.empty(n)
    for a in range(c):
        for i in range(n):
            d[a, i] -= shift[i]
            v[a, i] -= shift[i]
        multiply_symmetric(precisions[a if precisions.shape[0] > 1 else 0], d[a], product)
        for i in range(n):
            f[a, i] += mean[a, i] + d[a, i] - product[i]
