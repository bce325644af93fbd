"""Moments of N(f | μ, S) p(y | f) for a softmax of labels or votes, by quadrature about the mode.

Each node z has the sum 0. Nodes are centred and scaled twice: by mode and curvature, then by mean and covariance
(Naylor and Smith 1982, for Gauss–Hermite rules). Scales are symmetric roots. So if the set of nodes is invariant to
permutations of classes, results are too.

For labels (`softmax_moments`) the softmax is p = 1 / (1 + Σ_j exp(−g_j)), g_j = f_y − f_j. Let u be the average of the
g_j, q_j = u − g_j, and σ the logistic function. Then p = σ(u − log Σ_j exp q_j). Given q, u is normal. The integral
over u is H(m) of `pymc_gpep.kernels.special.logistic_average`, with m = E[u | q] − log Σ exp q and v = Var(u | q). The
remaining integral has c − 2 dimensions, q = q̄ + R z, z ~ N(0, I − 11ᵀ/d). There N(z) exp H is log-concave and nearly
normal.

The gradient of log Z, and minus the Hessian, are averages over the tilted distribution. With w_j the softmax of q,

    ∇ log Z = E[H′ w],   −∇∇ log Z = E[H′ (diag w − wwᵀ) − H″ wwᵀ] − Cov(H′ w).

If the label is nearly certain, all terms of these averages are small, so no digits cancel. The formulas hold for any
covariance C of the g_j, also for a singular C or C = 0.

For votes (`votes_moments`), with P = I − 11ᵀ/c, f minus its average over classes is Pμ + R z. Here R is the symmetric
root of P S P, and z ~ N(0, I). N(z) p(y | z) is log-concave, and its nodes have no component along 1. Let g = y − N π.
The gradient of log Z is the tilted mean E[g]. Minus the Hessian is E[N (diag π − ππᵀ)] − Cov(g).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.likelihoods.votes import log_ways, point_log_density
from pymc_gpep.kernels.linalg.small_matrices import eigenvectors, from_eigenvectors, lower_factor, solve_with_factor
from pymc_gpep.kernels.special.logistic_average import log_logistic_mixture, mixture_scales


@kernel
def rescale(mean, cov, factor):
    """Multiply weighted sums of points (d,) and of outer products (d, d) by `factor`. The factor 0 clears them."""
    for j in range(mean.shape[0]):
        mean[j] = factor * mean[j] if factor > 0.0 else 0.0
        for i in range(j + 1):
            cov[j, i] = factor * cov[j, i] if factor > 0.0 else 0.0


@kernel
def centre(mean, cov, total):
    """Divide weighted sums of points and of outer products by `total`. Replace them by mean and covariance."""
    for j in range(mean.shape[0]):
        mean[j] /= total
        for i in range(j + 1):
            cov[j, i] = cov[j, i] / total - mean[j] * mean[i]
            cov[i, j] = cov[j, i]


RANK = 1e-14
"""Eigenvalues of a covariance below this share of the largest variance count as 0."""
NEWTON = 100
HALVINGS = 40
CLOSE = 1e-12
"""Newton's method ends after a step below this length, in standard deviations."""
PASSES = 2
_SMALL = 0.3  # If Ω has this trace, `small_or_large` averages its two formulas with equal weights.
_SMALLEST = 1e-300


@kernel
def rises(old, new, length, gain):
    """Return whether a log density increases enough by a step of `length`, if its slope at the start is `gain`."""
    return new >= old + 1e-4 * length * gain - 1e-14 * abs(old)


@kernel
def half_square(z):
    """Return ½ zᵀz."""
    total = 0.0
    for j in range(z.shape[0]):
        total += 0.5 * z[j] * z[j]
    return total


@kernel
def replace(z, new):
    """Copy `new` into `z`. Return the largest absolute change of an element."""
    change = 0.0
    for j in range(z.shape[0]):
        change = max(change, abs(new[j] - z[j]))
        z[j] = new[j]
    return change


@inlined_kernel
def place_node(nodes, i, scale, at, shift, z):
    """Write the scaled node i into `shift` (d,), and z = at + shift; return log N(z | 0, I) − log N(node | 0, I)."""
    change = 0.0
    for j in range(z.shape[0]):
        moved = 0.0
        for k in range(z.shape[0]):
            moved += scale[j, k] * nodes[i, k]
        shift[j] = moved
        z[j] = at[j] + moved
        change += 0.5 * (nodes[i, j] * nodes[i, j] - z[j] * z[j])
    return change


