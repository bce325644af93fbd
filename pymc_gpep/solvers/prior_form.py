"""The contracts of a prior covariance in a solver, and of the posterior of one latent function under scalar sites."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.site_algebra import Moved, SiteAlgebra
from pymc_gpep.solvers.team import Team

EPSILON = float(np.finfo(np.float64).eps)
# Rounding error of a Newton step, relative to the variances; see `pymc_gpep.kernels.linalg.lapack`.
STEP_ROUNDING = 8.0 * EPSILON


class FunctionPosterior(ABC):
    """Moments of f ~ N(m₀, K) times sites exp(νᵀf − ½ fᵀ Dg(π) f), NaN until they are computed.

    Parameters
    ----------
    prior : SolverPrior
        K.
    prior_mean : array (n,)
        m₀.

    Attributes
    ----------
    precision : array (n,)
        π.
    coordinates : array (1, q)
        Coordinates x of the mean, see `SolverPrior.coordinates`.
    weights : array (n,)
        b = K⁻¹ (mean − m₀) = ν − π mean.
    mean, variance : array (n,)
    log_det : float
        log|I + πK|.
    """

    def __init__(self, prior: "SolverPrior", prior_mean: Array) -> None:
        self._prior, self._prior_mean = prior, prior_mean
        self.precision, self.weights, self.mean, self.variance = np.full((4, prior_mean.size), np.nan)
        self.log_det = np.nan
        self.coordinates: Array = self.weights[None] if prior.by_weights else np.empty((1, 0))

    @abstractmethod
    def decompose(self, precision: Array) -> bool:
        """Factorise for these precisions; whether a posterior exists. `smooth` is defined then, before `invert`."""

    def invert(self) -> None:  # noqa: B027  there may be nothing to compute
        """Compute the inverse for `spread` and `kept`, at about the cost of the decomposition."""

    @abstractmethod
    def spread(self) -> None:
        """Compute the variances for the precisions taken."""

    @property
    def site_variance(self) -> Array:
        """Variance (n,) of the part of latent values on which sites act."""
        return self.variance

    @property
    @abstractmethod
    def kept(self) -> Array:
        """1 − π `site_variance` (n,): the share of the cavity's variance that remains after the site."""

    @abstractmethod
    def solve(self, right: Array) -> Array:
        """Return Newton's step in the coordinates for a right-hand side of `SolverPrior.residual`, both (1, q)."""

    def _step(self, force: Array) -> tuple[Array, Array]:
        """Coordinates (1, q) and image (n,) of (K⁻¹ + π)⁻¹ r, of r (n,)."""
        step = self.solve(self._prior.pull(force[None]))
        return step, self.image(step)

    def image(self, x: Array) -> Array:
        """f − m₀ (n,) of coordinates."""
        image = np.empty((1, self.mean.size))
        self._prior.multiply(x, image)
        return image[0]

    def moved(self, force: Array) -> Moved:
        """Return how a force r (n,) moves the mean."""
        step, image = self._step(force)
        return Moved(self._prior.weights(step, (force - self.precision * image)[None]), step)

    def smooth(self, force: Array) -> Array:
        """(I + πK)⁻¹ r (n,) of r (n,)."""
        return self.moved(force).weights[0]

    @abstractmethod
    def gradient(self, moved: Moved | None = None, of_variance: Array | None = None) -> Array:
        """Return the derivative of the log normaliser at fixed sites, in the array of the prior.

        The derivative in K is ½ (bbᵀ − M), M = (π⁻¹ + K)⁻¹, plus ½ (ubᵀ + buᵀ) if the mean moves: `moved` is u.
        `of_variance` (n,) is a further derivative in the diagonal of K.
        """

    def locate(self, location: Array) -> None:
        """Compute weights and mean for the current precisions, and locations ν.

        A residual of Newton's equation corrects them once: for large π, rounding of ν would otherwise enter the mean.
        """
        x, image = self._step(location - self.precision * self._prior_mean)
        np.add(self._prior_mean, image, out=self.mean)
        self.coordinates = x + self.solve(self._prior.residual((location - self.precision * self.mean)[None], x))
        np.add(self._prior_mean, self.image(self.coordinates), out=self.mean)
        self.weights[:] = self._prior.weights(self.coordinates, (location - self.precision * self.mean)[None])[0]

    def put(self, x: Array, gradient: Array, mean: Array) -> None:
        """Take coordinates, the gradient of the log density and the mean (n,) at a mode."""
        self.coordinates, self.mean[:] = x.copy(), mean
        self.weights[:] = self._prior.weights(self.coordinates, gradient[None])[0]

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
        return self._prior.inner(self.coordinates, self.coordinates, (self.mean - self._prior_mean)[None])

    @property
    def divergence(self) -> float:
        """KL(posterior ‖ prior) = ½ (bᵀ(mean − m₀) + Σ kept − n + log|I + πK|)."""
        return 0.5 * float((self.kept - 1.0).sum()) - self.log_normaliser


