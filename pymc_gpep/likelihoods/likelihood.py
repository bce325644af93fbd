"""Base class of likelihoods: reading from a model, densities, draws and predictions.

Class probabilities are computed to an absolute error. The score of an improbable label depends on the logarithm of its
probability. Therefore small probabilities are computed again with a smaller error. Tiny probabilities are computed by
formulas for tails.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import check_name
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    CoupledCurvature,
    PlainDensity,
    PredictorsDensity,
    ScalarDensity,
)
from pymc_gpep.likelihoods.local_likelihood import LocalLikelihood
from pymc_gpep.solvers.problem import NO_PARAMETERS

UNBOUNDED = 1e300
"""Finite number in place of an infinite bound, since solvers accept only finite parameters."""


def gaussian_moments(mean: ArrayLike, cov: ArrayLike, tolerance: float, at_least: int = 2) -> tuple[Array, Array]:
    """Check means (m, c) and covariances (m, c, c) of latent values, and return contiguous arrays.

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
    """Return a mask (m,), True at points with an exactly diagonal covariance matrix; `cov` is (m, c, c)."""
    c = cov.shape[1]
    off_diagonal: NDArray[np.bool_] = (cov.reshape(len(cov), c * c) != 0.0) & ~np.eye(c, dtype=bool).ravel()
    alone: NDArray[np.bool_] = ~off_diagonal.any(axis=1)
    return alone


