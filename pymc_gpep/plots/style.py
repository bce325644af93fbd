"""Colours and markers: told apart by colour-blind readers, and in grey by their markers and line styles."""

from typing import Any

from pymc_gpep.plots.canvas import pyplot

_OKABE_ITO = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's colours without black, and without the yellow that is lost on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
NEUTRAL = "#555555"
"""What belongs to no class or method."""


def colours(count: int) -> list[Any]:
    """Colours for so many classes or methods."""
    if count <= len(_OKABE_ITO):
        return list(_OKABE_ITO[:count])
    # More cannot be told apart by hue; these at least differ in lightness.
    return [pyplot().get_cmap("viridis")(i / (count - 1)) for i in range(count)]


def label_of(name: Any) -> str:
    """How the name of a dim or a variable is written on an axis."""
    return str(name).replace("_", " ")
