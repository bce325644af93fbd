"""Averages of log-concave densities by the general rules, for comparison with rules for single densities."""

from types import SimpleNamespace

from pymc_gpep.likelihoods.averages_over_cells import KernelDensity, columns_of, log_average_terms
from pymc_gpep.likelihoods.counts import PoissonLikelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, GaussianAverage, ParameterSlopes, ScalarDensity

_COUNTS = PoissonLikelihood()
_SLOPES = _COUNTS.computation(ParameterSlopes)
poisson = SimpleNamespace(
    derivatives=_COUNTS.computation(ScalarDensity).derivatives,
    average=_COUNTS.computation(GaussianAverage).terms,
    average_log=_COUNTS.computation(AverageLogDensity).terms,
    parameter_derivatives=_SLOPES.derivatives,
    average_slopes=_SLOPES.average,
    average_log_slopes=_SLOPES.average_log,
)


def gaussian_average(density):
    """Average by quadrature over a log-concave density that a kernel computes."""

    def terms(mean, variance, y, parameters, out):
        out[:] = log_average_terms(KernelDensity(density, y), mean, variance, columns_of(y, parameters), True)

    return GaussianAverage(terms)
