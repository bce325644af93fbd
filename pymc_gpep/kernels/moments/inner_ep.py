"""Inner EP: scalar sites for the factors Φ(g_j) of the likelihood of a point, and the resulting sites of f.

The factors depend on g_j = f_y − f_j + u, u ~ N(0, 1), one for each class j ≠ y. The nested EP paper (Riihimäki,
Jylänki and Vehtari 2013, appendix A) runs the algorithm in the c + 1 dimensions of (f, u). Here the same algorithm runs
in the c − 1 dimensions of g. Each rank-one update is along a coordinate axis, and no matrix is inverted.

With inducing inputs (`noisy_inner_ep_update`) class k has the latent value x_k + e_k, e_k ~ N(0, r_k). Its utility thus
has noise of variance s_k = 1 + r_k around x_k. With u ~ N(0, s_y) the factors are Φ(g_j / √s_j), g_j = x_y − x_j + u.
Each noise term belongs to one factor, or to u. In units of √s_j the factor is Φ. In these units, its site has precision
α_j and location β_j, and is computed as without noise.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.special.normal import probit_moments

# Sites count as converged if a sweep changes them by at most this, in units of their marginals.
_UNSETTLED = 1e-6


@kernel
def label_differences(mean, cov, y, m, s):
    """Write mean and covariance of the differences f_y − f_j, j ≠ y, into `m` and `s`, given moments of f."""
    others = m.shape[0]
    for j in range(others):
        a = j + (j >= y)
        m[j] = mean[y] - mean[a]
        for k in range(j + 1):
            b = k + (k >= y)
            s[j, k] = cov[y, y] - cov[y, a] - cov[y, b] + cov[a, b]
            s[k, j] = s[j, k]


@kernel
def gaussian_log_normaliser(mean, variance, location, precision):
    """Return log ∫ N(g | mean, variance) exp(location · g − precision · g²/2) dg."""
    stretch = 1.0 + precision * variance
    quadratic = location * location * variance + 2.0 * location * mean - precision * mean * mean
    return 0.5 * quadratic / stretch - 0.5 * math.log(stretch)


@kernel
def matched_site(cavity_mean, cavity_variance):
    """Return log ∫ N(g | cavity) Φ(g) dg, and precision and location of the site that matches this distribution.

    Steps 2 and 3 of appendix A are rearranged to avoid cancellation. For the cavity N(m, v) let z = m / √(1 + v), λ the
    ratio φ/Φ at z, and V = 1 − λ(λ + z). The site's precision is λ(λ + z) / (1 + v V), in [0, 1).
    """
    scale = 1.0 / math.sqrt(1.0 + cavity_variance)
    log_z, h, curvature, truncated = probit_moments(cavity_mean * scale)
    rho = h * scale
    precision = curvature / (1.0 + cavity_variance * truncated)
    return log_z, precision, precision * (cavity_mean + cavity_variance * rho) + rho


@kernel
def difference_moments(mean, cov, y, noise_precision, alpha, beta, m, s, work):
    """Write posterior moments of g_j = f_y − f_j + u into `m` (c − 1,) and `s`, given posterior moments of f.

    `noise_precision` is the prior precision of u. Given f and sites α, β, u has the precision p, the sum of the noise
    precision and of the α_j. The mean of u is then Σ_j (β_j − α_j (f_y − f_j)) / p.
    """
    others = m.shape[0]
    total = noise_precision
    location = 0.0
    for j in range(others):
        total += alpha[j]
        location += beta[j]
    label_differences(mean, cov, y, m, s)
    weighted_mean = 0.0
    for j in range(others):
        weighted_mean += alpha[j] * m[j]
    shift = (location - weighted_mean) / total
    variance = 1.0 / total
    # So far s is Cov(f_y − f_j, f_y − f_k). The next terms are due to the mean of u given f, and to its variance.
    projected = work
    for j in range(others):
        projected[j] = 0.0
        for k in range(others):
            projected[j] += s[j, k] * alpha[k]
        projected[j] /= total
    for j in range(others):
        variance += projected[j] * alpha[j] / total
    for j in range(others):
        m[j] += shift
        for k in range(others):
            s[j, k] += variance - projected[j] - projected[k]


@kernel
def change_site(m, s, j, d_alpha, d_beta, work):
    """Update moments `m`, `s` of g for a change of site j (appendix A, step 4). Return the log normaliser's change."""
    v = s[j, j]
    gained = gaussian_log_normaliser(m[j], v, d_beta, d_alpha)
    gain_s = d_alpha / (1.0 + d_alpha * v)
    gain_m = (d_beta - d_alpha * m[j]) / (1.0 + d_alpha * v)
    column = work  # Copy column j of s, since the update overwrites it.
    for k in range(m.shape[0]):
        column[k] = s[k, j]
    for k in range(m.shape[0]):
        m[k] += column[k] * gain_m
        for i in range(m.shape[0]):
            s[k, i] -= column[k] * column[i] * gain_s
    return gained


