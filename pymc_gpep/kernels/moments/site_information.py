"""Information of a coupled site of a point that has no site yet: for scores of many candidates, to a few digits.

The label acts on the differences g_j = f_y − f_j, j ≠ y, and so does the information. The divergence of the
distribution of f with the site from that without is that of g (Seeger and Jordan 2004, equation 14).
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.linalg.small_matrices import lower_factor, solve_lower
from pymc_gpep.kernels.moments.inner_ep import difference_moments, label_differences, settle_sites
from pymc_gpep.kernels.moments.softmax_quadrature import softmax_moments

_SWEEPS, _TOLERANCE = 20, 1e-3


@kernel
def _divergence(differences, spread, alpha, beta, room, side):
    """Return ½(log|M| + tr(M⁻¹ − I) + gᵀSg) for scalar sites of g + u, u ~ N(0, 1), and g ~ N(`differences`, S).

    Let R = diag(√α) and B = I + R (S + 11ᵀ) R = L Lᵀ; `spread` is S + 11ᵀ. Then |M| = |B| / (1 + 1ᵀα),
    M⁻¹ − I = −S R B⁻¹ R and g = R B⁻¹ R (β / α − differences). `room` (d, d) and `side` (d, d + 1) are overwritten.
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
    # tr(S R B⁻¹ R) = Σ (L⁻¹ R S) ∘ (L⁻¹ R), and S g = (L⁻¹ R S)ᵀ v, so that gᵀSg = vᵀ (L⁻¹ R S) (L⁻¹ R)ᵀ v.
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
    """Compute the information of labels of a multinomial probit, by inner EP from nothing.

    Parameters
    ----------
    mean : (c, p) array
    cov : (p, c, c) array
    y : (p,) array
    log_z, information : (p,) array
        Overwritten: log probabilities of the labels, and the information of their sites.
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
    """Compute the information of labels of a softmax by quadrature.

    It is that of the Gaussian with the tilted moments: sites are not projected for it.

    `nodes` and `log_weights` are as in `softmax_moments`, all else as in `probit_information`.
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
