"""Options that all approximations have in common whose means are found by Newton's method."""

from dataclasses import dataclass, field
from typing import ClassVar

from pymc_gpep.approximations.approximator import Approximator
from pymc_gpep.approximations.limits import at_least, positive


@dataclass(frozen=True)
class NewtonApproximation(Approximator):
    """An approximation whose means maximise something.

    Parameters
    ----------
    tolerance : float
        For the slope of what the means maximise, and for Newton's step in these, in absolute terms. Where rounding does
        not allow what is asked, as for variances above about 1e6, the iteration ends where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.
    """

    tolerance: float = field(default=1e-9, metadata=positive())
    max_iterations: int = field(default=200, metadata=at_least(1))

    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: weights."""
        return n_functions * n_points
