"""Sites of EP for labels with noise: with probability ε a label is a random class.

The likelihood without noise is the probability that the utility of the observed class is the largest. Utilities of the
multinomial probit are latent values with unit noise; utilities of the step likelihood are the latent values. For the
probit, inner EP computes the integral Ẑ₀ and moments under a cavity. The step likelihood is treated as the probit of
latent values times a large factor.

log Ẑ₀ has the derivatives ρ in the cavity's mean and ½ (ρρᵀ − T) in its covariance. With r = (1 − ε) Ẑ₀ / Ẑ and c
classes, the normaliser Ẑ of the factor with noise has the corresponding ρ_ε and T_ε:

    log Ẑ = log((1 − ε) Ẑ₀ + ε / c),   ρ_ε = r ρ,   T_ε = r T − r (1 − r) ρρᵀ.

A site Π = T_ε (I − S T_ε)⁻¹ of the differences x_j = f_y − f_j, which have the cavity covariance S, matches tilted
means and covariances. T_ε and Π may have negative eigenvalues, since a label that may be noise can increase variances.

Sites have the layout of `pymc_gpep.kernels.moments.full_sites`, but are sites of x in place of g. The first half is the
diagonal of Π, padded by zeros. The second half is the locations, and the lower triangle of Π below the diagonal.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.linalg.small_matrices import solve_square
from pymc_gpep.kernels.moments.full_sites import change_to_site, read_precision
from pymc_gpep.kernels.moments.inner_ep import change_site, label_differences, settle_sites
from pymc_gpep.kernels.special.largest_of_independent import LEGENDRE, log_largest_and_derivatives

_LEAST = 1e-12
"""It replaces the noise 0 of a step likelihood: the variance in `_point_derivatives`, the sd in `_update`."""
_NODES, _WEIGHTS = LEGENDRE


@kernel
def _with_label_noise(log_p, rho, gamma, epsilon):
    """Return the log normaliser with label noise, from `log_p` without. Replace also its derivatives `rho`, `gamma`."""
    c = rho.shape[0]
    if not epsilon > 0.0:
        return log_p
    right, noise = math.log1p(-epsilon) + log_p, math.log(epsilon / c)
    top = max(right, noise)
    log_z = top + math.log(math.exp(right - top) + math.exp(noise - top))
    share = math.exp(right - log_z)
    for k in range(c):
        gamma[k] = share * (gamma[k] - (1.0 - share) * rho[k] * rho[k])
        rho[k] *= share
    return log_z


@kernel
def _point_derivatives(noise, mean, variance, y, parameters, log_z, rho, gamma):
    n, c = mean.shape
    room, spread = np.empty((10, c)), np.empty(c)
    for i in range(n):
        valid = math.isfinite(parameters[0, i])
        for k in range(c):
            spread[k] = variance[i, k] + noise
            valid &= spread[k] > 0.0 and math.isfinite(spread[k]) and math.isfinite(mean[i, k])
        if not valid:
            log_z[i] = np.nan
            rho[i] = np.nan
            gamma[i] = np.nan
            continue
        log_p = log_largest_and_derivatives(mean[i], spread, y[i], _NODES, _WEIGHTS, rho[i], gamma[i], room)
        log_z[i] = _with_label_noise(log_p, rho[i], gamma[i], parameters[0, i])


@kernel
def noisy_probit_derivatives(mean, variance, y, parameters, log_z, rho, gamma):
    """Compute the results of `point_derivatives` for labels with noise: `parameters` (1, n) holds ε."""
    _point_derivatives(1.0, mean, variance, y, parameters, log_z, rho, gamma)


@kernel
def noisy_step_derivatives(mean, variance, y, parameters, log_z, rho, gamma):
    """Compute the results of `noisy_probit_derivatives` for utilities without noise."""
    _point_derivatives(_LEAST, mean, variance, y, parameters, log_z, rho, gamma)


_SWEEPS, _TOLERANCE = 200, 1e-11  # Sweeps and tolerance of inner EP.
_NOTHING = 40.0  # If log Ẑ₀ is below log(ε / c) by more than this number, Ẑ₀ is set to 0.
_NARROW = 1e-5  # A probit replaces the step. Its noise is this share of the largest standard deviation.


@kernel
def sites_of_differences(y, sites, pi, nu, w, location):
    """Write precisions and locations of sites: of differences into `pi` and `nu`, of f into `w` and `location`."""
    n, d = nu.shape
    for i in range(n):
        read_precision(sites, i, pi[i])
        w[i, y[i], y[i]] = 0.0
        location[y[i], i] = 0.0
        for j in range(d):
            a = j + (j >= y[i])
            nu[i, j] = sites[1, i, j]
            location[a, i] = -nu[i, j]
            location[y[i], i] += nu[i, j]
            of_y = 0.0
            for k in range(d):
                w[i, a, k + (k >= y[i])] = pi[i, j, k]
                of_y -= pi[i, j, k]
            w[i, a, y[i]] = of_y
            w[i, y[i], a] = of_y
            w[i, y[i], y[i]] -= of_y


@inlined_kernel
def _without_site(m, s, pi, nu, room, pull):
    """Replace posterior moments `m` (d,) and `s` (d, d) of x by moments without the site.

    Return the log normaliser of the site under the new moments; NaN if the cavity is improper.
    """
    d = m.shape[0]
    log_z = 0.0
    for j in range(d):
        pull[j] = -nu[j]
        for k in range(d):
            pull[j] += pi[j, k] * m[k]
            room[j, k] = 1.0 if j == k else 0.0
            for a in range(d):
                room[j, k] -= s[j, a] * pi[a, k]
        log_z += 0.5 * m[j] * (nu[j] - pull[j])
    determinant = solve_square(room, s)
    if not determinant > 0.0:
        return np.nan
    log_z += 0.5 * math.log(determinant)
    for j in range(d):
        for k in range(j):
            s[j, k] = s[k, j] = 0.5 * (s[j, k] + s[k, j])
        if not s[j, j] >= 0.0:
            return np.nan
    for j in range(d):
        shift = 0.0
        for k in range(d):
            shift += s[j, k] * pull[k]
        log_z -= 0.5 * pull[j] * shift
        m[j] += shift
    return log_z


@inlined_kernel
def _inner(noise, m, s, alpha, beta, work):
    """Continue inner EP from sites with precisions `alpha` and locations `beta`. Return the log normaliser.

    `m` and `s` become the moments of g under the final sites. Meanwhile all values are divided by `noise`, the sd of u.
    """
    d = m.shape[0]
    for j in range(d):
        m[j] /= noise
        alpha[j] *= noise * noise
        beta[j] *= noise
        for k in range(d):
            s[j, k] = s[j, k] / (noise * noise) + 1.0
    log_z = 0.0
    for j in range(d):
        log_z += change_site(m, s, j, alpha[j], beta[j], work)
    log_z += settle_sites(m, s, alpha, beta, _SWEEPS, _TOLERANCE, work)
    if not math.isfinite(log_z):
        alpha[:] = 0.0
        beta[:] = 0.0
    for j in range(d):
        m[j] *= noise
        alpha[j] /= noise * noise
        beta[j] /= noise
        for k in range(d):
            s[j, k] *= noise * noise
    return log_z


@kernel
def _update(step, mean, cov, y, parameters, widens, pi, nu, sites, alpha, beta, target, scale, slopes):
    """Write new sites of all points to `target` (2, n, D) from the posterior's `mean` (c, n) and `cov` (n, c, c).

    `parameters` (1, n) holds ε. `pi` (n, d, d) and `nu` (n, d) are the present sites of the differences. Inner sites
    `alpha`, `beta` (n, d) are overwritten. If `widens` is 0, the negative part of T_ε is left out.
    `scale` (n, D) receives the units of changes for `site_ep`, `slopes` (1, n) ∂ log Ẑ / ∂ε at fixed moments.
    Return the sum of the points' terms of the evidence, and the largest change of a site in units of its marginal.
    """
    n, d = nu.shape
    rows = np.empty((4, d))
    m, own, rho, work = rows[0], rows[1], rows[2], rows[3]
    rows = np.empty((4, d, d))
    s, t, product, room = rows[0], rows[1], rows[2], rows[3]
    terms = 0.0
    residual = 0.0
    for i in range(n):
        label_differences(mean[:, i], cov[i], y[i], m, s)
        for j in range(d):
            scale[i, j] = s[j, j]
        terms -= _without_site(m, s, pi[i], nu[i], room, work)
        for j in range(d):
            own[j] = m[j]
            for k in range(d):
                product[j, k] = s[j, k]
        noise = 1.0
        if step:
            noise = _LEAST
            for j in range(d):
                noise = max(noise, _NARROW * math.sqrt(s[j, j]))
        epsilon = parameters[0, i]
        anything = epsilon / (d + 1)
        most = 0.0  # Upper bound of `log_p`: the smallest bound from a single difference.
        for j in range(d):
            if m[j] < 0.0:
                most = min(most, -0.5 * m[j] * m[j] / (s[j, j] + noise * noise))
        if anything > 0.0 and most < math.log(anything) - _NOTHING:
            log_p = -np.inf
            alpha[i] = 0.0
            beta[i] = 0.0
        else:
            log_p = _inner(noise, m, s, alpha[i], beta[i], work)
        right = math.log1p(-epsilon) + log_p if 0.0 <= epsilon < 1.0 else np.nan
        top = max(right, math.log(anything)) if anything > 0.0 else right
        log_z = top + math.log(math.exp(right - top) + (math.exp(math.log(anything) - top) if anything > 0.0 else 0.0))
        terms += log_z
        share = math.exp(right - log_z)
        slopes[0, i] = math.exp(-math.log(d + 1) - log_z) - share / (1.0 - epsilon)
        for j in range(d):
            rho[j] = beta[i, j] - alpha[i, j] * m[j]
        for j in range(d):
            for k in range(d):
                t[j, k] = -share * alpha[i, j] * s[j, k] * alpha[i, k]
                t[j, k] -= widens * share * (1.0 - share) * rho[j] * rho[k]
            t[j, j] += share * alpha[i, j]
        # The site solves Π (I − S T) = T with symmetric Π, S and T.
        for j in range(d):
            for k in range(d):
                own[j] += share * product[j, k] * rho[k]
                room[j, k] = 1.0 if j == k else 0.0
                for a in range(d):
                    room[j, k] -= t[j, a] * product[a, k]
        if not solve_square(room, t) > 0.0:
            return np.nan, np.nan
        for j in range(d):
            for k in range(j):
                t[j, k] = t[k, j] = 0.5 * (t[j, k] + t[k, j])
        for j in range(d):
            rho[j] *= share
        residual = max(residual, change_to_site(t, rho, own, sites, target, scale, i))
    return terms, residual


@kernel
def nested_label_noise_update(mean, cov, y, parameters, widens, pi, nu, sites, alpha, beta, target, scale, slopes):
    """Update the sites of the multinomial probit with label noise, see `_update`."""
    return _update(False, mean, cov, y, parameters, widens, pi, nu, sites, alpha, beta, target, scale, slopes)


@kernel
def nested_step_update(mean, cov, y, parameters, widens, pi, nu, sites, alpha, beta, target, scale, slopes):
    """Update the sites of the step likelihood with label noise, see `_update`."""
    return _update(True, mean, cov, y, parameters, widens, pi, nu, sites, alpha, beta, target, scale, slopes)
