"""Sites that leave functions independent and match the moments of each: for several functions, and for one."""

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage, PointFactor
from pymc_gpep.selection.site_rules.contract import Matched

__all__ = ["OneFunction", "PointMoments"]


def _sites(mean: Array, variance: Array, rho: Array, gamma: Array) -> Matched:
    """From ρ = ∂ log Ẑ / ∂ mean and γ = −∂² log Ẑ / ∂ mean², all (c, p)."""
    narrower = 1.0 - np.maximum(gamma, 0.0) * variance
    return Matched(np.maximum(gamma, 0.0) / narrower, (rho + np.maximum(gamma, 0.0) * mean) / narrower)


class PointMoments:
    """By the exact moments of each function under its own marginal (Seeger and Jordan 2004, section 6)."""

    name = "independent"
    method = "qiep"
    form = SiteForm.INDEPENDENT
    shares = False

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a point of it is one factor with moments, and has no site that widens."""
        return likelihood.offers(PointFactor) and likelihood.log_concave and not likelihood.has_parameters

    def match(
        self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array, roughly: bool
    ) -> Matched:
        """See `SiteRule`."""
        c, p = mean.shape
        variance = np.diagonal(cov, axis1=1, axis2=2)
        log_z, rho, gamma = np.empty(p), np.empty((p, c)), np.empty((p, c))
        given = np.ascontiguousarray(mean.T), np.ascontiguousarray(variance), labels, likelihood.parameters
        likelihood.computation(PointFactor).derivatives(*given, log_z, rho, gamma)
        return _sites(mean, variance.T, rho.T, gamma.T)


class OneFunction:
    """The same for a likelihood of one latent function."""

    name = "independent"
    method = "ep"
    form = SiteForm.INDEPENDENT
    shares = False

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has one function, and no site that widens."""
        return likelihood.offers(GaussianAverage) and likelihood.log_concave and not likelihood.has_parameters

    def match(
        self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array, roughly: bool
    ) -> Matched:
        """See `SiteRule`."""
        variance = np.ascontiguousarray(cov[:, 0, 0])
        found = np.empty((5, mean.shape[1]))
        given = np.ascontiguousarray(mean[0]), variance, labels, likelihood.parameters
        likelihood.computation(GaussianAverage).terms(*given, found)
        return _sites(mean, variance[None], found[1][None], -found[2][None])
