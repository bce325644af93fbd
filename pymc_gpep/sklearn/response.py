"""Likelihoods of the estimators' models."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pymc as pm
import pytensor.tensor as pt

from pymc_gpep.array_types import Observed
from pymc_gpep.likelihoods.bernoulli import Probit
from pymc_gpep.likelihoods.multinomial_probit_distribution import MultinomialProbit

RESPONSE = "y"
"""Name of the observed variable."""


@dataclass(frozen=True)
class Response(ABC):
    """A likelihood of a model that an estimator makes."""

    magnitude: ClassVar[tuple[float, float]] = (1.0, 1.5)
    """Mean and standard deviation of the log of the magnitude of latent functions."""

    @property
    def functions(self) -> int:
        """Number of latent functions."""
        return 1

    @property
    def offset(self) -> float:
        """Prior mean of the latent function."""
        return 0.0

    @abstractmethod
    def observe(self, f: Any, y: Observed) -> None:
        """Add the observations `y` (n,) of latent values to the model of the context."""


@dataclass(frozen=True)
class TwoClasses(Response):
    """Two classes by one latent function and a probit."""

    def observe(self, f: Any, y: Observed) -> None:
        Probit(RESPONSE, f, observed=y, dims="row")


@dataclass(frozen=True)
class Classes(Response):
    """Several classes by a latent function each, and a multinomial probit.

    Attributes
    ----------
    n_classes : int
    """

    n_classes: int

    @property
    def functions(self) -> int:
        return self.n_classes

    def observe(self, f: Any, y: Observed) -> None:
        MultinomialProbit(RESPONSE, f.T, observed=y, dims="row")


@dataclass(frozen=True)
class NoisyClasses(Classes):
    """The same, where a part of the labels is drawn from all classes alike.

    Attributes
    ----------
    noise : float
    """

    noise: float

    def observe(self, f: Any, y: Observed) -> None:
        MultinomialProbit(RESPONSE, f.T, epsilon=self.noise, observed=y, dims="row")


@dataclass(frozen=True)
class Numbers(Response):
    """Standardised numbers with normal noise, whose deviation is learned."""

    magnitude: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def observe(self, f: Any, y: Observed) -> None:
        pm.Normal(RESPONSE, f, pm.LogNormal("noise", -1.0, 1.0), observed=y, dims="row")


@dataclass(frozen=True)
class Counts(Response):
    """Counts whose rate is the exponential of the latent function.

    Attributes
    ----------
    level : float
        Prior mean of the latent function.
    kind : str
        One of `COUNTS`.
    """

    level: float
    kind: str
    magnitude: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @property
    def offset(self) -> float:
        return self.level

    def observe(self, f: Any, y: Observed) -> None:
        COUNTS[self.kind](pt.exp(f), observed=y, dims="row")


def _poisson(rate: Any, **given: Any) -> None:
    pm.Poisson(RESPONSE, rate, **given)


def _negative_binomial(rate: Any, **given: Any) -> None:
    pm.NegativeBinomial(RESPONSE, mu=rate, alpha=pm.LogNormal("size", 1.0, 1.0), **given)


COUNTS: Mapping[str, Callable[..., None]] = {"poisson": _poisson, "negative_binomial": _negative_binomial}
"""Distributions of counts by name, as functions that add the observations to the model of the context."""
