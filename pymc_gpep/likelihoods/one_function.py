"""Base classes of likelihoods with one latent function, or with one latent function for each class."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import ndtr

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.likelihood import Likelihood, gaussian_moments
from pymc_gpep.likelihoods.links import Reading, argument_of, behind
from pymc_gpep.likelihoods.local_computations import GaussianAverage, PlainDensity, ScalarDensity
from pymc_gpep.likelihoods.local_likelihood import missing_values
from pymc_gpep.likelihoods.observed import missing_labels, recoding, shape_text, some_of, to_one_axis, without_marks

_FEWEST, _MOST = 32, 2048  # Numbers of nodes for distribution functions: the first, and the limit of doubling.
_RANGE = 8.5  # Nodes are at most this number of standard deviations from the mean.
_EDGE = 1e-13  # A distribution function that is closer to 0 or 1 counts as 0 or 1.
_STEPS = 50  # Number of bisection steps in `_fall`.
_PROBABILITY_TOLERANCE = 1e-8  # Largest change of a probability with twice the nodes that counts as converged.


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
    missing = missing_values(observed)
    if missing.any():
        raise ValueError(missing_labels(missing, name))
    return np.asarray(observed)


@dataclass(frozen=True)
class OneFunction(Likelihood, ABC):
    """Likelihood with one latent value for each point. In a model, the latent values have shape (n,)."""

    function_axis: ClassVar[bool] = False
    sees_common: ClassVar[bool] = True
    ways: ClassVar[tuple[str, ...]] = ("average",)

    def check_functions(self, n_functions: int) -> None:
        if n_functions != 1:
            raise ValueError(
                f"A {self.name} likelihood has one latent function, gp.prior(...) without n_outputs, and a prior mean "
                f"(1, n), but the model has {n_functions}."
            )

    def checked_shape(self, observed: ArrayLike, n_functions: int, n_points: int, name: str) -> NDArray[Any]:
        """Return observations as an array with one entry for each point."""
        self.check_functions(n_functions)
        return one_for_each_point(observed, n_points, name, classes=self.n_classes(1) > 0)

    def log_densities(self, f: Array, observed: Observed) -> Array:
        values = f[..., 0, :]
        repeats = values.size // values.shape[-1]
        out = np.empty((4, values.size))
        smooth = self.offers(ScalarDensity)
        kernel, *_ = self.computation(ScalarDensity) if smooth else self.computation(PlainDensity)
        kernel(values.ravel(), np.tile(observed, repeats), np.tile(self._rows(f), (1, repeats)), out)
        return out[0].reshape(values.shape)

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        self.check_way(how)
        mean, cov = gaussian_moments(mean, cov, tolerance, at_least=1)
        self.check_functions(mean.shape[1])
        classes = range(self.n_classes(1))
        p = np.stack([np.exp(self.log_tail(mean, cov, np.full(len(mean), y))) for y in classes], axis=1)
        total = p.sum(axis=1)
        return p / total[:, None], np.abs(total - 1.0)

    def cumulative_given(self, y: Array, f: Array) -> Array:
        """Return the probability (k, m) that an observation is at most y (m,), given latent values (k, m)."""
        raise TypeError(f"Observations of a {self.name} likelihood are classes, which have no order.")

    def cumulative(self, y: Array, mean: Array, cov: Array) -> Array:
        # P(Y ≤ y | f) falls from 1 to 0 if the latent value f increases. Bisection finds the interval of the fall, even
        # if it is narrow.
        location, sd = mean[:, 0], np.sqrt(cov[:, 0, 0])

        def given(z: Array) -> Array:
            with np.errstate(all="ignore"):
                return self.cumulative_given(y, location + sd * z)

        first, last = (_fall(given, edge, len(location)) for edge in (1.0 - _EDGE, _EDGE))
        half = 0.5 * (last - first)
        found = np.zeros(len(location))
        nodes = _FEWEST
        while nodes <= _MOST:
            x, weights = _gauss_legendre(nodes)
            z = first + half * (1.0 + x[:, None])
            before = found
            inside = (weights[:, None] * given(z) * np.exp(-0.5 * z**2)).sum(axis=0) * half / math.sqrt(2.0 * math.pi)
            found = np.clip(ndtr(first) + inside, 0.0, 1.0)
            if nodes > _FEWEST and np.abs(found - before).max(initial=0.0) < _PROBABILITY_TOLERANCE:
                break
            nodes *= 2
        return np.asarray(found)

    def log_tail(self, mean: Array, cov: Array, observed: Observed) -> Array:
        # The average is accurate also in the tails.
        means, variance = np.ascontiguousarray(mean[:, 0]), np.ascontiguousarray(cov[:, 0, 0])
        terms = np.empty((5, len(means)))
        labels = np.ascontiguousarray(observed, self.observed_dtype)
        self.computation(GaussianAverage).terms(means, variance, labels, self._rows(mean.T), terms)
        return terms[0]

    def _rows(self, f: Array) -> Array:
        """Return parameters (p, n), or (0, n) without parameters, for latent values (..., n)."""
        return self.parameters if self.has_parameters else np.empty((0, f.shape[-1]))


def _fall(values: Callable[[Array], Array], edge: float, m: int) -> Array:
    """Return the arguments (m,) at which m decreasing functions fall below `edge`, from −_RANGE to _RANGE."""
    low, high = np.full((1, m), -_RANGE), np.full((1, m), _RANGE)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        holds = values(middle) >= edge
        low, high = np.where(holds, middle, low), np.where(holds, high, middle)
    return np.asarray(low[0])


@lru_cache
def _gauss_legendre(nodes: int) -> tuple[Array, Array]:
    """Return nodes and weights of the Gauss–Legendre rule on [−1, 1]."""
    x, weights = np.polynomial.legendre.leggauss(nodes)
    return x, weights


@dataclass(frozen=True)
class TwoClasses(OneFunction, ABC):
    """Likelihood of two classes with a link function F: p(y = 1 | f) = F(f), and p(y = 0 | f) = 1 − F(f)."""

    distributions: ClassVar[tuple[type[Op], ...]] = (BernoulliRV,)
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "ep"

    @abstractmethod
    def link(self, f: Array) -> Array:
        """Return F(f), the probability of class 1. `read` compares its values with a Bernoulli variable."""

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Return f of `pm.Bernoulli` if its probability is F(f) in any notation; else None."""
        op = variable.owner.op
        if not isinstance(op, BernoulliRV):
            return None
        (p,) = op.dist_params(variable.owner)
        argument = argument_of(p, self._probability)
        return None if argument is None else Reading(argument)

    def _probability(self, f: Array) -> Array:
        """Return F(f) for latent values f (m,). Raise a TypeError if `link` fails."""
        must = f"The link of the likelihood {self.name!r} must return probabilities (m,) of latent values (m,)"
        try:
            found = np.asarray(self.link(f))
        except Exception as error:
            raise TypeError(f"{must}, but raises {type(error).__name__}: {error}") from error
        if found.shape != f.shape:
            raise TypeError(f"{must}, but returns an array {found.shape} of values {f.shape}.")
        return found

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        (p,) = variable.owner.op.dist_params(variable.owner)
        of = " and ".join(map(repr, behind(p))) or "numbers alone"
        name = repr(variable.name)
        return (
            f"{name} is a Bernoulli, but its probability, made of {of}, is not a function of one variable. Write "
            f"pm.Bernoulli({name}, logit_p=f) or gpep.Probit({name}, f), with offsets and scales within f."
        )

    def n_classes(self, n_functions: int) -> int:
        """Return 2, the number of classes."""
        return 2

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        given = self.checked_shape(observed, n_functions, n_points, name)
        classes = f"{name} must be 0 or 1"
        if given.dtype.kind not in "biuf":
            raise ValueError(f"{classes}, but are of type {given.dtype}.")
        if not np.isin(given, (0, 1)).all():
            how = recoding(given, 2)
            advice = f"Write {how}" if how else "Write (labels == k) for class k against all other classes"
            raise ValueError(
                f"{classes}, but among them are {some_of(given)}. {advice}; more classes need more latent functions, "
                f"and gpep.MultinomialProbit or pm.Categorical(logit_p=...).{'' if how else without_marks(given)}"
            )
        return np.ascontiguousarray(given, np.int64)