@kernel
def move_nodes(mean, loss, total, at, work, vectors, values):
    """Move the centre `at` (d,) to the mean of weighted nodes, and compute the scale of the next nodes.

    `mean` and `loss` are weighted sums over nodes of z − at and its outer product, with the total weight `total`. They
    are replaced by mean and covariance. No node varies along the vector 1, so 11ᵀ/d adds the variance 1 along it. The
    scale has the eigenvectors `vectors` (d, d) and the eigenvalues `values` (d,).
    """
    d = at.shape[0]
    centre(mean, loss, total)
    for j in range(d):
        at[j] += mean[j]
        for k in range(d):
            loss[j, k] += 1.0 / d
            work[j, k] = loss[j, k]
    eigenvectors(work, vectors)
    for k in range(d):
        values[k] = math.sqrt(max(work[k, k], _SMALLEST))


@kernel
def small_or_large(factor, gradient, curvature, total, loss):
    """Replace the covariance of t in `loss` by Ω = I − Cov t. A small Ω is computed as Fᵀ (−∇∇ log Z) F.

    If Ω is large, I − Cov t is more accurate, since the covariance of a rule is always positive definite. `gradient`
    and `curvature` are sums of weight `total`. They are replaced by ∇ log Z and −∇∇ log Z.
    """
    d, size = factor.shape
    for j in range(d):
        gradient[j] /= total
    for j in range(d):
        for k in range(j + 1):
            curvature[j, k] = curvature[j, k] / total + gradient[j] * gradient[k]
            curvature[k, j] = curvature[j, k]
    half = np.empty((d, size))
    small = np.empty((size, size))
    trace = 0.0
    for j in range(d):
        for k in range(size):
            half[j, k] = 0.0
            for e in range(d):
                half[j, k] += curvature[j, e] * factor[e, k]
    for j in range(size):
        for k in range(size):
            small[j, k] = 0.0
            for e in range(d):
                small[j, k] += factor[e, j] * half[e, k]
        trace += small[j, j]
    part = trace**4 / (trace**4 + _SMALL**4)
    for j in range(size):
        for k in range(size):
            large = (1.0 if j == k else 0.0) - loss[j, k]
            loss[j, k] = small[j, k] + part * (large - small[j, k])


@inlined_kernel
def _separate(mu, c, root, centre, slope, work, vectors, values):
    """Write R and q̄ of q = q̄ + R z, and k of E[u | z] = ū + kᵀz into `slope`. Return ū and Var(u | z)."""
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
        along = 0.0  # Covariance of u with the component of q along the eigenvector.
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
    """Write the softmax of q (d,) into `w`; return log Σ exp q."""
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
    """Write q = centre + R z into `q`, and its softmax into `w`. Return E[u | z] − log Σ exp q."""
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
    """Write the mode of N(z) exp H into `z`, by Newton's method. Write minus the log Hessian into `hessian`."""
    d = z.shape[0]
    rows = np.empty((5, d))
    q, w, step, trial, side = rows[0], rows[1], rows[2], rows[3], rows[4]
    z[:] = 0.0
    m = _place(z, u, centre, slope, root, q, w)
    value, first, second = log_logistic_mixture(m, v, scales)
    for _ in range(NEWTON):
        for j in range(d):
            step[j] = slope[j]
            for k in range(d):
                step[j] -= root[j, k] * w[k]
        # Minus the Hessian: I + H′ R (diag w − wwᵀ) R − H″ (k − R w)(k − R w)ᵀ
        for j in range(d):
            for k in range(j + 1):
                total = 1.0 if j == k else 0.0
                for e in range(d):
                    total += first * w[e] * (root[j, e] - slope[j] + step[j]) * (root[k, e] - slope[k] + step[k])
                total -= second * step[j] * step[k]
                hessian[j, k] = total
                hessian[k, j] = total
        for j in range(d):
            side[j] = first * step[j] - z[j]
        gain = solve_with_factor(lower_factor(hessian), d, side)
        old = value - half_square(z)
        length = 1.0
        for _ in range(HALVINGS):
            for j in range(d):
                trial[j] = z[j] + length * side[j]
            m = _place(trial, u, centre, slope, root, q, w)
            value, first, second = log_logistic_mixture(m, v, scales)
            if rises(old, value - half_square(trial), length, gain):
                break
            length *= 0.5
        if not replace(z, trial) > CLOSE:
            break


