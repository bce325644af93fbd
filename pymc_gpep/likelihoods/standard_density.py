"""Likelihoods with a standard density of a linear function of the latent value, up to a factor.

log p(y | f) = ℓ(s f + o; shapes) + c

Here ℓ is a standard log density. The scale s, the offset o, the shapes and the constant c depend on the observation and
its parameters. Kernels compute ℓ, averages over a normal argument of ℓ, and slopes in the shapes. All local
computations follow by the chain rule. The heat equation provides slopes of averages in the scale.
"""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import PartialObservedRV, SymbolicRandomVariable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import rows_text
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.scalar import asymmetric_laplace, log_rate, normal_sides, powers
from pymc_gpep.likelihoods.likelihood import UNBOUNDED
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    Kernel,
    ParameterSlopes,
    PlainDensity,
    ScalarDensity,
)
from pymc_gpep.likelihoods.local_likelihood import RowConstants
from pymc_gpep.likelihoods.observed import checked_counts, checked_numbers
from pymc_gpep.likelihoods.one_function import OneFunction


class Observable(NamedTuple):
    """Distribution of an observed random variable without censoring, and its bounds of censoring."""

    op: Op
    inputs: list[TensorVariable]
    """Parameters of the distribution."""
    lower: TensorVariable
    upper: TensorVariable
    """Bounds of censoring, numbers or (n,); ∓ `UNBOUNDED` on a side without a bound."""


@cache
def no_bounds() -> tuple[TensorVariable, TensorVariable]:
    """Return the bounds of uncensored observations."""
    lower, upper = (pt.constant(end, dtype="float64") for end in (-UNBOUNDED, UNBOUNDED))
    return lower, upper


def observable_of(variable: TensorVariable) -> Observable | None:
    """Return the distribution of a random variable without censoring, and its bounds; None if bounds are random."""
    lower, upper = ends = no_bounds()
    if isinstance(variable.owner.op, CensoredRV):
        variable, lower, upper = variable.owner.inputs[:3]
        if any(isinstance(v.owner and v.owner.op, RandomVariable) for v in ancestors([lower, upper])):
            return None
        lower, upper = (pt.clip(bound.astype("float64"), *ends) for bound in (lower, upper))
    op = variable.owner.op
    told_apart = isinstance(op, SymbolicRandomVariable) and op.extended_signature is not None
    if not (isinstance(op, RandomVariable) or told_apart) or isinstance(op, PartialObservedRV):
        return None  # The variable has no list of parameters.
    return Observable(op, list(op.dist_params(variable.owner)), lower, upper)


def censored_side(y: NDArray[Any], lower: Array, upper: Array) -> Array:
    """Return 0 for exact observations (n,), 1 for observations censored at the upper bound, −1 at the lower bound.

    The result is NaN for impossible observations beyond the bounds.
    """
    side = np.where(y >= upper, 1.0, np.where(y <= lower, -1.0, 0.0))
    return np.where((y > upper) | (y < lower) | np.isnan(y), np.nan, side)


class StandardDensity(NamedTuple):
    """Kernels of a standard log density ℓ(g; shapes) and its averages, for m arguments g with shapes (k, m)."""

    derivatives: Kernel
    """`(g, shapes, out, slopes)`: write ℓ, ℓ′, ℓ″, ℓ‴ (4, m), and slopes of ℓ, ℓ′, ℓ″ in each shape (k, 3, m)."""
    average: Kernel
    """`(mean, variance, shapes, out, slopes)`: write log E exp ℓ, four derivatives (5, m), slopes in shapes (k, m)."""
    average_log: Kernel
    """`(mean, variance, shapes, out, slopes)`: write E ℓ, its slopes in mean and variance (3, m) and shapes (k, m)."""
    smooth: bool = True
    """Whether ℓ has two derivatives everywhere."""
    rough: Kernel | None = None
    """Faster kernel like `average` for log E exp ℓ and two derivatives to nine digits, without slopes, or None."""


LOGISTIC_POWERS = StandardDensity(powers.derivatives, powers.average, powers.average_log)
LOG_RATE = StandardDensity(log_rate.derivatives, log_rate.average, log_rate.average_log, rough=log_rate.rough_average)
NORMAL_SIDES = StandardDensity(normal_sides.derivatives, normal_sides.average, normal_sides.average_log)
ASYMMETRIC_LAPLACE = StandardDensity(
    asymmetric_laplace.derivatives, asymmetric_laplace.average, asymmetric_laplace.average_log, smooth=False
)


