"""The posterior of one latent function under scalar sites: what the solvers for likelihoods of one function stand on.

The algebra is that of `pymc_gpep.kernels.gaussians.independent`: one factorisation and one inverse.
"""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.independent import (
    add_function_gradient,
    decompose_function,
    decomposed_product,
    function_variance,
    function_weights,
)
from pymc_gpep.kernels.linalg.lapack import inverse_from_cholesky, multiply_symmetric
from pymc_gpep.solvers.problem import Derivatives, Found, Problem

__all__ = ["FunctionPosterior"]


class FunctionPosterior:
    """Moments of f ~ N(m₀, K) times sites exp(νᵀf − ½ fᵀ Dg(π) f), NaN until they are computed.

    Attributes
    ----------
    precision : array (n,)
        π.
    weights : array (n,)
        b = K⁻¹ (mean − m₀) = ν − π mean.
    mean, variance : array (n,)
    inverse : array (n, n)
        A⁻¹ = (I + π^½ K π^½)⁻¹ in the lower triangle, after `decompose` the Cholesky factor of A.
    log_det : float
        log|A|.
    """

    def __init__(self, problem: Problem) -> None:
        n = problem.labels.size
        self._k, self._prior_mean = problem.k[0], problem.mean[0]
        self.precision, self.weights, self.mean, self.variance = np.full((4, n), np.nan)
        self.inverse = np.empty((n, n))
        self.log_det = np.nan
        self._inverted = False

    def decompose(self, precision: Array) -> bool:
        """Take these precisions; whether a posterior exists. `smooth` is all that there is then, before `invert`."""
        self.precision[:] = precision
        ok, self.log_det = decompose_function(self._k, self.precision, self.inverse)
        self._inverted = False
        return bool(ok)

    def invert(self) -> None:
        """A⁻¹ of what is decomposed, at twice the cost of that."""
        inverse_from_cholesky(self.inverse)
        self._inverted = True

    def locate(self, location: Array) -> None:
        """Weights and mean for the precisions taken, and locations ν.

        They are corrected once by what ν − π mean leaves of b: where π is large, rounding of ν would be in the mean.
        """
        function_weights(self.inverse, self.precision, location, self._prior_mean, self.weights)
        self._place()
        self.weights += self.smooth(location - self.precision * self.mean - self.weights)
        self._place()

    def _place(self) -> None:
        """The mean of the weights."""
        multiply_symmetric(self._k, self.weights, self.mean)
        self.mean += self._prior_mean

    def spread(self) -> None:
        """Variances for the precisions taken."""
        function_variance(self._k, self.precision, self.inverse, self.variance)

    def update(self, precision: Array, location: Array) -> bool:
        """All of it; whether a posterior exists."""
        if not self.decompose(precision):
            return False
        self.invert()
        self.locate(location)
        self.spread()
        return True

    @property
    def kept(self) -> Array:
        """1 − π variance (n,), which is [A⁻¹]_ii: what a site leaves of its cavity's variance."""
        return self.inverse.diagonal()

    @property
    def log_normaliser(self) -> float:
        """Log ∫ p(f) ∏ sites df, of sites that are scaled to be 1 at the mean: −½ log|A| − ½ bᵀ(mean − m₀)."""
        return -0.5 * (self.log_det + float(self.weights @ (self.mean - self._prior_mean)))

    @property
    def divergence(self) -> float:
        """KL(posterior ‖ prior) = ½ (bᵀ(mean − m₀) + tr A⁻¹ − n + log|A|)."""
        return 0.5 * float((self.kept - 1.0).sum()) - self.log_normaliser

    def smooth(self, force: Array) -> Array:
        """(I + πK)⁻¹ r (n,) of r (n,)."""
        smoothed = np.empty_like(force)
        if self._inverted:
            function_weights(self.inverse, self.precision, force, np.zeros_like(force), smoothed)
        else:
            decomposed_product(self.inverse, self.precision, force, smoothed)
        return smoothed

    def gradient(self) -> Array:
        """½ (bbᵀ − B) (1, n, n): the derivative of the log normaliser in K at fixed sites."""
        gradient = np.zeros((1, *self.inverse.shape))
        add_function_gradient(self.precision, self.inverse, self.weights, gradient[0])
        return gradient

    def found(self, evidence: float, status: int, derivatives: Callable[[], Derivatives], rung: int = 0) -> Found:
        """What a solver that ended here found."""
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
