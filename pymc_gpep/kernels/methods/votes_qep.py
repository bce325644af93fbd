"""Coupled sites of EP for votes under a softmax, as in `pymc_gpep.kernels.methods.softmax_qep` for single labels.

The sum over classes of the π of a point with N votes is about N.
"""

import math

import numpy as np

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.methods.softmax_qep import LEAST, cavity, log_curvature, new_site
from pymc_gpep.kernels.moments.coupled_projection import difference_precision, project_site
from pymc_gpep.kernels.moments.label_differences import label_differences
from pymc_gpep.kernels.moments.votes_quadrature import votes_moments


@kernel
def votes_qep_update(nodes, log_weights, mean, cov, y, pi, sites, target, scale):
    """New sites of all points into `target`, with votes `y` (n, c); nodes (m, c) are as in `votes_moments`.

    The rest is as in `pymc_gpep.kernels.methods.softmax_qep.softmax_qep_update`.
    """
    _, n, c = sites.shape
    d = c - 1
    rows = np.empty((3, d))
    m, location, of_differences = rows[0], rows[1], rows[2]
    rows = np.empty((2, d, d))
    s, precision = rows[0], rows[1]
    factor, loss = np.empty((d, c)), np.empty((c, c))
    rows = np.empty((2, c, c))
    centred, root = rows[0], rows[1]
    rows = np.empty((4, c))
    own, log_pi, average, gradient = rows[0], rows[1], rows[2], rows[3]
    terms = 0.0
    residual = 0.0
    for i in range(n):
        label = 0
        votes = 0
        for a in range(c):
            own[a] = pi[a, i]
            votes += y[i, a]
            if y[i, a] > y[i, label]:
                label = a
        label_differences(mean[:, i], cov[i], label, m, s)
        for j in range(d):
            location[j] = -sites[1, i, j + (j >= label)]
        difference_precision(own, label, precision)
        terms -= cavity(s, precision, location, m)
        if not math.isfinite(terms):
            return np.nan, np.nan
        if votes == 0:
            log_pi[:] = LEAST
            of_differences[:] = 0.0
        else:
            # Latent values less that of the class with most votes
            average[label] = 0.0
            for k in range(c):
                centred[label, k] = 0.0
                centred[k, label] = 0.0
            for j in range(d):
                a = j + (j >= label)
                average[a] = -m[j]
                for k in range(d):
                    centred[a, k + (k >= label)] = s[j, k]
            terms += votes_moments(average, centred, y[i], nodes, log_weights, root, gradient, loss)
            for j in range(d):
                a = j + (j >= label)
                of_differences[j] = -gradient[a]
                for k in range(c):
                    factor[j, k] = root[label, k] - root[a, k]
            for j in range(d):
                for k in range(d):
                    m[j] += s[j, k] * of_differences[k]
            # m is the tilted mean now; the projection starts from the curvature there.
            log_curvature(m, label, votes, log_pi)
            project_site(factor, loss, label, log_pi)
        change = new_site(sites[:, i], target[:, i], cov[i], label, log_pi, m, of_differences, scale[i])
        if not math.isfinite(change):
            return np.nan, np.nan
        residual = max(residual, change)
    return terms, residual
