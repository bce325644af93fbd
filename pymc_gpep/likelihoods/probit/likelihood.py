"""The probit as a likelihood of two classes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import BernoulliRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import ndtr

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.sampling import draw_by_sign
from pymc_gpep.kernels.scalar import class_powers, probit
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.local_computations import (
    AverageLogDensity,
    GaussianAverage,
    NormalResponse,
    PowersAverage,
    QuadraticBound,
    ScalarDensity,
    Utilities,
)
from pymc_gpep.likelihoods.one_function import TwoClasses
from pymc_gpep.likelihoods.probit.distribution import Probit, ProbitRV


@dataclass(frozen=True)
class ProbitLikelihood(TwoClasses):
    """p(y = 1 | f) = Φ(f): the sign of the latent value with unit normal noise."""

    name: ClassVar[str] = "probit"
    written: ClassVar[str] = "gpep.Probit"
    distributions: ClassVar[tuple[type[Op], ...]] = (ProbitRV, BernoulliRV)
    method: ClassVar[str] = "ep"
    guide: ClassVar[str] = "ep"
    largest_precision: ClassVar[float] = 1.0
    local: ClassVar[tuple[object, ...]] = (
        ScalarDensity(probit.derivatives),
        GaussianAverage(probit.average),
        AverageLogDensity(probit.average_log),
        QuadraticBound(probit.bound),
        Utilities(draw_by_sign),
        NormalResponse(),
        PowersAverage(class_powers.probit),
    )

    def log_probability(self, value: TensorVariable, reading: Reading) -> TensorVariable:
        # That of pm.Bernoulli(p=pm.math.invprobit(f)) is −∞ from f = 8.3 on.
        return cast(TensorVariable, Probit.logp(value, reading.argument))

    def averaged(self, name: str, mean: TensorVariable, variance: TensorVariable, **kwargs: Any) -> Variable:
        return Probit(name, mean / pt.sqrt(1.0 + variance), **kwargs)

    def link(self, f: Array) -> Array:
        p: Array = ndtr(f)
        return p

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Read gpep.Probit, or pm.Bernoulli with a probability that is Φ of something, however it is written."""
        op = variable.owner.op
        if isinstance(op, ProbitRV):
            (latent,) = op.dist_params(variable.owner)
            return Reading(cast(TensorVariable, latent))
        return super().read(variable, latents)
