"""Labels that are all the same: a fit of these goes through, and is hardly what was meant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.structure import GPClassifier
from pymc_gpep.user_warnings import warn

__all__ = ["warn_of_single_class", "warn_of_single_count"]


def warn_of_single_class(classifier: GPClassifier, labels: NDArray[Any]) -> None:
    """Warn where all labels (n,) are of one class; counts may be alike."""
    if labels.size and (labels == labels[0]).all():
        _warn(classifier, int(labels[0]), labels.size)


def warn_of_single_count(classifier: GPClassifier, counts: Array) -> None:
    """The same, where only the number of rows with each label (number of labels,) is known."""
    if np.count_nonzero(counts) == 1:
        _warn(classifier, int(counts.argmax()), int(counts.sum()))


def _warn(classifier: GPClassifier, label: int, rows: int) -> None:
    if not classifier.n_classes:
        return
    warn(
        f"All {rows} labels of {classifier.likelihood.name!r} are of the class {classifier.class_names[label]!r}: "
        "there is nothing to tell it from, and hyperparameters are learned from next to nothing. Look at how the "
        "labels were coded and which rows were chosen, and give rows of other classes as well."
    )