@kernel
def inner_sweep(m, s, alpha, beta, work):
    """Update each site once (appendix A, steps 1–4). Sites `alpha`, `beta` and moments `m`, `s` are overwritten.

    Return the change of the log normaliser, and the largest change of a site in units of its marginal.
    """
    gained = 0.0
    residual = 0.0
    for j in range(m.shape[0]):
        v = s[j, j]
        keep = 1.0 - alpha[j] * v
        _, precision, location = matched_site((m[j] - beta[j] * v) / keep, v / keep)
        d_alpha = precision - alpha[j]
        d_beta = location - beta[j]
        residual = max(residual, abs(d_alpha) * v, abs(d_beta) * math.sqrt(v))
        alpha[j] += d_alpha
        beta[j] += d_beta
        gained += change_site(m, s, j, d_alpha, d_beta, work)
    return gained, residual


@kernel
def site_terms(m, s, alpha, beta):
    """Return the terms of the sites in the log evidence: log Ẑ_j minus the log normaliser of site j, summed."""
    total = 0.0
    for j in range(m.shape[0]):
        v = s[j, j]
        keep = 1.0 - alpha[j] * v
        cavity_mean = (m[j] - beta[j] * v) / keep
        cavity_variance = v / keep
        log_z, _, _ = matched_site(cavity_mean, cavity_variance)
        total += log_z - gaussian_log_normaliser(cavity_mean, cavity_variance, beta[j], alpha[j])
    return total


@kernel
def settle_sites(m, s, alpha, beta, max_sweeps, tolerance, work):
    """Update the sites of one point, and the moments `m` and `s` of its g, until the sites converge.

    Return the change of the log normaliser. If the sites are 0 at the start, the change is the log normaliser.
    """
    total = 0.0
    for _ in range(max_sweeps):
        gained, change = inner_sweep(m, s, alpha, beta, work)
        total += gained
        if not change > tolerance:
            break
    return total + site_terms(m, s, alpha, beta)


@inlined_kernel
def point_update(m, s, alpha, beta, max_sweeps, tolerance, new_alpha, new_beta, scale, work):
    """Write new sites of one point, given moments of its g; see `inner_ep_update`. The moments are overwritten."""
    terms = site_terms(m, s, alpha, beta)
    for j in range(m.shape[0]):
        scale[j] = s[j, j]
        new_alpha[j] = alpha[j]
        new_beta[j] = beta[j]
    _, residual = inner_sweep(m, s, new_alpha, new_beta, work)
    change = residual
    for _ in range(1, max_sweeps):
        if change <= tolerance:
            break
        _, change = inner_sweep(m, s, new_alpha, new_beta, work)
    return terms, residual


@kernel
def inner_ep_update(mean, cov, y, alpha, beta, max_sweeps, tolerance, new_alpha, new_beta, scale):
    """Compute one outer update of all sites, given posterior moments `mean` (c, n) and `cov` (n, c, c) of f.

    Sites `alpha`, `beta` (n, c − 1) are not changed. New sites are written into `new_alpha` and `new_beta`, marginal
    variances of g into `scale` (n, c − 1). Return the evidence terms of the old sites, and the largest change of a site
    in the first sweep, in units of its marginal.
    """
    n, others = alpha.shape
    m = np.empty(others)
    s = np.empty((others, others))
    work = np.empty(others)
    terms = 0.0
    residual = 0.0
    for i in range(n):
        difference_moments(mean[:, i], cov[i], y[i], 1.0, alpha[i], beta[i], m, s, work)
        gained, change = point_update(
            m, s, alpha[i], beta[i], max_sweeps, tolerance, new_alpha[i], new_beta[i], scale[i], work
        )
        terms += gained
        residual = max(residual, change)
    return terms, residual


@kernel
def flat_moments(mean, cov, y, sites, moments):
    """Write marginal means and variances of all g under the posterior into `moments` (2, n, c − 1)."""
    _, n, others = sites.shape
    m = np.empty(others)
    s = np.empty((others, others))
    work = np.empty(others)
    for i in range(n):
        difference_moments(mean[:, i], cov[i], y[i], 1.0, sites[0, i], sites[1, i], m, s, work)
        for j in range(others):
            moments[0, i, j] = m[j]
            moments[1, i, j] = s[j, j]


