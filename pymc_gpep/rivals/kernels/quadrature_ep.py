"""EP of a multinomial probit by quadrature (nested EP paper, section 3.3): tilted moments, and sites that match them.

A tilted distribution is N(g | μ, C) ∏_j Φ(g_j), for differences g of latent values plus noise. Its moments are computed
by the product rule of the paper (`product_moments`), or by nested quadratures over a truncated normal
(`truncated_moments`). The product rule is poor if the standard deviations of g exceed the width of Φ, which is 1.

Φ(g_j) is the probability that z_j = g_j + e_j is positive, e ~ N(0, I). So the normaliser is the probability that all
of z ~ N(μ, S), S = C + I, are positive. The moments of g follow from the moments of z truncated to this orthant. Let z
= μ + L x, S = L Lᵀ, and m and V the mean and covariance of x. The moments of g are μ + C L⁻ᵀ m and C − C L⁻ᵀ (I − V)
L⁻¹ C.

Coordinate x_j is a standard normal above a bound that the coordinates before it determine (separation of variables:
Genz 1992, Journal of Computational and Graphical Statistics 1). It is a function of a uniform number q: the upper tail
probability of x_j is q times the upper tail probability of the bound. The integrand then has the same shape for any C,
and the last coordinate is integrated in closed form. The moments are singular in q like powers of log q at 0, and, if
the bound is low, like powers of log(1 − q) at 1. With q = s³ (4 − 3s), the Jacobian 12 s² (1 − s) removes these
singularities, so Gauss–Legendre in s converges fast. Classes are sorted by standardised means, the lowest first.

The sites have the form of nested EP, exp(ξᵀg − gᵀΛg/2) with g_j = f_y − f_j + u. They match the tilted mean of g. With
tilted and cavity covariances Σ̂ and Σ, the precision Λ is Σ̂⁻¹ − Σ⁻¹, or the diagonal of this matrix (equations 19 to
21). The diagonal lies in [0, 1): the factors Φ are log-concave with a curvature below 1. For a full Λ see
`pymc_gpep.kernels.moments.full_sites`.
"""

import math

import numpy as np
from numba.core import types

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.external import scipy_function
from pymc_gpep.kernels.linalg.lapack import copy_into
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_lower
from pymc_gpep.kernels.methods.softmax_qep import cavity
from pymc_gpep.kernels.moments.full_sites import change_to_site, read_precision, write_precision
from pymc_gpep.kernels.moments.inner_ep import change_site, difference_moments, label_differences
from pymc_gpep.kernels.moments.softmax_quadrature import centre, rescale
from pymc_gpep.kernels.special.normal import log_ndtr, probit_moments


@kernel
def product_moments(mu, factor, rule, mean, cov):
    """Write the mean (d,) and covariance (d, d) of t under N(t | 0, I) ∏ Φ(g_j), with g = μ + F t and C = F Fᵀ.

    `factor` (d, d) is F, lower triangular; `rule` (2, order) contains nodes and log weights for a standard normal. The
    function returns log ∫ N(g | μ, C) ∏ Φ(g_j) dg.
    """
    d = mu.shape[0]
    nodes, log_weights = rule
    digit = np.zeros(d, np.int64)
    t = np.empty(d)
    level = np.zeros(d + 1)  # Log weight of the node's coordinates before each coordinate.
    top = -np.inf
    total = 0.0
    rescale(mean, cov, 0.0)
    changed = 0
    while changed >= 0:
        for j in range(changed, d):
            t[j] = nodes[digit[j]]
            g = mu[j]
            for i in range(j + 1):
                g += factor[j, i] * t[i]
            level[j + 1] = level[j] + log_weights[digit[j]] + log_ndtr(g)
        if level[d] > top:
            shrink = math.exp(top - level[d])
            total *= shrink
            rescale(mean, cov, shrink)
            top = level[d]
        weight = math.exp(level[d] - top)
        total += weight
        for j in range(d):
            mean[j] += weight * t[j]
            for i in range(j + 1):
                cov[j, i] += weight * t[j] * t[i]
        # Proceed to the next node: count up its digits, the last digit fastest.
        changed = d - 1
        while changed >= 0 and digit[changed] == nodes.shape[0] - 1:
            digit[changed] = 0
            changed -= 1
        if changed >= 0:
            digit[changed] += 1
    centre(mean, cov, total)
    return top + math.log(total)


