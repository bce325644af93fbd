"""The softmax as a likelihood: what PyMC's graphs, approximations and predictions ask of it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.variable import TensorVariable
from scipy.special import log_softmax

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.likelihoods.softmax import along_line, curvature_slope, softmax
from pymc_gpep.kernels.methods.softmax_qep import softmax_qep_update
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.local_computations import (
    CoupledCurvature,
    CoupledQuadrature,
    IndependentQuadrature,
    RoughSites,
    SiteInformation,
)
from pymc_gpep.likelihoods.one_function_per_class import OneFunctionPerClass
from pymc_gpep.likelihoods.ordered.cutpoints import has_cutpoints
from pymc_gpep.likelihoods.softmax.argument import softmax_argument
from pymc_gpep.likelihoods.softmax.predictive import log_tail, softmax_probabilities
from pymc_gpep.likelihoods.softmax.quadrature import independent_update, rough_information, rough_sites


@dataclass(frozen=True)
class SoftmaxLikelihood(OneFunctionPerClass):
    """Class probabilities in proportion to the exponentials of the latent values."""

    name: ClassVar[str] = "softmax"
    written: ClassVar[str] = "pm.Categorical(logit_p=...)"
    distributions: ClassVar[tuple[type[Op], ...]] = (CategoricalRV,)
    method: ClassVar[str] = "laplace"
    guide: ClassVar[str] = "laplace"
    ways: ClassVar[tuple[str, ...]] = ("average",)
    largest_precision: ClassVar[float] = 1.0
    local: ClassVar[tuple[object, ...]] = (
        CoupledCurvature(softmax, along_line, curvature_slope),
        CoupledQuadrature(softmax_qep_update),
        SiteInformation(rough_information),
        IndependentQuadrature(independent_update),
        RoughSites(rough_sites),
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        """Read pm.Categorical(logit_p=...), or p=softmax(...): what the softmax is taken of, class axis last."""
        if not self.may_be(variable):
            return None
        (p,) = variable.owner.op.dist_params(variable.owner)
        argument = softmax_argument(p)
        return None if argument is None else Reading(argument)

    def why_not(self, variable: TensorVariable, latents: Collection[Variable]) -> str | None:
        (p,) = variable.owner.op.dist_params(variable.owner)
        if has_cutpoints(p, latents):
            return None
        name = variable.name
        return (
            f"{name!r} is a Categorical, but not of a softmax over classes at each point. Write "
            f"pm.Categorical({name!r}, logit_p=f.T), where f has one row per class, or for two classes by one latent "
            f"function pm.Bernoulli({name!r}, logit_p=f)."
        )

    def log_densities(self, f: Array, observed: NDArray[np.int64]) -> Array:
        log_p: Array = log_softmax(f, axis=-2)[..., observed, np.arange(len(observed))]
        return log_p

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        self.check_way(how)
        return softmax_probabilities(mean, cov, tolerance=tolerance)

    def log_tail(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        return log_tail(mean, cov, observed)