@dataclass(frozen=True)
class Likelihood(LocalLikelihood, ABC):
    """Distribution of an observation given the c latent values of its point."""

    written: ClassVar[str]
    """Code that declares the likelihood in a model."""
    distributions: ClassVar[tuple[type[Op], ...]]
    """Types of PyMC random variables that may have the likelihood."""
    method: ClassVar[str]
    """Name of the default approximation."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options of the default approximation."""
    guide: ClassVar[str]
    """Name of the approximation that guides a sampler by default, or "prior"."""
    function_axis: ClassVar[bool] = True
    """Whether latent values in a model are (n, c), with an axis for latent functions. Otherwise they are (n,)."""
    ways: ClassVar[tuple[str, ...]]
    """Names of the ways to compute predictive probabilities from normal latent values. The first is the default."""
    fixes_scale: ClassVar[bool] = True
    """Whether the likelihood changes if all latent values are multiplied by a number."""
    observed_dtype: ClassVar[str] = "int64"
    """Type of observations in arrays: int64 for classes and counts, float64 for other numbers."""
    observed_axes: ClassVar[int] = 1
    """Number of axes of observations: 1, or 2 if a point has a number for each class."""
    least: ClassVar[float] = -np.inf
    """Lower bound of observations that are not classes."""

    def check_way(self, how: str | None, name: str = "how") -> str:
        """Return the name of a way to compute predictive probabilities. None selects the default.

        Raises
        ------
        ValueError
            If `how` is not in `ways`. The message calls the argument `name`.
        """
        if how is not None:
            check_name(name, how, self.ways, f" for a {self.name} likelihood")
        return how or self.ways[0]

    def takes_rows(self, count: int) -> bool:
        """Return whether an array of parameters with this number of rows fits the likelihood."""
        return count == len(self.rows)

    def checked_parameters(self, parameters: ArrayLike | None, n_points: int) -> Array:
        """Return parameters (p, n) as an array.

        Raises
        ------
        ValueError
            If parameters are missing, have another shape, or are NaN, or if the likelihood has no parameters.
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

    def observes_classes(self, n_functions: int) -> bool:
        """Return whether observations are classes if the model has this number of latent functions."""
        return self.observed_axes == 1 and self.n_classes(n_functions) > 0

    def is_uninformative(self, observed: Observed) -> NDArray[np.bool_]:
        """Return a mask (n,): True at points with a likelihood that does not depend on the latent values."""
        return np.zeros(len(observed), dtype=bool)

    def draw_noise(self, rng: np.random.Generator, f: Array, observed: Observed) -> NDArray[np.bool_]:
        """Draw which observations are label noise, given latent values f (c, n). Return a mask (n,)."""
        return np.zeros(len(observed), dtype=bool)

    def may_be(self, variable: TensorVariable) -> bool:
        """Return whether the type of a random variable is in `distributions`."""
        return isinstance(variable.owner.op, self.distributions)

    @abstractmethod
    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Return the latent values and parameters of a random variable; None if it has another likelihood.

        Parameters
        ----------
        variable : TensorVariable
        latents : collection of Variable
            Latent values of the model. All other variables are parameters.
        """

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        """Return why `read` fails for a random variable of a type in `distributions`; None without a reason.

        Arguments are as for `read`.
        """
        return None

    def log_probability(self, value: TensorVariable, reading: Reading) -> TensorVariable | None:
        """Return a graph of the log probability (n,) if PyMC's log probability loses digits; else None."""
        return None

    def averaged(self, name: str, mean: TensorVariable, variance: TensorVariable, **kwargs: Any) -> Variable | None:
        """Add an observed variable to the current model. Its independent normal latent values are integrated out.

        Parameters
        ----------
        name : str
        mean, variance : TensorVariable (n, c), or (n,) where there is no axis for functions
            Moments of the latent values. `kwargs` are arguments of the distribution: `observed` and `dims`.

        Returns
        -------
        Variable or None
            The variable; None if the integral is not a distribution of PyMC or of this package.
        """
        return None

    def check_parameters(self, observed: Observed | None, name: str) -> None:
        """Raise a ValueError that lists the rows with invalid parameters, if there are such rows.

        Parameters
        ----------
        observed : array (n,), optional
            Observations at the points, if given.
        name : str
            Name of the observations in messages.
        """

    @abstractmethod
    def log_densities(self, f: Array, observed: Observed) -> Array:
        """Return the exact log p(y_i | f_i) (..., n) of each observation (n,), for latent values (..., c, n)."""

    def log_density(self, f: Array, observed: Observed) -> Array:
        """Return the exact log p(y | f) (...) of all observations (n,) together, for latent values (..., c, n)."""
        return np.asarray(self.log_densities(f, observed).sum(axis=-1))

    @abstractmethod
    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        """Return predictive class probabilities (m, classes), with latent values integrated out, and errors (m,).

        Parameters
        ----------
        mean : array (m, c)
            Means of the latent values at m points.
        cov : array (m, c, c)
            Covariances of the latent values. They may be singular.
        how : str, optional
            A name in `ways`; the first by default.
        tolerance : float
            Target absolute error of each probability, for integrals by sampling.

        Raises
        ------
        ValueError
            If the shapes do not agree, or if `how` does not exist.
        """

    def scores(self, observed: Observed, p: Array, moments: Array | None) -> dict[str, Array]:
        """Return scores of each observation (m,) by name, in addition to its log density.

        Parameters
        ----------
        observed : array (m,)
        p : array (m, classes)
            Predictive probabilities.
        moments : array (2, m), optional
            Predictive mean and variance of an observation, if observations are not classes.
        """
        return {"accuracy": (p.argmax(axis=1) == observed).astype(np.float64)}

    def outcome_moments(self, mean: Array, cov: Array) -> Array:
        """Return E y and E y² (2, m) of a new observation y at m points; arguments as in `probabilities`.

        Likelihoods of counts and numbers override this method, `cumulative` and `scores`.

        Raises
        ------
        TypeError
            If observations are classes, which have no moments.
        """
        raise TypeError(f"Observations of a {self.name} likelihood are classes, and have no moments.")

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        """Return the predictive probability (m,) that an observation is at most y (m,).

        Raises
        ------
        TypeError
            If observations are classes.
        """
        raise TypeError(f"Observations of a {self.name} likelihood are classes, which have no order.")

    def ends(self, observed: Observed, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Return P(y < observed) and P(y ≤ observed), both (m,), for a new observation y at each of m points.

        Both are equal for uncensored continuous observations. For a censored observation they enclose its range.

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
        """Return log ∫ p(y_i | f) N(f | mean_i, cov_i) df (m,) of m points, accurate also for tiny integrals."""


_RELATIVE = 1e-2  # A probability with a larger relative error is computed again.
_TINY = 1e-7  # Smaller probabilities are computed by formulas for tails: their absolute error of 1e-10 would matter.


def log_predictive(
    likelihood: Likelihood, mean: ArrayLike, cov: ArrayLike, labels: ArrayLike, *, tolerance: float = 5e-5
) -> Array:
    """Return log predictive probabilities log ∫ p(y_i | f_i) N(f_i | mean_i, cov_i) df_i at m points.

    Parameters
    ----------
    likelihood : Likelihood
    mean : array_like (m, c)
        Means of the latent values.
    cov : array_like (m, c, c)
        Covariances of the latent values. They may be singular.
    labels : array_like of int (m,)
        Observed classes, counted from 0.
    tolerance : float
        Initial absolute error of the probabilities. If the error of a probability is above a hundredth of its value,
        the probability is computed again with a smaller tolerance.

    Returns
    -------
    array (m,)
        Log probabilities. Probabilities below 1e-7, and probabilities with relative errors above a hundredth, are
        computed by formulas for tails, with an error of about 0.01. NaN for NaN input.
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
"""Function of `(f, y, slope)` that returns Σ log p(y_i | f_i), and writes its derivative in f (c, n) to `slope`."""


def log_density_with_slope(likelihood: Likelihood) -> LogDensity | None:
    """Return the log density of a likelihood with its slope; None if no kernel computes this slope."""
    if likelihood.offers(BlockCurvature):
        return likelihood.computation(BlockCurvature).log_density
    if likelihood.offers(CoupledCurvature):
        coupled = likelihood.computation(CoupledCurvature).log_density
        return lambda f, y, slope: coupled(f, y, np.empty_like(f), slope)
    if likelihood.offers(PredictorsDensity):
        density, parameters = likelihood.computation(PredictorsDensity).log_density, likelihood.parameters
        return lambda f, y, slope: density(f, y, parameters, slope)
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