@kernel
def tilted_log_normaliser(mean, cov, max_sweeps, tolerance):
    """Return log ∫ N(f | mean, cov) p(y | f) df for every point and class y, (m, c), by inner EP from zero sites.

    `mean` is (m, c), and `cov` is (m, c, c).
    """
    points, c = mean.shape
    m = np.empty(c - 1)
    s = np.empty((c - 1, c - 1))
    work = np.empty(c - 1)
    alpha = np.empty(c - 1)
    beta = np.empty(c - 1)
    out = np.empty((points, c))
    for i in range(points):
        for k in range(c):
            alpha[:] = 0.0
            beta[:] = 0.0
            difference_moments(mean[i], cov[i], k, 1.0, alpha, beta, m, s, work)
            out[i, k] = settle_sites(m, s, alpha, beta, max_sweeps, tolerance, work)
    return out


@kernel
def tilted_moments(mean, cov, y, max_sweeps, tolerance, new_mean, new_cov, of_mean, of_cov):
    """Write moments of N(f | mean, cov) p(y | f), and derivatives of its log normaliser, by inner EP from zero sites.

    The log normaliser of EP is stationary in its sites. So its derivatives are those of a Gaussian integral with the
    final sites. Let m, S be the moments of g, and H = (S + diag(α)⁻¹)⁻¹. Then ∂ log Z / ∂m = γ and ∂ log Z / ∂S = (γγᵀ
    − H) / 2. Both are accumulated site by site, as sums of outer products.

    Parameters
    ----------
    mean, cov : (c,) and (c, c) array
        Moments of f without the likelihood. The covariance may be singular.
    y : int
        Label. A label that is not a class has a log normaliser of −∞ and derivatives of 0; its moments are NaN.
    max_sweeps, tolerance : int, float
        Largest number of sweeps, and largest change of a site in the last sweep.
    new_mean, new_cov : (c,) and (c, c) array
        Overwritten with the moments of f under the likelihood.
    of_mean, of_cov : (c,) and (c, c) array
        Overwritten with the derivatives of the log normaliser.

    Returns
    -------
    log_z : float
        Log normaliser. It is NaN, as are moments and derivatives, if the sites do not converge.
    """
    c = mean.shape[0]
    new_mean[:] = np.nan
    new_cov[:] = np.nan
    of_mean[:] = 0.0
    of_cov[:] = 0.0
    if y < 0 or y >= c:
        return -np.inf
    rows = np.zeros((6, c - 1))
    m, alpha, beta, work, gamma, direction = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]
    blocks = np.zeros((3, c - 1, c - 1))
    s, h, turned = blocks[0], blocks[1], blocks[2]
    difference_moments(mean, cov, y, 1.0, alpha, beta, m, s, work)
    log_z = settle_sites(m, s, alpha, beta, max_sweeps, tolerance, work)
    direction[:] = 0.0
    difference_moments(mean, cov, y, 1.0, direction, direction, m, s, work)
    for j in range(c - 1):
        turned[j, j] = 1.0
    for j in range(c - 1):
        stretch = 1.0 + alpha[j] * s[j, j]
        gain_m = (beta[j] - alpha[j] * m[j]) / stretch
        gain_s = alpha[j] / stretch
        for k in range(c - 1):
            direction[k] = turned[k, j]
        for k in range(c - 1):
            gamma[k] += direction[k] * gain_m
            for i in range(c - 1):
                h[k, i] += direction[k] * direction[i] * gain_s
                turned[k, i] -= direction[k] * s[j, i] * gain_s
        change_site(m, s, j, alpha[j], beta[j], work)
    _, change = inner_sweep(m, s, alpha, beta, work)
    if not change <= _UNSETTLED:
        of_mean[:] = np.nan
        of_cov[:] = np.nan
        return np.nan
    for j in range(c - 1):
        a = j + (j >= y)
        of_mean[a] -= gamma[j]
        of_mean[y] += gamma[j]
        for k in range(c - 1):
            b = k + (k >= y)
            of_cov[a, b] += h[j, k]
            of_cov[a, y] -= h[j, k]
            of_cov[y, b] -= h[j, k]
            of_cov[y, y] += h[j, k]
    new_mean[:] = mean
    new_cov[:] = cov
    shifted = np.empty((c, c))
    for a in range(c):
        for b in range(c):
            new_mean[a] += cov[a, b] * of_mean[b]
            shifted[a, b] = 0.0
            for k in range(c):
                shifted[a, b] += cov[a, k] * of_cov[k, b]
    for a in range(c):
        for b in range(a + 1):
            for k in range(c):
                new_cov[a, b] -= shifted[a, k] * cov[k, b]
            new_cov[b, a] = new_cov[a, b]
    for a in range(c):
        for b in range(c):
            of_cov[a, b] = 0.5 * (of_mean[a] * of_mean[b] - of_cov[a, b])
    return log_z


