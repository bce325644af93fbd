"""Nested expectation propagation for the multinomial probit (Riihimäki, Jylänki and Vehtari 2013, section 3)."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.accelerated_ep import AcceleratedEP
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.approximations.tilted_factors import TiltedFactors, difference_cavities, tilted_factors
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import DifferenceFactors
from pymc_gpep.solvers.nested_ep import SCHEMES, nested_ep
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import Found, History, Problem

__all__ = ["NestedEP", "nested_factors"]


@dataclass(frozen=True)
class NestedEP(AcceleratedEP):
    """Full nested EP: between-class coupling kept, tilted moments by inner EP.

    Parameters
    ----------
    ladder : bool
        Whether to go on where the iteration does not get closer any more. Smaller steps come first, and then a scheme
        that lowers EP's energy and cannot cycle.
    max_inner : int
        Inner sweeps per outer iteration: 1 is the paper's incremental scheme, more runs inner EP on to the tolerance.

    Examples
    --------
    >>> solution = gpep.NestedEP().solve(K, mean, y)  # (n, n), (3, n), (n,)
    >>> solution.log_evidence
    """

    max_inner: int = field(default=1, metadata=at_least(1))

    name: ClassVar[str] = "nested_ep"
    needs: ClassVar[tuple[type, ...]] = (DifferenceFactors,)
    matches_moments: ClassVar[bool] = True
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    schemes: ClassVar[tuple[str, ...]] = SCHEMES
    looseness: ClassVar[float] = 50.0

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.COUPLED

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        factors = likelihood.computation(DifferenceFactors)
        return nested_ep(
            problem,
            start,
            history,
            update=factors.coupled_update,
            energies=factors.energies,
            largest_precision=likelihood.largest_precision,
            **self.settings,
        )

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from: α and β."""
        return 2 * n_points * (n_functions - 1)

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """The Φ(g_j) of all points: the fixed point is that of EP with these as factors."""
        c, n = solution.mean.shape
        alpha, beta = solution.start.reshape(2, n, c - 1)
        average = solution.likelihood.computation(DifferenceFactors).average
        cavities = difference_cavities(solution, alpha, beta)
        return tilted_factors(solution, cavities, average, np.ones(alpha.size, np.int64))


def nested_factors(solution: Solution) -> TiltedFactors:
    """The tilted factors of nested EP at the same prior and labels, by which other approximations are corrected.

    Where sites match less than all tilted means and covariances, they leave out terms with one loop, which are no small
    correction. Nested EP is what the sum of these terms comes to.
    """
    prior, method = solution.posterior.prior, NestedEP()
    nested = method.solve(prior.k, prior.mean, solution.labels, likelihood=solution.likelihood)
    return method.tilted_factors(nested)
