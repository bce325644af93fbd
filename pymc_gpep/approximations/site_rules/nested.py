"""The likelihood of a point as it is, with a site that couples its functions, by inner EP."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import NoisyDifferenceFactors
from pymc_gpep.solvers.coupled_sparse_ep import CoupledFactors

__all__ = ["Nested"]

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
