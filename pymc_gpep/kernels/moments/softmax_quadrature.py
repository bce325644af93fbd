"""Moments of N(g | μ, C) p(y | g) for a softmax in d = c − 1 dimensions.

The softmax is p = 1 / (1 + Σ_j exp(−g_j)), g_j = f_y − f_j. With u the average of the g_j and q_j = u − g_j,
p = σ(u − log Σ_j exp q_j). Given q, u is normal. The integral over it is one of
`pymc_gpep.kernels.special.logistic_mixture`, H(m) with m = E[u | q] − log Σ exp q and v = Var(u | q). That leaves
c − 2 dimensions, q = q̄ + R z, z ~ N(0, I − 11ᵀ/d). In these N(z) exp H is log-concave, smooth, and nearly normal.
Nodes z, which sum to zero, are centred and scaled twice: by mode and curvature, and by mean and covariance
(Naylor and Smith 1982 do so with Gauss–Hermite rules). R and the scales are symmetric roots: where the set of nodes is
the same in any order of the classes, so are the moments.

The gradient of log Z, and minus the Hessian, are averages over the tilted distribution. With w_j the softmax of q,

    ∇ log Z = E[H′ w],   −∇∇ log Z = E[H′ (diag w − wwᵀ) − H″ wwᵀ] − Cov(H′ w):

sums of what is small where the label is all but certain, and exact for every C, singular or zero.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.linalg.symmetric_root import eigenvectors, from_eigenvectors
from pymc_gpep.kernels.moments.centred_nodes import (
    CLOSE,
    HALVINGS,
    NEWTON,
    PASSES,
    RANK,
    move_nodes,
    newton_step,
    rises,
    small_or_large,
)
from pymc_gpep.kernels.moments.weighted_moments import rescale
from pymc_gpep.kernels.special.logistic_mixture import log_logistic_mixture, mixture_scales


@inlined_kernel
def _separate(mu, c, root, centre, slope, work, vectors, values):
    """R into `root`, q̄ into `centre` and k into `slope`, with E[u | z] = ū + kᵀz. Returns ū and Var(u | z)."""
    d = mu.shape[0]
    u = 0.0
    total = 0.0
    for j in range(d):
        u += mu[j] / d
        row = 0.0
        for k in range(d):
            row += c[j, k] / d
        slope[j] = row
        total += row / d
    scale = 0.0
    for j in range(d):
        centre[j] = u - mu[j]
        scale = max(scale, c[j, j])
        for k in range(d):
            work[j, k] = c[j, k] - slope[j] - slope[k] + total
    eigenvectors(work, vectors)
    rest = total
    for k in range(d):
        values[k] = work[k, k] if work[k, k] > RANK * scale else 0.0
        along = 0.0  # covariance of u with the eigenvector's part of q
        if values[k] > 0.0:
            for j in range(d):
                along += vectors[j, k] * (total - slope[j])
            values[k] = math.sqrt(values[k])
            along /= values[k]
            rest -= along * along
        work[0, k] = along
    from_eigenvectors(values, vectors, root)
    for j in range(d):
        slope[j] = 0.0
        for k in range(d):
            slope[j] += vectors[j, k] * work[0, k]
    return u, max(rest, 0.0)


@kernel
def _softmax(q, w):
    """The softmax of q (d,) into `w`; returns log Σ exp q."""
    top = -np.inf
    for j in range(q.shape[0]):
        top = max(top, q[j])
    total = 0.0
    for j in range(q.shape[0]):
        w[j] = math.exp(q[j] - top)
        total += w[j]
    for j in range(q.shape[0]):
        w[j] /= total
    return top + math.log(total)


@kernel
def _place(z, u, centre, slope, root, q, w):
    """q at `z` and its softmax into `q` and `w`; returns m = E[u | z] − log Σ exp q."""
    d = z.shape[0]
    m = u
    for j in range(d):
        m += slope[j] * z[j]
        q[j] = centre[j]
        for k in range(d):
            q[j] += root[j, k] * z[k]
    return m - _softmax(q, w)


@inlined_kernel
def _mode(u, v, scales, centre, slope, root, z, hessian):
    """The mode of N(z) exp H into `z` by Newton's method, and minus the Hessian there into `hessian` (d, d)."""
    d = z.shape[0]
    rows = np.empty((4, d))
    q, w, step, trial = rows[0], rows[1], rows[2], rows[3]
    side = np.empty((d, 1))
    z[:] = 0.0
    m = _place(z, u, centre, slope, root, q, w)
    value, first, second = log_logistic_mixture(m, v, scales)
    for _ in range(NEWTON):
        for j in range(d):
            step[j] = slope[j]
            for k in range(d):
                step[j] -= root[j, k] * w[k]
        # −∇∇ = I + H′ R (diag w − wwᵀ) R − H″ (k − R w)(k − R w)ᵀ
        for j in range(d):
            for k in range(j + 1):
                total = 1.0 if j == k else 0.0
                for e in range(d):
                    total += first * w[e] * (root[j, e] - slope[j] + step[j]) * (root[k, e] - slope[k] + step[k])
                total -= second * step[j] * step[k]
                hessian[j, k] = total
                hessian[k, j] = total
        for j in range(d):
            side[j, 0] = first * step[j] - z[j]
        gain = newton_step(hessian, side)
        old = value
        norm = 0.0
        for j in range(d):
            old -= 0.5 * z[j] * z[j]
        length = 1.0
        for _ in range(HALVINGS):
            new = 0.0
            for j in range(d):
                trial[j] = z[j] + length * side[j, 0]
                new -= 0.5 * trial[j] * trial[j]
            m = _place(trial, u, centre, slope, root, q, w)
            value, first, second = log_logistic_mixture(m, v, scales)
            if rises(old, new + value, length, gain):
                break
            length *= 0.5
        for j in range(d):
            norm = max(norm, abs(trial[j] - z[j]))
            z[j] = trial[j]
        if not norm > CLOSE:
            break


