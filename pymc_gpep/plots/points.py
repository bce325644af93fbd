"""Training points as users name them: by the coords of the model, by position where it has none."""

from typing import Any

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.plots.style import label_of
from pymc_gpep.reading import GPClassifier


def point_position(classifier: GPClassifier, point: Any) -> int:
    """Position of the point of a name.

    Raises
    ------
    ValueError
        If there is no point of this name.
    """
    coords = classifier.coords_of_points()
    labels = list(range(classifier.n_points) if coords is None else coords)
    if point not in labels:
        meant = did_you_mean([point], labels)
        raise ValueError(f"There is no point {point!r}; their labels run from {labels[0]} to {labels[-1]}.{meant}")
    return labels.index(point)


def point_labels(classifier: GPClassifier, points: tuple[Any, Any]) -> tuple[str, str]:
    """How two points are called on axes."""
    what = label_of(classifier.point_dim or "point")
    first, second = points
    return f"{what} {first}", f"{what} {second}"