@dataclass(frozen=True)
class OneFunctionPerClass(Likelihood, ABC):
    """Likelihood of c classes with c latent functions."""

    sees_common: ClassVar[bool] = False

    def n_classes(self, n_functions: int) -> int:
        """Return the number of functions."""
        return n_functions

    def check_functions(self, n_functions: int) -> None:
        if n_functions < 2:
            raise ValueError(
                f"A {self.name} of c classes needs c ≥ 2 latent functions, gp.prior(..., n_outputs=c), and a prior "
                f"mean (c, n), but the model has {n_functions}. Two classes by one function are "
                "pm.Bernoulli(logit_p=f) or gpep.Probit."
            )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        self.check_functions(n_functions)
        given = one_for_each_point(observed, n_points, name)
        classes = f"{name} must be integers 0…{n_functions - 1}"
        if given.dtype.kind not in "biuf":
            such = f", such as '{given[0]}'" if n_points else ""
            raise ValueError(
                f"{classes}, but are of type {given.dtype}{such}. Code them in the same way as the fitted labels."
            )
        numbers = given.astype(np.float64)
        if (odd := np.flatnonzero(numbers != np.round(numbers))).size:
            raise ValueError(f"{classes}, but {odd.size} are not integers: label {odd[0]} is {given[odd[0]]}.")
        if not ((given >= 0) & (given < n_functions)).all():
            found = f"{classes}, but run from {given.min()} to {given.max()}. Code the classes from 0"
            if how := recoding(given, n_functions):
                raise ValueError(f"{found}: {how} does so.")
            more = "" if given.min() < 0 else ", or give the prior as many outputs (n_outputs=c) as there are classes"
            raise ValueError(f"{found}{more}.{without_marks(given)}")
        return np.ascontiguousarray(given, np.int64)
