"""The contract of a prior covariance as solvers see it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.function_posterior import FunctionPosterior
from pymc_gpep.solvers.site_algebra import SiteAlgebra
from pymc_gpep.solvers.team import Team

__all__ = ["Algebra", "BoundForm", "PriorForm", "TakesForms"]


class Algebra(Enum):
    """An ability of a prior that a solver asks for."""

    MATRIX = "the covariance as an array"
    FUNCTION = "the posterior of one function"
    VARIANCES = "the same, with derivatives in prior variances"
    FUNCTIONS = "sites that couple the functions of a point"


@dataclass(frozen=True, eq=False)
class BoundForm:
    """Makes forms of arrays that have something in common, which data of a model fix.

    Parameters
    ----------
    kind : type of PriorForm
        Takes an array, and what is `known`.
    known : object
    """

    kind: Any
    known: Any

    @property
    def square(self) -> bool:
        """See `PriorForm`."""
        return bool(self.kind.square)

    @property
    def algebras(self) -> frozenset[Algebra]:
        """See `PriorForm`."""
        return frozenset(self.kind.algebras)

    def __call__(self, array: Array) -> "PriorForm":
        """Return the form of an array."""
        made: PriorForm = self.kind(array, self.known)
        return made


class TakesForms(Protocol):
    """An approximation, as far as priors know it."""

    def takes(self, form: Any, /) -> bool:
        """Whether its solver takes a prior that is given in this form."""
        ...


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
    """Whether `array` has a row and a column for each point, and the algebra matrices of that size."""
    algebras: ClassVar[frozenset[Algebra]]
    """Abilities that it offers to solvers."""

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
