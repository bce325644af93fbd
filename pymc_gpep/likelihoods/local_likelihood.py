"""The part of a likelihood that approximations use: local computations, and observations as arrays for kernels."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.registry import Registry, table_of
from pymc_gpep.solvers.problem import NO_PARAMETERS

A_ROW_FOR_EACH_VOTE = (
    "Numbers of votes for each class are pm.Multinomial(n=votes.sum(axis=1), p=pm.math.softmax(f.T, axis=-1)). "
    "Without a softmax, votes need a row for each: X=np.repeat(X, votes.sum(axis=1), axis=0), and "
    "labels np.concatenate([np.repeat(np.arange(votes.shape[1]), row) for row in votes])."
)
"""Advice on how to declare votes (n, classes)."""


_SHOWN = 5  # Largest number of offending labels in an error message.


def recoding(labels: np.ndarray, n_classes: int) -> str:
    """Return code that recodes labels of c classes as 0 ... c−1; empty for other labels."""
    found = np.unique(labels)
    if n_classes == 2 and found.size == 2:
        return f"(labels == {found[1]})"
    if found.size == n_classes and found[-1] - found[0] == n_classes - 1:
        return f"labels - {found[0]}" if found[0] > 0 else f"labels + {-found[0]}"
    return ""


def one_for_each_point(observed: ArrayLike, n_points: int, name: str, classes: bool = True) -> NDArray[Any]:
    """Return observations as an array, one for each point.

    Parameters
    ----------
    observed : array_like (n,)
    n_points : int
        Number n of points.
    name : str
        Name of the observations, for messages.
    classes : bool
        Whether the observations are classes.

    Raises
    ------
    ValueError
        If `observed` has another shape or missing entries.
    """
    shape = np.shape(observed)
    if shape != (n_points,):
        advice = to_one_axis(shape, classes)
        raise ValueError(
            f"{name} must be ({n_points},), one for each point, but have shape {shape_text(shape)}.{advice}"
        )
    missing = _missing(observed)
    if missing.any():
        raise ValueError(missing_labels(missing, name))
    return np.asarray(observed)


def to_one_axis(shape: tuple[int | None, ...], classes: bool = True) -> str:
    """Return advice on how to reshape labels to one axis, after a space; empty if they have one axis."""
    if len(shape) < 2:
        return ""
    if sum(size != 1 for size in shape) < 2:
        return " Give them one axis: np.ravel(y)."
    sizes = [size for size in shape[1:] if size is not None]
    times = math.prod(sizes) if len(sizes) == len(shape) - 1 else "k"
    several = f" For {times} values of each point repeat the point: X=np.repeat(X, {times}, axis=0), and np.ravel(y)."
    indicators = " Indicators of classes become labels by np.argmax(y, axis=1)."
    return f"{indicators}{several} {A_ROW_FOR_EACH_VOTE}" if classes else several


def missing_labels(missing: NDArray[np.bool_], name: str) -> str:
    """Return a message on missing observations, with the remedy."""
    where = [", ".join(map(str, i)) for i in np.argwhere(missing)[:_SHOWN]]
    more = "; ..." if missing.sum() > _SHOWN else ""
    return (
        f"{name} are missing at {missing.sum()} of {missing.size} points (position {'; '.join(where)}{more}). "
        "Leave these points out, of the prior's X as well: X[keep] and y[keep].astype(int) with keep = pd.notna(y), or "
        "~y.mask of a masked array. Draw or predict their labels from the fitted model."
    )


def some_of(labels: NDArray[Any]) -> str:
    """Return a text with the smallest distinct labels, for messages."""
    return ", ".join(map(str, np.unique(labels)[:_SHOWN].tolist()))


def without_marks(labels: NDArray[Any]) -> str:
    """Return a sentence (after a space) on how to leave out points with the label −1; empty without such points."""
    if labels.dtype.kind not in "if" or labels.min(initial=0) != -1:
        return ""
    return " Where -1 marks a missing label, leave the point out: X[keep] and y[keep] with keep = y >= 0."


def _plain(values: Any) -> NDArray[Any]:
    """Return the values as an array. Missing values of pandas arrays stay marked."""
    return np.asarray(np.ma.getdata(values) if np.ma.isMaskedArray(values) else values)


def _missing(values: Any) -> NDArray[np.bool_]:
    """Return a mask of missing values."""
    missing = np.asarray(pd.isna(_plain(values)), bool)
    return missing | np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else missing


def shape_text(shape: tuple[int | None, ...]) -> str:
    """Return a shape as text, with ? for unknown lengths."""
    return "(" + ", ".join("?" if s is None else str(s) for s in shape) + ("," if len(shape) == 1 else "") + ")"


class RowConstants(NamedTuple):
    """Local computations that compute constants of rows once, for many calls with the same rows."""

    bound_to: Callable[[Observed, Array], tuple[object, ...]]
    """`(y, parameters)`: local computations, returned, that store the constants of these arrays."""


class Computation(NamedTuple):
    """Local computation that another package adds to a likelihood."""

    likelihood: str
    """Name of the likelihood."""
    local: object
    """Instance of a type in `pymc_gpep.likelihoods.local_computations`, or of another NamedTuple."""

    @property
    def name(self) -> str:
        """Names of type and likelihood, for messages."""
        return f"{type(self.local).__name__} of {self.likelihood}"

    def check(self) -> None:
        """Raise a TypeError unless the computation is a named tuple."""
        if not isinstance(self.local, tuple) or not hasattr(self.local, "_fields"):
            raise TypeError(
                f"The local computation of {self.likelihood!r} is {self.local!r}, but must be an instance of a "
                "NamedTuple, such as ScalarDensity(derivatives)."
            )

    def why_unused(self) -> str:
        """Return a text on why methods do not use the computation; empty if they use it."""
        likelihoods = table_of("likelihood")
        if self.likelihood not in likelihoods.names:
            meant = did_you_mean([self.likelihood], likelihoods.names)
            return (
                f"The computation {self.name} is for {self.likelihood!r}, which is not a registered likelihood.{meant}"
            )
        if any(type(one) is type(self.local) for one in likelihoods[self.likelihood].local):
            return f"The computation {self.name} is not used: {self.likelihood!r} already has one."
        return ""


COMPUTATIONS: Registry[Computation] = Registry(
    "computation", (), of=Computation, classes=False, check=Computation.check, check_read=Computation.why_unused
)
"""Registry of the added computations."""


@dataclass(frozen=True)
class LocalLikelihood(ABC):
    """Distribution of an observation given the c latent values of its point.

    All instances of a class compare equal. They differ only in their parameters, which `given` sets.

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
    """Upper bound of precisions of scalar sites of EP; 1 without scalar sites."""
    log_concave: ClassVar[bool] = True
    """Whether the log likelihood is concave in the latent values."""
    of_prior: ClassVar[bool] = False
    """Whether some rows are factors of priors of effects."""
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
        yield from (added.local for added in COMPUTATIONS if added.likelihood == type(self).name)

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
        """Text (after a space) on unsuitable methods, for messages; may be empty."""
        return ""

    @property
    def effects(self) -> list[str]:
        """Names of effects whose priors are factors among the rows."""
        return []

    def priors(self) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield rows and likelihood of each prior that is a factor."""
        return iter(())

    def bound_to(self, observed: Observed, parameters: Array) -> Self:
        """Return the likelihood for a solve with these arrays, with their constants computed."""
        if not self.offers(RowConstants):
            return self
        one = copy(self)
        object.__setattr__(one, "bound", self.computation(RowConstants).bound_to(observed, parameters))
        return one

    def at(self, points: Any) -> Self:
        """Return the likelihood at selected points."""
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