@kernel
def softmax_moments(mu, c, nodes, log_weights, factor, gradient, loss):
    """Compute tilted moments of g = μ + F t for a label, with C = F Fᵀ and t ~ N(0, I). Return the log normaliser.

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
        Overwritten with Ω = I − Cov t = −Fᵀ (∇∇ log Z) F, the reduction of the covariance of t.
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
            level = log_weights[i] + place_node(nodes, i, scale, at, t, z)
            value, first, second = log_logistic_mixture(_place(z, u, centre, slope, root, q, w), v, scales)
            level += value
            if level > top:
                shrink = math.exp(top - level)
                total *= shrink
                bend *= shrink
                rescale(gradient, curvature, shrink)
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


@inlined_kernel
def _difference_root(cov, root, work, vectors, values):
    """Write the symmetric root of P S P into `root` (c, c), with S = `cov` and P = I − 11ᵀ/c."""
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
def _place_votes(z, centre, root, y, f, pi, gradient):
    """Write f = centre + R z, its softmax, and the gradient of log p(y | f). Return log p(y | f) up to a constant."""
    c = z.shape[0]
    for a in range(c):
        f[a] = centre[a]
        for e in range(c):
            f[a] += root[a, e] * z[e]
    return point_log_density(f, y, pi, gradient)


@inlined_kernel
def _mode_of_votes(centre, root, y, votes, z, hessian):
    """Write the mode of N(z) p(y | z) into `z`, by Newton's method. Write minus the log Hessian into `hessian`."""
    c = z.shape[0]
    rows = np.empty((5, c))
    f, pi, gradient, trial, side = rows[0], rows[1], rows[2], rows[3], rows[4]
    half = np.empty((c, c))
    z[:] = 0.0
    value = _place_votes(z, centre, root, y, f, pi, gradient)
    for _ in range(NEWTON):
        # Minus the Hessian: I + N R (diag π − ππᵀ) R
        for a in range(c):
            average = 0.0
            for e in range(c):
                average += pi[e] * root[a, e]
            for e in range(c):
                half[a, e] = root[a, e] - average
        for a in range(c):
            side[a] = -z[a]
            for e in range(c):
                side[a] += root[a, e] * gradient[e]
            for e in range(a + 1):
                total = 1.0 if a == e else 0.0
                for k in range(c):
                    total += votes * pi[k] * half[a, k] * half[e, k]
                hessian[a, e] = total
                hessian[e, a] = total
        gain = solve_with_factor(lower_factor(hessian), c, side)
        old = value - half_square(z)
        length = 1.0
        for _ in range(HALVINGS):
            for a in range(c):
                trial[a] = z[a] + length * side[a]
            value = _place_votes(trial, centre, root, y, f, pi, gradient)
            if rises(old, value - half_square(trial), length, gain):
                break
            length *= 0.5
        if not replace(z, trial) > CLOSE:
            break


@kernel
def votes_moments(mu, cov, y, nodes, log_weights, root, gradient, loss):
    """Compute tilted moments of f minus its average over classes, Pμ + R z, for votes. Return the log normaliser.

    Parameters
    ----------
    mu, cov : arrays (c,), (c, c)
        Mean μ and covariance S of latent values.
    y : array of int (c,)
        Votes of each class; the sum is at least 1.
    nodes : array (m, c)
        Points z, each with the sum 0.
    log_weights : array (m,)
        Log weights of a rule for N(0, I − 11ᵀ/c).
    root : array (c, c)
        Overwritten with R.
    gradient : array (c,)
        Overwritten with ∇ log Z: tilted means are μ + S ∇ log Z.
    loss : array (c, c)
        Overwritten with Ω = I − Cov z, the reduction of the covariance of z.
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
    _mode_of_votes(centre, root, y, votes, at, work)
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
            level = log_weights[i] + place_node(nodes, i, scale, at, shift, z)
            level += _place_votes(z, centre, root, y, f, pi, slope)
            if level > top:
                shrink = math.exp(top - level)
                total *= shrink
                rescale(gradient, curvature, shrink)
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
    """Write log ∫ p(y_i | f) N(f | mean_i, cov_i) df into `out` (n,), for moments (n, c), (n, c, c), votes (n, c)."""
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
