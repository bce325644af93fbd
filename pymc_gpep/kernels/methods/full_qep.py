"""Full sites of EP from tilted moments by quadrature (nested EP paper, section 3.3).

The sites are exp(ξᵀg − gᵀΛg/2) with a full Λ (equations 19 to 21), kept as in `pymc_gpep.kernels.moments.full_sites`.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.moments.full_sites import cavity, shrink_to_semidefinite, write_precision
from pymc_gpep.kernels.moments.tilted_site import BELOW_ONE, tilted_site

__all__ = ["full_qep_update"]


@kernel
def full_qep_update(hermite, rule, orders, mean, cov, pi, nu, y, sites, target, scale):
    """New sites of all points into `target` from the posterior's `mean` (c, n) and `cov` (n, c, c).

    `pi` (n, d, d) and `nu` (n, d) are the present sites of the differences. `scale` receives what `accelerated_ep`
    wants to measure changes by. Returns what the points add to the evidence, and the largest change of a site in units
    of its marginal.
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
        terms -= cavity(mean[:, i], cov[i], y[i], pi[i], nu[i], m, s)
        terms += tilted_site(m, s, hermite, rule, orders[i], precision, location, v)
        for j in range(d):
            precision[j, j] = min(max(precision[j, j], 0.0), BELOW_ONE)
        shrink_to_semidefinite(precision, s)
        write_precision(precision, target, i)
        entry = d
        for j in range(d):
            target[1, i, j] = location[j]
            for k in range(d):
                target[1, i, j] += precision[j, k] * m[k]
            # For the second half accelerated EP wants squares of the units: those of Λ_jk are 1 / (g_j g_k).
            scale[i, j] = v[j]
            for k in range(j):
                scale[i, entry] = v[j] * v[k]
                entry += 1
        for e in range(entry):
            residual = max(residual, abs(target[1, i, e] - sites[1, i, e]) * math.sqrt(scale[i, e]))
            if e < d:
                residual = max(residual, abs(target[0, i, e] - sites[0, i, e]) * scale[i, e])
            else:
                target[0, i, e] = 0.0
    return terms, residual
