"""Tilted moments of a softmax by quadrature for class-independent EP.

The moments of the differences g_j = f_y − f_j = (F t)_j come from `pymc_gpep.kernels.moments.softmax_quadrature`, with
the loss of covariance Ω of t. Under an independent cavity of variances v_k the differences have C = diag(v_j) + v_y 11ᵀ
= F Fᵀ. The latent values follow them by Cov(f, g) C⁻¹ F = R, with the rows

    R_y = Σ_j q_j F_j / Σ_k q_k,   R_j = R_y − F_j,   q_k = 1 / v_k,

where the last sum is over all classes. So there are weights, and no inverse. Tilted variances are v_k − R_k Ω R_kᵀ, or
1 / Σ q + R_k (I − Ω) R_kᵀ. The one keeps the digits of what is lost where that is little, the other those of the rest.
"""

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.methods.independent_ep import independent_update
from pymc_gpep.kernels.moments.softmax_quadrature import softmax_moments

_LEAST = 1e-150  # variance that a smaller one is taken for
_HALF = 0.5  # part of a variance that is lost from which on the rest is the more accurate


@inlined_kernel
def _room(c):
    """Scratch arrays for one point."""
    d = c - 1
    return np.empty((3, d)), np.empty((d, d)), np.empty((d, c)), np.empty((c, c))


@kernel
def _tilted(settings, mean, variance, y, old, new, scale):
    """Matched site of one point by quadrature, as `independent_update` wants it."""
    nodes, log_weights, (rows, s, factor, loss) = settings
    m, gradient, weight = rows[0], rows[1], rows[2]
    c = mean.shape[0]
    d = c - 1
    total = 1.0 / max(variance[y], _LEAST)
    for j in range(d):
        k = j + (j >= y)
        m[j] = mean[y] - mean[k]
        weight[j] = 1.0 / max(variance[k], _LEAST)
        total += weight[j]
        for e in range(d):
            s[j, e] = variance[y]
        s[j, j] += variance[k]
    log_z = softmax_moments(m, s, nodes, log_weights, factor, gradient, loss)
    common = np.zeros(c)
    for j in range(d):
        for e in range(c):
            common[e] += weight[j] / total * factor[j, e]
    for k in range(c):
        j = k - (k > y)
        own_variance = max(variance[k], _LEAST)
        lost = 0.0
        rest = 1.0 / total
        rho = 0.0
        for e in range(c):
            own = common[e] if k == y else common[e] - factor[j, e]
            for h in range(c):
                other = common[h] if k == y else common[h] - factor[j, h]
                lost += own * loss[e, h] * other
                rest += own * ((1.0 if e == h else 0.0) - loss[e, h]) * other
        for e in range(d):
            if k == y:
                rho += gradient[e]
            elif e == j:
                rho -= gradient[e]
        lost = max(lost, 0.0) / own_variance
        kept = 1.0 - lost if lost < _HALF else rest / own_variance
        new[0, k] = lost / (own_variance * kept)
        new[1, k] = rho * (1.0 + new[0, k] * variance[k]) + new[0, k] * mean[k]
    return log_z, 0.0


@kernel
def softmax_qiep_update(nodes, log_weights, mean, variance, pi, nu, y, sites, target, scale):
    """New sites of all points, see `independent_update`; `nodes` and `log_weights` are as in `softmax_moments`."""
    settings = (nodes, log_weights, _room(mean.shape[0]))
    return independent_update(_tilted, settings, mean, variance, pi, nu, y, sites, target, scale)


@kernel
def rough_softmax_sites(nodes, log_weights, mean, variance, y, log_z, sites):
    """Compute log normalisers and matched sites of points that have none yet.

    Parameters
    ----------
    nodes, log_weights : arrays
        As in `softmax_moments`.
    mean, variance : (n, c) array
    y : (n,) array
    log_z : (n,) array
        Overwritten.
    sites : (n, 2, c) array
        Overwritten with π and ν.
    """
    n, c = mean.shape
    settings = (nodes, log_weights, _room(c))
    nothing, room = np.zeros((2, c)), np.empty(c)
    for i in range(n):
        log_z[i], _ = _tilted(settings, mean[i], variance[i], y[i], nothing, sites[i], room)
