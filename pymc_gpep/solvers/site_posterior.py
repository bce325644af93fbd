"""The Gaussian posterior that given inner sites imply: the outer half of every scheme for nested EP."""

from typing import NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.inner_ep import relative_location, site_parameters
from pymc_gpep.solvers.prior_form import SiteAlgebra
from pymc_gpep.solvers.problem import Derivatives, Problem

_BEYOND_REASON = 1e150  # squares of larger variances are infinite: their sites of 0 would pass for a fixed point


class SitePosterior(NamedTuple):
    """Results of `site_posterior`."""

    pi: Array
    """Site precisions, (c, n)."""
    nu: Array
    """Site locations relative to the prior mean, (c, n)."""
    algebra: SiteAlgebra
    """Algebra that has taken π."""
    weights: Array
    """b (c, n)."""
    mean: Array
    """Posterior mean of the latent values, (c, n)."""
    cov: Array
    """Posterior covariance of the latent values of each point, (n, c, c)."""

    @property
    def in_single_precision(self) -> "SitePosterior | None":
        """The same room, with matrices that have 32 bits a number in the memory of these; None if these are not."""
        algebra = self.algebra.in_single_precision
        return None if algebra is None else self._replace(algebra=algebra)


def site_posterior_space(problem: Problem) -> SitePosterior:
    """Room for a posterior, NaN where nothing is computed yet."""
    c, n = problem.mean.shape
    pi, nu, weights, mean = np.full((4, c, n), np.nan)
    return SitePosterior(pi, nu, problem.prior.coupled(c, problem.team), weights, mean, np.full((n, c, c), np.nan))


def site_posterior(problem: Problem, sites: Array, space: SitePosterior) -> tuple[bool, float]:
    """Compute the posterior from the inner sites α and β (2, n, c − 1).

    Returns success and log ∫ p(f) p(u) ∏ sites, what the factors' own terms leave over. Sites that are all 0 need no
    factorisation, and the algebra is left as it is.
    """
    pi, nu, _, b, mean, cov = space
    constant = site_parameters(problem.labels, sites[0], sites[1], pi, nu)
    if not sites.any() and problem.prior.variances.max() < _BEYOND_REASON:
        # The prior, as from cold: the factorisations would take as long as for any other sites.
        b[:], mean[:] = 0.0, problem.mean
        cov[:] = problem.prior.variances.T[:, :, None] * np.eye(len(pi))
        return True, 0.0
    ok, gaussian = relative_posterior(problem, space)
    return ok, constant + gaussian


def relative_posterior(problem: Problem, space: SitePosterior) -> tuple[bool, float]:
    """Compute the posterior from π and ν in `space`; ν becomes relative to the prior mean.

    Returns success and log ∫ p(f) ∏ sites, less ½ Σ_i log 1ᵀπ_i.
    """
    pi, nu, algebra, b, mean, cov = space
    ok, log_det = algebra.factorise(pi)
    if not ok:
        return False, np.nan
    total = relative_location(problem.mean, pi, nu)
    algebra.weights(nu, b)
    algebra.moments(b, mean, cov)
    total += 0.5 * float(np.vdot(nu, mean))
    mean += problem.mean
    return True, total - 0.5 * log_det


def derivatives(space: SitePosterior) -> Derivatives:
    """Derivatives of the evidence with respect to prior covariance and mean at a fixed point."""
    return Derivatives(space.algebra.gradient(space.weights), space.weights.copy())
