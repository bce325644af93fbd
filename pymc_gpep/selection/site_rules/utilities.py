"""Sites of variational Bayes by utilities, of precision 1 for every function (Girolami and Rogers 2006, section 5)."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.local_computations import BlockCurvature, RoughNormaliser, UtilityBound
from pymc_gpep.selection.site_rules.contract import Matched, Told
from pymc_gpep.selection.site_rules.information import independent_information, rough_normalisers

__all__ = ["Utilities"]


class Utilities:
    """One online step of variational Bayes (equations 5.1 to 5.4): the mean utilities, seen with unit noise.

    These are taken at the mean of the latent values, whose variance does not enter.
    """

    name = "utility"
    method = "vb"
    form = SiteForm.INDEPENDENT
    shares = True
    from_cavity = False

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has utilities."""
        return likelihood.offers(UtilityBound) and likelihood.offers(RoughNormaliser)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `SiteRule`."""
        at, slope = np.ascontiguousarray(mean), np.empty(mean.shape)
        likelihood.computation(BlockCurvature).log_density(at, labels, slope)
        return Matched(np.ones(mean.shape), at + slope)

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `SiteRule`."""
        sites = self.match(likelihood, labels, mean, cov)
        information = independent_information(sites, mean, np.diagonal(cov, axis1=1, axis2=2).T)
        return Told(self.log_normalisers(likelihood, labels, mean, cov), information)

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `SiteRule`."""
        return rough_normalisers(likelihood, labels, mean, cov)
