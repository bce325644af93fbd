"""Scores by which candidates are chosen: the largest score comes next."""

from collections.abc import Callable, Mapping

import numpy as np

from pymc_gpep.approximations.selection.site_rules.row_site_rule import RowSiteRule, SeenRows
from pymc_gpep.array_types import Array

type Score = Callable[[RowSiteRule, SeenRows], Array]

RANDOM = "random"
"""No score: rows in a random order."""


def information(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Return the information of each row (p,): the divergence of the posterior with its site from that without.

    Seeger and Jordan (2004, equation 14) mean the largest. Separate sites have one of each function, (c, p).
    """
    return rule.told(seen).information


def surprise(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Minus the log predictive probability of the labels (p,) (Girolami and Rogers 2006, equation 5.5)."""
    return -rule.log_normalisers(seen)


def expected_information(rule: RowSiteRule, seen: SeenRows) -> Array:
    """Return the information of each row on average over the labels that it may have, as they are predicted.

    Its own label is not looked at, so that rows are not chosen for labels that are wrong.
    """
    parts, weight = [], np.zeros(len(seen.labels))
    for label in range(seen.likelihood.n_classes(len(seen.mean))):
        told = rule.told(seen._replace(labels=np.full_like(seen.labels, label)))
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
