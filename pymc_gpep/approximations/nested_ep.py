"""Nested expectation propagation for the multinomial probit (Riihimäki, Jylänki and Vehtari 2013, section 3)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Array, Solution, solve
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.nested_ep import nested_ep
from pymc_gpep.posterior import CoupledPosterior, Posterior

__all__ = ["NestedEP"]


@dataclass(frozen=True)
class NestedEP:
    """Full nested EP: between-class coupling kept, tilted moments by inner EP.

    Parameters
    ----------
    tolerance : float
        For the largest change of a site in units of its marginal, and the relative change of the evidence. Being
        stationary in the sites, the evidence is accurate to about the square of it.
    max_iterations : int
        Limit on outer iterations.
    max_inner : int
        Inner sweeps per outer iteration: 1 is the paper's incremental scheme, more runs inner EP on to the tolerance.
    memory : int
        Past steps that Anderson acceleration combines; 0 is plain damped EP.
    mixing : float
        Part of the combined residual that an accelerated step takes.
    damping : float
        Part of the full update that a plain step takes, in (0, 1].
    ladder : bool
        Whether to go on, where the iteration does not get closer any more, with smaller steps and then with a scheme
        that lowers EP's energy and cannot cycle.
    """

    tolerance: float = 1e-6
    max_iterations: int = 500
    max_inner: int = 1
    memory: int = 4
    mixing: float = 0.8
    damping: float = 0.7
    ladder: bool = True

    name: ClassVar[str] = "nested_ep"
    likelihood: ClassVar[str] = "multinomial_probit"
    schemes: ClassVar[tuple[str, ...]] = ("accelerated EP", "accelerated EP with small steps", "energy descent")
    entry: ClassVar[Entry] = nested_ep
    posterior: ClassVar[type[Posterior]] = CoupledPosterior

    def __post_init__(self) -> None:
        for field, ok, must in (
            ("tolerance", self.tolerance > 0, "positive"),
            ("max_iterations", self.max_iterations >= 1, "at least 1"),
            ("max_inner", self.max_inner >= 1, "at least 1"),
            ("memory", self.memory >= 0, "at least 0"),
            ("mixing", 0 < self.mixing <= 1, "in (0, 1]"),
            ("damping", 0 < self.damping <= 1, "in (0, 1]"),
        ):
            if not ok:
                raise ValueError(f"{field} must be {must}, but is {getattr(self, field)!r}.")

    @property
    def options(self) -> tuple[float, ...]:
        """Options in the order that the compiled solver wants them."""
        return (
            self.tolerance,
            float(self.max_inner),
            float(self.memory),
            self.mixing,
            self.damping,
            float(self.ladder),
        )

    def sites_size(self, c: int, n: int) -> int:
        """Length of the vector of sites."""
        return 2 * n * (c - 1)

    def precision_shape(self, c: int, n: int) -> tuple[int, ...]:
        """Shape of the site precisions π."""
        return c, n

    def solve(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None = None) -> Solution:
        """Find the fixed point of nested EP.

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
        return solve(self, k, mean, labels, start)
