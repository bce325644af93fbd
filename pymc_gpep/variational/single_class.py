"""Labels that are all the same: a fit of these goes through, and is hardly what was meant."""

from typing import Any

from numpy.typing import NDArray

from pymc_gpep.structure import GPClassifier
from pymc_gpep.user_warnings import warn

__all__ = ["warn_of_single_class"]


def warn_of_single_class(classifier: GPClassifier, labels: NDArray[Any]) -> None:
    """Warn where all labels (n,) are of one class; counts may be alike."""
    if classifier.n_classes and labels.size and (labels == labels[0]).all():
        name, only = classifier.likelihood.name, classifier.class_names[int(labels[0])]
        warn(
            f"All {labels.size} labels of {name!r} are of the class {only!r}: there is nothing to tell it from, and "
            "hyperparameters are learned from next to nothing. Look at how the labels were coded and which rows were "
            "chosen, and give rows of other classes as well."
        )
