"""What every EP that is a plain fixed-point iteration has in common: its options."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Array, Solution, solve
from pymc_gpep.kernels.ep_ladder import SCHEMES

__all__ = ["AcceleratedEP"]


@dataclass(frozen=True)
class AcceleratedEP:
    """An EP, iterated with Anderson acceleration.

    Parameters
    ----------
    tolerance : float
        For the largest change of a site in units of its marginal, and the relative change of the evidence.
    max_iterations : int
        Limit on outer iterations.
    memory : int
        Past steps that Anderson acceleration combines; 0 is plain damped EP.
    mixing : float
        Part of the combined residual that an accelerated step takes.
    damping : float
        Part of the full update that a plain step takes, in (0, 1].
    ladder : bool
        Whether to go on, where the iteration does not get closer any more, with plain steps, and ever smaller ones.
    """

    tolerance: float = 1e-8
    max_iterations: int = 500
    memory: int = 4
    mixing: float = 0.8
    damping: float = 0.7
    ladder: bool = True

    likelihood: ClassVar[str] = "multinomial_probit"
    schemes: ClassVar[tuple[str, ...]] = SCHEMES

    def __post_init__(self) -> None:
        for field, ok, must in (
            ("tolerance", self.tolerance > 0, "positive"),
            ("max_iterations", self.max_iterations >= 1, "at least 1"),
            ("memory", self.memory >= 0, "at least 0"),
            ("mixing", 0 < self.mixing <= 1, "in (0, 1]"),
            ("damping", 0 < self.damping <= 1, "in (0, 1]"),
        ):
            if not ok:
                raise ValueError(f"{field} must be {must}, but is {getattr(self, field)!r}.")

    @property
    def options(self) -> tuple[float, ...]:
        """Options in the order that the compiled solver wants them."""
        return self.tolerance, float(self.memory), self.mixing, self.damping, float(self.ladder)

    def precision_shape(self, c: int, n: int) -> tuple[int, ...]:
        """Shape of the site precisions π."""
        return c, n

    def solve(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None = None) -> Solution:
        """Find the fixed point.

        Parameters
        ----------
        k : array (n, n) or (c, n, n)
            Prior covariance, shared by the classes or one for each.
        mean : array (c, n)
            Prior mean.
        labels : array (n,)
            Classes, 0…c−1.
        start : array, optional
            `Solution.sites` of a neighbouring problem; from vacuous sites if not given.

        Returns
        -------
        Solution
            Converged, or saying in `convergence` that it is not.

        Raises
        ------
        ValueError
            If an input has the wrong shape, is not finite, or holds labels that are no classes.
        """
        return solve(self, k, mean, labels, start)  # type: ignore[arg-type]  # what is missing, subclasses have
