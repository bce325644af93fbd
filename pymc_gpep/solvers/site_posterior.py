"""The Gaussian posterior that given inner sites imply: the outer half of every scheme for nested EP."""

from typing import NamedTuple

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.coupled import latent_weights
from pymc_gpep.kernels.moments.coupled_sites import relative_location, site_parameters
from pymc_gpep.solvers.coupled import Matrices, evidence_gradient, factorise, marginal_moments
from pymc_gpep.solvers.problem import Derivatives, Problem

__all__ = ["SitePosterior", "derivatives", "site_posterior", "site_posterior_space"]


_BEYOND_REASON = 1e150  # squares of larger variances are infinite: their sites of 0 would pass for a fixed point
_TINY = 1e-20  # a floor for π that changes no digit of 32 bits, and whose root and its inverse they hold


class SitePosterior(NamedTuple):
    """What `site_posterior` computes."""

    pi: Array
    """Site precisions, (c, n)."""
    nu: Array
    """Site locations relative to the prior mean, (c, n)."""
    inverses: Matrices
    """A_k⁻¹ (c, n, n)."""
    p: Matrices
    """The Cholesky factor of P, (n, n)."""
    work: Matrices
    """(c, n, n)."""
    weights: Array
    """b (c, n)."""
    mean: Array
    """Of the latent values, (c, n)."""
    cov: Array
    """Of the latent values of each point, (n, c, c)."""

    @property
    def in_single_precision(self) -> "SitePosterior":
        """The same room, with matrices that have 32 bits a number in the memory of these."""
        return self._replace(inverses=_halved(self.inverses), p=_halved(self.p), work=_halved(self.work))


def _halved(matrices: Matrices) -> Matrices:
    return matrices.reshape(-1).view(np.float32)[: matrices.size].reshape(matrices.shape)


def site_posterior_space(c: int, n: int) -> SitePosterior:
    """Room for a posterior, NaN where nothing is computed yet."""
    pi, nu, weights, mean = np.full((4, c, n), np.nan)
    inverses, work = np.empty((2, c, n, n))
    return SitePosterior(pi, nu, inverses, np.empty((n, n)), work, weights, mean, np.full((n, c, c), np.nan))


def site_posterior(problem: Problem, sites: Array, space: SitePosterior) -> tuple[bool, float]:
    """Compute the posterior from the inner sites α and β (2, n, c − 1).

    Returns success and log ∫ p(f) p(u) ∏ sites, what the factors' own terms leave over. Sites that are all 0 need no
    factorisation, and `inverses`, `p` and `work` are left as they are.
    """
    k, prior_mean, y, team = problem.k, problem.mean, problem.labels, problem.team
    pi, nu, inverses, p, work, b, mean, cov = space
    constant = site_parameters(y, sites[0], sites[1], pi, nu)
    if p.dtype == np.float32:
        np.maximum(pi, _TINY, out=pi)
    if not sites.any() and k.max() < _BEYOND_REASON:
        # The prior, as from cold: the factorisations would take as long as for any other sites.
        b[:], mean[:] = 0.0, prior_mean
        cov[:] = np.diagonal(k, axis1=1, axis2=2).T[:, :, None] * np.eye(len(pi))
        return True, 0.0
    ok, log_det = factorise(k, pi, inverses, p, team)
    if not ok:
        return False, np.nan
    constant += relative_location(prior_mean, pi, nu)
    latent_weights(inverses, p, pi, nu, b)
    marginal_moments(k, inverses, p, pi, b, work, mean, cov, team)
    constant += 0.5 * float(np.vdot(nu, mean))
    mean += prior_mean
    return True, constant - 0.5 * log_det


def derivatives(problem: Problem, space: SitePosterior) -> Derivatives:
    """Derivatives of the evidence with respect to prior covariance and mean at a fixed point."""
    gradient = np.empty_like(problem.k)
    evidence_gradient(space.inverses, space.p, space.pi, space.weights, space.work[0], gradient)
    return Derivatives(gradient, space.weights.copy())
