"""Scores by which candidates are chosen: the largest score comes next."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.selection.site_rules.row_site_rule import RowSiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood

__all__ = ["OF_FUNCTIONS", "RANDOM", "SCORES", "SCORE_NAMES", "expected_information", "information", "surprise"]

type Score = Callable[[RowSiteRule, Likelihood, NDArray[np.int64], Array, Array], Array]

RANDOM = "random"
"""No score: rows in a random order."""


def information(rule: RowSiteRule, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
    """Return the information of each row (p,): the divergence of the posterior with its site from that without.

    Seeger and Jordan (2004, equation 14) mean the largest. Separate sites have one of each function, (c, p).
    """
    return rule.told(likelihood, labels, mean, cov).information


def surprise(rule: RowSiteRule, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array) -> Array:
    """Minus the log predictive probability of the labels (p,) (Girolami and Rogers 2006, equation 5.5)."""
    return -rule.log_normalisers(likelihood, labels, mean, cov)


def expected_information(
    rule: RowSiteRule, likelihood: Likelihood, labels: NDArray[np.int64], mean: Array, cov: Array
) -> Array:
    """Return the information of each row on average over the labels that it may have, as they are predicted.

    Its own label is not looked at, so that rows are not chosen for labels that are wrong.
    """
    parts, weight = [], np.zeros(len(labels))
    for label in range(likelihood.n_classes(len(mean))):
        told = rule.told(likelihood, np.full_like(labels, label), mean, cov)
        p = np.exp(told.log_z)
        parts.append(p * told.information)
        weight += p
    return np.asarray(sum(parts) / weight)


SCORES: Mapping[str, Score] = {
    "information": information,
    "expected": expected_information,
    "probability": surprise,
}
"""By name."""

SCORE_NAMES = (*SCORES, RANDOM)

OF_FUNCTIONS = ("expected", "information")
"""Scores that tell functions of a row from each other."""