class StandardForm(NamedTuple):
    """Arguments of the standard density for n observations, or slopes of these arguments in p parameters (p, ...).

    Impossible observations have the constant NaN.
    """

    scale: Array
    """Scale s, (n,)."""
    offset: Array
    """Offset o, (n,)."""
    shapes: Array
    """Shapes, (k, n)."""
    constant: Array
    """Constant c, (n,)."""


def no_slopes(parameters: int, shapes: int, n: int) -> StandardForm:
    """Return slopes of a standard form that are all 0."""
    scale, offset, constant = np.zeros((3, parameters, n))
    return StandardForm(scale, offset, np.zeros((parameters, shapes, n)), constant)


class StandardProduct(NamedTuple):
    """Rule that multiplies standard densities with equal scale and offset. The product is again a standard density.

    Factors of the density `LOG_RATE` may have different offsets.
    """

    density: StandardDensity
    form: "_Form"


type _Form = Callable[[NDArray[Any], Array], StandardForm]


def standard_computations(
    density: StandardDensity, form: _Form, slopes: _Form | None = None, normal: Kernel | None = None
) -> tuple[object, ...]:
    """Return the local computations of a likelihood.

    Parameters
    ----------
    density : StandardDensity
    form : callable
        Function from observations (n,) and parameters (p, n) to their standard form.
    slopes : callable, optional
        Function that returns derivatives of the standard form in the parameters: arrays (p, n), for `shapes`
        (p, k, n).
    normal : Kernel, optional
        See `GaussianAverage`.
    """

    def derivatives(f: Array, y: NDArray[Any], parameters: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            scale, offset, shapes, constant = form(y, parameters)
            density.derivatives(scale * f + offset, shapes, out, np.empty((len(shapes), 3, len(f))))
            out *= scale ** np.arange(4)[:, None]
            out[0] += constant

    def averaged(kernel: Kernel, rows: int) -> Kernel:
        """Return a kernel for an average over f with `rows` rows, given the kernel for the same average of ℓ."""

        def terms(mean: Array, variance: Array, y: NDArray[Any], parameters: Array, out: Array) -> None:
            with np.errstate(all="ignore"):
                scale, offset, shapes, constant = form(y, parameters)
                kernel(scale * mean + offset, scale**2 * variance, shapes, out, np.empty(shapes.shape))
                out *= scale ** np.arange(rows)[:, None]
                out[0] += constant

        return terms

    def bound_to(y: Observed, parameters: Array) -> tuple[object, ...]:
        with np.errstate(all="ignore"):
            known = form(y, parameters)

        def form_of(given: Observed, at: Array) -> StandardForm:
            return known if given is y and at is parameters else form(given, at)

        return standard_computations(density, form_of, slopes, normal)

    rough = averaged(density.rough, 5) if density.rough else None
    averages: tuple[object, ...] = (
        GaussianAverage(averaged(density.average, 5), rough, normal),
        AverageLogDensity(averaged(density.average_log, 3)),
    )
    plain: tuple[object, ...] = (ScalarDensity if density.smooth else PlainDensity)(derivatives), RowConstants(bound_to)
    if density in (LOGISTIC_POWERS, LOG_RATE):
        plain = (*plain, StandardProduct(density, form))
    if slopes is None:
        return (*plain, *averages)

    def derivative_slopes(f: Array, y: NDArray[Any], parameters: Array, out: Array) -> None:
        with np.errstate(all="ignore"):
            scale, offset, shapes, _ = form(y, parameters)
            of_scale, of_offset, of_shapes, of_constant = slopes(y, parameters)
            of_g = of_scale * f + of_offset
            values, by_shape = np.empty((4, len(f))), np.empty((len(shapes), 3, len(f)))
            density.derivatives(scale * f + offset, shapes, values, by_shape)
            _, first, second, third = values
            value, slope, curvature = np.einsum("pkn,kjn->jpn", of_shapes, by_shape)
            out[:, 0] = first * of_g + value + of_constant
            out[:, 1] = of_scale * first + scale * (second * of_g + slope)
            out[:, 2] = 2.0 * scale * of_scale * second + scale**2 * (third * of_g + curvature)

    def averaged_slopes(kernel: Kernel, rows: int, in_variance: Callable[[Array], Array]) -> Kernel:
        """Return a kernel of slopes of an average in parameters. `in_variance` computes its slope in the variance."""

        def terms(mean: Array, variance: Array, y: NDArray[Any], parameters: Array, out: Array) -> None:
            with np.errstate(all="ignore"):
                scale, offset, shapes, _ = form(y, parameters)
                of_scale, of_offset, of_shapes, of_constant = slopes(y, parameters)
                values, by_shape = np.empty((rows, len(mean))), np.empty(shapes.shape)
                kernel(scale * mean + offset, scale**2 * variance, shapes, values, by_shape)
                of_variance = 2.0 * scale * of_scale * variance * in_variance(values)
                out[:] = values[1] * (of_scale * mean + of_offset) + of_variance
                out += np.einsum("pkn,kn->pn", of_shapes, by_shape) + of_constant

        return terms

    average_slopes = averaged_slopes(density.average, 5, lambda h: 0.5 * (h[2] + h[1] ** 2))
    average_log_slopes = averaged_slopes(density.average_log, 3, lambda g: g[2])
    return (*plain, *averages, ParameterSlopes(derivative_slopes, average_slopes, average_log_slopes))


def reading_of(
    argument: TensorVariable, *rows: TensorVariable, bounds: tuple[TensorVariable, TensorVariable] | None = None
) -> Reading:
    """Return the reading with rows of parameters, then bounds. A row of parameters is a number or (n,)."""

    def stacked(*each: TensorVariable) -> TensorVariable:
        return pt.stack(pt.broadcast_arrays(*(pt.atleast_1d(row.astype("float64")) for row in each)))

    if bounds is None:
        return Reading(argument, stacked(*rows))
    return Reading(argument, stacked(*rows, *bounds), unbounded=stacked(*rows, *no_bounds()))


@dataclass(frozen=True)
class OfNumbers(OneFunction, ABC):
    """Base class of likelihoods of numbers or counts, with one latent function."""

    has_parameters: ClassVar[bool] = True

    def n_classes(self, n_functions: int) -> int:
        """Return 0, since observations are not classes."""
        return 0

    def scores(self, observed: NDArray[Any], p: Array, moments: Array | None) -> dict[str, Array]:
        """Return the squared error of the predictive mean."""
        assert moments is not None
        return {"squared_error": (observed - moments[0]) ** 2}


@dataclass(frozen=True)
class CombinedLikelihood(OfNumbers, ABC):
    """Combination of other likelihoods. It is never the likelihood of a single random variable."""

    distributions: ClassVar[tuple[type[Op], ...]] = ()
    observed_dtype: ClassVar[str] = "float64"

    def read(self, variable: TensorVariable, latents: object = ()) -> Reading | None:
        """Return None, since single variables do not have this likelihood."""
        return None


@dataclass(frozen=True)
class StandardLikelihood(OfNumbers, ABC):
    """Likelihood of numbers or counts by a standard density."""

    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "ep"
    largest_precision: ClassVar[float] = np.inf
    positive: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that must be positive."""

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[Any]:
        given = self.checked_shape(observed, n_functions, n_points, name)
        if self.observed_dtype == "int64":
            return checked_counts(given, name)
        return checked_numbers(given, name, positive=self.least == 0.0)

    def check_parameters(self, observed: NDArray[Any] | None, name: str) -> None:
        for row, values in zip(self.rows, self.parameters, strict=True):
            if row in self.positive and (bad := ~((values > 0.0) & (values < np.inf))).any():
                raise ValueError(
                    f"{row} of {name} must be a positive number, but is {values[bad][0]:.4g} in {rows_text(bad)}."
                )
            if np.isnan(values).any():
                raise ValueError(f"{row} of {name} is not a number in {rows_text(np.isnan(values))}.")
        if observed is not None and "upper" in self.rows:
            checked_bounds(observed, self.row("lower"), self.row("upper"), name)

    def ends(self, observed: NDArray[Any], mean: Array, cov: Array) -> tuple[Array, Array]:
        below, at = super().ends(observed, mean, cov)
        if "upper" not in self.rows:
            return below, at
        side = censored_side(observed, self.row("lower"), self.row("upper"))
        return np.where(side < 0.0, 0.0, below), np.where(side > 0.0, 1.0, at)

    def row(self, name: str) -> Array:
        """Return a row of the parameters (n,), by name."""
        return self.parameters[self.rows.index(name)]


def log_normal_moments(mean: Array, variance: Array, power: float = 1.0) -> Array:
    """Return E exp(power · f) for f ~ N(mean, variance); infinity on overflow."""
    with np.errstate(over="ignore"):
        moment: Array = np.exp(power * mean + 0.5 * power**2 * variance)
    return moment


def checked_bounds(observed: ArrayLike, lower: Array, upper: Array, name: str) -> None:
    """Raise a ValueError if an observation is beyond its bounds of censoring."""
    bad = ~((np.asarray(observed) >= lower) & (np.asarray(observed) <= upper))
    if bad.any():
        raise ValueError(
            f"{name} is censored, but lies beyond its bounds in {rows_text(bad)}. An observation that is censored "
            "equals its bound: np.minimum(y, upper)."
        )
