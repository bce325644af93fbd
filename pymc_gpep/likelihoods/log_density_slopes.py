"""The log density of all observations with its derivative in the latent values, by the kernel that a likelihood has."""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import BlockCurvature, CoupledCurvature, PlainDensity, ScalarDensity

type LogDensity = Callable[[Array, Observed, Array], float]
"""Of `(f, y, slope)`: Σ log p(y_i | f_i), returned, and its derivative in f, written (c, n)."""


def log_density_with_slope(likelihood: Likelihood) -> LogDensity | None:
    """Return the log density of a likelihood with its parameters; None where no kernel computes its derivative."""
    if likelihood.offers(BlockCurvature):
        return likelihood.computation(BlockCurvature).log_density
    if likelihood.offers(CoupledCurvature):
        coupled = likelihood.computation(CoupledCurvature).log_density
        return lambda f, y, slope: coupled(f, y, np.empty_like(f), slope)
    if likelihood.offers(ScalarDensity):
        return _of_one_function(likelihood, likelihood.computation(ScalarDensity).derivatives)
    if likelihood.offers(PlainDensity):
        return _of_one_function(likelihood, likelihood.computation(PlainDensity).derivatives)
    return None


def _of_one_function(likelihood: Likelihood, derivatives: Callable[..., None]) -> LogDensity:
    parameters = likelihood.parameters

    def log_density(f: Array, y: Observed, slope: Array) -> float:
        out = np.empty((4, f.shape[1]))
        derivatives(f[0], y, parameters, out)
        slope[0] = out[1]
        return float(out[0].sum())

    return log_density
