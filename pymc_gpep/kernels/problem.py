"""What every solver begins with, its input checked and without what all classes share, and what it ends with."""

import numpy as np
from numba import carray

from pymc_gpep.kernels.compile import kernel
from pymc_gpep.kernels.definite import is_covariance
from pymc_gpep.kernels.finite import all_finite
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE

__all__ = ["add_to_all", "read_problem", "report"]


@kernel
def read_problem(matrices, c, n, k_, prior_mean_, y_, sites_, size):
    """Returns a status, the problem (prior covariance, prior mean, labels), and what to give to `add_to_all` (n,).

    The status is `CONVERGED` if the solver may start. The prior mean is less that of the observed class at each point:
    likelihoods do not see what is added to all classes, but a large number would take the digits of the rest.
    """
    k, mean, y = carray(k_, (matrices, n, n)), carray(prior_mean_, (c, n)), carray(y_, (n,))
    common = np.zeros(n)
    relative = np.zeros((c, n))
    status = CONVERGED
    if not (all_finite(k_, matrices * n * n) and all_finite(prior_mean_, c * n) and all_finite(sites_, size)):
        status = NOT_FINITE
    else:
        work = np.empty((n, n))
        for a in range(matrices):
            if not is_covariance(k[a], work):
                status = NOT_POSITIVE_DEFINITE
        for i in range(n):
            common[i] = mean[y[i], i]
            for a in range(c):
                relative[a, i] = mean[a, i] - common[i]
    return status, (k, relative, y), common


@kernel
def add_to_all(mean, common):
    """Put back into a mean (c, n) what `read_problem` took out."""
    for a in range(mean.shape[0]):
        for i in range(common.shape[0]):
            mean[a, i] += common[i]


@kernel
def report(evidence_, outcome_, evidence, status, iterations, rung):
    """Write how a solver ended into its outputs."""
    carray(evidence_, (1,))[0] = evidence
    outcome = carray(outcome_, (3,))
    outcome[0] = status
    outcome[1] = iterations
    outcome[2] = rung
