"""Sites that couple the functions of a row, by inner EP: that of nested EP for a row that has no site yet."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.moments.coupled_sites import site_parameters
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.local_computations import DifferenceFactors, SiteInformation
from pymc_gpep.selection.site_rules.contract import Matched, Told
from pymc_gpep.selection.site_rules.information import coupled_told

__all__ = ["InnerEP"]

_SWEEPS, _TOLERANCE = 200, 1e-10


class InnerEP:
    """Of Riihimäki, Jylänki and Vehtari (2013, appendix A): in the form on which Seeger and Jordan (2004) project."""

    name = "coupled"
    method = "nested_ep"
    form = SiteForm.COUPLED
    shares = False
    from_cavity = True

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has factors of differences."""
        return likelihood.offers(DifferenceFactors) and likelihood.offers(SiteInformation)

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `SiteRule`."""
        c, p = mean.shape
        nothing, sites, scale = np.zeros((2, p, c - 1)), np.empty((2, p, c - 1)), np.empty((p, c - 1))
        likelihood.computation(DifferenceFactors).coupled_update(
            np.ascontiguousarray(mean), np.ascontiguousarray(cov), labels, *nothing, _SWEEPS, _TOLERANCE, *sites, scale
        )
        found = Matched(np.empty((c, p)), np.empty((c, p)))
        site_parameters(labels, *sites, *found)
        return found

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `SiteRule`."""
        return coupled_told(likelihood, labels, mean, cov)

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `SiteRule`."""
        return self.told(likelihood, labels, mean, cov).log_z
