"""Class-independent expectation propagation by inner EP (Riihimäki, Jylänki and Vehtari 2013, section 3.2)."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.linear_response import tilted_response
from pymc_gpep.approximations.nested_ep import nested_factors
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.approximations.tilted_factors import TiltedFactors
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.posterior import DensePosterior
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import DifferenceFactors
from pymc_gpep.solvers.independent_ep import independent_ep
from pymc_gpep.solvers.problem import Found, History, Problem


@dataclass(frozen=True)
class IEP(AcceleratedEP):
    """EP whose posterior leaves the classes independent, tilted moments by inner EP.

    Sites match at each point the mean and the variance of every class, as inner EP computes them under the independent
    cavities. The posterior leaves out the part that classes have in common. Variances come out too small where the data
    say more of differences between classes than of their level.

    Parameters
    ----------
    max_inner : int
        Inner sweeps per outer iteration: 1 is incremental, more runs inner EP on to the tolerance. The inner sites are
        iterated along with the outer ones, so that the fixed point is the same.
    """

    max_inner: int = field(default=1, metadata=at_least(1))

    name: ClassVar[str] = "iep"
    site_form: ClassVar[SiteForm] = SiteForm.INDEPENDENT
    needs: ClassVar[tuple[type, ...]] = (DifferenceFactors,)

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        settings = self.settings
        factors = likelihood.computation(DifferenceFactors)
        settings["update"] = partial(factors.independent_update, settings.pop("max_inner"), self.tolerance)
        settings["largest_precision"] = likelihood.largest_precision
        return independent_ep(problem, start, history, **settings)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: outer and inner sites."""
        return 2 * n_points * (2 * n_functions - 1)

    def response(self, solution: Solution) -> DensePosterior:
        """The coupled posterior that the tilted distributions would make: means respond as these do, not the sites."""
        return tilted_response(solution)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """The tilted factors of nested EP."""
        return nested_factors(solution)
