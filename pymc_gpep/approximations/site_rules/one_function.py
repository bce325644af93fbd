"""The likelihood of a point that has one latent function: one factor with one site."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.site_rules.site_rule import ScalarSites
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.problem import NO_PARAMETERS
from pymc_gpep.solvers.sparse_ep import Tilted

__all__ = ["OneFunctionSite"]


class OneFunctionSite(ScalarSites):
    """With its log normaliser in closed form, or by the quadrature that the likelihood has."""

    name: ClassVar[str] = "quadrature"
    needs: ClassVar[tuple[type, ...]] = (GaussianAverage,)
    exact: ClassVar[bool] = True

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        return True

    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        return np.zeros((labels.size, 1), np.int64)

    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        terms = np.empty((5, len(mean)))
        given = mean[:, 0].copy(), variance[:, 0].copy(), labels, NO_PARAMETERS
        likelihood.computation(GaussianAverage).terms(*given, terms)
        return Tilted(terms[0], terms[1][:, None], -terms[2][:, None])
