"""Sites of EP whose posterior keeps the classes independent, for any way of taking the tilted moments.

The sites are c scalar ones for each point. Their precisions π and locations ν match the marginals of the tilted
distribution. Class k's precision is 1/v̂_k − 1/v_k, v_k the variance of its cavity. The likelihood is log-concave,
which makes that non-negative (Prékopa). Noise of variance 1 smooths each marginal likelihood of an f_k, which keeps it
below 1.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import inlined_kernel
from pymc_gpep.kernels.moments.inner_ep import gaussian_log_normaliser


@inlined_kernel
def independent_update(tilted, settings, mean, variance, pi, nu, y, sites, target, scale):
    """Write new sites of all points into `target` from the posterior's means and variances (c, n).

    `tilted(settings, mean, variance, y, old, new, scale)` computes the moments of one point with the cavity's means and
    variances (c,). The first c of this point's sites `old` (2, d) are π and ν, and the others are its own. It writes
    `new`, and the scale of its own ones, and returns log Ẑ and the largest change of its own.

    The function returns success, the part of the evidence that the points add, and the largest change of a site in
    units of its marginal.
    """
    c, n = pi.shape
    cavity = np.empty((2, c))
    terms = 0.0
    residual = 0.0
    for i in range(n):
        for a in range(c):
            v = variance[a, i]
            keep = 1.0 - pi[a, i] * v
            if v < 0.0 or keep <= 0.0:  # no covariance leaves a marginal like that
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
