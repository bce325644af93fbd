"""Class-independent expectation propagation for a softmax (Seeger and Jordan 2004, section 6)."""

from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.approximations.linear_response import projected_response
from pymc_gpep.approximations.qiep import QIEP
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.likelihoods.local_computations import CoupledQuadrature, IndependentQuadrature


@dataclass(frozen=True)
class QIEPSoftmax(QIEP):
    """EP for a softmax whose posterior leaves the classes independent, with tilted moments by quadrature.

    Seeger and Jordan (2004, section 6) have these sites for their baseline, in a single pass over the points that they
    choose. Here they are iterated to a fixed point. `QEPSoftmax` has the couplings between classes as well, for the
    same quadrature. The derivatives that are reported are those of the evidence. With eight classes and more the
    quadrature leaves them off by a percent or two.
    """

    name: ClassVar[str] = "qiep"
    needs: ClassVar[tuple[type, ...]] = (IndependentQuadrature, CoupledQuadrature)  # the latter for the response
    whole_factors: ClassVar[str] = "for a softmax"

    def response(self, solution: Solution) -> DensePosterior:
        """The coupled posterior that the tilted distributions would make: means respond as these do, not the sites."""
        return projected_response(solution)
