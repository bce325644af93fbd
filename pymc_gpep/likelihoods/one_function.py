"""Likelihoods of an observation given one latent function."""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.likelihoods.contract import Likelihood

__all__ = ["OneFunction"]


@dataclass(frozen=True)
class OneFunction(Likelihood, ABC):
    """A likelihood of one latent value for each point, whose argument in a model is (n,)."""

    function_axis: ClassVar[bool] = False
    sees_common: ClassVar[bool] = True

    def check_functions(self, n_functions: int) -> None:
        if n_functions != 1:
            raise ValueError(
                f"A {self.name} likelihood has one latent function, gp.prior(...) without n_outputs, and a prior mean "
                f"(1, n), but there are {n_functions}."
            )
