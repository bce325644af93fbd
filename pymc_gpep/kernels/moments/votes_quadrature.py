"""Moments of N(f | μ, S) p(y | f) for votes y under a softmax, by the differences that it sees of c latent values.

With P = I − 11ᵀ/c, f less its average is Pμ + R z. R is the symmetric root of P S P, and z ~ N(0, I). Along 1
there is nothing. N(z) p(y | z) is log-concave. Nodes z, which sum to zero, are centred and scaled twice, by mode and
curvature, and by mean and covariance, as in `pymc_gpep.kernels.moments.softmax_quadrature`.

Let g = y − N π. Under the tilted distribution the gradient of log Z is E[g]. Minus the Hessian is
E[N (diag π − ππᵀ)] − Cov(g).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.likelihoods.votes import log_ways, point_log_density
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


@inlined_kernel
def _difference_root(cov, root, work, vectors, values):
    """R into `root` (c, c), the symmetric root of P S P."""
    c = cov.shape[0]
    total = 0.0
    for a in range(c):
        values[a] = 0.0
        for e in range(c):
            values[a] += cov[a, e] / c
        total += values[a] / c
    for a in range(c):
        for e in range(c):
            work[a, e] = cov[a, e] - values[a] - values[e] + total
    eigenvectors(work, vectors)
    top = 0.0
    for a in range(c):
        top = max(top, work[a, a])
    for a in range(c):
        values[a] = math.sqrt(work[a, a]) if work[a, a] > RANK * top else 0.0
    from_eigenvectors(values, vectors, root)


@kernel
def _place(z, centre, root, y, f, pi, gradient):
    """f at `z`, softmax and gradient there; returns log p(y | f)."""
    c = z.shape[0]
    for a in range(c):
        f[a] = centre[a]
        for e in range(c):
            f[a] += root[a, e] * z[e]
    return point_log_density(f, y, pi, gradient)


@inlined_kernel
def _mode(centre, root, y, votes, z, hessian):
    """The mode of N(z) p(y | z) into `z` by Newton's method, and minus the Hessian there into `hessian` (c, c)."""
    c = z.shape[0]
    rows = np.empty((4, c))
    f, pi, gradient, trial = rows[0], rows[1], rows[2], rows[3]
    half = np.empty((c, c))
    side = np.empty((c, 1))
    z[:] = 0.0
    value = _place(z, centre, root, y, f, pi, gradient)
    for _ in range(NEWTON):
        # −∇∇ = I + N R (diag π − ππᵀ) R
        for a in range(c):
            average = 0.0
            for e in range(c):
                average += pi[e] * root[a, e]
            for e in range(c):
                half[a, e] = root[a, e] - average
        for a in range(c):
            side[a, 0] = -z[a]
            for e in range(c):
                side[a, 0] += root[a, e] * gradient[e]
            for e in range(a + 1):
                total = 1.0 if a == e else 0.0
                for k in range(c):
                    total += votes * pi[k] * half[a, k] * half[e, k]
                hessian[a, e] = total
                hessian[e, a] = total
        gain = newton_step(hessian, side)
        old = value
        for a in range(c):
            old -= 0.5 * z[a] * z[a]
        length = 1.0
        for _ in range(HALVINGS):
            new = 0.0
            for a in range(c):
                trial[a] = z[a] + length * side[a, 0]
                new -= 0.5 * trial[a] * trial[a]
            value = _place(trial, centre, root, y, f, pi, gradient)
            if rises(old, new + value, length, gain):
                break
            length *= 0.5
        norm = 0.0
        for a in range(c):
            norm = max(norm, abs(trial[a] - z[a]))
            z[a] = trial[a]
        if not norm > CLOSE:
            break


@kernel
def votes_moments(mu, cov, y, nodes, log_weights, root, gradient, loss):
    """Tilted moments of f = μ + R z without its average over classes; returns log Z.

    Parameters
    ----------
    mu, cov : arrays (c,), (c, c)
        Mean μ and covariance S of latent values.
    y : array of int (c,)
        Votes, at least one of them.
    nodes : array (m, c)
        Points z, each with the sum 0.
    log_weights : array (m,)
        Log weights of a rule for N(0, I − 11ᵀ/c).
    root : array (c, c)
        Overwritten with R.
    gradient : array (c,)
        Overwritten with ∇ log Z: tilted means are μ + S ∇ log Z.
    loss : array (c, c)
        Overwritten with what z loses of its covariance, Ω = I − Cov z.
    """
    c = mu.shape[0]
    rows = np.empty((4, c, c))
    scale, vectors, work, curvature = rows[0], rows[1], rows[2], rows[3]
    rows = np.empty((9, c))
    centre, values, at, z, f = rows[0], rows[1], rows[2], rows[3], rows[4]
    pi, slope, shift, mean = rows[5], rows[6], rows[7], rows[8]
    _difference_root(cov, root, work, vectors, values)
    average = 0.0
    votes = 0
    for a in range(c):
        average += mu[a] / c
        votes += y[a]
    for a in range(c):
        centre[a] = mu[a] - average
    _mode(centre, root, y, votes, at, work)
    eigenvectors(work, vectors)
    for a in range(c):
        values[a] = 1.0 / math.sqrt(work[a, a])
    log_z = np.nan
    total = np.nan
    for _ in range(PASSES):
        from_eigenvectors(values, vectors, scale)
        log_det = 0.0
        for a in range(c):
            log_det += math.log(values[a])
        top = -np.inf
        total = 0.0
        gradient[:] = 0.0
        mean[:] = 0.0
        curvature[:] = 0.0
        loss[:] = 0.0
        for i in range(nodes.shape[0]):
            level = log_weights[i]
            for a in range(c):
                shift[a] = 0.0
                for e in range(c):
                    shift[a] += scale[a, e] * nodes[i, e]
                z[a] = at[a] + shift[a]
                level += 0.5 * (nodes[i, a] * nodes[i, a] - z[a] * z[a])
            level += _place(z, centre, root, y, f, pi, slope)
            if level > top:
                shrink = math.exp(top - level)
                total *= shrink
                for a in range(c):
                    gradient[a] *= shrink
                    for e in range(a + 1):
                        curvature[a, e] *= shrink
                rescale(mean, loss, shrink)
                top = level
            weight = math.exp(level - top)
            total += weight
            for a in range(c):
                gradient[a] += weight * slope[a]
                curvature[a, a] += weight * votes * pi[a]
                mean[a] += weight * shift[a]
                for e in range(a + 1):
                    curvature[a, e] -= weight * (votes * pi[a] * pi[e] + slope[a] * slope[e])
                    loss[a, e] += weight * shift[a] * shift[e]
        log_z = top + math.log(total) + log_det + log_ways(y)
        move_nodes(mean, loss, total, at, work, vectors, values)
    small_or_large(root, gradient, curvature, total, loss)
    return log_z


@kernel
def votes_log_normalisers(mean, cov, y, nodes, log_weights, out):
    """log ∫ p(y_i | f) N(f | mean_i, cov_i) df into `out` (n,), of moments (n, c), (n, c, c) and votes (n, c)."""
    n, c = mean.shape
    rows = np.empty((2, c, c))
    root, loss = rows[0], rows[1]
    gradient = np.empty(c)
    for i in range(n):
        votes = 0
        for a in range(c):
            votes += y[i, a]
        out[i] = 0.0
        if votes > 0:
            out[i] = votes_moments(mean[i], cov[i], y[i], nodes, log_weights, root, gradient, loss)
