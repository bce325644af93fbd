"""Class-independent expectation propagation by quadrature (Seeger, Lawrence and Herbrich 2006)."""

from dataclasses import dataclass
from typing import ClassVar

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.approximations.linear_response import tilted_response
from pymc_gpep.approximations.nested_ep import nested_factors
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.approximations.tilted_factors import TiltedFactors
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import DifferenceFactors, IndependentQuadrature
from pymc_gpep.solvers.independent_ep import independent_ep
from pymc_gpep.solvers.problem import Found, History, Problem


@dataclass(frozen=True)
class QIEP(AcceleratedEP):
    """EP whose posterior leaves the classes independent, with tilted moments to nearly full precision.

    The method differs from `"iep"` in the moments alone. With independent cavities each moment is an integral over one
    variable, the utility of the observed class. The literature takes two-dimensional quadratures of a few nodes
    (Seeger, Lawrence and Herbrich 2006; Girolami and Zhong 2007). The evidence and its derivatives are then those of
    class-independent EP without a further approximation.
    """

    name: ClassVar[str] = "qiep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (IndependentQuadrature, DifferenceFactors)  # the latter for the response

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        settings = self.settings
        settings["update"] = likelihood.computation(IndependentQuadrature).update
        settings["largest_precision"] = likelihood.largest_precision
        return independent_ep(problem, start, history, **settings)

    def response(self, solution: Solution) -> DensePosterior:
        """The coupled posterior that the tilted distributions would make: means respond as these do, not the sites."""
        return tilted_response(solution)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """The tilted factors of nested EP, where a point has factors of single numbers."""
        return super().tilted_factors(solution) if self.whole_factors else nested_factors(solution)
