"""The complementary log-log link: whether an event happens in a time, by the logarithm of its rate."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import BernoulliRV

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.scalar import class_powers
from pymc_gpep.likelihoods.local_computations import PowersAverage
from pymc_gpep.likelihoods.one_function import TwoClasses
from pymc_gpep.likelihoods.standard_density import LOG_RATE, StandardForm, standard_computations


def _form(y: NDArray[Any], parameters: Array) -> StandardForm:
    shapes = np.stack([np.zeros(len(y)), (y == 1).astype(np.float64)])
    return StandardForm(np.ones(len(y)), np.zeros(len(y)), shapes, np.where((y == 0) | (y == 1), 0.0, np.nan))


@dataclass(frozen=True)
class ComplementaryLogLogLikelihood(TwoClasses):
    """p(y = 1 | f) = 1 − exp(−eᶠ)."""

    name: ClassVar[str] = "complementary_log_log"
    written: ClassVar[str] = "pm.Bernoulli(p=1 - pm.math.exp(-pm.math.exp(f)))"
    distributions: ClassVar[tuple[type[Op], ...]] = (BernoulliRV,)
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "ep"
    largest_precision: ClassVar[float] = np.inf
    local: ClassVar[tuple[object, ...]] = (
        *standard_computations(LOG_RATE, _form),
        PowersAverage(class_powers.complementary_log_log),
    )

    def link(self, f: Array) -> Array:
        with np.errstate(over="ignore"):
            p: Array = -np.expm1(-np.exp(f))
        return p
