"""Sites that leave functions independent and match the moments of each: for several functions, and for one."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.selection.site_rules.row_site_rule import Matched, Told
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage, PointFactor, RoughNormaliser, SiteInformation
from pymc_gpep.solvers.sparse_ep import site_of

__all__ = ["OneFunctionMoments", "PointMoments", "coupled_told", "independent_information", "rough_normalisers"]


class _Derivatives(NamedTuple):
    """Derivatives of log Ẑ, and log Ẑ (p,) itself."""

    log_z: Array
    rho: Array
    """∂ log Ẑ / ∂ mean (c, p)."""
    gamma: Array
    """−∂² log Ẑ / ∂ mean² (c, p)."""


class _Moments(ABC):
    """The common part of both rules."""

    name: ClassVar[str] = "independent"
    form = SiteForm.INDEPENDENT
    shares = False
    from_cavity = True

    @abstractmethod
    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        """Return the derivatives of p rows."""

    def match(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Matched:
        """See `SiteRule`."""
        return _sites(self._derivatives(likelihood, labels, mean, cov), mean, cov)

    def told(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
        """See `SiteRule`."""
        found = self._derivatives(likelihood, labels, mean, cov)
        variance = np.diagonal(cov, axis1=1, axis2=2).T
        return Told(found.log_z, independent_information(_sites(found, mean, cov), mean, variance))


def _sites(found: _Derivatives, mean: Array, cov: Array) -> Matched:
    gamma = np.maximum(found.gamma, 0.0)
    return Matched(*site_of(found.rho, gamma, mean, np.diagonal(cov, axis1=1, axis2=2).T))


class PointMoments(_Moments):
    """By the exact moments of each function under its own marginal (Seeger and Jordan 2004, section 6)."""

    method = "qiep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether a point of it is one factor with moments, and has no site that widens."""
        has = likelihood.offers(PointFactor) and likelihood.offers(RoughNormaliser)
        return has and likelihood.log_concave and not likelihood.has_parameters

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `SiteRule`."""
        return rough_normalisers(likelihood, labels, mean, cov)

    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        c, p = mean.shape
        variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
        log_z, rho, gamma = np.empty(p), np.empty((p, c)), np.empty((p, c))
        given = np.ascontiguousarray(mean.T), variance, labels, likelihood.parameters
        likelihood.computation(PointFactor).derivatives(*given, log_z, rho, gamma)
        return _Derivatives(log_z, rho.T, gamma.T)


class OneFunctionMoments(_Moments):
    """The same for a likelihood of one latent function."""

    method = "ep"

    def fits(self, likelihood: Likelihood) -> bool:
        """Whether it has one function, and no site that widens."""
        return likelihood.offers(GaussianAverage) and likelihood.log_concave and not likelihood.has_parameters

    def log_normalisers(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
        """See `SiteRule`."""
        return self._derivatives(likelihood, labels, mean, cov).log_z

    def _derivatives(self, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> _Derivatives:
        variance = np.ascontiguousarray(cov[:, 0, 0])
        found = np.empty((5, mean.shape[1]))
        given = np.ascontiguousarray(mean[0]), variance, labels, likelihood.parameters
        likelihood.computation(GaussianAverage).terms(*given, found)
        return _Derivatives(found[0], found[1][None], -found[2][None])


def coupled_told(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Told:
    """Return the information of labels under a likelihood that has `SiteInformation`."""
    found = Told(*np.empty((2, len(labels))))
    given = np.ascontiguousarray(mean), np.ascontiguousarray(cov), labels
    likelihood.computation(SiteInformation).terms(*given, *found)
    return found


def independent_information(sites: Matched, mean: Array, variance: Array) -> Array:
    """Return the information of sites under means and variances (c, p)."""
    stretch = 1.0 + sites.precision * variance
    slope = (sites.location - sites.precision * mean) / stretch
    return np.asarray(0.5 * (np.log(stretch) + 1.0 / stretch - 1.0 + slope * slope * variance).sum(axis=0))


def rough_normalisers(likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
    """Return the log normalisers of a likelihood that has `RoughNormaliser`, under independent functions."""
    log_z = np.empty(len(labels))
    variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
    given = np.ascontiguousarray(mean.T), variance, labels, likelihood.parameters
    likelihood.computation(RoughNormaliser).log_normalisers(*given, log_z)
    return log_z
