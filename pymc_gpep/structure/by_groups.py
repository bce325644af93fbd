"""A classifier by groups of rows, where rows have the same latent value."""

from dataclasses import replace
from typing import Any

from pymc_gpep.structure.classifier import GPClassifier
from pymc_gpep.structure.latent_sum import LatentSum
from pymc_gpep.structure.prior_functions import frozen_data
from pymc_gpep.structure.row_groups import row_groups


def by_groups(classifier: GPClassifier, approximator: Any) -> GPClassifier:
    """Return a classifier whose prior is that of groups of rows; itself where all rows have latent values of their own.

    Groups are for approximations of which a point may have a factor that depends on hyperparameters.
    """
    prior = classifier.prior
    if not isinstance(prior, LatentSum) or classifier.groups is not None:
        return classifier
    if "groups" not in prior.made:
        given = classifier.likelihood_model, classifier.labels, classifier.parameters
        prior.made["groups"] = row_groups(prior, *given, frozen_data(prior.model))
    found = prior.made["groups"]
    if found is None or not approximator.approximates(found[1].points.likelihood):
        return classifier
    return replace(classifier, prior=found[0], groups=found[1])
