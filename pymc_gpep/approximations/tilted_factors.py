"""Cumulants of tilted distributions beyond the second, which an EP of scalar factors neglects.

The factors t_s act on single numbers g_s, which are jointly normal under the posterior. At a fixed point the tilted
distribution of g_s, its cavity N(μ, D) times t_s, has the posterior's mean and variance v. Its higher cumulants are
those of t_s alone: with h(μ) = log ∫ t_s(g) N(g | μ, D) dg they are D^l times the derivatives of h.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array, Observed


class TiltedFactors(NamedTuple):
    """The scalar factors of an EP at its fixed point, each g in units of its posterior standard deviation."""

    evidence: float
    """EP's log evidence there."""
    converged: bool
    """Whether it is a fixed point."""
    correlation: Array
    """Of all g under the posterior, (N, N)."""
    third: Array
    """Third cumulants of the tilted distributions, (N,)."""
    fourth: Array
    """Fourth cumulants, (N,)."""

    @property
    def lines(self) -> Array:
        """Correlations between different factors (N, N), zero on the diagonal."""
        return self.correlation - np.diag(self.correlation.diagonal())

    @property
    def two_loops(self) -> Array:
        """The correction of second order of the evidence by factors: Σ_t κ₃(s) κ₃(t) ρ_st³ / 12 for each s, (N,).

        The sum over s is what EP's evidence lacks (Opper, Paquet and Winther 2013, section 3).
        """
        parts: Array = self.third * (self.lines**3 @ self.third) / 12.0
        return parts


class ScalarCavities(NamedTuple):
    """The cavities of scalar factors, and what they act on together."""

    covariance: Array
    """Of all g under the posterior, (N, N)."""
    mean: Array
    """Of each g in its cavity, (N,)."""
    variance: Array
    """(N,)."""


def tilted_factors(
    solution: Solution, cavities: ScalarCavities, average: Callable[..., object], labels: Observed
) -> TiltedFactors:
    """The factors of a fixed point.

    Parameters
    ----------
    solution : Solution
        A fixed point of EP.
    cavities : ScalarCavities
    average : callable
        Function that writes h and its derivatives, as `terms` of
        `pymc_gpep.likelihoods.local_computations.GaussianAverage` does.
    labels : array (N,)
        Labels of the factors.
    """
    h = np.empty((5, len(labels)))
    average(cavities.mean, cavities.variance, labels, solution.likelihood.parameters, h)
    scale = 1.0 / np.sqrt(cavities.covariance.diagonal())
    unit = cavities.variance * scale
    correlation = cavities.covariance * scale[:, None] * scale
    converged = solution.convergence.converged
    return TiltedFactors(solution.evidence, converged, correlation, unit**3 * h[3], unit**4 * h[4])


def difference_cavities(solution: Solution, alpha: Array, beta: Array) -> ScalarCavities:
    """The cavities of g_j = f_y − f_j + u at every point where sites α and β (n, c − 1) of these make the posterior.

    Given f the sites leave u with the precision 1 + 1ᵀα and the mean (1ᵀβ − Σ α_j (f_y − f_j)) / (1 + 1ᵀα). The same
    holds in `pymc_gpep.kernels.moments.inner_ep.difference_moments`; here it serves for the covariance between points
    as well.
    """
    y, posterior = solution.labels, solution.posterior
    c, n = solution.mean.shape
    points = np.arange(n)
    others = np.array([np.delete(np.arange(c), label) for label in y])
    total = 1.0 + alpha.sum(axis=1)
    # What takes the differences f_y − f_j of a point to the means of its g.
    reaction = np.eye(c - 1) - (alpha / total[:, None])[:, None, :]

    cov = posterior.covariance_among(points)
    cov = cov[y, points][:, None] - cov[others, points[:, None]]
    cov = cov[:, :, y, points][..., None] - cov[:, :, others, points[:, None]]
    cov = np.einsum("iab,ibjd->iajd", reaction, cov)
    cov = np.einsum("jcd,iajd->iajc", reaction, cov)
    cov[points, :, points, :] += (1.0 / total)[:, None, None]

    differences = solution.mean[y, points][:, None] - solution.mean[others, points[:, None]]
    mean = np.einsum("iab,ib->ia", reaction, differences) + (beta.sum(axis=1) / total)[:, None]
    size = n * (c - 1)
    whole, precision = cov.reshape(size, size), alpha.reshape(size)
    variance = whole.diagonal()
    kept = 1.0 - precision * variance
    return ScalarCavities(whole, (mean.reshape(size) - beta.reshape(size) * variance) / kept, variance / kept)
