"""The posterior of one latent function under scalar sites: solvers for likelihoods of one function stand on it."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.found import Derivatives, Found

__all__ = ["FunctionPosterior"]


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
        """Compute what `spread` and `kept` want of what is decomposed, at twice the cost of that."""

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
        return -0.5 * (self.log_det + float(self.weights @ (self.mean - self._prior_mean)))

    @property
    def divergence(self) -> float:
        """KL(posterior ‖ prior) = ½ (bᵀ(mean − m₀) + Σ kept − n + log|I + πK|)."""
        return 0.5 * float((self.kept - 1.0).sum()) - self.log_normaliser

    def found(self, evidence: float, status: int, derivatives: Callable[[], Derivatives], rung: int = 0) -> Found:
        """Return the result of a solver that ended here."""
        return Found(
            evidence,
            status,
            self.weights[None],
            self.mean[None],
            self.variance[:, None, None],
            self.precision[None],
            derivatives,
            rung,
        )