_MARGIN = 0.01  # Two coordinates are swapped if their standardised means differ by more than this number.
_ndtri_exp = scipy_function("special.cython_special", "ndtri_exp", types.float64(types.float64))


@kernel
def _orthant_moments(mu, lower, rule, mean, cov):
    """Return the log probability that μ + L x is positive. Write mean (d,) and covariance (d, d) of x given this event.

    `rule` (2, order) contains log q and log weights.
    """
    d = mu.shape[0]
    log_nodes, log_weights = rule
    order = log_nodes.shape[0]
    last = d - 1
    digit = np.zeros(d, np.int64)
    x = np.empty(d)
    level = np.zeros(d)  # Log weight of the node's coordinates before each coordinate.
    top = -np.inf
    total = 0.0
    rescale(mean, cov, 0.0)
    changed = 0
    while changed >= 0:
        for j in range(changed, last):
            room = mu[j]
            for i in range(j):
                room += lower[j, i] * x[i]
            log_mass = log_ndtr(room / lower[j, j])
            x[j] = -_ndtri_exp(log_nodes[digit[j]] + log_mass)
            level[j + 1] = level[j] + log_weights[digit[j]] + log_mass
        room = mu[last]
        for i in range(last):
            room += lower[last, i] * x[i]
        log_mass, x[last], _, variance = probit_moments(room / lower[last, last])
        log_weight = level[last] + log_mass
        if log_weight > top:
            shrink = math.exp(top - log_weight)
            total *= shrink
            rescale(mean, cov, shrink)
            top = log_weight
        weight = math.exp(log_weight - top)
        total += weight
        cov[last, last] += weight * variance
        for j in range(d):
            mean[j] += weight * x[j]
            for i in range(j + 1):
                cov[j, i] += weight * x[j] * x[i]
        changed = last - 1
        while changed >= 0 and digit[changed] == order - 1:
            digit[changed] = 0
            changed -= 1
        if changed >= 0:
            digit[changed] += 1
    centre(mean, cov, total)
    return top + math.log(total)


@kernel
def _sort(mu, cavity, order):
    """Update `order`, the order of coordinates by their standardised means. Before the first call, entries are −1.

    The error of the rule depends slightly on the order, so an iteration might swap nearly equal means for ever.
    Therefore coordinates are swapped only if their means are in the wrong order by more than a margin.
    """
    margin = _MARGIN
    if order[0] < 0:
        margin = 0.0
        for j in range(mu.shape[0]):
            order[j] = j
    key = np.empty(mu.shape[0])
    for j in range(mu.shape[0]):
        key[j] = mu[j] / math.sqrt(cavity[j, j] + 1.0)
    for j in range(1, mu.shape[0]):
        moving = order[j]
        i = j
        while i > 0 and key[moving] < key[order[i - 1]] - margin:
            order[i] = order[i - 1]
            i -= 1
        order[i] = moving


@kernel
def truncated_moments(mu, cavity, factor, rule, order, mean, cov):
    """Write the mean (d,) and covariance (d, d) of t under N(t | 0, I) ∏ Φ(g_j), with g = μ + F t and C = F Fᵀ.

    `cavity` (d, d) is C, and `factor` (d, d) is F, lower triangular. `rule` (2, ·) contains log q and log weights.
    `order` (d,) is the order of coordinates after the last call, or −1 before. The function returns log ∫ N(g | μ, C) ∏
    Φ(g_j) dg.
    """
    d = mu.shape[0]
    _sort(mu, cavity, order)
    moved_mu = np.empty(d)
    moved = np.empty((d, d))
    response = np.empty((d, d))
    for j in range(d):
        moved_mu[j] = mu[order[j]]
        for i in range(d):
            response[j, i] = factor[order[j], i]
            moved[j, i] = cavity[order[j], order[i]]
        moved[j, j] += 1.0
    lower = lower_factor(moved)
    of_x = np.empty(d)
    spread = np.empty((d, d))
    log_z = _orthant_moments(moved_mu, lower, rule, of_x, spread)
    # x has mean m and covariance V. With R = L⁻¹ F (sorted rows), t has mean Rᵀ m and covariance I − Rᵀ (I − V) R.
    solve_lower(lower, response)
    for j in range(d):
        mean[j] = 0.0
        for k in range(d):
            mean[j] += response[k, j] * of_x[k]
        for i in range(j + 1):
            change = 0.0
            for k in range(d):
                change += response[k, j] * response[k, i]
                for e in range(d):
                    change -= response[k, j] * spread[k, e] * response[e, i]
            cov[j, i] = (1.0 if i == j else 0.0) - change
            cov[i, j] = cov[j, i]
    return log_z