@kernel
def softmax_moments(mu, c, nodes, log_weights, factor, gradient, loss):
    """Tilted moments of g = μ + F t, C = F Fᵀ, t ~ N(0, I) in c dimensions; returns log Z.

    Parameters
    ----------
    mu, c : arrays (d,), (d, d)
        Mean μ and covariance C of the differences.
    nodes : array (N, d)
        Points z, each with the sum 0.
    log_weights : array (N,)
        Log weights of a rule for N(0, I − 11ᵀ/d).
    factor : array (d, d + 1)
        Overwritten with F.
    gradient : array (d,)
        Overwritten with ∇ log Z: tilted means are μ + C ∇ log Z.
    loss : array (d + 1, d + 1)
        Overwritten with the loss of covariance of t, Ω = I − Cov t = −Fᵀ (∇∇ log Z) F.
    """
    d = mu.shape[0]
    rows = np.empty((4, d, d))
    root, scale, vectors, work = rows[0], rows[1], rows[2], rows[3]
    rows = np.empty((7, d))
    centre, slope, values, at, q, w, z = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6]
    u, v = _separate(mu, c, root, centre, slope, work, vectors, values)
    scales = mixture_scales(v)
    sd = math.sqrt(v)
    _mode(u, v, scales, centre, slope, root, at, work)
    eigenvectors(work, vectors)
    for k in range(d):
        values[k] = 1.0 / math.sqrt(work[k, k])
    curvature = np.empty((d, d))
    rows = np.empty((2, d + 1))
    mean, t = rows[0], rows[1]
    log_z = np.nan
    total = np.nan
    for number in range(PASSES):
        from_eigenvectors(values, vectors, scale)
        log_det = 0.0
        for k in range(d):
            log_det += math.log(values[k])
        top = -np.inf
        total = 0.0
        bend = 0.0
        gradient[:] = 0.0
        mean[:] = 0.0
        curvature[:] = 0.0
        loss[:] = 0.0
        for i in range(nodes.shape[0]):
            level = log_weights[i]
            for j in range(d):
                z[j] = at[j]
                for k in range(d):
                    z[j] += scale[j, k] * nodes[i, k]
                t[j] = z[j] - at[j]
                level += 0.5 * (nodes[i, j] * nodes[i, j] - z[j] * z[j])
            value, first, second = log_logistic_mixture(_place(z, u, centre, slope, root, q, w), v, scales)
            level += value
            if level > top:
                shrink = math.exp(top - level)
                total *= shrink
                bend *= shrink
                for j in range(d):
                    gradient[j] *= shrink
                    for k in range(j + 1):
                        curvature[j, k] *= shrink
                rescale(mean, loss, shrink)
                top = level
            weight = math.exp(level - top)
            total += weight
            bend += weight * second
            t[d] = sd * first
            product = second + first * (1.0 + first)
            for j in range(d):
                gradient[j] += weight * first * w[j]
                curvature[j, j] += weight * first * w[j]
                for k in range(j + 1):
                    curvature[j, k] -= weight * product * w[j] * w[k]
            for j in range(d + 1):
                mean[j] += weight * t[j]
                for k in range(j + 1):
                    loss[j, k] += weight * t[j] * t[k]
        log_z = top + math.log(total) + log_det
        move_nodes(mean, loss, total, at, work, vectors, values)
        loss[d, d] += 1.0 + v * bend / total
    for j in range(d):
        factor[j, d] = sd
        for k in range(d):
            factor[j, k] = slope[k] - root[j, k]
    small_or_large(factor, gradient, curvature, total, loss)
    return log_z
