"""Whether a model is the one that a fit in a file was made of, where nothing is solved by which it would show."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.structure import GPClassifier
from pymc_gpep.structure.errors import StructureError
from pymc_gpep.structure.inducing_blocks import InducingBlocks

__all__ = ["FEW", "KIND", "check_classes", "check_covariance", "check_kind", "check_prior", "named_classes"]

KIND = "kind_of_likelihood"
"""The attribute of a file."""

FEW = 6
"""Inputs whose prior is looked at."""

_SAME = 1e-6  # relative difference that rounding on another machine may make


def check_kind(classifier: GPClassifier, attrs: Mapping[Any, Any]) -> None:
    """Raise a ValueError if the likelihood is of another kind; earlier versions did not say which."""
    own = classifier.likelihood_model.name
    if (was := attrs.get(KIND, own)) != own:
        raise ValueError(f"The model is not the one that was fitted: its likelihood is {own}, and was {was}.")


def named_classes(classifier: GPClassifier) -> str:
    """What the classes are called, in one string."""
    return ", ".join(map(str, classifier.class_names))


def check_classes(classifier: GPClassifier, attrs: Mapping[Any, Any]) -> None:
    """Raise a ValueError if the classes have other names."""
    if (own := named_classes(classifier)) != (was := attrs["classes"]):
        raise ValueError(f"The model is not the one that was fitted: its classes are {own}, not {was}.")


def check_prior(space: Hyperparameters, theta: Array, inputs: Array, factor: Array) -> None:
    """Raise a ValueError if the prior covariance of inducing inputs (1 or c, M, d) is not what a fit had.

    That was L Lᵀ with `factor` L (q, M, M), but for a jitter on the diagonal, which is not looked at. Nothing is said
    where the graph of the model does not say what the covariance of other inputs is.
    """
    try:
        blocks = InducingBlocks(space.classifier, None, space.data)
    except StructureError:
        return
    few = factor[:, :FEW]
    check_covariance(blocks.inducing(space.point(theta), inputs[:, :FEW]), few @ few.swapaxes(1, 2))


def check_covariance(own: Array, was: Array) -> None:
    """Raise a ValueError if prior covariances (q, m, m) between some inputs differ."""
    apart = ~np.eye(was.shape[-1], dtype=bool)
    if own.shape != was.shape or (np.abs(own - was) > _SAME * np.abs(was).max())[:, apart].any():
        raise ValueError(
            "The model is not the one that was fitted: at the hyperparameters of the fit the prior covariance of its "
            "inputs is another one. Compare covariance functions."
        )
