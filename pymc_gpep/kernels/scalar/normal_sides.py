"""Log density and log tail probabilities ℓ(g) = log φ(g), log Φ(g) or log Φ(−g), and averages over a normal g.

The row of `shapes` (1, n) is the side: 0 for the density φ, 1 for Φ(g), −1 for Φ(−g). Arrays as in
`pymc_gpep.likelihoods.standard_density`.
"""

import math

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.special.normal import LOG_2PI, log_ndtr_derivatives, write_derivatives
from pymc_gpep.kernels.special.probit import log_probit_normal


@kernel
def derivatives(g, shapes, out, slopes):
    """Write ℓ(g), a log density or log tail probability, and its first three derivatives into `out` (4, n)."""
    slopes[:] = 0.0
    for i in range(len(g)):
        side = shapes[0, i]
        if side == 0.0:
            out[0, i] = -0.5 * (g[i] * g[i] + LOG_2PI)
            out[1, i] = -g[i]
            out[2, i] = -1.0
            out[3, i] = 0.0
        else:
            write_derivatives(out, i, side, log_ndtr_derivatives(side * g[i]))


@kernel
def average(mean, variance, shapes, out, slopes):
    """Write log E exp ℓ(g) over normal g and its first four derivatives in the mean into `out` (5, n)."""
    slopes[:] = 0.0
    for i in range(len(mean)):
        side = shapes[0, i]
        if not (0.0 <= variance[i] < math.inf and math.isfinite(mean[i])):
            out[:, i] = math.nan
            continue
        square = 1.0 / (1.0 + variance[i])
        scale = math.sqrt(square)
        if side == 0.0:
            out[0, i] = -0.5 * (mean[i] * mean[i] * square + LOG_2PI) + math.log(scale)
            out[1, i] = -mean[i] * square
            out[2, i] = -square
            out[3, i] = 0.0
            out[4, i] = 0.0
        else:
            write_derivatives(out, i, side * scale, log_ndtr_derivatives(side * scale * mean[i]))


@kernel
def average_log(mean, variance, shapes, out, slopes):
    """Write E ℓ(g) over normal g and its derivatives in mean and variance into `out` (3, n)."""
    slopes[:] = 0.0
    for i in range(len(mean)):
        side = shapes[0, i]
        if not (0.0 <= variance[i] < math.inf and math.isfinite(mean[i])):
            out[:, i] = math.nan
        elif side == 0.0:
            out[0, i] = -0.5 * (mean[i] * mean[i] + variance[i] + LOG_2PI)
            out[1, i] = -mean[i]
            out[2, i] = -0.5
        else:
            value, hazard, curvature = log_probit_normal(side * mean[i], variance[i])
            out[0, i] = -value
            out[1, i] = side * hazard
            out[2, i] = -0.5 * curvature
