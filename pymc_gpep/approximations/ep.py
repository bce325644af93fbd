"""Expectation propagation for a likelihood of one latent function (Minka 2001; Opper and Winther 2000, as TAP)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.approximations.kl import KL
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.approximations.tilted_factors import ScalarCavities, TiltedFactors, tilted_factors
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, GaussianAverage, ParameterSlopes
from pymc_gpep.solvers.accelerated_ep import SCHEMES
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem
from pymc_gpep.solvers.scalar_ep import scalar_ep

__all__ = ["EP"]

_ROUGHLY, _FEW = 1e-2, 100  # tolerance of the bound that a solve from cold begins at, and iterations
_LITTLE = 0.05  # of the precision that a row's site has under the prior, below which the row is taken for an outlier


@dataclass(frozen=True)
class EP(AcceleratedEP):
    """Gaussian sites that match mean and variance of every latent value under its tilted distribution.

    Examples
    --------
    >>> solution = gpep.EP().solve(K, mean[0], y == 2)  # (n, n), (n,), (n,)
    >>> solution.log_evidence
    """

    name: ClassVar[str] = "ep"
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    matches_moments: ClassVar[bool] = True
    algebra: ClassVar[Algebra] = Algebra.FUNCTION
    follows_parameters: ClassVar[bool] = True
    looseness: ClassVar[float] = 50.0
    schemes: ClassVar[tuple[str, ...]] = (*SCHEMES, "EP with site precisions of at least 0")

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.INDEPENDENT

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        if not (likelihood.log_concave or start.any()) and likelihood.offers(AverageLogDensity):
            # With several fixed points, that near the best Gaussian is a good one.
            begin = np.zeros_like(start)
            KL(tolerance=_ROUGHLY).solver(problem, begin, History(_FEW), likelihood=likelihood)
            start[:] = begin if np.isfinite(begin).all() else 0.0
        average = likelihood.computation(GaussianAverage).terms
        slopes = likelihood.computation(ParameterSlopes).average if likelihood.offers(ParameterSlopes) else None
        return scalar_ep(
            problem,
            start,
            history,
            average=average,
            slopes=slopes,
            largest_precision=likelihood.largest_precision,
            least_precision=likelihood.least_precision,
            **self.settings,
        )

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: sites."""
        return 2 * n_points

    def from_outliers(self, solution: Solution) -> tuple[NDArray[np.intp], Array]:
        """Return rows whose sites say next to nothing beside what they would under the prior, and these sites."""
        likelihood, prior = solution.likelihood, solution.posterior.prior
        if likelihood.log_concave:
            return super().from_outliers(solution)
        mean, variance = np.ascontiguousarray(prior.mean[0]), np.ascontiguousarray(prior.variances[0])
        h = np.empty((5, mean.size))
        likelihood.computation(GaussianAverage).terms(mean, variance, solution.labels, likelihood.parameters, h)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = -h[2] / (1.0 + variance * h[2])
            location = h[1] + precision * (mean + variance * h[1])
            taken = np.isfinite(location) & (solution.posterior.precision[0] < _LITTLE * precision)
        taken &= precision > 0.0
        return np.flatnonzero(taken), np.where(taken, [precision, location], 0.0).ravel()

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """One for each point, of its latent value."""
        posterior = solution.posterior
        size = solution.mean.size
        covariance = posterior.covariance_among(np.arange(size)).reshape(size, size)
        mean, variance = posterior.cavities(solution.mean, solution.cov)
        cavities = ScalarCavities(covariance, mean.reshape(size), variance.reshape(size))
        average = solution.likelihood.computation(GaussianAverage).terms
        return tilted_factors(solution, cavities, average, solution.labels)
