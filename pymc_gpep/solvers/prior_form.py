"""The contract of a prior covariance as solvers see it."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.function_posterior import FunctionPosterior
from pymc_gpep.solvers.site_algebra import SiteAlgebra
from pymc_gpep.solvers.team import Team

__all__ = ["PriorForm"]


class PriorForm(ABC):
    """A prior covariance of c latent functions at n points.

    Parameters
    ----------
    array : array
        The numbers that the covariance is made of.
    """

    def __init__(self, array: Array) -> None:
        # Kernels are compiled for arrays that are contiguous and writeable.
        self.array: Array = np.require(array, np.float64, ["C", "W"])

    square: ClassVar[bool]
    """Whether `array` has a column for each point."""
    sparse: ClassVar[bool] = False
    """Whether it is made of rows of few coefficients and a sparse precision."""

    @abstractmethod
    def among(self, points: NDArray[np.int64]) -> Array:
        """Covariances (1 or c, s, s) of some points (s,)."""

    @property
    @abstractmethod
    def variances(self) -> Array:
        """Prior variances, (1 or c, n)."""

    @abstractmethod
    def is_covariance(self, team: Team) -> bool:
        """Whether it is positive semi-definite, to rounding."""

    @abstractmethod
    def multiply(self, b: Array, out: Array) -> None:
        """K b into `out` (c, n), of b (c, n)."""

    @abstractmethod
    def rounding(self, b: Array) -> float:
        """Return how much rounding of the terms of K b may change a step of Newton's method at f = m + K b."""

    @abstractmethod
    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """About (I + WK)⁻¹ r into `pull` (1, n), and K times it into `image`, of one function.

        `curvature` is W (n,) and `slope` r (1, n); so much of the residual may be left, after so many steps at most.
        """

    @abstractmethod
    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        """The posterior of the one function, whose prior mean is (n,); `signed` precisions may be below zero."""

    @abstractmethod
    def coupled(self, n_functions: int, team: Team) -> SiteAlgebra:
        """The algebra of sites with Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, from π (c, n).

        Its log determinants are log|I + KΠ| + Σ_i log 1ᵀπ_i.
        """

    @abstractmethod
    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        """The algebra of sites with any semi-definite Π_i (n, c, c) whose rows sum to zero.

        Where they are `signed` they may have negative eigenvalues.
        """
