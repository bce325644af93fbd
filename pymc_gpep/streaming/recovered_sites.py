"""Sites of a q(v) that was learned batch by batch, found again row by row, and what they say."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.point_averages import point_averages
from pymc_gpep.approximations.site_rules.site_rule import ScalarSites
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.inducing import InducedPrior, InducingWhitening, RowFeatures
from pymc_gpep.solvers.sparse_ep import SparseEPSweeps, Tilted, site_of
from pymc_gpep.solvers.sparse_sweeps import SparseSweeps
from pymc_gpep.solvers.sparse_vi import SparseVISweeps
from pymc_gpep.solvers.team import ALONE, Team
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior

_ITERATIONS = 50
_LEAST = 0.05  # of the precision of a marginal that a cavity keeps


class Recovered(NamedTuple):
    """Sites that a q(v) implies."""

    sweeps: SparseSweeps
    """That they are for, on the features of all rows."""
    sites: Array
    """(2, n, d)."""

    def log_normaliser(self) -> float:
        """Return the log normaliser of EP with these sites; NaN where they have no cavities."""
        with np.errstate(all="ignore"):
            went, evidence, _ = self.sweeps.sweep(self.sites.copy(), self.sites.copy(), np.empty(self.sites.shape[1:]))
        return evidence if went else np.nan


def recovered(
    prior: InducedPrior,
    whitening: InducingWhitening,
    posterior: WhitenedPosterior,
    rule: ScalarSites,
    likelihood: Likelihood,
    labels: NDArray[np.int64],
    team: Team = ALONE,
) -> Recovered:
    """Find the sites of all rows again: at EP's fixed point a site is what its factor makes of q without it.

    Parameters
    ----------
    prior : InducedPrior
    whitening : InducingWhitening
    posterior : WhitenedPosterior
        q(v).
    rule : ScalarSites
    likelihood : Likelihood
    labels : array (n,)
    team : Team
    """
    factors = rule.factors(likelihood, labels, prior.n_functions)
    sites = np.zeros((2, *factors.shape))
    features = RowFeatures(prior, whitening)
    for rows, block in features.blocks():
        pairs = [posterior.marginals(k, block.w[own]) for k, own in enumerate(features.owner)]
        functions = factors.functions[rows]
        mean, variance, prior_mean, rest = (
            np.take_along_axis(np.array(values).T, functions, axis=1)
            for values in (*zip(*pairs, strict=True), block.mean, block.rest[features.owner])
        )
        with np.errstate(all="ignore"):
            sites[:, rows] = _sites(factors.tilted, rows, mean, variance, prior_mean, rest)
    return Recovered(SparseEPSweeps(features, factors, team), sites)


def recovered_by_bound(
    prior: InducedPrior,
    whitening: InducingWhitening,
    posterior: WhitenedPosterior,
    likelihood: Likelihood,
    labels: NDArray[np.int64],
    team: Team = ALONE,
) -> Recovered:
    """The same for a variational bound, at whose maximum a site is what its average log likelihood makes of q."""
    averages = point_averages(likelihood, labels, prior.n_functions)
    sweeps = SparseVISweeps(RowFeatures(prior, whitening), averages, team)
    sites = np.zeros((2, *averages.shape))
    sweeps.match(sites.copy(), posterior, None, sites, np.empty(averages.shape))
    return Recovered(sweeps, sites)


def _sites(
    tilted: Callable[[slice, Array, Array], Tilted],
    rows: slice,
    mean: Array,
    variance: Array,
    prior_mean: Array,
    rest: Array,
) -> Array:
    """site = update(q / site), iterated."""
    t, nu = np.zeros((2, *mean.shape))
    for _ in range(_ITERATIONS):
        keep = 1.0 - t * variance
        cavity_mean, cavity_variance = (mean - nu * variance) / keep, variance / keep
        found = tilted(rows, prior_mean + cavity_mean, rest + cavity_variance)
        gamma = np.maximum(found.gamma, 0.0)
        new, location = site_of(found.rho, gamma, cavity_mean, cavity_variance)
        bounded = np.minimum(new, (1.0 - _LEAST) / variance)
        t, nu = bounded, np.where(new > bounded, location * bounded / new, location)
    return np.array([t, nu])
