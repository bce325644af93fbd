"""The evidence of a q(v) that was learned batch by batch: its sites found again, row by row, for one sweep of EP."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.site_rules.contract import ScalarSites
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.solvers.inducing import InducedPrior, RowFeatures, Whitening
from pymc_gpep.solvers.sparse_ep import SparseEPSweeps, Tilted
from pymc_gpep.solvers.team import gather, one_blas_thread
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior

__all__ = ["recovered_evidence"]

_ITERATIONS = 50
_LEAST = 0.05  # of the precision of a marginal that a cavity keeps


def recovered_evidence(
    prior: InducedPrior,
    whitening: Whitening,
    posterior: WhitenedPosterior,
    rule: ScalarSites,
    likelihood: Likelihood,
    labels: NDArray[np.int64],
) -> float:
    """Log normaliser of EP with the sites that q(v) implies.

    At EP's fixed point a site is what its factor makes of q without it, and so follows from q. Elsewhere the number is
    that of the sites that would follow; NaN where these have no cavities. Three passes over the rows.

    Parameters
    ----------
    prior : InducedPrior
    whitening : Whitening
    posterior : WhitenedPosterior
        q(v).
    rule : ScalarSites
    likelihood : Likelihood
    labels : array (n,)
    """
    factors = rule.factors(likelihood, labels, prior.n_functions)
    sites = np.zeros((2, *factors.shape))
    features = RowFeatures(prior, whitening)
    with one_blas_thread(), gather(prior.n_points) as team, np.errstate(all="ignore"):
        for rows, block in features.blocks():
            pairs = [posterior.marginals(k, block.w[own]) for k, own in enumerate(features.owner)]
            functions = factors.functions[rows]
            mean, variance, prior_mean, rest = (
                np.take_along_axis(np.array(values).T, functions, axis=1)
                for values in (*zip(*pairs, strict=True), block.mean, block.rest[features.owner])
            )
            sites[:, rows] = _sites(factors.tilted, rows, mean, variance, prior_mean, rest)
        went, evidence, _ = SparseEPSweeps(features, factors, team).sweep(sites, sites.copy(), np.empty(factors.shape))
    return evidence if went else np.nan


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
        narrower = 1.0 - gamma * cavity_variance
        new, location = gamma / narrower, (found.rho + gamma * cavity_mean) / narrower
        bounded = np.minimum(new, (1.0 - _LEAST) / variance)
        t, nu = bounded, np.where(new > bounded, location * bounded / new, location)
    return np.array([t, nu])
