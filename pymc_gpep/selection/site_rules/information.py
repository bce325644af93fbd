"""What sites of rows tell: of sites that couple functions, by a kernel, and of independent ones, from their numbers."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.local_computations import RoughNormaliser, SiteInformation
from pymc_gpep.selection.site_rules.contract import Matched, Told

__all__ = ["coupled_told", "independent_information", "rough_normalisers"]


def coupled_told(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
    """Of a likelihood that has `SiteInformation`."""
    found = Told(*np.empty((2, len(labels))))
    given = np.ascontiguousarray(mean), np.ascontiguousarray(cov), labels
    likelihood.computation(SiteInformation).terms(*given, *found)
    return found


def independent_information(sites: Matched, mean: Array, variance: Array) -> Array:
    """Of sites, means and variances (c, p)."""
    stretch = 1.0 + sites.precision * variance
    slope = (sites.location - sites.precision * mean) / stretch
    return np.asarray(0.5 * (np.log(stretch) + 1.0 / stretch - 1.0 + slope * slope * variance).sum(axis=0))


def rough_normalisers(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
    """Of a likelihood that has `RoughNormaliser`, under independent functions."""
    log_z = np.empty(len(labels))
    variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
    given = np.ascontiguousarray(mean.T), variance, labels, likelihood.parameters
    likelihood.computation(RoughNormaliser).log_normalisers(*given, log_z)
    return log_z
