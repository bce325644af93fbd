"""Gaussian priors of latent functions: what those who sample and check ask of one, whatever its form."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from pymc_gpep.array_types import Array

__all__ = ["NotPositiveDefiniteError", "Prior"]


class NotPositiveDefiniteError(np.linalg.LinAlgError):
    """A matrix that should be a covariance has no Cholesky factor to working precision."""

    @classmethod
    def of(cls, covariance: str, where: str = "") -> "NotPositiveDefiniteError":
        """What is said of a prior covariance, `covariance` with its article, and of where it is."""
        return cls(
            f"{covariance} is not positive definite to working precision{where}. Give the prior a larger jitter, "
            "gp.prior(..., jitter=...), or the hyperparameters priors that hold them; a magnitude that grows without "
            "limit is the usual cause."
        )


class Prior(ABC):
    """p(x) = N(m, K) of what is sampled: c latent functions at n points, or standard normals that these are made of.

    Attributes
    ----------
    mean : array (c, n)
        m.
    """

    mean: Array
    of_values: ClassVar[bool] = True
    """Whether what is sampled is latent values."""

    def check(self) -> None:  # noqa: B027  there may be nothing to check
        """Raise a NotPositiveDefiniteError where there is no such Gaussian."""

    def functions(self, x: Array) -> Array:
        """Latent values (..., c, n) of what is sampled, x itself where that is latent values."""
        return x

    def pulled(self, slope: Array) -> Array:
        """The derivative with respect to x of what has the derivative `slope` (c, n) with respect to latent values."""
        return slope

    @property
    def shape(self) -> tuple[int, int]:
        """Number of latent functions, and of points: (c, n)."""
        c, n = self.mean.shape
        return c, n

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count, c, n) of f."""
