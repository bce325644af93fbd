"""Likelihoods of two classes, 0 and 1, by one latent function: a probability of class 1 that rises with it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.gaussian_moments import gaussian_moments
from pymc_gpep.likelihoods.link import argument_of, behind
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.likelihoods.one_function import OneFunction

__all__ = ["TwoClasses"]

_SHOWN = 5  # labels that an error message lists


@dataclass(frozen=True)
class TwoClasses(OneFunction, ABC):
    """p(y = 1 | f) = F(f), and p(y = 0 | f) = 1 − F(f) = F(−f)."""

    ways: ClassVar[tuple[str, ...]] = ("average",)

    @abstractmethod
    def link(self, f: Array) -> Array:
        """F, by which the likelihood is known in a Bernoulli variable."""

    @abstractmethod
    def log_link(self, f: Array) -> Array:
        """log F, right far into the tail."""

    def read(self, variable: TensorVariable) -> TensorVariable | None:
        """Read pm.Bernoulli with a probability that is F of something, however it is written."""
        op = variable.owner.op
        if not isinstance(op, BernoulliRV):
            return None
        (p,) = op.dist_params(variable.owner)
        return argument_of(p, self.link)

    def why_not(self, variable: TensorVariable) -> str | None:
        op = variable.owner.op
        if not isinstance(op, BernoulliRV):
            return None
        (p,) = op.dist_params(variable.owner)
        of = " and ".join(map(repr, behind(p))) or "numbers alone"
        return (
            f"{variable.name!r} is a Bernoulli, but its probability, made of {of}, is neither the logistic function "
            f"nor the standard normal distribution function of one variable. Write pm.Bernoulli({variable.name!r}, "
            f"logit_p=f) or gpep.Probit({variable.name!r}, f) with nothing around it: offset and scale belong into the "
            "prior, pm.gp.Latent(mean_func=..., cov_func=...), and lapse rates, or other links, cannot be read."
        )

    def n_classes(self, n_functions: int) -> int:
        """Two."""
        return 2

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        self.check_functions(n_functions)
        given = np.asarray(observed)
        if given.shape != (n_points,):
            raise ValueError(f"{name} must be ({n_points},), one for each point, but have shape {given.shape}.")
        classes = f"{name} must be 0 or 1"
        if given.dtype.kind not in "biuf":
            raise ValueError(f"{classes}, but are of type {given.dtype}.")
        if not np.isin(given, (0, 1)).all():
            found = ", ".join(map(str, np.unique(given)[:_SHOWN].tolist()))
            raise ValueError(
                f"{classes}, but among them are {found}. Write (labels > 0) for classes -1 and 1; more classes need "
                "more latent functions, and gpep.MultinomialProbit or pm.Categorical(logit_p=...)."
            )
        return np.ascontiguousarray(given, np.int64)

    def log_density(self, f: Array, observed: NDArray[np.int64]) -> Array:
        log_p: Array = self.log_link((2.0 * observed - 1.0) * f[..., 0, :]).sum(axis=-1)
        return log_p

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        self.check_way(how)
        mean, cov = gaussian_moments(mean, cov, tolerance, at_least=1)
        self.check_functions(mean.shape[1])
        p = np.stack([np.exp(self.log_tail(mean, cov, np.full(len(mean), y))) for y in (0, 1)], axis=1)
        total = p.sum(axis=1)
        return p / total[:, None], np.abs(total - 1.0)

    def log_tail(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        # Exact in the tails and everywhere else.
        terms = np.empty((5, len(mean)))
        variance = np.ascontiguousarray(cov[:, 0, 0])
        parameters = np.empty((0, len(mean)))
        average = self.computation(GaussianAverage)
        average.terms(np.ascontiguousarray(mean[:, 0]), variance, observed.astype(np.int64), parameters, terms)
        return terms[0]
