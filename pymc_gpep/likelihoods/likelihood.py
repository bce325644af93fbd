"""The contract of a likelihood: how it is read in a model, its observations, densities, draws and predictions.

Class probabilities are computed to an absolute error. The score of an improbable label depends on the logarithm of
its probability. Small probabilities are therefore computed again more precisely, and tiny ones by other means.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import PartialObservedRV, SymbolicRandomVariable
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import check_name, did_you_mean
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    CoupledCurvature,
    PlainDensity,
    RowConstants,
    ScalarDensity,
)
from pymc_gpep.registry import Registry, table_of
from pymc_gpep.solvers.problem import NO_PARAMETERS

UNBOUNDED = 1e300
"""The number that stands for an infinite bound: solvers take no parameters that are not finite."""


class Observable(NamedTuple):
    """A random variable that is observed, or observed between bounds."""

    op: Op
    inputs: list[TensorVariable]
    """The parameters of its distribution."""
    lower: TensorVariable
    upper: TensorVariable
    """Bounds, numbers or (n,); ∓ `UNBOUNDED` on a side without one."""


@cache
def no_bounds() -> tuple[TensorVariable, TensorVariable]:
    """The bounds of what is not censored."""
    lower, upper = (pt.constant(end, dtype="float64") for end in (-UNBOUNDED, UNBOUNDED))
    return lower, upper


def observable_of(variable: TensorVariable) -> Observable | None:
    """The distribution behind a random variable, and its bounds; None where these are random themselves."""
    lower, upper = ends = no_bounds()
    if isinstance(variable.owner.op, CensoredRV):
        variable, lower, upper = variable.owner.inputs[:3]
        if any(isinstance(v.owner and v.owner.op, RandomVariable) for v in ancestors([lower, upper])):
            return None
        lower, upper = (pt.clip(bound.astype("float64"), *ends) for bound in (lower, upper))
    op = variable.owner.op
    told_apart = isinstance(op, SymbolicRandomVariable) and op.extended_signature is not None
    if not (isinstance(op, RandomVariable) or told_apart) or isinstance(op, PartialObservedRV):
        return None  # the parameters of the others are not told apart
    return Observable(op, list(op.dist_params(variable.owner)), lower, upper)


def censored_side(y: NDArray[Any], lower: Array, upper: Array) -> Array:
    """0 for observations (n,) that were seen, 1 for those above a bound, −1 for those below one.

    NaN for numbers beyond the bounds, which cannot be.
    """
    side = np.where(y >= upper, 1.0, np.where(y <= lower, -1.0, 0.0))
    return np.where((y > upper) | (y < lower) | np.isnan(y), np.nan, side)


def gaussian_moments(mean: ArrayLike, cov: ArrayLike, tolerance: float, at_least: int = 2) -> tuple[Array, Array]:
    """Mean (m, c) and covariance (m, c, c) as contiguous arrays.

    Raises
    ------
    ValueError
        If the shapes do not agree, if there are fewer latent functions than `at_least`, or if `tolerance` is not
        positive.
    """
    mean = np.ascontiguousarray(mean, np.float64)
    cov = np.ascontiguousarray(cov, np.float64)
    if mean.ndim != 2 or cov.shape != (*mean.shape, mean.shape[-1]):
        raise ValueError(f"mean and cov must have shapes (m, c) and (m, c, c), but have {mean.shape} and {cov.shape}")
    if mean.shape[1] < at_least:
        raise ValueError(f"there must be at least {at_least} classes, but mean has shape {mean.shape}, which is (m, c)")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, but is {tolerance}")
    return mean, cov


def independent_classes(cov: Array) -> NDArray[np.bool_]:
    """At which points (m,) the covariance (m, c, c) is diagonal: all else in it exactly zero."""
    c = cov.shape[1]
    off_diagonal: NDArray[np.bool_] = (cov.reshape(len(cov), c * c) != 0.0) & ~np.eye(c, dtype=bool).ravel()
    alone: NDArray[np.bool_] = ~off_diagonal.any(axis=1)
    return alone


class Computation(NamedTuple):
    """A local computation that a package adds to a likelihood."""

    likelihood: str
    """Name of the likelihood."""
    local: object
    """Of a type of `pymc_gpep.likelihoods.local_computations`, or of another NamedTuple that a method needs."""

    @property
    def name(self) -> str:
        """Type and likelihood, as messages have them."""
        return f"{type(self.local).__name__} of {self.likelihood}"

    def check(self) -> None:
        """Raise a TypeError unless the computation is a named tuple."""
        if not isinstance(self.local, tuple) or not hasattr(self.local, "_fields"):
            raise TypeError(
                f"The local computation of {self.likelihood!r} is {self.local!r}, but must be an instance of a "
                "NamedTuple, such as ScalarDensity(derivatives)."
            )

    def why_unused(self) -> str:
        """Return why no method finds the computation; empty if methods find it."""
        likelihoods = table_of("likelihood")
        if self.likelihood not in likelihoods.names:
            meant = did_you_mean([self.likelihood], likelihoods.names)
            return (
                f"The computation {self.name} is for {self.likelihood!r}, which is not a registered likelihood.{meant}"
            )
        if any(type(one) is type(self.local) for one in likelihoods[self.likelihood].local):
            return f"The computation {self.name} is not used: the likelihood has one of its own."
        return ""


COMPUTATIONS: Registry[Computation] = Registry(
    "computation", (), of=Computation, classes=False, check=Computation.check, check_read=Computation.why_unused
)
"""Computations that were added to likelihoods."""


class Reading(NamedTuple):
    """Argument and parameters of a random variable."""

    argument: TensorVariable
    """Latent values (n, c), or (n,) where there is no axis for functions."""
    parameters: TensorVariable | None = None
    """Parameters at each point (p, n) or at all (p, 1), as a function of hyperparameters and data; None without any."""
    unbounded: TensorVariable | None = None
    """The parameters of observations that are not censored, where `parameters` have bounds; else None."""
    totals: TensorVariable | None = None
    """Sums of the observations of each point, (n,) or a number, where a model states them; else None."""
    everywhere: "Reading | None" = None
    """The same at all rows of the data, where the responses of some are missing."""
    likelihood: "Likelihood | None" = None
    """The likelihood itself, where only the variable that was read tells which it is; else None."""


@dataclass(frozen=True)
class Likelihood(ABC):
    """A distribution of one observation given the c latent values of its point.

    All instances of a class are equal. They differ only in the numbers that a model gives them besides latent values,
    which are bound to one (`given`) where they are known.

    Parameters
    ----------
    parameters : array (p, n)
        Parameters besides latent values at each of n points, NaN while they are not known; p is 0 for most.
    """

    parameters: Array = field(default_factory=lambda: NO_PARAMETERS, compare=False, repr=False)
    bound: tuple[object, ...] = field(default=(), init=False, compare=False, repr=False)
    """Local computations with the constants of the rows of a solve (`bound_to`), which go before `local`."""

    name: ClassVar[str]
    """Name in approximations, messages and files."""
    written: ClassVar[str]
    """Code that a user writes for it."""
    distributions: ClassVar[tuple[type[Op], ...]]
    """The random variables that it may be read from."""
    method: ClassVar[str]
    """The approximation that is meant where none is named."""
    guide: ClassVar[str]
    """Name of the approximation that guides a sampler if nothing is asked for, or "prior"."""
    function_axis: ClassVar[bool] = True
    """Whether its argument in a model is (n, c), with an axis for the latent functions, or (n,), for one function."""
    ways: ClassVar[tuple[str, ...]]
    """How predictive probabilities can be computed from a Gaussian, the default first."""
    sees_common: ClassVar[bool]
    """Whether a number that is added to all latent values of a point changes anything."""
    fixes_scale: ClassVar[bool] = True
    """Whether it changes when all latent values are multiplied by a number."""
    observed_dtype: ClassVar[str] = "int64"
    """Type of its observations in arrays: int64 for classes and counts, float64 for other numbers."""
    observed_axes: ClassVar[int] = 1
    """Axes of its observations: one for points, and a second one where a point has a number for each class."""
    least: ClassVar[float] = -np.inf
    """Observations that are no classes are at least this."""
    has_parameters: ClassVar[bool] = False
    """Whether it is given anything besides latent values."""
    several_rows: ClassVar[bool] = False
    """Whether the factor of a point is the product over several rows of the data."""
    rows: ClassVar[tuple[str, ...]] = ()
    """Names of the rows of its parameters, or one for all of them where their number is free."""
    largest_precision: ClassVar[float]
    """Scalar sites of EP have precisions of less than this; 1 where EP has no such sites."""
    log_concave: ClassVar[bool] = True
    """Whether its logarithm is concave in the latent values."""
    local: ClassVar[tuple[object, ...]]
    """Local computations at points, each of another type of `pymc_gpep.likelihoods.local_computations`.

    Kernels there are functions of arrays; they are compiled for speed, and need not be.
    """

    @property
    def least_precision(self) -> float:
        """The least precision of scalar sites: 0, or −∞ where the likelihood is not log-concave."""
        return 0.0 if self.log_concave else -np.inf

    @property
    def computations(self) -> Iterator[object]:
        """Its own local computations, then the ones that were registered for its name, read where they are needed."""
        yield from self.bound
        yield from self.local
        # A likelihood made of another one shares its name, but not its arrays: the class has no name.
        yield from (added.local for added in COMPUTATIONS if added.likelihood == type(self).name)

    def offers(self, kind: type) -> bool:
        """Whether the likelihood has a local computation of this type, of its own or added."""
        return any(isinstance(one, kind) for one in self.computations)

    def computation[T](self, kind: type[T]) -> T:
        """Return the local computation of a type.

        Raises
        ------
        ValueError
            If it has none.
        """
        for one in self.computations:
            if isinstance(one, kind):
                return one
        has = ", ".join(type(one).__name__ for one in self.computations) or "none"
        raise ValueError(f"A {self.name} likelihood has no {kind.__name__}; of local computations it has {has}.")

    def check_way(self, how: str | None, name: str = "how") -> str:
        """The way to compute predictive probabilities that is meant, the default for None.

        Raises
        ------
        ValueError
            If there is no such way; the message calls it by `name`.
        """
        if how is not None:
            check_name(name, how, self.ways, f" for a {self.name} likelihood")
        return how or self.ways[0]

    def given(self, parameters: Array) -> Self:
        """The same with parameters (p, n)."""
        return replace(self, parameters=np.ascontiguousarray(parameters, np.float64)) if self.has_parameters else self

    def bound_to(self, observed: Observed, parameters: Array) -> Self:
        """The same for a solve with these very arrays: their constants are computed once, and live as long as this."""
        if not self.offers(RowConstants):
            return self
        one = copy(self)
        object.__setattr__(one, "bound", self.computation(RowConstants).bound_to(observed, parameters))
        return one

    def takes_rows(self, count: int) -> bool:
        """Whether parameters may have so many rows."""
        return count == len(self.rows)

    def checked_parameters(self, parameters: ArrayLike | None, n_points: int) -> Array:
        """Return parameters (p, n) as an array.

        Raises
        ------
        ValueError
            If they are missing, or given to a likelihood without parameters, or if their shape does not fit.
        """
        if not self.has_parameters:
            if parameters is not None:
                raise ValueError(f"A {self.name} likelihood has no parameters: leave parameters out.")
            return NO_PARAMETERS
        listed = ", ".join(self.rows)
        wanted = f"parameters of a {self.name} likelihood are an array with {n_points} columns and these rows: {listed}"
        if parameters is None:
            raise ValueError(f"{wanted}. Give them as parameters=...")
        given = np.asarray(parameters, np.float64)
        if given.ndim != 2 or given.shape[1] != n_points or not self.takes_rows(len(given)):
            raise ValueError(f"{wanted}. But they have shape {given.shape}.")
        if np.isnan(given).any():
            raise ValueError(f"{wanted}. But {np.count_nonzero(np.isnan(given))} of them are NaN.")
        return np.clip(given, -UNBOUNDED, UNBOUNDED)

    def at(self, points: Any) -> Self:
        """The same at some of the points, by their index."""
        return self.given(self.parameters[:, points]) if self.has_parameters else self

    def observes_classes(self, n_functions: int) -> bool:
        """Whether an observation is one of the classes, with so many latent functions."""
        return self.observed_axes == 1 and self.n_classes(n_functions) > 0

    def says_nothing(self, observed: Observed) -> NDArray[np.bool_]:
        """Return at which points (n,) the observation has the same probability whatever the latent values are."""
        return np.zeros(len(observed), dtype=bool)

    def draw_noise(self, rng: np.random.Generator, f: Array, observed: Observed) -> NDArray[np.bool_]:
        """Draw at which points (n,) the observation has nothing to do with the latent values f (c, n)."""
        return np.zeros(len(observed), dtype=bool)

    def may_be(self, variable: TensorVariable) -> bool:
        """Whether a random variable has a distribution that it may be read from."""
        return isinstance(variable.owner.op, self.distributions)

    @abstractmethod
    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Return the argument and parameters of a random variable; None if its likelihood is another one.

        Parameters
        ----------
        variable : TensorVariable
        latents : collection of Variable
            The latent values of the model, which tell an argument from parameters.
        """

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        """Why a random variable that `may_be` of this likelihood is not; None if another likelihood is nearer.

        Arguments are those of `read`.
        """
        return None

    def log_probability(self, value: TensorVariable, reading: Reading) -> TensorVariable | None:
        """Log probability (n,) of a random variable that was read, where PyMC's own loses its digits; else None."""
        return None

    def averaged(self, name: str, mean: TensorVariable, variance: TensorVariable, **kwargs: Any) -> Variable | None:
        """Add what is observed to the model on the context stack, normal and independent latent values integrated out.

        Parameters
        ----------
        name : str
        mean, variance : TensorVariable (n, c), or (n,) where there is no axis for functions
            Moments of the latent values.
        **kwargs
            Keyword arguments of the distribution: `observed` and `dims`.

        Returns
        -------
        Variable or None
            None where no distribution of PyMC or of this package is the integral.
        """
        return None

    @abstractmethod
    def n_classes(self, n_functions: int) -> int:
        """How many classes there are with so many latent functions; 0 where observations are no classes."""

    @abstractmethod
    def check_functions(self, n_functions: int) -> None:
        """Raise a ValueError unless a point may have so many latent functions."""

    @abstractmethod
    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> Observed:
        """Return observations in the form that kernels want.

        Parameters
        ----------
        observed : array_like (n,), or (n, classes) where there is a number for each class
        n_functions : int
            Number c of functions.
        n_points : int
            Number n of points.
        name : str
            Name that the caller has for them.

        Raises
        ------
        ValueError
            If their shape does not fit, or if the likelihood does not allow them.
        """

    def check_parameters(self, observed: Observed | None, name: str) -> None:  # noqa: B027  most have none
        """Raise a ValueError, with the rows, if the parameters that are bound can be those of no model.

        Parameters
        ----------
        observed : array (n,), optional
            Observations at the points, if they are known.
        name : str
            Name that the caller has for the observations.
        """

    @abstractmethod
    def log_densities(self, f: Array, observed: Observed) -> Array:
        """Exact log p(y_i | f_i) (..., n) of each observation (n,), for latent values (..., c, n)."""

    def log_density(self, f: Array, observed: Observed) -> Array:
        """Exact log p(y | f) (...) of all observations (n,) together, for latent values (..., c, n)."""
        return np.asarray(self.log_densities(f, observed).sum(axis=-1))

    @abstractmethod
    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        """Predictive probability (m, classes) of each class, the latent values integrated out; estimated errors (m,).

        Parameters
        ----------
        mean : array (m, c)
            Means of the latent values at m points.
        cov : array (m, c, c)
            Their covariances, which may be singular.
        how : str, optional
            One of `ways`, the first if not given.
        tolerance : float
            Absolute error wanted of each probability, where they are integrated by sampling.

        Raises
        ------
        ValueError
            If the shapes do not agree, or if there is no such way.
        """

    def scores(self, observed: Observed, p: Array, moments: Array | None) -> dict[str, Array]:
        """How well each observation (m,) is predicted, by the name of what is measured, besides its log density.

        Parameters
        ----------
        observed : array (m,)
        p : array (m, classes)
            Predictive probabilities.
        moments : array (2, m), optional
            Predictive mean and variance of an observation, where these are no classes.
        """
        return {"accuracy": (p.argmax(axis=1) == observed).astype(np.float64)}

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        """Predictive mean of an observation and of its square (2, m), arguments as in `probabilities`.

        Likelihoods whose observations are no classes override this, `cumulative` and `scores`.

        Raises
        ------
        TypeError
            If observations are classes, which have none.
        """
        raise TypeError(f"Observations of a {self.name} likelihood are classes, and have no moments.")

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        """Predictive probability (m,) that an observation is at most y (m,), other arguments as in `probabilities`.

        Raises
        ------
        TypeError
            If observations are classes.
        """
        raise TypeError(f"Observations of a {self.name} likelihood are classes, which have no order.")

    def ends(self, observed: Observed, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Predictive probabilities (m,) that an observation is less than that which was seen, and at most that.

        Both are the same where observations are numbers. A censored one is only known to be beyond its bound.

        Raises
        ------
        TypeError
            If observations are classes.
        """
        y = np.asarray(observed, np.float64)
        at = self.cumulative(y, mean, cov)
        if self.observed_dtype != "int64":
            return at, at
        return np.where(y > self.least, self.cumulative(np.maximum(y - 1.0, self.least), mean, cov), 0.0), at

    @abstractmethod
    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        """log ∫ p(y_i | f) N(f | mean_i, cov_i) df (m,) where it is so small that an absolute error says nothing."""


_RELATIVE = 1e-2  # error of a probability to accept
_TINY = 1e-7  # below this, absolute errors of 1e-10 would be felt


def log_predictive(
    likelihood: Likelihood, mean: ArrayLike, cov: ArrayLike, labels: ArrayLike, *, tolerance: float = 5e-5
) -> Array:
    """log ∫ p(y_i | f_i) N(f_i | mean_i, cov_i) df_i at m points.

    Parameters
    ----------
    likelihood : Likelihood
    mean : array_like (m, c)
        Means of the latent values.
    cov : array_like (m, c, c)
        Their covariances, which may be singular.
    labels : array_like of int (m,)
        Observed classes, counted from 0.
    tolerance : float
        Absolute error of the probabilities to begin with. Where it is more than a hundredth of the one of the observed
        class, they are computed again, with a tolerance that makes it less.

    Returns
    -------
    array (m,)
        Log probabilities. Where the probability is below 1e-7, or still not known to a hundredth, the likelihood's own
        computation for tails is good to about 0.01. NaN where the input is.
    """
    mean, cov = np.ascontiguousarray(mean, np.float64), np.ascontiguousarray(cov, np.float64)
    y = np.asarray(labels, likelihood.observed_dtype)
    if not likelihood.observes_classes(mean.shape[1]):
        return likelihood.log_tail(mean, cov, y)
    every, error = likelihood.probabilities(mean, cov, tolerance=tolerance)
    p = every[range(len(y)), y]
    for i in np.flatnonzero((error > _RELATIVE * p) & (p > _TINY)):
        finer, error[[i]] = likelihood.at([i]).probabilities(mean[[i]], cov[[i]], tolerance=_RELATIVE * p[i])
        p[i] = finer[0, y[i]]
    tail = (p <= _TINY) | (error > _RELATIVE * p)
    log_p: Array = np.log(np.where(tail, 1.0, p))
    log_p[tail] = likelihood.at(tail).log_tail(mean[tail], cov[tail], y[tail])
    return log_p


type LogDensity = Callable[[Array, Observed, Array], float]
"""Of `(f, y, slope)`: Σ log p(y_i | f_i), returned, and its derivative in f, written (c, n)."""


def log_density_with_slope(likelihood: Likelihood) -> LogDensity | None:
    """Return the log density of a likelihood with its parameters; None where no kernel computes its derivative."""
    if likelihood.offers(BlockCurvature):
        return likelihood.computation(BlockCurvature).log_density
    if likelihood.offers(CoupledCurvature):
        coupled = likelihood.computation(CoupledCurvature).log_density
        return lambda f, y, slope: coupled(f, y, np.empty_like(f), slope)
    if likelihood.offers(ScalarDensity):
        return _of_one_function(likelihood, likelihood.computation(ScalarDensity).derivatives)
    if likelihood.offers(PlainDensity):
        return _of_one_function(likelihood, likelihood.computation(PlainDensity).derivatives)
    return None


def _of_one_function(likelihood: Likelihood, derivatives: Callable[..., None]) -> LogDensity:
    parameters = likelihood.parameters

    def log_density(f: Array, y: Observed, slope: Array) -> float:
        out = np.empty((4, f.shape[1]))
        derivatives(f[0], y, parameters, out)
        slope[0] = out[1]
        return float(out[0].sum())

    return log_density
