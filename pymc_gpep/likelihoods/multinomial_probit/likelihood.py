"""The multinomial probit as a likelihood: what PyMC's graphs, approximations and predictions ask of it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.likelihoods.multinomial_probit import (
    bound_terms,
    curvature,
    curvature_slope,
    log_likelihood,
    rough_log_likelihood,
)
from pymc_gpep.kernels.methods.class_independent import iep_update, qiep_update
from pymc_gpep.kernels.methods.factors import (
    pair_derivatives,
    point_derivatives,
    rough_log_normalisers,
    utility_average,
)
from pymc_gpep.kernels.methods.qep import full_qep_update, qep_update
from pymc_gpep.kernels.moments.inner_ep import (
    inner_ep_update,
    noisy_inner_ep_update,
    noisy_site_parameters,
    tilted_log_normaliser,
)
from pymc_gpep.kernels.moments.site_information import probit_information
from pymc_gpep.kernels.sampling import draw_in_cone
from pymc_gpep.kernels.scalar import probit
from pymc_gpep.kernels.schemes.energy_descent import site_energies
from pymc_gpep.kernels.sparse_step.point_terms import tabulated_derivatives
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    DifferenceFactors,
    DifferenceQuadrature,
    IndependentQuadrature,
    LargestUtility,
    NoisyDifferenceFactors,
    PairFactors,
    PointAverage,
    PointFactor,
    RoughDensity,
    RoughNormaliser,
    SiteInformation,
    TabulatedFactor,
    Utilities,
    UtilityBound,
)
from pymc_gpep.likelihoods.multinomial_probit.distribution import MultinomialProbitRV
from pymc_gpep.likelihoods.multinomial_probit.log_probability import log_probabilities_and_gradients
from pymc_gpep.likelihoods.multinomial_probit.predictive import class_probabilities
from pymc_gpep.likelihoods.multinomial_probit.unequal_noise import UnequalNoiseProbit
from pymc_gpep.likelihoods.one_function_per_class import OneFunctionPerClass

INNER_SWEEPS, INNER_TOLERANCE = 200, 1e-10


@dataclass(frozen=True)
class MultinomialProbitLikelihood(OneFunctionPerClass):
    """The class of the largest of the latent values, each with unit normal noise."""

    name: ClassVar[str] = "multinomial_probit"
    written: ClassVar[str] = "gpep.MultinomialProbit"
    distributions: ClassVar[tuple[type[Op], ...]] = (MultinomialProbitRV,)
    method: ClassVar[str] = "nested_ep"
    guide: ClassVar[str] = "nested_ep"
    ways: ClassVar[tuple[str, ...]] = ("orthant", "inner_ep")
    largest_precision: ClassVar[float] = 1.0
    local: ClassVar[tuple[object, ...]] = (
        DifferenceFactors(inner_ep_update, iep_update, site_energies, probit.average),
        SiteInformation(probit_information),
        NoisyDifferenceFactors(noisy_inner_ep_update, noisy_site_parameters),
        DifferenceQuadrature(qep_update, full_qep_update),
        IndependentQuadrature(qiep_update),
        PointFactor(point_derivatives),
        TabulatedFactor(tabulated_derivatives),
        RoughNormaliser(rough_log_normalisers),
        PairFactors(pair_derivatives),
        PointAverage(utility_average),
        BlockCurvature(log_likelihood, curvature, curvature_slope),
        RoughDensity(rough_log_likelihood),
        UtilityBound(bound_terms),
        Utilities(draw_in_cone),
        LargestUtility(1.0),
    )

    def read(self, variable: TensorVariable, latents: Collection[Variable] = ()) -> Reading | None:
        if not self.may_be(variable):
            return None
        (latent,) = variable.owner.op.dist_params(variable.owner)
        return Reading(cast(TensorVariable, latent))

    def averaged(self, name: str, mean: TensorVariable, variance: TensorVariable, **kwargs: Any) -> Variable:
        return UnequalNoiseProbit(name, mean, variance, **kwargs)

    def log_densities(self, f: Array, observed: NDArray[np.int64]) -> Array:
        return log_probabilities_and_gradients(observed, f.swapaxes(-1, -2))[0]

    def probabilities(
        self, mean: Array, cov: Array, *, how: str | None = None, tolerance: float = 5e-5
    ) -> tuple[Array, Array]:
        return class_probabilities(mean, cov, method=self.check_way(how), tolerance=tolerance)

    def log_tail(self, mean: Array, cov: Array, observed: NDArray[np.int64]) -> Array:
        # With two classes there is one factor, and inner EP is exact.
        log_z: Array = tilted_log_normaliser(mean, cov, INNER_SWEEPS, INNER_TOLERANCE)
        return log_z[range(len(observed)), observed]
