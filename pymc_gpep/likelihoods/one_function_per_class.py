"""Likelihoods of class labels 0…c−1 that have a latent function for each class, and see differences of these only."""

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.observed_classes import one_for_each_point, recoding, without_marks


@dataclass(frozen=True)
class OneFunctionPerClass(Likelihood, ABC):
    """A likelihood of c classes with c latent functions."""

    sees_common: ClassVar[bool] = False

    def n_classes(self, n_functions: int) -> int:
        """As many as functions."""
        return n_functions

    def check_functions(self, n_functions: int) -> None:
        if n_functions < 2:
            raise ValueError(
                f"A {self.name} of c classes needs c ≥ 2 latent functions, gp.prior(..., n_outputs=c), and a prior "
                f"mean (c, n), but there is {n_functions}. Two classes by one function are pm.Bernoulli(logit_p=f) or "
                "gpep.Probit."
            )

    def check(self, observed: ArrayLike, n_functions: int, n_points: int, name: str = "labels") -> NDArray[np.int64]:
        self.check_functions(n_functions)
        given = one_for_each_point(observed, n_points, name)
        classes = f"{name} must be integers 0…{n_functions - 1}"
        if given.dtype.kind not in "biuf":
            such = f", such as '{given[0]}'" if n_points else ""
            raise ValueError(
                f"{classes}, but are of type {given.dtype}{such}. Code them in the way of the labels that were fitted."
            )
        numbers = given.astype(np.float64)
        if (odd := np.flatnonzero(numbers != np.round(numbers))).size:
            raise ValueError(f"{classes}, but {odd.size} are no whole numbers: that at {odd[0]} is {given[odd[0]]}.")
        if not ((given >= 0) & (given < n_functions)).all():
            found = f"{classes}, but run from {given.min()} to {given.max()}. Code the classes from 0"
            if how := recoding(given, n_functions):
                raise ValueError(f"{found}: {how} does so.")
            more = "" if given.min() < 0 else ", or give the prior as many outputs (n_outputs=c) as there are classes"
            raise ValueError(f"{found}{more}.{without_marks(given)}")
        return np.ascontiguousarray(given, np.int64)
