"""Averages of log-concave densities by the rules of any density, for densities that have rules of their own."""

from pymc_gpep.likelihoods.averages_over_cells import KernelDensity, columns_of, log_average_terms
from pymc_gpep.likelihoods.local_computations import GaussianAverage


def gaussian_average(density):
    """h of a log-concave density that a kernel computes."""

    def terms(mean, variance, y, parameters, out):
        out[:] = log_average_terms(KernelDensity(density, y), mean, variance, columns_of(y, parameters), True)

    return GaussianAverage(terms)
