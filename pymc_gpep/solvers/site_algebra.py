"""The posterior of several latent functions under sites that couple them: solvers for classes stand on it."""

from abc import ABC, abstractmethod
from typing import Self

from pymc_gpep.array_types import Array

__all__ = ["SiteAlgebra"]


class SiteAlgebra(ABC):
    """Everything that solvers compute of a prior covariance K of c functions and sites of precision Π.

    Π has a block for each point. `PriorForm.coupled` and `PriorForm.blocks` say what its array holds.
    """

    @abstractmethod
    def factorise(self, precision: Array) -> tuple[bool, float]:
        """Take a precision. Returns whether a posterior exists, and log|I + KΠ| up to what the form says."""

    @abstractmethod
    def weights(self, force: Array, out: Array) -> None:
        """(I + ΠK)⁻¹ r into `out` (c, n), of r (c, n) in the range of Π, for the precision taken."""

    @abstractmethod
    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        """K b into `mean` (c, n), marginal covariances of each f_i under the precision taken into `cov` (n, c, c)."""

    @abstractmethod
    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """The derivative of the log normaliser at fixed sites, in the array that the prior is made of.

        That in K is ½ (b_k b_kᵀ − M_kk), to which ½ (u_k b_kᵀ + b_k u_kᵀ) comes where the mean moves: `moved` is
        u (c, n).
        """

    @property
    def in_single_precision(self) -> Self | None:
        """The same in the same memory, with matrices that have 32 bits a number; None if that saves no time."""
        return None
