"""The contract of integrated variables: how numbers of latent functions become values of a model's free variables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.array_types import Array

__all__ = ["IntegratedVariables", "Joint", "PosteriorFunctions"]


class PosteriorFunctions(Protocol):
    """Latent functions at one point of the hyperparameters, as far as moments of variables need them."""

    def whitened(self) -> tuple[Array, Array]:
        """Return means and variances of the standard normals, (c, q)."""

    def marginals(self) -> tuple[Array, Array]:
        """Return means and variances (c, n) of the latent values."""

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return the covariance (c, ·, c, ·) of standard normals for functions that are `rotated`, else of values."""


class Joint(NamedTuple):
    """A Gaussian of several variables: mean + Σ slopes · z, z with a covariance."""

    means: dict[str, Array]
    """By name, in the shape of the variable."""
    slopes: dict[str, Array]
    """By name, (q, ...)."""
    cov: Array
    """Covariance of z, (q, q)."""
    noise: Mapping[str, Array] | None = None
    """Variances of what each entry has besides."""

    def variances(self) -> dict[str, Array]:
        """Return variances by name."""
        found = {}
        for name, slopes in self.slopes.items():
            flat = slopes.reshape(len(self.cov), -1)
            variance = np.einsum("js,js->s", flat, self.cov @ flat)
            found[name] = np.maximum(variance, 0.0).reshape(slopes.shape[1:])
            if self.noise is not None:
                found[name] += self.noise[name]
        return found


class IntegratedVariables(ABC):
    """The free variables that were integrated, as functions of latent values f and of standard normals z."""

    @abstractmethod
    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        """Return draws (s, ...) of value variables, and of what a prior holds, by name.

        Parameters
        ----------
        point : dict
            Values of the value variables of the hyperparameters.
        f : array (s, c, n)
            Latent values.
        z : array (s, c, q)
            The standard normals that they are made of.
        """

    @abstractmethod
    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return posterior means and variances by name of value variable."""

    @abstractmethod
    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        """Return the covariance (size, size) of a flat vector in which each value variable has its place."""

    @abstractmethod
    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        """Return the function that computes the joint posterior of some variables of the model.

        Raises
        ------
        ValueError
            If a variable is not affine in integrated variables, or not in the model.
        """

    @abstractmethod
    def elsewhere(
        self, names: Sequence[str], x: ArrayLike | None, data: Mapping[str, ArrayLike]
    ) -> Callable[[PointType, PosteriorFunctions], tuple[Joint, Mapping[str, int]]]:
        """Return the function that computes the same at other inputs and data, and the axis over rows of each variable.

        Entries have variances alone there, and no joint covariance.

        Raises
        ------
        ValueError
            As `affine`, or if a variable cannot be had there.
        """

    @abstractmethod
    def latent_values(self, values: Mapping[str, Array]) -> Array:
        """Return latent values (s, c, n) of draws (s, ...) of variables by name."""
