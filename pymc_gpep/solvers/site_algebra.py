"""Base class of the linear algebra of a prior and sites that couple functions; error of an invalid covariance."""

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

import numpy as np

from pymc_gpep.array_types import Array


class Moved(NamedTuple):
    """Change of the posterior mean if rᵀf is added to the log density, for r (c, n)."""

    weights: Array
    """Change of the weights, u = (I + ΠK)⁻¹ r, (c, n)."""
    coordinates: Array
    """Change in the coordinates of the prior."""


class SiteAlgebra(ABC):
    """Linear algebra of a prior covariance K of c latent functions with site precision Π.

    Π has a block for each point. `SolverPrior.coupled` and `SolverPrior.blocks` define its array.
    """

    @abstractmethod
    def factorise(self, precision: Array) -> tuple[bool, float]:
        """Factorise for a precision. Return whether the posterior is proper, and log|I + KΠ| as defined by the form."""

    @abstractmethod
    def weights(self, force: Array, out: Array) -> None:
        """Write (I + ΠK)⁻¹ r into `out` (c, n), for r (c, n) in the range of the factorised Π."""

    def moved(self, force: Array) -> Moved:
        """Return the change of the mean if rᵀf is added to the log density, for r (c, n) in the range of Π."""
        u = np.empty_like(force)
        self.weights(force, u)
        return Moved(u, u)

    def solve(self, right: Array, step: Array) -> None:
        """Write Newton's step in the coordinates for a right-hand side of `SolverPrior.residual`, both (c, q)."""
        self.weights(right, step)

    @abstractmethod
    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        """Write K b into `mean` (c, n), and marginal covariances of each f_i into `cov` (n, c, c).

        b is the last result of `weights`. The covariances are for the factorised precision.
        """

    @abstractmethod
    def gradient(self, b: Array, moved: Moved | None = None, x: Array | None = None) -> Array:
        """Return the derivative of the log normaliser at fixed sites, in the array of the prior.

        The derivative in K_k is ½ (b_k b_kᵀ − M_kk). If the mean moves by `moved`, u, the term ½ (u_k b_kᵀ + b_k u_kᵀ)
        is added. `x` are the coordinates of the mean, if available.
        """

    @abstractmethod
    def marginal_covariances(self) -> Array:
        """Return the posterior covariances (n, c, c) between the functions of each point."""

    @abstractmethod
    def kept(self) -> Array | None:
        """Return I − R_iᵀ Σ_i R_i (n, r, r), computed without cancellation, for Π_i = R_i R_iᵀ; None if unavailable.

        Σ_i are marginal covariances.
        """

    @property
    def in_single_precision(self) -> Self | None:
        """Return this algebra with float32 matrices in the same memory; None if that saves no time."""
        return None


class NotPositiveDefiniteError(np.linalg.LinAlgError):
    """Error of a covariance matrix without a Cholesky factor in working precision.

    Attributes
    ----------
    least, jitter : float
        Smallest eigenvalue, and an increase of the diagonal that makes it positive; NaN if they were not computed.
    """

    least = jitter = float("nan")

    @classmethod
    def of(
        cls, covariance: str, where: str = "", like: "NotPositiveDefiniteError | None" = None
    ) -> "NotPositiveDefiniteError":
        """Return the error for a covariance with this name. The text includes `where` and the numbers of `like`."""
        least, jitter = (np.nan, np.nan) if like is None else (like.least, like.jitter)
        found = f" (smallest eigenvalue {least:.2g})" if np.isfinite(least) else ""
        number = f"{jitter:g}" if np.isfinite(jitter) else "..."
        error = cls(
            f"{covariance} is not positive definite to working precision{found}{where}. Give the prior a larger "
            f"jitter, gp.prior(..., jitter={number}), or give hyperparameters informative priors. The usual "
            "cause is a magnitude that grows without limit."
        )
        error.least, error.jitter = least, jitter
        return error

    @classmethod
    def of_matrices(cls, covariance: str, k: Array) -> "NotPositiveDefiniteError":
        """Return the error for matrices (..., n, n), with the smallest eigenvalue if the matrices are small enough."""
        error = cls()
        if k.shape[-1] <= _MOST_EIGENVALUES and np.isfinite(k).all():
            values = np.linalg.eigvalsh(k)
            error.least = float(values.min())
            lost = max(-error.least, np.finfo(np.float64).eps * k.shape[-1] * float(np.abs(values).max()))
            error.jitter = float(10.0 ** np.ceil(np.log10(10.0 * lost))) if lost > 0.0 else np.nan
        return cls.of(covariance, like=error)


NO_COVARIANCE = "The prior covariance is not positive semi-definite."

# Size of the largest matrix whose eigenvalues are computed for a message.
_MOST_EIGENVALUES = 500
