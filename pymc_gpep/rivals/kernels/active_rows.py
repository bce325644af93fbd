"""Active rows: scores of many candidate rows to a few digits, and the posterior with one more row.

`probit_information` and `softmax_information` compute the information gained from a label y at a point without a site.
The label depends on the differences g_j = f_y − f_j of latent values, j ≠ y. The information is the divergence of the
distribution of g with the site from the distribution without it (Seeger and Jordan 2004, equation 14).

Averages of a multinomial probit over latent values use `rough_log_likelihood`. It is accurate to about nine digits, and
takes a tenth of the time of `pymc_gpep.kernels.likelihoods.multinomial_probit`. The trapezoid rule is centred at 0
rather than at the mode, with a wider step and tabulated distribution functions. If the label is improbable, the mode is
far from 0 and the tables have too few digits. Then the exact rule is used.

`append_coupled` adds one row with a coupled site, in the notation of `pymc_gpep.kernels.gaussians.coupled`. For the
active rows so far, function k has A_k = I + D_k^½ K_k D_k^½ = L_k L_kᵀ and B_k = L_k⁻¹ D_k^½. Let H = Σ_k B_kᵀ B_k = L
Lᵀ. Another point j has columns m_k = B_k K_k,j and q_k = L⁻¹ B_kᵀ m_k. The posterior covariance of its functions k and
l is q_kᵀq_l, plus K_k,jj − m_kᵀm_k if k = l. A new row appends b_k to each B_k, and adds Σ b_k b_kᵀ to H. Rotations
update L and the q. The remainders of the new entries after the rotations update the moments.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_lower
from pymc_gpep.kernels.moments.inner_ep import difference_moments, label_differences, settle_sites
from pymc_gpep.kernels.moments.softmax_quadrature import softmax_moments
from pymc_gpep.kernels.special.largest_of_independent import log_largest
from pymc_gpep.kernels.special.probit import trapezoid_rule
from pymc_gpep.kernels.special.tabulated_normal import cdf_and_density

_SWEEPS, _TOLERANCE = 20, 1e-3  # Largest number of sweeps, and tolerance, of inner EP.


@kernel
def _divergence(differences, spread, alpha, beta, room, side):
    """Return the divergence ½(log|M| + tr(M⁻¹ − I) + hᵀSh) of differences g with sites from g ~ N(`differences`, S).

    Sites with precisions α and locations β act on g + u, with u ~ N(0, 1). Let R = diag(√α), `spread` = S + 11ᵀ and B =
    I + R (S + 11ᵀ) R = L Lᵀ. Then |M| = |B| / (1 + 1ᵀα), M⁻¹ − I = −S R B⁻¹ R and h = R B⁻¹ R (β / α − differences).
    `room` (d, d) and `side` (d, d + 1) are overwritten.
    """
    d = alpha.shape[0]
    total = 1.0
    for j in range(d):
        total += alpha[j]
        root = math.sqrt(alpha[j])
        side[j, d] = beta[j] / root - root * differences[j] if root > 0.0 else 0.0
        for k in range(d):
            both = root * math.sqrt(alpha[k])
            room[j, k] = both * spread[j, k] + (1.0 if j == k else 0.0)
            side[j, k] = root * (spread[j, k] - 1.0)  # R S
    lower = lower_factor(room)
    value = -math.log(total)
    for j in range(d):
        value += 2.0 * math.log(lower[j, j])
        for k in range(d):
            room[j, k] = math.sqrt(alpha[j]) if j == k else 0.0
    solve_lower(lower, side)  # L⁻¹ R S and L⁻¹ R (β / α − differences)
    solve_lower(lower, room)  # L⁻¹ R
    # tr(S R B⁻¹ R) = Σ (L⁻¹ R S) ∘ (L⁻¹ R). With v = L⁻¹ R (β / α − differences), hᵀSh = vᵀ (L⁻¹ R S) (L⁻¹ R)ᵀ v.
    for j in range(d):
        for k in range(d):
            value -= side[j, k] * room[j, k]
    for k in range(d):
        left = 0.0
        right = 0.0
        for j in range(d):
            left += side[j, k] * side[j, d]
            right += room[j, k] * side[j, d]
        value += left * right
    return 0.5 * value


@kernel
def probit_information(mean, cov, y, log_z, information):
    """Write the information gained from labels of p points of a multinomial probit, by inner EP from sites of 0.

    Parameters
    ----------
    mean : (c, p) array
    cov : (p, c, c) array
    y : (p,) array
    log_z, information : (p,) array
        Overwritten by log probabilities of the labels, and the information gained from them.
    """
    c, p = mean.shape
    d = c - 1
    rows = np.empty((5, d))
    m, differences, work, alpha, beta = rows[0], rows[1], rows[2], rows[3], rows[4]
    rows = np.empty((3, d, d))
    s, spread, room = rows[0], rows[1], rows[2]
    side = np.empty((d, d + 1))
    for i in range(p):
        alpha[:] = 0.0
        beta[:] = 0.0
        difference_moments(mean[:, i], cov[i], y[i], 1.0, alpha, beta, m, s, work)
        for j in range(d):
            differences[j] = m[j]
            for k in range(d):
                spread[j, k] = s[j, k]
        log_z[i] = settle_sites(m, s, alpha, beta, _SWEEPS, _TOLERANCE, work)
        information[i] = _divergence(differences, spread, alpha, beta, room, side)


@kernel
def softmax_information(nodes, log_weights, mean, cov, y, log_z, information):
    """Write the information gained from labels of p points of a softmax, by quadrature.

    The information is the divergence of the Gaussian with the tilted moments from the cavity. No site is computed.

    `nodes` and `log_weights` are as in `softmax_moments`, all other arguments as in `probit_information`.
    """
    c, p = mean.shape
    d = c - 1
    rows = np.empty((2, d))
    m, gradient = rows[0], rows[1]
    s, factor, loss, work = np.empty((d, d)), np.empty((d, c)), np.empty((c, c)), np.empty((c, c))
    for i in range(p):
        label_differences(mean[:, i], cov[i], y[i], m, s)
        log_z[i] = softmax_moments(m, s, nodes, log_weights, factor, gradient, loss)
        value = 0.0
        for j in range(c):
            value -= loss[j, j]
            for k in range(c):
                work[j, k] = (1.0 if j == k else 0.0) - loss[j, k]
        lower = lower_factor(work)
        for j in range(c):
            value -= 2.0 * math.log(lower[j, j])
        for j in range(d):
            for k in range(d):
                value += gradient[j] * s[j, k] * gradient[k]
        information[i] = 0.5 * value


@kernel
def rough_log_normalisers(mean, variance, y, parameters, log_z):
    """Write the log normalisers of points of a multinomial probit with errors of about 1e-6, without derivatives.

    The function takes a small fraction of the time of `pymc_gpep.kernels.methods.factors.point_derivatives`.

    Parameters
    ----------
    mean, variance : (n, c) array
        Moments of the latent values.
    y : (n,) array
        Classes.
    parameters : (0, n) array
    log_z : (n,) array
        Overwritten.
    """
    n, c = mean.shape
    room, utility_variance = np.empty((3, c)), np.empty(c)
    for i in range(n):
        for k in range(c):
            utility_variance[k] = 1.0 + variance[i, k]
        log_z[i] = log_largest(mean[i], utility_variance, y[i], room)


_WIDER = 1.25  # Step of the trapezoid rule, relative to the step for 15 digits. It is accurate to ten digits.
_REACH = 6.8  # Distance of the outermost nodes from the centre.
_FURTHEST = 8.5  # Argument at which the tables end.
_LOWEST = -5.0  # The exact rule is used if a difference of latent values is lower.
_LEAST = 1e-4  # The exact rule is used if the probability of the label is lower.


@kernel
def rough_log_likelihood(f, y, gradient):
    """Return Σ log p(y_i | f_i) for latent values f (c, n), and write its derivative into `gradient` (c, n)."""
    c, n = f.shape
    step = _WIDER * trapezoid_rule(float(c))[0]
    before = int(_REACH / step)
    nodes = before + int((_REACH - 0.5 * _LOWEST) / step) + 1
    weights = np.empty(nodes)
    for i in range(nodes):
        u = (i - before) * step
        weights[i] = step * math.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
    rows = np.empty((4, c))
    differences, ratios, of_point, own = rows[0], rows[1], rows[2], rows[3]
    total = 0.0
    for i in range(n):
        label = y[i]
        lowest = np.inf
        for a in range(c):
            differences[a] = f[label, i] - f[a, i]
            of_point[a] = 0.0
            if a != label:
                lowest = min(lowest, differences[a])
        p = 0.0
        if lowest > _LOWEST:
            last = before + int((_REACH + max(0.0, -0.5 * lowest)) / step) + 1
            for node in range(min(last, nodes) - 1, -1, -1):
                u = (node - before) * step
                if u + lowest < -_FURTHEST:
                    break
                product = weights[node]
                for a in range(c):
                    s = u + differences[a]
                    ratios[a] = 0.0
                    if a != label and s < _FURTHEST:
                        cdf, density = cdf_and_density(s)
                        product *= cdf
                        ratios[a] = density / cdf
                p += product
                for a in range(c):
                    of_point[a] -= product * ratios[a]
        if p > _LEAST:
            total += min(math.log(p), 0.0)
            rest = 0.0
            for a in range(c):
                gradient[a, i] = of_point[a] / p
                rest += gradient[a, i]
            gradient[label, i] = -rest
        else:
            for a in range(c):
                own[a] = f[a, i]
            total += log_probability_and_gradient(own, label, of_point)
            for a in range(c):
                gradient[a, i] = of_point[a]
    return total


@kernel
def append_coupled(size, lower, weights, stubs, new, rows, own, new_weights, mean, cov):
    """Add a row with a coupled site to `size` active rows. Update `lower`, `weights`, `stubs` and the moments.

    Parameters
    ----------
    size : int
        Number of active rows before.
    lower : (d, d) array
        Cholesky factor L.
    weights : (d,) array
        L⁻¹ Σ B_kᵀ β_k, β_k = L_k⁻¹ D_k^{-½} ν_k.
    stubs : (c, d, p) array
        Columns q_k of p points.
    new : (c, p) array
        New entries of the columns m_k of these points, see the docstring of the module.
    rows : (c, d) array
        New row of each B_k without its last entry; overwritten.
    own : (c,) array
        Last entry of this row.
    new_weights : (c,) array
        New entries of the β_k.
    mean : (c, p) array
        Means of p points.
    cov : (p, c, c) array
        Covariances of p points.
    """
    c, p = new.shape
    last = np.zeros(size)
    corner = 0.0
    location = 0.0
    for k in range(c):
        corner += own[k] * own[k]
        location += own[k] * new_weights[k]
        for i in range(size):
            last[i] += own[k] * rows[k, i]
    left = np.empty((c, p))
    for k in range(c):
        of_weights = new_weights[k]
        row = rows[k]
        for a in range(c):
            for j in range(p):
                left[a, j] = new[k, j] if a == k else 0.0
        for i in range(size):
            r = math.hypot(lower[i, i], row[i])
            cosine = lower[i, i] / r
            sine = row[i] / r
            lower[i, i] = r
            for e in range(i + 1, size):
                old = lower[e, i]
                lower[e, i] = cosine * old + sine * row[e]
                row[e] = cosine * row[e] - sine * old
            old = weights[i]
            weights[i] = cosine * old + sine * of_weights
            of_weights = cosine * of_weights - sine * old
            for a in range(c):
                stub = stubs[a, i]
                rest = left[a]
                for j in range(p):
                    old = stub[j]
                    stub[j] = cosine * old + sine * rest[j]
                    rest[j] = cosine * rest[j] - sine * old
        for a in range(c):
            for j in range(p):
                mean[a, j] += left[a, j] * of_weights
                for e in range(a + 1):
                    change = left[a, j] * left[e, j]
                    cov[j, a, e] -= change
                    if e < a:
                        cov[j, e, a] -= change
    # The new row of L, and the new entries of the columns q.
    for i in range(size):
        for e in range(i):
            last[i] -= lower[i, e] * last[e]
        last[i] /= lower[i, i]
        corner -= last[i] * last[i]
        location -= last[i] * weights[i]
        lower[size, i] = last[i]
    root = math.sqrt(corner)
    lower[size, size] = root
    weights[size] = location / root
    for a in range(c):
        stub = stubs[a, size]
        for j in range(p):
            stub[j] = own[a] * new[a, j]
        for i in range(size):
            factor = last[i]
            earlier = stubs[a, i]
            for j in range(p):
                stub[j] -= factor * earlier[j]
        for j in range(p):
            stub[j] /= root
            mean[a, j] -= stub[j] * weights[size]
    for j in range(p):
        for a in range(c):
            for e in range(c):
                cov[j, a, e] += stubs[a, size, j] * stubs[e, size, j]
