"""The contract of integrated variables: how numbers of latent functions become values of a model's free variables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymc.blocking import PointType

from pymc_gpep.array_types import Array


class PosteriorFunctions(Protocol):
    """Latent functions at one point of the hyperparameters, as far as moments of variables need them."""

    def whitened(self) -> tuple[Array, Array]:
        """Return means and variances of the standard normals, (c, q)."""

    def marginals(self) -> tuple[Array, Array]:
        """Return means and variances (c, n) of the latent values."""

    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return the covariance (c, ·, c, ·) of standard normals for functions that are `rotated`, else of values."""


class Joint:
    """A Gaussian of several variables: mean + Σ slopes · z, z with a covariance.

    Parameters
    ----------
    means : dict of str to array
        By name, in the shape of the variable.
    slopes : mapping of str to array (q, ...)
        By name.
    cov : array (q, q), or what columns (q, s) can be multiplied by
        Covariance of z.
    noise : mapping of str to array, optional
        Variances of what each entry has besides.
    """

    def __init__(
        self,
        means: dict[str, Array],
        slopes: Mapping[str, Array],
        cov: Any,
        noise: Mapping[str, Array] | None = None,
    ) -> None:
        self.means, self._slopes, self._cov, self._noise = means, slopes, cov, noise

    @property
    def size(self) -> int:
        """Number of entries of z, q."""
        return len(self._cov)

    def columns(self, name: str, some: slice = slice(None)) -> Array:
        """Return the slopes of a variable, (q, size), or of some of its entries."""
        return self._slopes[name].reshape(len(self._cov), -1)[:, some]

    def combined(self, name: str, weights: Array) -> Array:
        """Return the slopes (q,) of the sum of a variable times weights."""
        return np.asarray(self.columns(name) @ weights.ravel())

    def moved(self, columns: Array) -> Array:
        """Return the covariance (q, s) of z with what has slopes (q, s)."""
        return np.asarray(self._cov @ columns)

    def covariance(self, columns: Array) -> Array:
        """Return the covariance (s, s) of what has slopes (q, s)."""
        return np.asarray(columns.T @ self.moved(columns))

    def variances(self) -> dict[str, Array]:
        """Return variances by name."""
        found = {}
        for name, slopes in self._slopes.items():
            flat = self.columns(name)
            variance = np.einsum("js,js->s", flat, self._cov @ flat)
            found[name] = np.maximum(variance, 0.0).reshape(slopes.shape[1:])
            if self._noise is not None:
                found[name] += self._noise[name]
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
