"""The contract of a prior covariance in a solver, and of its posteriors.

A posterior is that of one latent function under scalar sites, or of several functions under sites that couple them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.team import Team

EPSILON = float(np.finfo(np.float64).eps)
# Rounding of a step of Newton's method, relative to the variances; see `pymc_gpep.kernels.linalg.lapack`.
STEP_ROUNDING = 8.0 * EPSILON


class FunctionPosterior(ABC):
    """Moments of f ~ N(m₀, K) times sites exp(νᵀf − ½ fᵀ Dg(π) f), NaN until they are computed.

    Parameters
    ----------
    prior_mean : array (n,)
        m₀.

    Attributes
    ----------
    precision : array (n,)
        π.
    weights : array (n,)
        b = K⁻¹ (mean − m₀) = ν − π mean.
    mean, variance : array (n,)
    log_det : float
        log|I + πK|.
    """

    def __init__(self, prior_mean: Array) -> None:
        self._prior_mean = prior_mean
        self.precision, self.weights, self.mean, self.variance = np.full((4, prior_mean.size), np.nan)
        self.log_det = np.nan

    @abstractmethod
    def decompose(self, precision: Array) -> bool:
        """Take these precisions; whether a posterior exists. `smooth` is all that there is then, before `invert`."""

    @abstractmethod
    def invert(self) -> None:
        """Compute what `spread` and `kept` want of what is decomposed, at about the cost of that."""

    @abstractmethod
    def times(self, weights: Array) -> Array:
        """K b (n,) of b (n,)."""

    @abstractmethod
    def spread(self) -> None:
        """Variances for the precisions taken."""

    @property
    @abstractmethod
    def kept(self) -> Array:
        """1 − π variance (n,): what a site leaves of its cavity's variance."""

    @abstractmethod
    def smooth(self, force: Array) -> Array:
        """(I + πK)⁻¹ r (n,) of r (n,)."""

    def moved(self, force: Array) -> Array:
        """Return (K⁻¹ + π)⁻¹ r (n,), by which a force r (n,) moves the mean."""
        return self.times(self.smooth(force))

    @property
    def coordinates(self) -> Array:
        """Coordinates x (c, q) of the mean, see `PriorForm.coordinates`."""
        return self.weights[None]

    def solve(self, right: Array) -> Array:
        """Return Newton's step in the coordinates for a right-hand side of `PriorForm.residual`, both (1, q)."""
        return self.smooth(right[0])[None]

    @abstractmethod
    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """The derivative of the log normaliser at fixed sites, in the array that the prior is made of.

        That in K is ½ (bbᵀ − M), M = (π⁻¹ + K)⁻¹, to which ½ (ubᵀ + buᵀ) comes where the mean moves: `moved` is
        u (n,). `of_variance` (n,) is what else depends on the diagonal of K.
        """

    def locate(self, location: Array) -> None:
        """Weights and mean for the precisions taken, and locations ν.

        They are corrected once by what ν − π mean leaves of b: where π is large, rounding of ν would be in the mean.
        """
        self.weights[:] = self.smooth(location - self.precision * self._prior_mean)
        self._place()
        self.weights += self.smooth(location - self.precision * self.mean - self.weights)
        self._place()

    def _place(self) -> None:
        """The mean of the weights."""
        np.add(self._prior_mean, self.times(self.weights), out=self.mean)

    def put(self, x: Array, gradient: Array, mean: Array) -> None:
        """Take coordinates, the gradient of the log density and the mean (n,) at a mode."""
        self.weights[:], self.mean[:] = x[0], mean

    def update(self, precision: Array, location: Array) -> bool:
        """All of it; whether a posterior exists."""
        if not self.decompose(precision):
            return False
        self.invert()
        self.locate(location)
        self.spread()
        return True

    @property
    def log_normaliser(self) -> float:
        """Log ∫ p(f) ∏ sites df, of sites that are scaled to be 1 at the mean: −½ log|I + πK| − ½ bᵀ(mean − m₀)."""
        return -0.5 * (self.log_det + self.length)

    @property
    def length(self) -> float:
        """The quadratic form bᵀK b of the prior at the mean."""
        return float(self.weights @ (self.mean - self._prior_mean))

    @property
    def divergence(self) -> float:
        """KL(posterior ‖ prior) = ½ (bᵀ(mean − m₀) + Σ kept − n + log|I + πK|)."""
        return 0.5 * float((self.kept - 1.0).sum()) - self.log_normaliser


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

    def solve(self, right: Array, step: Array) -> None:
        """Write Newton's step in the coordinates for a right-hand side of `PriorForm.residual`, both (c, q)."""
        self.weights(right, step)

    @abstractmethod
    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        """Write K b into `mean` (c, n), and marginal covariances of each f_i into `cov` (n, c, c).

        b is the latest result of `weights`, and the covariances are those for the precision taken.
        """

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
        return bool(self.kind.square)

    @property
    def algebras(self) -> frozenset[Algebra]:
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
    array : array with three axes
        The numbers that the covariance is made of, with respect to which posteriors have derivatives.
    """

    def __init__(self, array: Array) -> None:
        # Kernels are compiled for arrays that are contiguous and writeable.
        self.array: Array = np.require(array, np.float64, ["C", "W"])

    square: ClassVar[bool]
    """Whether `array` has a row and a column for each point, and the algebra matrices of that size."""
    algebras: ClassVar[frozenset[Algebra]]
    """Abilities that it offers to solvers."""
    by_weights: ClassVar[bool] = True
    """Whether `coordinates` are weights b."""

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

    def coordinates(self, b: Array) -> Array:
        """Return the coordinates x of f = m + K b, in which Newton's method takes its steps: b (c, n) itself.

        A form by coefficients J of few numbers has these for coordinates (1, q), f = m + J x. Its weights b have large
        terms that cancel in K b where the prior is wide, and its coordinates do not.
        """
        return b

    def weights(self, x: Array, gradient: Array) -> Array:
        """Return b (c, n) of the coordinates at a mode, where ∇ log p(y | f) is `gradient` (c, n)."""
        return x

    @abstractmethod
    def multiply(self, x: Array, out: Array) -> None:
        """Write f − m of coordinates into `out` (c, n): K b of b (c, n)."""

    def residual(self, gradient: Array, x: Array) -> Array:
        """Return the right-hand side of Newton's step at coordinates x, in their shape."""
        return gradient - x

    def inner(self, x: Array, step: Array, image: Array) -> float:
        """Return the prior's inner product of two vectors of coordinates; `image` is f − m of the second."""
        return float(np.vdot(x, image))

    @abstractmethod
    def rounding(self, x: Array) -> float:
        """Return how much rounding may change a step of Newton's method at the coordinates x."""

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """About (I + WK)⁻¹ r into `pull` (1, n), and K times it into `image`, of one function, if `by_weights`.

        `curvature` is W (n,) and `slope` r (1, n); so much of the residual may be left, after so many steps at most.
        """
        raise NotImplementedError

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
