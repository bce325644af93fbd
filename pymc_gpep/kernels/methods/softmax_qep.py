"""Coupled sites of EP for a softmax of labels or votes, by constrained projection (Seeger and Jordan 2004).

Each point has the site exp(νᵀf − fᵀΠf/2) with Π = diag π − ππᵀ/1ᵀπ. Arrays `sites` (2, n, c) contain π and ν. The sites
match tilted means, and approximate tilted covariances. For a point with N votes, π sums to about N over classes.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.linalg.small_matrices import eigenvectors, from_eigenvectors, lower_factor, solve_lower
from pymc_gpep.kernels.moments.coupled_projection import difference_precision, project_site
from pymc_gpep.kernels.moments.inner_ep import label_differences
from pymc_gpep.kernels.moments.softmax_quadrature import softmax_moments, votes_moments

LEAST = -200.0
"""Smaller logarithms of π of a site are replaced by this number."""


@kernel
def softmax_sites(sites, pi, nu):
    """Copy π and ν from `sites` (2, n, c) into `pi` and `nu` (c, n).

    If all π of a point are 0, they are set to 1/c, the value at f = 0, since π must be positive.
    """
    _, n, c = sites.shape
    for i in range(n):
        total = 0.0
        for a in range(c):
            total += sites[0, i, a]
        for a in range(c):
            pi[a, i] = sites[0, i, a] if total > 0.0 else 1.0 / c
            nu[a, i] = sites[1, i, a]


@inlined_kernel
def cavity(s, precision, location, m):
    """Remove the site of a point from moments `m` (d,) and `s` (d, d) of differences. `s` may be singular.

    Return the log normaliser of the site under the resulting cavity distribution.
    """
    d = m.shape[0]
    rows = np.empty((4, d, d))
    work, vectors, root, half = rows[0], rows[1], rows[2], rows[3]
    rows = np.empty((2, d))
    values, pull = rows[0], rows[1]
    for j in range(d):
        for k in range(d):
            work[j, k] = s[j, k]
    eigenvectors(work, vectors)
    for k in range(d):
        values[k] = math.sqrt(max(work[k, k], 0.0))
    from_eigenvectors(values, vectors, root)
    # With S = R R the cavity has covariance R (I − R Π R)⁻¹ R.
    log_z = 0.0
    for j in range(d):
        pull[j] = -location[j]
        for k in range(d):
            pull[j] += precision[j, k] * m[k]
            half[j, k] = 0.0
            for e in range(d):
                half[j, k] += precision[j, e] * root[e, k]
        log_z += 0.5 * m[j] * (location[j] - pull[j])
    for j in range(d):
        for k in range(d):
            total = 1.0 if j == k else 0.0
            for e in range(d):
                total -= root[j, e] * half[e, k]
            work[j, k] = total
    lower = lower_factor(work)
    solve_lower(lower, root)
    for j in range(d):
        log_z += math.log(lower[j, j])
        for k in range(d):
            s[j, k] = 0.0
            for e in range(d):
                s[j, k] += root[e, j] * root[e, k]
    for j in range(d):
        shift = 0.0
        for k in range(d):
            shift += s[j, k] * pull[k]
        log_z -= 0.5 * pull[j] * shift
        values[j] = shift
    for j in range(d):
        m[j] += values[j]
    return log_z


@kernel
def log_curvature(m, label, votes, log_pi):
    """Write log(votes · softmax) of a point into `log_pi` (c,). `m` (c − 1,) are differences to the class `label`."""
    d = m.shape[0]
    top = 0.0
    for j in range(d):
        top = max(top, -m[j])
    level = math.exp(-top)
    for j in range(d):
        level += math.exp(-m[j] - top)
    level = top + math.log(level) - math.log(votes)
    log_pi[label] = -level
    for j in range(d):
        log_pi[j + (j >= label)] = max(-m[j] - level, LEAST)


@kernel
def _contrast_variances(cov, weights, out):
    """Write variances of f_a − Σ_e w_e f_e into `out` (c,), for w = `weights` (c,) with the sum 1."""
    c = weights.shape[0]
    average = 0.0
    for a in range(c):
        out[a] = 0.0
        for e in range(c):
            out[a] += weights[e] * cov[a, e]
        average += weights[a] * out[a]
    for a in range(c):
        out[a] = max(cov[a, a] - 2.0 * out[a] + average, 0.0)


@kernel
def new_site(sites, target, cov, label, log_pi, m, gradient, scale):
    """Write a site of one point into `target` (2, c), with π = exp(`log_pi`) (c,).

    `m` (c − 1,) are tilted means of differences to the class `label`; `gradient` (c − 1,) is ∇ log Z in cavity means.
    `sites` (2, c) is the present site, `cov` (c, c) the posterior covariance. Variances of contrasts are written into
    `scale`. Return the largest change of the site in units of its marginal.
    """
    c = log_pi.shape[0]
    rows = np.empty((2, c))
    own, weights = rows[0], rows[1]
    precision = np.empty((c - 1, c - 1))
    total = 0.0
    for a in range(c):
        own[a] = sites[0, a]
        total += own[a]
    for a in range(c):
        own[a] = own[a] if total > 0.0 else 1.0 / c
        weights[a] = own[a] / total if total > 0.0 else 1.0 / c
    _contrast_variances(cov, weights, scale)
    residual = 0.0
    for a in range(c):
        target[0, a] = math.exp(log_pi[a])
        residual = max(residual, abs(target[0, a] - own[a]) * scale[a])
        own[a] = target[0, a]
    difference_precision(own, label, precision)
    target[1, label] = 0.0
    for j in range(c - 1):
        value = gradient[j]
        for k in range(c - 1):
            value += precision[j, k] * m[k]
        target[1, j + (j >= label)] = -value
        target[1, label] += value
    for a in range(c):
        residual = max(residual, abs(target[1, a] - sites[1, a]) * math.sqrt(scale[a]))
    return residual if math.isfinite(residual) else np.nan


@kernel
def _votes_of_differences(m, s, y, label, nodes, log_weights, factor, gradient, loss):
    """Compute `votes_moments` for differences to the class `label`, as in `softmax_moments`; return log Z."""
    c = y.shape[0]
    rows = np.empty((2, c, c))
    centred, root = rows[0], rows[1]
    rows = np.empty((2, c))
    average, slope = rows[0], rows[1]
    # Means and covariances of latent values minus the latent value of the class `label`.
    average[label] = 0.0
    for k in range(c):
        centred[label, k] = 0.0
        centred[k, label] = 0.0
    for j in range(c - 1):
        a = j + (j >= label)
        average[a] = -m[j]
        for k in range(c - 1):
            centred[a, k + (k >= label)] = s[j, k]
    log_z = votes_moments(average, centred, y, nodes, log_weights, root, slope, loss)
    for j in range(c - 1):
        a = j + (j >= label)
        gradient[j] = -slope[a]
        for k in range(c):
            factor[j, k] = root[label, k] - root[a, k]
    return log_z


@kernel
def softmax_qep_update(nodes, log_weights, mean, cov, y, pi, sites, target, scale):
    """Write new sites of all points to `target` from the posterior's `mean` (c, n) and `cov` (n, c, c).

    Observations `y` are labels (n,) or votes (n, c). `nodes` and `log_weights` are as in `softmax_moments` or
    `votes_moments`; `pi` (c, n) belongs to the present `sites`. `scale` (n, c) receives the variances of the contrasts
    of the site parameters. Return the sum of the points' terms of the evidence, and the largest change of a site in
    units of its marginal.
    """
    _, n, c = sites.shape
    d = c - 1
    rows = np.empty((3, d))
    m, location, gradient = rows[0], rows[1], rows[2]
    rows = np.empty((2, d, d))
    s, precision = rows[0], rows[1]
    factor, loss = np.empty((d, c)), np.empty((c, c))
    rows = np.empty((2, c))
    own, log_pi = rows[0], rows[1]
    terms = 0.0
    residual = 0.0
    for i in range(n):
        if y.ndim == 1:
            label = y[i]
            votes = 1
        else:
            label = np.argmax(y[i])
            votes = y[i].sum()
        for a in range(c):
            own[a] = pi[a, i]
        label_differences(mean[:, i], cov[i], label, m, s)
        for j in range(d):
            location[j] = -sites[1, i, j + (j >= label)]
        difference_precision(own, label, precision)
        terms -= cavity(s, precision, location, m)
        if not math.isfinite(terms):
            return np.nan, np.nan
        if votes == 0:
            log_pi[:] = LEAST
            gradient[:] = 0.0
        else:
            if y.ndim == 1:
                terms += softmax_moments(m, s, nodes, log_weights, factor, gradient, loss)
            else:
                terms += _votes_of_differences(m, s, y[i], label, nodes, log_weights, factor, gradient, loss)
            # m becomes the tilted mean; the projection starts from the curvature at the tilted mean.
            for j in range(d):
                for k in range(d):
                    m[j] += s[j, k] * gradient[k]
            log_curvature(m, label, votes, log_pi)
            project_site(factor, loss, label, log_pi)
        change = new_site(sites[:, i], target[:, i], cov[i], label, log_pi, m, gradient, scale[i])
        if not math.isfinite(change):
            return np.nan, np.nan
        residual = max(residual, change)
    return terms, residual
