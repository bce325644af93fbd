"""Sites of class-independent EP: tilted moments by inner EP and by quadrature.

Each point has c scalar sites with precisions π and locations ν. They match the marginals of the tilted distribution.
The precision of class k is 1/v̂_k − 1/v_k, with the tilted variance v̂_k and the cavity variance v_k. The precision is
not negative, since the likelihood is log-concave (Prékopa). It is below 1, since noise of variance 1 smooths the
likelihood. For the quadrature of a multinomial probit see `pymc_gpep.kernels.methods.factors.quadrature_tilted`.

A softmax depends on the differences g_j = f_y − f_j. Under independent cavities with variances v_k, g has the
covariance C = diag(v_j) + v_y 11ᵀ = F Fᵀ. With g − E g = F t, the tilted distribution of t has the covariance I − Ω,
from `pymc_gpep.kernels.moments.softmax_quadrature`. The regression of f on t is R = Cov(f, g) C⁻¹ F, with the rows

    R_y = Σ_j q_j F_j / Σ_k q_k,   R_j = R_y − F_j,   q_k = 1 / v_k,

where Σ_k is over all classes. So no matrix is inverted. Tilted variances are v_k − R_k Ω R_kᵀ, or
1 / Σ q + R_k (I − Ω) R_kᵀ. The first form is exact to rounding if v_k − v̂_k is small, the second if v̂_k is small.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel, kernel
from pymc_gpep.kernels.methods.factors import quadrature_tilted
from pymc_gpep.kernels.moments.inner_ep import change_site, gaussian_log_normaliser, inner_sweep, site_terms
from pymc_gpep.kernels.moments.softmax_quadrature import softmax_moments


@inlined_kernel
def independent_update(tilted, settings, mean, variance, pi, nu, y, sites, target, scale):
    """Write new sites of all points into `target`, from posterior means and variances (c, n).

    `tilted(settings, mean, variance, y, old, new, scale)` computes sites of one point from cavity moments (c,). The
    first c sites of a point in `old` (2, d) are π and ν; further sites are inner sites. `tilted` writes `new` and the
    scale of the inner sites. It returns the log normaliser and the largest change of an inner site.

    The function returns success, the points' terms of the log evidence, and the largest change of a site in its units.
    """
    c, n = pi.shape
    cavity = np.empty((2, c))
    terms = 0.0
    residual = 0.0
    for i in range(n):
        for a in range(c):
            v = variance[a, i]
            keep = 1.0 - pi[a, i] * v
            if v < 0.0 or keep <= 0.0:  # The posterior or a cavity is improper.
                return False, np.nan, np.nan
            cavity[0, a] = (mean[a, i] - nu[a, i] * v) / keep
            cavity[1, a] = v / keep
            scale[i, a] = v
            terms -= gaussian_log_normaliser(cavity[0, a], cavity[1, a], nu[a, i], pi[a, i])
        log_z, change = tilted(settings, cavity[0], cavity[1], y[i], sites[:, i], target[:, i], scale[i])
        terms += log_z
        residual = max(residual, change)
        for a in range(c):
            v = variance[a, i]
            residual = max(residual, abs(target[0, i, a] - pi[a, i]) * v)
            residual = max(residual, abs(target[1, i, a] - nu[a, i]) * math.sqrt(v))
    return True, terms, residual


@kernel
def class_sites(mean, variance, y, alpha, beta, pi, nu):
    """Write precisions π and locations ν (c,) of sites that match the marginals under the inner sites α and β (c − 1,).

    Cavities are independent. The inner sites are, as a function of f and up to a constant,

        exp(νᵀf − fᵀΠf/2) = ∫ ∏_l exp(ν_l (f_l − w) − π_l (f_l − w)²/2) dw,

    with π and ν as in equations 12 and 15 of the nested EP paper. The integral over f_l, with the cavity N(μ_l, v_l),
    is a Gaussian factor in w. Its precision is r_l = π_l / (1 + π_l v_l), and its location t_l = (π_l μ_l − ν_l) / (1 +
    π_l v_l). Let D = Σ_{l≠k} r_l and T = Σ_{l≠k} t_l. The integral over w is a site of f_k with the precision π_k D /
    (π_k + D) and the location (ν_k D + π_k T) / (π_k + D). These formulas contain no cancelling differences.
    """
    c = mean.shape[0]
    total = 1.0
    location = 0.0
    for j in range(c - 1):
        total += alpha[j]
        location += beta[j]
    a = location / total
    for k in range(c):
        rest = 0.0
        pull = 0.0
        own, push = 1.0, a
        for other in range(c):
            precision, shift = 1.0, a
            if other != y:
                j = other - (other > y)
                precision, shift = alpha[j], a * alpha[j] - beta[j]
            if other == k:
                own, push = precision, shift
            else:
                stretch = 1.0 + precision * variance[other]
                rest += precision / stretch
                pull += (precision * mean[other] - shift) / stretch
        pi[k] = own * rest / (own + rest)
        nu[k] = (push * rest + own * pull) / (own + rest)


@kernel
def inner_tilted(settings, mean, variance, y, old, new, scale):
    """Write the sites of one point by inner EP, as `tilted` of `independent_update`. The inner sites are α and β.

    Inner EP sweeps its sites until changes are within the tolerance, or `max_inner` times. The inner sites are part of
    the outer iteration, so the fixed point does not depend on `max_inner`.
    """
    max_inner, tolerance, m, s, work = settings
    c = mean.shape[0]
    others = c - 1
    # Cavity moments of g_j = f_y − f_j + u, then moments with the sites.
    for j in range(others):
        a = j + (j >= y)
        m[j] = mean[y] - mean[a]
        s[j, :] = variance[y] + 1.0
        s[j, j] += variance[a]
    log_z = 0.0
    new[:, c:] = old[:, c:]
    alpha, beta = new[0, c:], new[1, c:]
    for j in range(others):
        log_z += change_site(m, s, j, alpha[j], beta[j], work)
    log_z += site_terms(m, s, alpha, beta)
    for j in range(others):
        scale[c + j] = s[j, j]
    _, residual = inner_sweep(m, s, alpha, beta, work)
    change = residual
    for _ in range(1, max_inner):
        if change <= tolerance:
            break
        _, change = inner_sweep(m, s, alpha, beta, work)
    class_sites(mean, variance, y, alpha, beta, new[0], new[1])
    return log_z, residual


@kernel
def iep_update(max_inner, tolerance, mean, variance, pi, nu, y, sites, target, scale):
    """Write new sites of all points by inner EP, see `independent_update`."""
    others = mean.shape[0] - 1
    settings = (max_inner, tolerance, np.empty(others), np.empty((others, others)), np.empty(others))
    return independent_update(inner_tilted, settings, mean, variance, pi, nu, y, sites, target, scale)


@kernel
def qiep_update(mean, variance, pi, nu, y, sites, target, scale):
    """Write new sites of all points by quadrature, see `independent_update`."""
    c = mean.shape[0]
    settings = (np.empty(c), np.empty(c), np.empty(c), np.empty((4, c)))
    return independent_update(quadrature_tilted, settings, mean, variance, pi, nu, y, sites, target, scale)


_LEAST = 1e-150  # Smaller variances are replaced by this number.
_HALF = (
    0.5  # If the likelihood reduces a variance by a larger fraction, the second form of the tilted variance is used.
)


@inlined_kernel
def _room(c):
    """Return scratch arrays for one point."""
    d = c - 1
    return np.empty((3, d)), np.empty((d, d)), np.empty((d, c)), np.empty((c, c))


@kernel
def _tilted(settings, mean, variance, y, old, new, scale):
    """Write the sites of one point by quadrature, as `tilted` of `independent_update`."""
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
    """Write new sites of all points, see `independent_update`.

    `nodes` and `log_weights` are as in `softmax_moments`.
    """
    settings = (nodes, log_weights, _room(mean.shape[0]))
    return independent_update(_tilted, settings, mean, variance, pi, nu, y, sites, target, scale)


@kernel
def rough_softmax_sites(nodes, log_weights, mean, variance, y, log_z, sites):
    """Write log normalisers and matched sites of points without sites.

    Parameters
    ----------
    nodes, log_weights : arrays
        As in `softmax_moments`.
    mean, variance : (n, c) array
    y : (n,) array
    log_z : (n,) array
        Overwritten.
    sites : (n, 2, c) array
        Overwritten with precisions and locations.
    """
    n, c = mean.shape
    settings = (nodes, log_weights, _room(c))
    nothing, room = np.zeros((2, c)), np.empty(c)
    for i in range(n):
        log_z[i], _ = _tilted(settings, mean[i], variance[i], y[i], nothing, sites[i], room)
