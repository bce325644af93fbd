"""The best Gaussian of whitened inducing values under a variational bound.

The bound is Σ_i E(m_i, v_i) − KL(q(v) ‖ N(0, I)), E an average log likelihood, or a lower bound of one. It depends on
the means and variances of the latent values of point i. At its maximum q has sites with the precisions t = −2 ∂E/∂v and
the locations ∂E/∂m + t m (Opper and Archambeau 2009). A step towards these is one along the natural gradient: a short
one always raises the bound. Precisions are negative where E is convex.

Derivatives: with q held in whitened coordinates, the divergence does not depend on hyperparameters, and E does by w and
s in the moments.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.inducing import Features, RowFeatures
from pymc_gpep.solvers.sparse_sweeps import Marginals, MatchedSites, Slopes, SparseSweeps
from pymc_gpep.solvers.team import ALONE, Team
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior


class PointAverages(NamedTuple):
    """The likelihood by averages of its logarithm."""

    functions: NDArray[np.int64]
    """Which function each site acts on, (n, c): all of them, in their order."""
    terms: Callable[[slice, Array, Array], tuple[Array, Array, Array]]
    """E (B,) of some rows and its derivatives (B, c), from means and variances (B, c) of the latent values."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, c)."""
        return self.functions.shape

    def widening(self) -> None:
        """Return None, since there are no other sites."""

    def sweeps(self, features: RowFeatures, team: Team) -> "SparseVISweeps":
        """Return the parts of an iteration over their sites."""
        return SparseVISweeps(features, self, team)


class SparseVISweeps(SparseSweeps):
    """The parts of an iteration, for one prior.

    Parameters
    ----------
    features : RowFeatures
    averages : PointAverages
    team : Team
        The threads that work on it. Results do not depend on how many there are.
    """

    def __init__(self, features: RowFeatures, averages: PointAverages, team: Team = ALONE) -> None:
        super().__init__(features, averages.functions, False, team)
        self._averages = averages

    def ascend(self, sites: Array, natural: Array, better: Array, scale: Array) -> tuple[bool, float, float]:
        """Do one sweep, see `pymc_gpep.solvers.scalar_bound.Sweep`; the bound is −∞ where the sweep failed."""
        ok, bound, residual = self.sweep(sites, natural, scale)
        better[:] = natural
        return (True, bound, residual) if ok else (True, -np.inf, np.inf)

    def _matched(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> MatchedSites:
        mean, variance, value, of_mean, of_variance = self._terms(rows, features, projected)
        precision = -2.0 * of_variance
        return MatchedSites(precision, of_mean + precision * mean, variance, float(value.sum()))

    def _slopes(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> Slopes:
        *_, of_mean, of_variance = self._terms(rows, features, projected)
        return Slopes(of_mean.T, 2.0 * of_variance.T, of_variance.T)

    def _terms(self, rows: slice, features: Features, projected: Marginals) -> tuple[Array, ...]:
        """Means and variances (B, c) of the projections, and what E is there."""
        mean, variance = projected
        seen = (features.mean + mean).T, (self._rest(features) + variance).T
        return mean.T, variance.T, *self._averages.terms(rows, *map(np.ascontiguousarray, seen))

    def of_posterior(self, posterior: WhitenedPosterior) -> float:
        """−KL(q ‖ N(0, I))."""
        root, mean = posterior.root, posterior.mean
        log_det = 2.0 * float(np.log(root.diagonal(axis1=1, axis2=2)).sum())
        return -0.5 * (float((root * root).sum() + (mean * mean).sum()) - mean.size - log_det)