@kernel
def noisy_inner_ep_update(mean, cov, y, rest, alpha, beta, max_sweeps, tolerance, new_alpha, new_beta, scale):
    """Compute the results of `inner_ep_update` for utilities with noise of variance 1 + `rest` (c, n) in place of 1.

    `mean` (c, n) and `cov` (n, c, c) are moments of x. Sites and their marginal variances are in units of √s_j.
    """
    n, others = alpha.shape
    m = np.empty(others)
    s = np.empty((others, others))
    rows = np.empty((4, others))
    root, own_alpha, own_beta, work = rows[0], rows[1], rows[2], rows[3]
    terms = 0.0
    residual = 0.0
    for i in range(n):
        for j in range(others):
            root[j] = math.sqrt(1.0 + rest[j + (j >= y[i]), i])
            own_alpha[j] = alpha[i, j] / (root[j] * root[j])
            own_beta[j] = beta[i, j] / root[j]
        difference_moments(mean[:, i], cov[i], y[i], 1.0 / (1.0 + rest[y[i], i]), own_alpha, own_beta, m, s, work)
        for j in range(others):
            m[j] /= root[j]
            for k in range(others):
                s[j, k] /= root[j] * root[k]
        gained, change = point_update(
            m, s, alpha[i], beta[i], max_sweeps, tolerance, new_alpha[i], new_beta[i], scale[i], work
        )
        terms += gained
        residual = max(residual, change)
    return terms, residual


@kernel
def noisy_site_parameters(y, rest, alpha, beta, pi, nu):
    """Write `pi` and `nu` (c, n) of the sites of x, from inner sites `alpha`, `beta` (n, c − 1) in units of √s_j.

    These are equations 12 and 15 of the nested EP paper with π_y = 1 / s_y in place of 1. Here s = 1 + `rest`. Return
    the log of the sites at x = 0 with u integrated out, Σ_i (1ᵀβ_i)² / (2 1ᵀπ_i) − ½ log(s_y 1ᵀπ_i).
    """
    n, others = alpha.shape
    constant = 0.0
    for i in range(n):
        own = 1.0 / (1.0 + rest[y[i], i])
        total = own
        location = 0.0
        for j in range(others):
            k = j + (j >= y[i])
            noise = 1.0 + rest[k, i]
            pi[k, i] = alpha[i, j] / noise
            nu[k, i] = beta[i, j] / math.sqrt(noise)
            total += pi[k, i]
            location += nu[k, i]
        a = location / total
        constant += 0.5 * (location * a - math.log(total / own))
        pi[y[i], i] = own
        nu[y[i], i] = a * own
        for j in range(others):
            k = j + (j >= y[i])
            nu[k, i] = a * pi[k, i] - nu[k, i]
    return constant


@kernel
def site_parameters(y, alpha, beta, pi, nu):
    """Write `pi` and `nu` (c, n) of the sites of f, from inner sites `alpha`, `beta` (equations 12 and 15).

    Return Σ_i (1ᵀβ_i)² / (2 1ᵀπ_i), the log of the sites at f = 0 with u integrated out, without constants.
    """
    n, others = alpha.shape
    constant = 0.0
    for i in range(n):
        total = 1.0
        location = 0.0
        for j in range(others):
            total += alpha[i, j]
            location += beta[i, j]
        a = location / total
        constant += 0.5 * location * a
        pi[y[i], i] = 1.0
        nu[y[i], i] = a
        for j in range(others):
            k = j + (j >= y[i])
            pi[k, i] = alpha[i, j]
            nu[k, i] = a * alpha[i, j] - beta[i, j]
    return constant


@kernel
def relative_location(prior_mean, pi, nu):
    """Replace locations ν of sites by ν − Π m for the prior mean m. Return the log of the sites at m."""
    c, n = pi.shape
    constant = 0.0
    for i in range(n):
        total = 0.0
        average = 0.0
        for a in range(c):
            total += pi[a, i]
            average += pi[a, i] * prior_mean[a, i]
        average /= total
        for a in range(c):
            pull = pi[a, i] * (prior_mean[a, i] - average)
            constant += prior_mean[a, i] * (nu[a, i] - 0.5 * pull)
            nu[a, i] -= pull
    return constant
