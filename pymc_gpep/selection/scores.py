"""What candidates are chosen by: the largest score comes next."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.contract import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage, RoughNormaliser
from pymc_gpep.selection.site_rules.contract import SiteRule

__all__ = ["RANDOM", "SCORES", "SCORE_NAMES", "expected_information", "information", "surprise"]

type Score = Callable[[SiteRule, Likelihood, NDArray[np.int64], Array, Array], Array]

RANDOM = "random"
"""No score: rows in a random order."""


def information(rule: SiteRule, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
    """What a row would tell: the divergence of the posterior with its site from that without (p,).

    It is that of the latent values of the row alone, ½(log|M| + tr(M⁻¹ − I) + gᵀAg) with M = I + ΠA and
    g = M⁻¹(ν − Πμ) (Seeger and Jordan 2004, equation 14, of which the largest is meant).
    """
    precision, location = rule.match(likelihood, labels, mean, cov, True)
    if rule.form is SiteForm.INDEPENDENT:
        variance = np.diagonal(cov, axis1=1, axis2=2).T
        stretch = 1.0 + precision * variance
        slope = (location - precision * mean) / stretch
        return np.asarray(0.5 * (np.log(stretch) + 1.0 / stretch - 1.0 + slope * slope * variance).sum(axis=0))
    c = len(mean)
    unit = np.eye(c)
    pi = precision.T
    block = pi[:, :, None] * (unit - (pi / pi.sum(axis=1, keepdims=True))[:, None, :])
    m = unit + block @ cov
    pull = location.T - (block @ mean.T[:, :, None])[:, :, 0]
    solved = np.linalg.solve(m, np.concatenate([np.broadcast_to(unit, m.shape), pull[:, :, None]], axis=2))
    slope = solved[:, :, c]
    taken = solved[:, :, :c].trace(axis1=1, axis2=2) - c
    quadratic = np.einsum("pa,pab,pb->p", slope, cov, slope)
    return np.asarray(0.5 * (np.linalg.slogdet(m)[1] + taken + quadratic))


def surprise(rule: SiteRule, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
    """Minus the log predictive probability of the labels (p,) (Girolami and Rogers 2006, equation 5.5).

    Where functions are coupled it is by inner EP, and for a softmax by the formula for its tails, to about a percent.
    """
    p = len(labels)
    if rule.form is not SiteForm.INDEPENDENT:
        return -likelihood.log_tail(np.ascontiguousarray(mean.T), np.ascontiguousarray(cov), labels)
    variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2))
    if likelihood.offers(RoughNormaliser):
        log_z = np.empty(p)
        given = np.ascontiguousarray(mean.T), variance, labels, likelihood.parameters
        likelihood.computation(RoughNormaliser).log_normalisers(*given, log_z)
        return -log_z
    found = np.empty((5, p))
    given = np.ascontiguousarray(mean[0]), variance[:, 0].copy(), labels, likelihood.parameters
    likelihood.computation(GaussianAverage).terms(*given, found)
    return -found[0]


def expected_information(
    rule: SiteRule, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array
) -> Array:
    """What a row would tell on average over the labels that it may have, as they are predicted (p,).

    Its own label is not looked at, so that rows are not chosen for labels that are wrong.
    """
    total, weight = np.zeros(len(labels)), np.zeros(len(labels))
    for label in range(likelihood.n_classes(len(mean))):
        given = rule, likelihood, np.full_like(labels, label), mean, cov
        p = np.exp(-surprise(*given))
        total += p * information(*given)
        weight += p
    return total / weight


SCORES: Mapping[str, Score] = {
    "information": information,
    "expected": expected_information,
    "probability": surprise,
}
"""By name."""

SCORE_NAMES = (*SCORES, RANDOM)
