"""The Laplace approximation for the multinomial probit, without any approximation of the curvature."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Array, Solution, solve
from pymc_gpep.block_posterior import BlockPosterior
from pymc_gpep.kernels.entry import Entry
from pymc_gpep.kernels.laplace_probit import laplace_probit
from pymc_gpep.posterior import Posterior

__all__ = ["LaplaceProbit"]


@dataclass(frozen=True)
class LaplaceProbit:
    """Gaussian at the posterior mode, with the curvature of the log posterior there.

    The curvature of a multinomial probit has no structure that would save work, so that time grows with (cn)³.

    Parameters
    ----------
    tolerance : float
        For the gradient of the log posterior with respect to the latent values, and for Newton's step in these, in
        absolute terms. Where rounding does not allow what is asked, for variances above about 1e6, the iteration ends
        where rounding begins.
    max_iterations : int
        Limit on the steps of Newton's method.
    max_size : int
        Largest number cn of latent values to accept.
    """

    tolerance: float = 1e-9
    max_iterations: int = 200
    max_size: int = 3000

    name: ClassVar[str] = "laplace"
    likelihood: ClassVar[str] = "multinomial_probit"
    schemes: ClassVar[tuple[str, ...]] = ("Newton's method",)
    entry: ClassVar[Entry] = laplace_probit
    posterior: ClassVar[type[Posterior]] = BlockPosterior

    def __post_init__(self) -> None:
        for field, ok, must in (
            ("tolerance", self.tolerance > 0, "positive"),
            ("max_iterations", self.max_iterations >= 1, "at least 1"),
            ("max_size", self.max_size >= 1, "at least 1"),
        ):
            if not ok:
                raise ValueError(f"{field} must be {must}, but is {getattr(self, field)!r}.")

    @property
    def options(self) -> tuple[float, ...]:
        """Options in the order that the compiled solver wants them."""
        return self.tolerance, float(self.max_size)

    def sites_size(self, c: int, n: int) -> int:
        """Length of the vector of sites."""
        return c * n

    def precision_shape(self, c: int, n: int) -> tuple[int, ...]:
        """Shape of the site precisions, the curvature at each point."""
        return n, c, c

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
            If an input has the wrong shape, is not finite, or holds labels that are no classes; or if there are more
            than `max_size` latent values.
        """
        size = np.size(mean)
        if size > self.max_size:
            raise ValueError(
                f"mean has {size} latent values, and a dense Laplace approximation of so many is slow: use nested_ep, "
                f"which is made for this, or allow it with max_size={size} (now {self.max_size})."
            )
        return solve(self, k, mean, labels, start)
