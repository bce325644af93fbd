"""The Laplace approximation for the softmax (Williams and Barber 1998; Rasmussen and Williams 2006, section 3.5)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Array, Solution, solve
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.laplace_softmax import laplace_softmax
from pymc_gpep.posterior import CoupledPosterior, Posterior

__all__ = ["Laplace"]


@dataclass(frozen=True)
class Laplace:
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    Parameters
    ----------
    tolerance : float
        For the gradient of the log posterior with respect to the latent values, and for Newton's step in these, in
        absolute terms: a softmax has a scale of one. Where rounding does not allow what is asked, for variances above
        about 1e6, the iteration ends where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.
    """

    tolerance: float = 1e-9
    max_iterations: int = 200

    name: ClassVar[str] = "laplace"
    likelihood: ClassVar[str] = "softmax"
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    entry: ClassVar[Entry] = laplace_softmax
    posterior: ClassVar[type[Posterior]] = CoupledPosterior

    def __post_init__(self) -> None:
        for field, ok, must in (
            ("tolerance", self.tolerance > 0, "positive"),
            ("max_iterations", self.max_iterations >= 1, "at least 1"),
        ):
            if not ok:
                raise ValueError(f"{field} must be {must}, but is {getattr(self, field)!r}.")

    @property
    def options(self) -> tuple[float, ...]:
        """Options in the order that the compiled solver wants them."""
        return (self.tolerance,)

    def sites_size(self, c: int, n: int) -> int:
        """Length of the vector of sites."""
        return c * n

    def precision_shape(self, c: int, n: int) -> tuple[int, ...]:
        """Shape of the site precisions, the class probabilities at the mode."""
        return c, n

    def solve(self, k: Array, mean: Array, labels: NDArray[np.int64], start: Array | None = None) -> Solution:
        """Find the mode and the curvature there.

        Parameters
        ----------
        k : array (n, n) or (c, n, n)
            Prior covariance, shared by the classes or one for each.
        mean : array (c, n)
            Prior mean.
        labels : array (n,)
            Classes, 0…c−1.
        start : array, optional
            `Solution.sites` of a neighbouring problem; from the prior mean if not given.

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
