"""Sites of variational Bayes by utilities, of precision 1 for every function (Girolami and Rogers 2006, section 5)."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.local_computations import BlockCurvature, UtilityBound
from pymc_gpep.selection.site_rules.contract import Matched

__all__ = ["Utilities"]


class Utilities:
    """One online step of variational Bayes (equations 5.1 to 5.4): the mean utilities, seen with unit noise.

    These are taken at the mean of the latent values, whose variance does not enter.
    """

    name = "utility"
    method = "vb"
    form = SiteForm.INDEPENDENT
    shares = True

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has utilities."""
        return likelihood.offers(UtilityBound)

    def match(
        self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array, roughly: bool
    ) -> Matched:
        """See `SiteRule`."""
        at, slope = np.ascontiguousarray(mean), np.empty(mean.shape)
        likelihood.computation(BlockCurvature).log_density(at, labels, slope)
        return Matched(np.ones(mean.shape), at + slope)
