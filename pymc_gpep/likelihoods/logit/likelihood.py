"""The logistic function as a likelihood of two classes."""

from dataclasses import dataclass
from typing import ClassVar

from pytensor.graph.op import Op
from pytensor.tensor.random.basic import BernoulliRV
from scipy.special import expit

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.scalar import class_powers, logit
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    LogisticResponse,
    PowersAverage,
    QuadraticBound,
    ScalarDensity,
)
from pymc_gpep.likelihoods.one_function import TwoClasses


@dataclass(frozen=True)
class LogitLikelihood(TwoClasses):
    """p(y = 1 | f) = σ(f) = 1 / (1 + e⁻ᶠ)."""

    name: ClassVar[str] = "logit"
    written: ClassVar[str] = "pm.Bernoulli(logit_p=...)"
    distributions: ClassVar[tuple[type[Op], ...]] = (BernoulliRV,)
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "ep"
    largest_precision: ClassVar[float] = 0.25
    local: ClassVar[tuple[object, ...]] = (
        ScalarDensity(logit.derivatives),
        GaussianAverage(logit.average),
        AverageLogDensity(logit.average_log),
        QuadraticBound(logit.bound),
        LogisticResponse(),
        PowersAverage(class_powers.logit),
    )

    def link(self, f: Array) -> Array:
        p: Array = expit(f)
        return p
