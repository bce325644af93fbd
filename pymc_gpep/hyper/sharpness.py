"""A test of whether the log posterior that a search climbs has no bound.

A density without a bound concentrates. The mass above any height is at most the whole, so the volume above a height
shrinks as the height grows. The log posterior then becomes sharper in some direction for as long as the search rises.
About a maximum its curvature is that of the maximum.
"""

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation


class Sharpness:
    """Sharpness of the log posterior along a search: the smallest standard deviations that its steps show.

    Parameters
    ----------
    first : array (d,)
        First point of the search.
    """

    def __init__(self, first: Array) -> None:
        self._first, self._way = first, np.zeros_like(first)
        self._last: list[float] = []
        self._looks: list[tuple[float, float]] = []

    def learn(self, here: Evaluation, there: Evaluation) -> None:
        """Learn from a step of the search.

        A step s and the fall y of the gradient over it show the inverse curvature H, s = H y. The ratio yᵀs / yᵀy lies
        between the eigenvalues of H. The unit of a parameter is its largest distance from its first value.

        Parameters
        ----------
        here, there : Evaluation
            Points before and after the step.
        """
        fall = here.gradient - there.gradient
        product = float(fall @ (there.theta - here.theta))
        self._way = np.maximum(self._way, np.abs(there.theta - self._first))
        length = float(np.linalg.norm(fall * self._way))
        self._last.append(np.sqrt(product) / length if product > 0.0 and 0.0 < length < np.inf else np.inf)
        if len(self._last) == _WINDOW:
            self._looks.append((min(self._last), there.log_posterior))
            self._last.clear()

    @property
    def unbounded(self) -> bool:
        """Whether the search rises and sharpens for long, to a point for half of the digits."""
        if len(self._looks) <= _WINDOWS or self._looks[-1][0] > _POINT:
            return False
        sharpness, heights = np.transpose(self._looks[-1 - _WINDOWS :])
        return bool(sharpness[-1] < _SHARPER * sharpness[0] and (np.diff(heights) > _HIGHER).all())


_WINDOW, _WINDOWS = 10, 3  # steps in a window, and windows in a row that are compared
_SHARPER, _HIGHER = 0.1, 1.0  # shrinkage of the standard deviation over these windows, and least rise in each
_POINT = 1e-8  # standard deviation, in units of the way from the start, that counts as a point
