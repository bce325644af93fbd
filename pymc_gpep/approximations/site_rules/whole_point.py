"""The likelihood of a point as it is: one factor, with a site for each function that it has, or one on all of them."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.site_rules.site_rule import ScalarSites, SiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    GaussianAverage,
    NoisyDifferenceFactors,
    PointFactor,
    TabulatedFactor,
)
from pymc_gpep.solvers.coupled_sparse_ep import CoupledFactors
from pymc_gpep.solvers.problem import NO_PARAMETERS
from pymc_gpep.solvers.sparse_ep import Tilted


class WholePoint(ScalarSites):
    """With its log normaliser by one integral, to nearly full precision."""

    name: ClassVar[str] = "quadrature"
    needs: ClassVar[tuple[type, ...]] = (PointFactor,)
    follows_parameters: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        return True

    def functions(self, labels: NDArray[np.int64], c: int) -> NDArray[np.int64]:
        return np.tile(np.arange(c), (labels.size, 1))

    def tilted(self, likelihood: Likelihood, mean: Array, variance: Array, labels: NDArray[np.int64]) -> Tilted:
        found = Tilted(np.empty(len(mean)), np.empty_like(mean), np.empty_like(mean))
        if likelihood.offers(TabulatedFactor):
            likelihood.computation(TabulatedFactor).derivatives(mean, variance, labels, *found)
            return found
        likelihood.computation(PointFactor).derivatives(mean, variance, labels, likelihood.parameters, *found)
        return found


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


_LARGEST = 4000  # matrix to factorise in each sweep where nobody has asked for it
_MOST = 6  # functions: products of matrices number c²


class Nested(SiteRule):
    """The sites of nested EP (Riihimäki, Jylänki and Vehtari 2013), of which a point has one, on all its functions."""

    name: ClassVar[str] = "nested"
    needs: ClassVar[tuple[type, ...]] = (NoisyDifferenceFactors,)
    exact: ClassVar[bool] = True

    @classmethod
    def suits(cls, c: int, size: int) -> bool:
        return 2 < c <= _MOST and c * size <= _LARGEST

    def factors(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int) -> CoupledFactors:
        local = likelihood.computation(NoisyDifferenceFactors)
        return CoupledFactors(labels, c, local.update, local.site_parameters)
