"""The part of a likelihood that approximations use: local computations, and observations as arrays for kernels."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.registry import table_of
from pymc_gpep.solvers.problem import NO_PARAMETERS


def plain_array(values: Any) -> NDArray[Any]:
    """Return the values as an array. Missing values of pandas arrays stay marked."""
    return np.asarray(np.ma.getdata(values) if np.ma.isMaskedArray(values) else values)


def missing_values(values: Any) -> NDArray[np.bool_]:
    """Return a mask of missing values."""
    missing = np.asarray(pd.isna(plain_array(values)), bool)
    return missing | np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else missing


class RowConstants(NamedTuple):
    """Local computations for many calls with the same rows. Constants of the rows are computed once."""

    bound_to: Callable[[Observed, Array], tuple[object, ...]]
    """`(y, parameters)`: return local computations that store the constants of these rows."""


@dataclass(frozen=True)
class LocalLikelihood(ABC):
    """Distribution of an observation given the c latent values of its point.

    Instances of a class differ only in their parameters, and compare equal. `given` sets the parameters.

    Parameters
    ----------
    parameters : array (p, n)
        Parameters at each of n points, NaN until they are set; p is 0 for most likelihoods.
    """

    parameters: Array = field(default_factory=lambda: NO_PARAMETERS, compare=False, repr=False)
    bound: tuple[object, ...] = field(default=(), init=False, compare=False, repr=False)
    """Computations with precomputed constants of the rows, set by `bound_to`. They override `local`."""

    name: ClassVar[str]
    """Name in approximations, messages and files."""
    sees_common: ClassVar[bool]
    """Whether a common shift of all latent values of a point changes the likelihood."""
    has_parameters: ClassVar[bool] = False
    """Whether the likelihood has parameters in addition to latent values."""
    several_rows: ClassVar[bool] = False
    """Whether the factor of a point may be a product over several rows of the data."""
    rows: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters; a single name if their number is variable."""
    largest_precision: ClassVar[float]
    """Upper bound of the precision of a scalar EP site; 1 if EP sites are not scalar."""
    log_concave: ClassVar[bool] = True
    """Whether the log likelihood is concave in the latent values."""
    of_prior: ClassVar[bool] = False
    """Whether some rows are not data, but factors of the priors of effects."""
    local: ClassVar[tuple[object, ...]]
    """Local computations at points, each of a different type in `pymc_gpep.likelihoods.local_computations`.

    Kernels are functions of arrays. They are compiled for speed, but need not be.
    """

    @property
    def least_precision(self) -> float:
        """Smallest precision of scalar sites: 0, or −∞ if the likelihood is not log-concave."""
        return 0.0 if self.log_concave else -np.inf

    @property
    def computations(self) -> Iterator[object]:
        """Built-in local computations, then computations that are registered for the name of the likelihood."""
        yield from self.bound
        yield from self.local
        # A wrapper has other arrays, so it must not match: the `name` of its class is a property, not a text.
        yield from (added.local for added in table_of("computation") if added.likelihood == type(self).name)

    def offers(self, kind: type) -> bool:
        """Return whether the likelihood has a local computation of this type."""
        return any(isinstance(one, kind) for one in self.computations)

    def computation[T](self, kind: type[T]) -> T:
        """Return the local computation of a type.

        Raises
        ------
        ValueError
            If the likelihood has no computation of this type.
        """
        for one in self.computations:
            if isinstance(one, kind):
                return one
        has = ", ".join(type(one).__name__ for one in self.computations) or "none"
        raise ValueError(f"A {self.name} likelihood has no {kind.__name__}. Its local computations are: {has}.")

    def given(self, parameters: Array) -> Self:
        """Return the likelihood with parameters (p, n)."""
        return replace(self, parameters=np.ascontiguousarray(parameters, np.float64)) if self.has_parameters else self

    @property
    def refused(self) -> str:
        """Sentence (after a space) on unsuitable methods, for messages; may be empty."""
        return ""

    @property
    def effects(self) -> list[str]:
        """Names of the effects with a prior that is a factor among the rows."""
        return []

    def priors(self) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield the row indices and the likelihood of each prior that is a factor among the rows."""
        return iter(())

    def bound_to(self, observed: Observed, parameters: Array) -> Self:
        """Return a copy for many calls with these arrays. It stores computations with constants of the arrays."""
        if not self.offers(RowConstants):
            return self
        one = copy(self)
        object.__setattr__(one, "bound", self.computation(RowConstants).bound_to(observed, parameters))
        return one

    def at(self, points: Any) -> Self:
        """Return a copy with the parameters of selected points."""
        return self.given(self.parameters[:, points]) if self.has_parameters else self

    @abstractmethod
    def n_classes(self, n_functions: int) -> int:
        """Return the number of classes for a number of latent functions; 0 if observations are not classes."""

    @abstractmethod
    def check_functions(self, n_functions: int) -> None:
        """Raise a ValueError if a point cannot have this number of latent functions."""

    @abstractmethod
    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Observed:
        """Check observations and return them as an array for kernels.

        Parameters
        ----------
        observed : array_like (n,), or (n, classes) with a number for each class
        n_functions : int
            Number c of functions.
        n_points : int
            Number n of points.
        name : str
            Name of the observations, for messages.

        Raises
        ------
        ValueError
            If their shape does not fit, or if the likelihood does not allow them.
        """
