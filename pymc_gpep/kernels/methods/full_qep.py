"""Full sites of EP from tilted moments by quadrature (nested EP paper, section 3.3).

The sites are exp(ξᵀg − gᵀΛg/2) with a full Λ (equations 19 to 21), kept as in `pymc_gpep.kernels.moments.full_sites`.
"""

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.moments.full_sites import cavity, change_to_site, shrink_to_semidefinite
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
        for j in range(d):
            scale[i, j] = v[j]
        residual = max(residual, change_to_site(precision, location, m, sites, target, scale, i))
    return terms, residual
