"""Nested EP in any form of prior: the Gaussian posterior that given inner sites imply."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.inner_ep import relative_location, site_parameters
from pymc_gpep.kernels.status import TOO_LARGE
from pymc_gpep.solvers.prior_form import SiteAlgebra
from pymc_gpep.solvers.problem import Derivatives, Found, Problem

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


class BlockSpace(NamedTuple):
    """Room for a posterior, NaN where nothing is computed yet."""

    pi: Array
    """Precisions of the sites of differences f_y − f_j, (n, c − 1, c − 1)."""
    nu: Array
    """Their locations, (n, c − 1)."""
    w: Array
    """Precisions of the sites of the latent values, (n, c, c)."""
    location: Array
    """Their locations, (c, n)."""
    weights: Array
    """b = K⁻¹ (mean − prior mean), (c, n)."""
    mean: Array
    """Posterior mean of the latent values, (c, n)."""
    cov: Array
    """Posterior covariance of the latent values of each point, (n, c, c)."""


class Update(Protocol):
    """A way to take tilted moments."""

    def __call__(self, space: BlockSpace, sites: Array, target: Array, scale: Array) -> tuple[float, float]:
        """Write new sites, and the units of changes; return what points add to the evidence, and the largest change."""
        ...


def refused(problem: Problem, max_size: int) -> Found | None:
    """Return a result without numbers where the covariance of more than `max_size` latent values would be a matrix."""
    c, n = problem.mean.shape
    if not problem.prior.square or c * n <= max_size:
        return None
    b, mean = np.full((2, c, n), np.nan)
    w, cov = np.full((2, n, c, c), np.nan)
    return Found(np.nan, TOO_LARGE, b, mean, cov, w, lambda: Derivatives(np.empty(0), b))


class BlockEP:
    """A sweep of EP, and what it leaves.

    The posterior has all the tilted means and covariances that the update has, and the evidence is stationary in the
    sites.

    Parameters
    ----------
    problem : Problem
    algebra : SiteAlgebra
        Algebra of blocks (n, c, c).
    read : callable
        Kernel that turns sites into precisions and locations, such as
        `pymc_gpep.kernels.methods.label_noise.sites_of_differences`.
    update : Update
    """

    def __init__(self, problem: Problem, algebra: SiteAlgebra, read: Callable[..., None], update: Update) -> None:
        c, n = problem.mean.shape
        d = c - 1
        self._problem, self._algebra, self._read, self._update = problem, algebra, read, update
        weights, mean, location = np.full((3, c, n), np.nan)
        w, cov = np.full((2, n, c, c), np.nan)
        self.space = BlockSpace(np.empty((n, d, d)), np.empty((n, d)), w, location, weights, mean, cov)

    def taken(self, sites: Array) -> tuple[bool, float]:
        """Take the precisions of sites; whether there is a posterior, and the log determinant."""
        pi, nu, w, location, *_ = self.space
        self._read(self._problem.labels, sites, pi, nu, w, location)
        return self._algebra.factorise(w)

    def sweep(self, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        """One sweep, see `pymc_gpep.solvers.accelerated_ep.Sweep`."""
        ok, log_det = self.taken(sites)
        if not ok:
            return False, np.nan, np.nan
        _, _, w, location, b, mean, cov = self.space
        prior_mean = self._problem.mean
        # Everything is relative to the prior mean: ν becomes ν − W m, and the sites have a value at m.
        pull = np.einsum("iae,ei->ai", w, prior_mean)
        relative = location - pull
        evidence = -0.5 * log_det + float(np.vdot(prior_mean, location - 0.5 * pull))
        self._algebra.weights(relative, b)
        self._algebra.moments(b, mean, cov)
        evidence += 0.5 * float(np.vdot(relative, mean))
        mean += prior_mean
        terms, residual = self._update(self.space, sites, target, scale)
        return True, evidence + terms, residual

    def found(self, evidence: float, status: int, rung: int, slopes: Array) -> Found:
        """Return the result of a solver that ended here, with derivatives (p, n) in parameters of the likelihood."""
        _, _, w, _, b, mean, cov = self.space

        def derivatives() -> Derivatives:
            return Derivatives(self._algebra.gradient(b), b.copy(), slopes)

        return Found(evidence, status, b, mean, cov, w, derivatives, rung)
