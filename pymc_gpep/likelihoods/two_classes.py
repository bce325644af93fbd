"""Likelihoods of two classes, 0 and 1, by one latent function: a probability of class 1 that rises with it."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.link import argument_of, behind
from pymc_gpep.likelihoods.observed_classes import recoding, some_of, without_marks
from pymc_gpep.likelihoods.one_function import OneFunction

__all__ = ["TwoClasses"]


@dataclass(frozen=True)
class TwoClasses(OneFunction, ABC):
    """p(y = 1 | f) = F(f), and p(y = 0 | f) = 1 − F(f)."""

    @abstractmethod
    def link(self, f: Array) -> Array:
        """F, by which the likelihood is known in a Bernoulli variable."""

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Read pm.Bernoulli with a probability that is F of something, however it is written."""
        op = variable.owner.op
        if not isinstance(op, BernoulliRV):
            return None
        (p,) = op.dist_params(variable.owner)
        argument = argument_of(p, self.link)
        return None if argument is None else Reading(argument)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        (p,) = variable.owner.op.dist_params(variable.owner)
        of = " and ".join(map(repr, behind(p))) or "numbers alone"
        name = repr(variable.name)
        return (
            f"{name} is a Bernoulli, but its probability, made of {of}, is not the logistic function, the standard "
            f"normal distribution function or 1 − exp(−exp(f)) of one variable. Write pm.Bernoulli({name}, logit_p=f) "
            f"or gpep.Probit({name}, f), with offsets and scales within f. In place of a lapse rate there is label "
            f"noise, gpep.MultinomialProbit({name}, f.T, epsilon=0.05) of two functions, gp.prior(..., n_outputs=2). "
            "Other links cannot be read."
        )

    def n_classes(self, n_functions: int) -> int:
        """Two."""
        return 2

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        given = self.checked_shape(observed, n_functions, n_points, name)
        classes = f"{name} must be 0 or 1"
        if given.dtype.kind not in "biuf":
            raise ValueError(f"{classes}, but are of type {given.dtype}.")
        if not np.isin(given, (0, 1)).all():
            how = recoding(given, 2)
            advice = f"Write {how}" if how else "Write (labels == one) for one class against the others"
            raise ValueError(
                f"{classes}, but among them are {some_of(given)}. {advice}; more classes need more latent functions, "
                f"and gpep.MultinomialProbit or pm.Categorical(logit_p=...).{'' if how else without_marks(given)}"
            )
        return np.ascontiguousarray(given, np.int64)
