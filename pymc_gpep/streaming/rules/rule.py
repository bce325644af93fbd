"""The contract of a rule: factors of a point's likelihood, and the terms that sites need of them, as expressions."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Self

import numpy as np
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.batch_sites import PointKernel


class PointTerms(NamedTuple):
    """Terms of B points whose factors see d normal latent values each."""

    value: TensorVariable
    """Sum over factors of a functional of the factor and of means and variances, (B,)."""
    in_mean: TensorVariable
    """Derivatives of `value` in the means, (B, d)."""
    in_variance: TensorVariable
    """Derivatives of `value` in the variances, (B, d)."""


class Rule(ABC):
    """Factors of the likelihood of a point, each with a scalar site for every function that it depends on.

    The same factors as those of a `SiteRule`, in graphs that any backend compiles.
    """

    expresses: ClassVar[type[SiteRule]]
    """The factors."""
    functional: ClassVar[str]
    """Which functional: "log normaliser", log ∫ t(f) N(f) df, or "expected log", ∫ log t(f) N(f) df."""
    log_concave: bool = True
    """Whether factors are log-concave, so that no site has a precision below zero."""

    @classmethod
    @abstractmethod
    def fits(cls, likelihood: Likelihood) -> bool:
        """Whether it is written for this likelihood."""

    @classmethod
    def of(cls, likelihood: Likelihood) -> Self:
        """The rule for a likelihood that it fits, with the numbers that are the same for all points."""
        return cls()

    @abstractmethod
    def functions(self, labels: TensorVariable, c: int) -> TensorVariable:
        """Which of the c functions each site acts on, (B, d)."""

    @abstractmethod
    def terms(self, mean: TensorVariable, variance: TensorVariable, labels: TensorVariable) -> PointTerms:
        """The functional, for means and variances (B, d) of the latent values and labels (B,)."""

    def kernel(self) -> PointKernel | None:
        """The same for arrays; None where there is no loop of machine code for it."""
        return None

    def counts(self, labels: Array, c: int) -> Array:
        """How many sites act on each of the c functions, of points of which `labels` (c,) have each label."""
        return np.full(c, labels.sum())