class Algebra(Enum):
    """An ability of a prior that a solver asks for."""

    MATRIX = "the covariance as an array"
    FUNCTION = "the posterior of one function"
    VARIANCES = "the same, with derivatives in prior variances"
    FUNCTIONS = "sites that couple the functions of a point"


def check_finite(arrays: Mapping[str, Array]) -> None:
    """Raise a ValueError that names an array which is not finite."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name} must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not."
            )


class Prior(ABC):
    """p(x) = N(m, K) of the sampled variables: c latent functions at n points, or their standard normals.

    Attributes
    ----------
    mean : array (c, n)
        m.
    """

    mean: Array

    def check(self) -> None:  # noqa: B027  there may be nothing to check
        """Raise a NotPositiveDefiniteError if the Gaussian is not proper."""

    def functions(self, x: Array) -> Array:
        """Return latent values (..., c, n) of sampled variables; x itself if latent values are sampled."""
        return x

    def pulled(self, slope: Array) -> Array:
        """Return the derivative in x of a function with derivative `slope` (c, n) in latent values."""
        return slope

    @property
    def shape(self) -> tuple[int, int]:
        """Number of latent functions, and of points: (c, n)."""
        c, n = self.mean.shape
        return c, n

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count, c, n) of f."""


class SolverPrior(Prior):
    """A Gaussian prior of c latent functions at n points, f = m + J z with standard normals z.

    Functions are independent, f_k = m_k + J_k z_k with z (c, q), unless a form says that they share z (1, q).

    Parameters
    ----------
    array : array with three axes
        The numbers that the covariance is made of, with respect to which posteriors have derivatives.
    mean : array (c, n)
        m.
    """

    def __init__(self, array: Array, mean: Array) -> None:
        # Kernels are compiled for arrays that are contiguous and writeable.
        self.array: Array = np.require(array, np.float64, ["C", "W"])
        self.mean: Array = np.require(mean, np.float64, ["C", "W"])

    square: ClassVar[bool]
    """Whether `array` has a row and a column for each point, and the algebra matrices of that size."""
    by_weights: ClassVar[bool] = True
    """Whether `coordinates` are weights b, and new points are known by their covariances with those of the data."""

    @property
    def flat(self) -> NDArray[np.int64]:
        """Places (p,) of the numbers that have a flat prior in place of a proper one."""
        return np.zeros(0, np.int64)

    @property
    def least_kept(self) -> float:
        """Least part of a cavity's variance that a site leaves, below which digits are lost."""
        return EPSILON

    @property
    @abstractmethod
    def variances(self) -> Array:
        """Prior variances, (1 or c, n)."""

    @abstractmethod
    def is_covariance(self, team: Team) -> bool:
        """Whether it is positive semi-definite, to rounding."""

    # Coordinates of Newton's method.

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

    def pull(self, force: Array) -> Array:
        """Return the right-hand side of Newton's step at coordinates 0, of a gradient (c, n)."""
        return force

    def residual(self, gradient: Array, x: Array) -> Array:
        """Return the right-hand side of Newton's step at coordinates x, in their shape."""
        return self.pull(gradient) - x

    def inner(self, x: Array, step: Array, image: Array) -> float:
        """Return the prior's inner product of two vectors of coordinates; `image` is f − m of the second."""
        return float(np.vdot(x, image))

    def variance_gradient(self, of_variance: Array) -> Array:
        """Return the derivative of Σ_i v_i K_ii of one function in the array of the prior, of v (n,).

        Raises
        ------
        TypeError
            If a form does not offer `Algebra.VARIANCES`.
        """
        raise TypeError(f"{type(self).__name__} has no derivatives in prior variances.")

    def rounding(self, x: Array) -> float:
        """Return how much rounding may change a step of Newton's method at the coordinates x."""
        return STEP_ROUNDING * float(self.variances.max() * np.abs(x).sum())

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """About (I + WK)⁻¹ r into `pull` (1, n), and K times it into `image`, of one function, if `by_weights`.

        `curvature` is W (n,) and `slope` r (1, n); so much of the residual may be left, after so many steps at most.
        A form without an iteration of its own takes a factorisation.
        """
        posterior = self.posterior(self.mean[0])
        posterior.decompose(curvature)
        pull[0] = posterior.smooth(slope[0])
        self.multiply(pull, image)

    # Posterior moments.

    @abstractmethod
    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        """Return the posterior of a single function with prior mean (n,); `signed` precisions may be below zero."""

    def coupled(self, n_functions: int, team: Team) -> SiteAlgebra:
        """The algebra of sites with Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, from π (c, n).

        Its log determinants are log|I + KΠ| + Σ_i log 1ᵀπ_i.
        """
        raise TypeError(f"{type(self).__name__} is a prior of one latent function.")

    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        """The algebra of sites with any semi-definite Π_i (n, c, c) whose rows sum to zero.

        Where they are `signed` they may have negative eigenvalues.
        """
        raise TypeError(f"{type(self).__name__} is a prior of one latent function.")
