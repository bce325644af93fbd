"""The contract of latent functions at one θ: their posterior at the rows that were fitted, and at any inputs."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.sparse_sweeps import LeftOut


class NewRows(NamedTuple):
    """Latent functions at m inputs."""

    mean: Array
    """(c, m)."""
    cov: Array
    """Between the functions at each input, (m, c, c)."""
    prior: Block
    """Prior moments there, with what the posterior is known by."""


class Reach(NamedTuple):
    """Prior moments that say how far some inputs are from what a posterior is known by."""

    cross: Array
    """Covariances, (q, m, n); NaN for what is to be left out."""
    variance: Array
    """Of the inputs, (q, m)."""
    own: Array
    """Of what the posterior is known by, (q, n)."""


class GroupOfRows(NamedTuple):
    """The posterior of latent values at m rows, N(μ, R Rᵀ), and the sites that stand for what was observed there."""

    mean: Array
    """μ, (c, m)."""
    root: Array
    """R, (c, m, p)."""
    sites: Sites
    """Sites of the rows."""
    weights: Array
    """The force ν − Πμ of the sites, (c, m)."""
    own: "Labelled"
    """What is left out."""
    others: "tuple[Labelled, NDArray[np.intp], Labelled] | None" = None
    """Where sites stand for other observations as well: all observations, places (k,) of others among the rows, and
    these others. None without others."""


class Labelled(NamedTuple):
    """Observations with their likelihood."""

    likelihood: Likelihood
    labels: Observed


class LatentFunctions(ABC):
    """The posterior of the latent functions at one θ.

    Attributes
    ----------
    n_functions : int
        c.
    n_points : int
        How many rows were fitted, n.
    size : int
        How many values of each function the posterior is known by: n, or the number of inducing inputs.
    """

    n_functions: int
    n_points: int
    size: int

    def of(self, response: str) -> Self:
        """Return the same functions, whose new rows are those of an observed variable of the model, by its name."""
        return self

    @property
    def takes(self) -> Collection[str]:
        """Names of data of the model that say what new rows are; nothing where inputs alone say it."""
        return ()

    @abstractmethod
    def new_rows(self, x: ArrayLike | None, data: Mapping[str, ArrayLike], new_levels: bool = False) -> Any:
        """Return new rows, which have a length and slices, from inputs or data as a user gives them.

        With `new_levels`, data may name levels of groups that the model does not have.
        """

    def missing_rows(self) -> Any:
        """Return the rows of the model whose responses are missing, as `new_rows` returns others.

        Raises
        ------
        ValueError
            If all rows have a response.
        """
        raise ValueError("All rows of the model have a response, so that there are no missing ones to predict.")

    @property
    @abstractmethod
    def likelihood(self) -> Likelihood:
        """At the rows that were fitted."""

    @property
    @abstractmethod
    def labels(self) -> Observed:
        """Observations there, (n,)."""

    @property
    @abstractmethod
    def own(self) -> Array:
        """Prior variances of what the posterior is known by, (q, size)."""

    @abstractmethod
    def at(self, inputs: Any) -> NewRows:
        """Return the functions at new rows, inputs (m, d) where these say what rows are."""

    def prior_at(self, inputs: Any) -> tuple[Array, Array, Array]:
        """Return prior moments at new rows: covariances with all fitted rows (1 or c, m, n), variances and means.

        Raises
        ------
        TypeError
            If the posterior is not known by all fitted rows.
        """
        raise TypeError(f"{type(self).__name__} knows no covariances with all rows that were fitted.")

    @abstractmethod
    def at_rows(self, rows: slice) -> tuple[Array, Array]:
        """Return means (c, B) and covariances (B, c, c) at some of the rows that were fitted."""

    @property
    def alike(self) -> NDArray[np.int64] | None:
        """Numbers (n,) of the fitted rows, the same for equal rows; None if all rows may differ."""
        return None

    @abstractmethod
    def left_out(self) -> Iterator[LeftOut]:
        """Return all rows in order, part by part, each given the labels of all others.

        Raises
        ------
        NotImplementedError
            If sites leave the functions of a row independent, so that leave-one-out would be wrong.
        """

    def group(self, rows: NDArray[np.intp]) -> GroupOfRows:
        """Return the posterior of some of the rows that were fitted, with their sites.

        Raises
        ------
        NotImplementedError
            If there is no joint posterior of rows, or if sites are not of rows.
        """
        raise NotImplementedError("Groups of rows are left out of posteriors of all rows together, which this has not.")

    @abstractmethod
    def refitted(self, i: int) -> tuple[LeftOut, bool]:
        """Return a row by a fit to the others, and whether that converged.

        Raises
        ------
        NotImplementedError
            If fits to some of the rows are not made.
        """

    @abstractmethod
    def among_fitted(self) -> Reach:
        """Return prior moments of some fitted rows with what the posterior is known by; NaN for a row and itself."""

    @abstractmethod
    def whitened(self) -> tuple[Array, Array]:
        """Return mean and variance (c, n) of z at the model's points, where f = m + L z and L Lᵀ is the prior's.

        Raises
        ------
        NotPositiveDefiniteError
            If the prior covariance has no Cholesky factor.
        """

    @abstractmethod
    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (c, n) of f at the model's points."""

    @abstractmethod
    def joint_covariance(self, rotated: NDArray[np.bool_]) -> Array:
        """Return the covariance (c, n, c, n) at the model's points of f, or of z for functions that are `rotated`."""

    def of_normals(self, matrix: Array) -> Array:
        """Return J S (cn, p) of S (q, p), where latent functions are made of standard normals by rows J (cn, q).

        Raises
        ------
        NotImplementedError
            If there is no joint posterior of all rows.
        """
        raise NotImplementedError("Latent values of all rows together are not made of standard normals here.")

    def joint_covariance_among(self, points: Sequence[int]) -> Array:
        """Return the covariance (c, m, c, m) of f at some of the model's points, by their positions."""
        return self.joint_covariance(np.zeros(self.n_functions, bool))[:, points][..., points]

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Return draws (count, c, n) of f at the model's points, and of z."""

    @abstractmethod
    def draw_at(self, rng: np.random.Generator, count: int, inputs: Array | None) -> Iterator[tuple[slice, Array]]:
        """Return draws (count, c, B) of f at inputs (m, d), part by part; at the rows that were fitted if None.

        Numbers that the draws of all parts share are drawn first: the same generator gives the same functions at any
        inputs. Given these, values at new inputs are independent.
        """


def without_common(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Mean (m, c) and covariance (m, c, c) of latent values less their mean over functions, at each of m points."""
    centred = np.eye(mean.shape[1]) - 1.0 / mean.shape[1]
    found = centred @ cov @ centred
    places = np.arange(mean.shape[1])
    found[:, places, places] = np.maximum(found[:, places, places], 0.0)  # rounding
    return mean @ centred, found