_BISECTIONS = 30  # Number of bisections for the factor of the off-diagonal entries.


@kernel
def _is_semidefinite(a, part, lower):
    """Return whether `a` (d, d), with off-diagonal entries multiplied by `part`, is positive semi-definite."""
    d = a.shape[0]
    for j in range(d):
        for i in range(j, d):
            total = a[i, j] if i == j else part * a[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i == j:
                pivot = total
                lower[j, j] = math.sqrt(max(pivot, 0.0))
            elif pivot > 0.0:
                lower[i, j] = total / lower[j, j]
            else:
                lower[i, j] = 0.0
                if total != 0.0:
                    return False
        if pivot < 0.0:
            return False
    return True


@kernel
def shrink_to_semidefinite(a, lower):
    """Make a matrix `a` (d, d) positive semi-definite: multiply its off-diagonal entries by a factor below 1.

    The diagonal must not be negative. The exact precision is positive semi-definite; quadrature and acceleration cause
    small deviations. `lower` (d, d) is scratch.
    """
    if _is_semidefinite(a, 1.0, lower):
        return
    good, bad = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (good + bad)
        if _is_semidefinite(a, middle, lower):
            good = middle
        else:
            bad = middle
    for j in range(a.shape[0]):
        for k in range(a.shape[0]):
            if k != j:
                a[j, k] *= good


@kernel
def difference_sites(y, sites, pi, nu, w, location):
    """Write sites of differences to `pi` (n, d, d), `nu` (n, d), and sites of f to `w` (n, c, c), `location` (c, n).

    A precision in `sites` that is not positive semi-definite is replaced by `shrink_to_semidefinite`.
    """
    n, d = nu.shape
    lower = np.empty((d, d))
    row = np.empty(d)
    for i in range(n):
        precision = pi[i]
        read_precision(sites, i, precision)
        shrink_to_semidefinite(precision, lower)
        write_precision(precision, sites, i)
        total = 1.0
        shift = 0.0
        for j in range(d):
            row[j] = 0.0
            for k in range(d):
                row[j] += precision[j, k]
            total += row[j]
            shift += sites[1, i, j]
        w[i, y[i], y[i]] = 0.0
        location[y[i], i] = 0.0
        for j in range(d):
            nu[i, j] = sites[1, i, j] - row[j] * shift / total
            a = j + (j >= y[i])
            location[a, i] = -nu[i, j]
            location[y[i], i] += nu[i, j]
            of_y = 0.0
            for k in range(d):
                precision[j, k] -= row[j] * row[k] / total
                w[i, a, k + (k >= y[i])] = precision[j, k]
                of_y -= precision[j, k]
            w[i, a, y[i]] = of_y
            w[i, y[i], a] = of_y
            w[i, y[i], y[i]] -= of_y


@inlined_kernel
def utility_cavity(mean, cov, y, pi, nu, m, s):
    """Write the moments of g under the cavity of one point into `m` (d,) and `s` (d, d).

    `mean` (c,) and `cov` (c, c) are the posterior moments of f. The posterior includes a site of the differences with
    precision `pi` (d, d) and location `nu` (d,). The function returns the log normaliser of this site under the cavity.
    """
    label_differences(mean, cov, y, m, s)
    log_z = cavity(s, pi, nu, m)
    s += 1.0
    return log_z


BELOW_ONE = 1.0 - 1e-12
"""Largest diagonal entry of a site precision: factors Φ are log-concave with a curvature below 1."""


@inlined_kernel
def tilted_site(m, s, hermite, rule, order, precision, location, scale):
    """Write the site that matches the mean μ̂ and covariance Σ̂ of N(g | m, s) ∏_j Φ(g_j) in d dimensions.

    `hermite` is True if `rule` (2, ·) is a Gauss–Hermite rule; `order` is for `truncated_moments`. The function writes
    Λ = Σ̂⁻¹ − s⁻¹ to `precision` (d, d), s⁻¹ (μ̂ − m) to `location`, the diagonal of Σ̂ to `scale`, and μ̂ to `m`. It
    returns the log normaliser.
    """
    d = m.shape[0]
    lower = lower_factor(s)
    mean = np.empty(d)
    cov = np.empty((d, d))
    if hermite:
        log_z = product_moments(m, lower, rule, mean, cov)
    else:
        log_z = truncated_moments(m, s, lower, rule, order, mean, cov)
    # With s = L Lᵀ and Σ̂ = L V Lᵀ, Λ = L⁻ᵀ (V⁻¹ − I) L⁻¹.
    inverse = np.zeros((d, d))
    half = np.empty((d, d))
    for j in range(d):
        inverse[j, j] = 1.0
    solve_lower(lower, inverse)
    copy_into(half, inverse)
    solve_lower(lower_factor(cov), half)
    for j in range(d):
        location[j] = 0.0
        scale[j] = 0.0
        for k in range(d):
            location[j] += inverse[k, j] * mean[k]
            m[j] += lower[j, k] * mean[k]
            for i in range(d):
                scale[j] += lower[j, k] * cov[k, i] * lower[j, i]
        for i in range(d):
            precision[j, i] = 0.0
            for k in range(d):
                precision[j, i] += half[k, j] * half[k, i] - inverse[k, j] * inverse[k, i]
    return log_z


@kernel
def full_qep_update(hermite, rule, orders, mean, cov, pi, nu, y, sites, target, scale):
    """Write new sites of all points to `target` from the posterior's `mean` (c, n) and `cov` (n, c, c).

    `pi` (n, d, d) and `nu` (n, d) are the present sites of the differences. `scale` is overwritten with the units of
    changes for `site_ep`. The function returns the points' terms of the log evidence, and the largest change of a site
    in units of its marginal.
    """
    n, d = nu.shape
    m = np.empty(d)
    s = np.empty((d, d))
    v = np.empty(d)
    precision = np.empty((d, d))
    location = np.empty(d)
    terms = 0.0
    residual = 0.0
    for i in range(n):
        terms -= utility_cavity(mean[:, i], cov[i], y[i], pi[i], nu[i], m, s)
        terms += tilted_site(m, s, hermite, rule, orders[i], precision, location, v)
        for j in range(d):
            precision[j, j] = min(max(precision[j, j], 0.0), BELOW_ONE)
        shrink_to_semidefinite(precision, s)
        for j in range(d):
            scale[i, j] = v[j]
        residual = max(residual, change_to_site(precision, location, m, sites, target, scale, i))
    return terms, residual


@kernel
def qep_update(hermite, rule, orders, mean, cov, y, sites, target, scale):
    """Write new sites of all points to `target` from the posterior's `mean` (c, n) and `cov` (n, c, c).

    `scale` (n, c − 1) is overwritten with the marginal variances of g. The function returns the terms of all points in
    the log evidence, and the largest change of a site in units of its marginal.
    """
    _, n, d = sites.shape
    m = np.empty(d)
    s = np.empty((d, d))
    work = np.empty(d)
    precision = np.empty((d, d))
    tilted_variance = np.empty(d)
    terms = 0.0
    residual = 0.0
    for i in range(n):
        alpha, xi = sites[0, i], sites[1, i]
        difference_moments(mean[:, i], cov[i], y[i], 1.0, alpha, xi, m, s, work)
        for j in range(d):
            scale[i, j] = s[j, j]
        new_alpha, new_xi = target[0, i], target[1, i]
        for j in range(d):
            terms += change_site(m, s, j, -alpha[j], -xi[j], work)
        terms += tilted_site(m, s, hermite, rule, orders[i], precision, new_xi, tilted_variance)
        for j in range(d):
            v = scale[i, j]
            new_alpha[j] = min(max(precision[j, j], 0.0), BELOW_ONE)
            new_xi[j] += new_alpha[j] * m[j]
            residual = max(residual, abs(new_alpha[j] - alpha[j]) * v, abs(new_xi[j] - xi[j]) * math.sqrt(v))
    return terms, residual
