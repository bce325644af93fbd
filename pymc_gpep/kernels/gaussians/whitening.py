"""Map from independent standard normals z to latent values f with a coupled Gaussian posterior.

Let t_i be a level common to the classes of point i. The integral of exp(−½ Σ_k π_ik (f_ik − t_i)²) over t_i is a site
of precision Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i. Therefore z has a vector z₀ for the levels, and two vectors for each
class: w for a draw of the prior, and noise e. Matheron's rule computes a posterior draw from z. With A_k and P of the
module `coupled`, D_k = diag(π_k), L_k L_kᵀ = K_k, C Cᵀ = P and posterior means t̂ and f̂,

    t = t̂ + C⁻ᵀ z₀,   f_k = f̂_k + L_k w_k + K_k D_k^½ A_k⁻¹ (D_k^½ (t − t̂ − L_k w_k) − e_k).

Only the A_k and P are factorised. In the inverse direction the part of z that f does not determine is drawn. The level
t given f is N(Σ_k π_ik f_ik / 1ᵀπ_i, 1 / 1ᵀπ_i). If w and e lead to f − δ, then w + L⁻¹δ and e − D^½δ lead to f.

Arrays: `roots` (1 or c, n, n) are the L_k, `inverses` (c, n, n) the A_k⁻¹ and `p` (n, n) is C, in their lower
triangles. Array `z` is (2c + 1, n): levels, w of each class, e of each class. All other arrays are (c, n).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.lapack import multiply_symmetric, multiply_triangular, solve_triangular


@kernel
def _level(pi, f, i):
    """Return the sum over classes of the precisions of point i, and the mean of f_i weighted by them."""
    total = 0.0
    weighted = 0.0
    for a in range(f.shape[0]):
        total += pi[a, i]
        weighted += pi[a, i] * f[a, i]
    return total, weighted / total


@kernel
def _posterior_draw(prior, root, inverse, pi, level, w, e, work, f):
    """Write latent values of one class minus their posterior mean into `f`, from normals `w` and `e` and `level`."""
    n = f.shape[0]
    for i in range(n):
        f[i] = w[i]
    multiply_triangular(root, f, False)
    for i in range(n):
        work[0, i] = math.sqrt(pi[i]) * (level[i] - f[i]) - e[i]
    multiply_symmetric(inverse, work[0], work[1])
    for i in range(n):
        work[0, i] = math.sqrt(pi[i]) * work[1, i]
    multiply_symmetric(prior, work[0], work[1])
    for i in range(n):
        f[i] += work[1, i]


@kernel
def colour(k, roots, pi, inverses, p, z, f):
    """Write latent values minus their posterior means into `f`, computed from standard normals `z`."""
    c, n = f.shape
    level = z[0].copy()
    solve_triangular(p, level, True)
    work = np.empty((2, n))
    for a in range(c):
        own = a if k.shape[0] > 1 else 0
        _posterior_draw(k[own], roots[own], inverses[a], pi[a], level, z[1 + a], z[1 + c + a], work, f[a])


@kernel
def colour_transposed(k, roots, pi, inverses, p, slope, z):
    """Write derivatives with respect to z into `z`, given derivatives `slope` (c, n) with respect to f."""
    c, n = slope.shape
    z[0] = 0.0
    work = np.empty((2, n))
    for a in range(c):
        own = a if k.shape[0] > 1 else 0
        of_w, of_e = z[1 + a], z[1 + c + a]
        multiply_symmetric(k[own], slope[a], work[0])
        for i in range(n):
            work[1, i] = math.sqrt(pi[a, i]) * work[0, i]
        multiply_symmetric(inverses[a], work[1], of_e)
        for i in range(n):
            of_level = math.sqrt(pi[a, i]) * of_e[i]
            z[0, i] += of_level
            of_w[i] = slope[a, i] - of_level
            of_e[i] = -of_e[i]
        multiply_triangular(roots[own], of_w, True)
    solve_triangular(p, z[0], False)


@kernel
def whiten(k, roots, pi, inverses, p, f, z):
    """Replace standard normals in `z` by a draw of z given `f`, latent values minus their posterior means."""
    c, n = f.shape
    for i in range(n):
        total, level = _level(pi, f, i)
        z[0, i] = level + z[0, i] / math.sqrt(total)
    work = np.empty((2, n))
    drawn = np.empty(n)
    for a in range(c):
        own = a if k.shape[0] > 1 else 0
        w, e = z[1 + a], z[1 + c + a]
        _posterior_draw(k[own], roots[own], inverses[a], pi[a], z[0], w, e, work, drawn)
        for i in range(n):
            drawn[i] = f[a, i] - drawn[i]
            e[i] -= math.sqrt(pi[a, i]) * drawn[i]
        solve_triangular(roots[own], drawn, False)
        for i in range(n):
            w[i] += drawn[i]
    multiply_triangular(p, z[0], True)
