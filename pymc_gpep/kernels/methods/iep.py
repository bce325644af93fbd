"""Tilted moments by inner EP for class-independent EP (nested EP paper, section 3.2)."""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.methods.independent_ep import independent_update
from pymc_gpep.kernels.moments.inner_ep import change_site, inner_sweep, site_terms


@kernel
def class_sites(mean, variance, y, alpha, beta, pi, nu):
    """π and ν (c,) that give independent cavities the marginals which the inner sites α and β (c − 1,) give them.

    The sites of f are, up to a constant,

        exp(νᵀf − fᵀΠf/2) = ∫ ∏_l exp(ν_l (f_l − w) − π_l (f_l − w)²/2) dw,

    where π and ν are those of equations 12 and 15. Integrating f_l with its cavity leaves a Gaussian factor in w. Its
    precision is r_l = π_l / (1 + π_l v_l) and its location t_l = (π_l μ_l − ν_l) / (1 + π_l v_l). Let D = Σ_{l≠k} r_l
    and T = Σ_{l≠k} t_l. Integrating w then leaves for f_k the precision π_k D / (π_k + D) and the location
    (ν_k D + π_k T) / (π_k + D). Nothing cancels.
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
    """Compute the tilted moments of one point by inner EP, as `independent_update` wants them; its own sites are α, β.

    Inner EP sweeps its own sites until they change no more than the tolerance, or `max_inner` times. They are part of
    the iteration, so that the fixed point is the same.
    """
    max_inner, tolerance, m, s, work = settings
    c = mean.shape[0]
    others = c - 1
    # Cavity moments of g_j = f_y − f_j + u, then those with the sites.
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
    """New sites of all points, see `independent_update`."""
    others = mean.shape[0] - 1
    settings = (max_inner, tolerance, np.empty(others), np.empty((others, others)), np.empty(others))
    return independent_update(inner_tilted, settings, mean, variance, pi, nu, y, sites, target, scale)
