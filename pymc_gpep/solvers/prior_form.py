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
        """Factorise for these precisions; return whether a posterior exists. `smooth` needs no `invert`."""

    def invert(self) -> None:  # noqa: B027  there may be nothing to compute
        """Compute the inverse for `spread` and `kept`, at about the cost of the decomposition."""

    @abstractmethod
    def spread(self) -> None:
        """Compute the variances for the factorised precisions."""

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
        """Return coordinates (1, q) and image (n,) of (K⁻¹ + π)⁻¹ r, for r (n,)."""
        step = self.solve(self._prior.pull(force[None]))
        return step, self.image(step)

    def image(self, x: Array) -> Array:
        """Return f − m₀ (n,) for coordinates x."""
        image = np.empty((1, self.mean.size))
        self._prior.multiply(x, image)
        return image[0]

    def moved(self, force: Array) -> Moved:
        """Return the change of the mean by a force r (n,)."""
        step, image = self._step(force)
        return Moved(self._prior.weights(step, (force - self.precision * image)[None]), step)

    def smooth(self, force: Array) -> Array:
        """Return (I + πK)⁻¹ r (n,), for r (n,)."""
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
        """Store a mode: coordinates, gradient of the log density, and mean (n,)."""
        self.coordinates, self.mean[:] = x.copy(), mean
        self.weights[:] = self._prior.weights(self.coordinates, gradient[None])[0]

    def update(self, precision: Array, location: Array) -> bool:
        """Compute all moments for these sites; return whether a posterior exists."""
        if not self.decompose(precision):
            return False
        self.invert()
        self.locate(location)
        self.spread()
        return True

    @property
    def log_normaliser(self) -> float:
        """Log ∫ p(f) ∏ sites df, for sites scaled to 1 at the mean: −½ log|I + πK| − ½ bᵀ(mean − m₀)."""
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
    """Capability of a prior that a solver requires."""

    MATRIX = "the covariance as an array"
    FUNCTION = "the posterior of one function"
    VARIANCES = "the posterior of one function with derivatives in prior variances"
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
        """Return draws of f, (count, c, n)."""


class SolverPrior(Prior):
    """A Gaussian prior of c latent functions at n points, f = m + J z with standard normals z.

    Functions are independent, f_k = m_k + J_k z_k with z (c, q), except in forms where they share z (1, q).

    Parameters
    ----------
    array : array with three axes
        The entries that define the covariance. Posteriors have derivatives in this array.
    mean : array (c, n)
        m.
    """

    def __init__(self, array: Array, mean: Array) -> None:
        # Kernels are compiled for arrays that are contiguous and writeable.
        self.array: Array = np.require(array, np.float64, ["C", "W"])
        self.mean: Array = np.require(mean, np.float64, ["C", "W"])

    square: ClassVar[bool]
    """Whether `array` has a row and a column for each point, so that solvers use n × n matrices."""
    by_weights: ClassVar[bool] = True
    """Whether `coordinates` are weights b, and new rows enter by their covariances with the data."""

    @property
    def flat(self) -> NDArray[np.int64]:
        """Positions (p,) of the variables with a flat prior."""
        return np.zeros(0, np.int64)

    @property
    def least_kept(self) -> float:
        """Smallest share of a cavity's variance that a site may leave without loss of digits."""
        return EPSILON

    @property
    @abstractmethod
    def variances(self) -> Array:
        """Prior variances, (1 or c, n)."""

    @abstractmethod
    def is_covariance(self, team: Team) -> bool:
        """Return whether the covariance is positive semi-definite up to rounding."""

    # Coordinates of Newton's method.

    def coordinates(self, b: Array) -> Array:
        """Return the coordinates x of f = m + K b for the steps of Newton's method: b (c, n) itself.

        A form by coefficients J of few variables uses these variables as coordinates (1, q), f = m + J x. If the prior
        is wide, its weights b have large terms that cancel in K b. The coordinates do not.
        """
        return b

    def weights(self, x: Array, gradient: Array) -> Array:
        """Return b (c, n) for the coordinates x of a mode with ∇ log p(y | f) = `gradient` (c, n)."""
        return x

    @abstractmethod
    def multiply(self, x: Array, out: Array) -> None:
        """Write f − m for coordinates x into `out` (c, n): K b for weights b (c, n)."""

    def pull(self, force: Array) -> Array:
        """Return the right-hand side of Newton's step at coordinates 0, for a gradient (c, n)."""
        return force

    def residual(self, gradient: Array, x: Array) -> Array:
        """Return the right-hand side of Newton's step at coordinates x, in their shape."""
        return self.pull(gradient) - x

    def inner(self, x: Array, step: Array, image: Array) -> float:
        """Return the prior's inner product of two vectors of coordinates; `image` is f − m of the second."""
        return float(np.vdot(x, image))

    def variance_gradient(self, of_variance: Array) -> Array:
        """Return the derivative of Σ_i v_i K_ii of one function in the array of the prior, for v (n,).

        Raises
        ------
        TypeError
            If a form does not offer `Algebra.VARIANCES`.
        """
        raise TypeError(f"{type(self).__name__} has no derivatives in prior variances.")

    def rounding(self, x: Array) -> float:
        """Return the largest change of a Newton step by rounding, at the coordinates x."""
        return STEP_ROUNDING * float(self.variances.max() * np.abs(x).sum())

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """Write about p = (I + WK)⁻¹ r into `pull` (1, n), and K p into `image`, for one function if `by_weights`.

        `curvature` is W (n,) and `slope` is r (1, n). An iteration may leave the share `reduction` of the residual, and
        takes at most `limit` steps. Forms without an iteration use a factorisation.
        """
        posterior = self.posterior(self.mean[0])
        posterior.decompose(curvature)
        pull[0] = posterior.smooth(slope[0])
        self.multiply(pull, image)

    # Posterior moments.

    @abstractmethod
    def posterior(self, prior_mean: Array, *, signed: bool = False) -> FunctionPosterior:
        """Return the posterior of one function with prior mean (n,). `signed` precisions may be negative."""

    def coupled(self, n_functions: int, team: Team) -> SiteAlgebra:
        """Return the algebra of sites with Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, for π (c, n).

        Its log determinants are log|I + KΠ| + Σ_i log 1ᵀπ_i.
        """
        raise TypeError(f"{type(self).__name__} is a prior of one latent function.")

    def blocks(self, n_functions: int, *, signed: bool = False) -> SiteAlgebra:
        """Return the algebra of sites with any semi-definite Π_i (n, c, c) whose rows sum to zero.

        If `signed`, Π_i may have negative eigenvalues.
        """
        raise TypeError(f"{type(self).__name__} is a prior of one latent function.")
