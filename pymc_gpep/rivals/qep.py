"""EP by quadrature (Riihimäki, Jylänki and Vehtari 2013, section 3.3).

The posterior has the same form as in nested EP. Quadrature computes the moments of tilted distributions.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.approximations.limits import at_least, one_of, refused
from pymc_gpep.approximations.nested_ep import CoupledSitePosterior, InnerSitePosterior
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.computations import DifferenceQuadrature
from pymc_gpep.rivals.kernels.quadrature_ep import difference_sites
from pymc_gpep.rivals.responses import nested_factors
from pymc_gpep.solvers.problem import Algebra, Found, History, Problem
from pymc_gpep.solvers.site_ep import site_ep

Rule = Literal["truncated", "gauss_hermite"]
"""Distribution on which a quadrature rule is based: the truncated normal of the probit factors, or the cavity."""

_MOST_NODES = 10**6  # Largest number of nodes for each point in a sweep.


def quadrature_rule(rule: Rule, order: int) -> Array:
    """Return nodes and log weights (2, order) of a one-dimensional rule.

    See `pymc_gpep.rivals.kernels.quadrature_ep`.
    """
    if rule == "gauss_hermite":
        nodes, weights = np.polynomial.hermite_e.hermegauss(order)
        return np.array([nodes, np.log(weights / weights.sum())])
    nodes, weights = np.polynomial.legendre.leggauss(order)
    s = (1.0 + nodes) / 2
    return np.log([s**3 * (4.0 - 3.0 * s), 6.0 * s**2 * (1.0 - s) * weights])


@dataclass(frozen=True)
class QEP(AcceleratedEP):
    """EP with couplings between classes as in `"nested_ep"`, and tilted moments by quadrature.

    With full sites this is EP without further approximations, apart from errors of the quadrature. Nested EP
    approximates this result. The time is proportional to (n(c − 1))³ if prior covariances are matrices. With diagonal
    sites, as in Riihimäki, Jylänki and Vehtari (2013), the posterior has the structure and cost of nested EP. Diagonal
    sites match the tilted means, and only the diagonal of the tilted minus the cavity precision. So their fixed point
    is not a stationary point of the evidence. Derivatives are computed for constant sites, and differ from derivatives
    of the evidence by about one percent.

    Parameters
    ----------
    order : int
        Number of nodes in each dimension of the quadrature.
    rule : {"truncated", "gauss_hermite"}
        `"truncated"` integrates over c − 2 dimensions of a truncated normal, the distribution of utilities given the
        label. Its accuracy is the same for large and small variances. `"gauss_hermite"` is a product rule in c − 1
        dimensions.
    full : bool
        Whether sites are full or diagonal.
    max_size : int
        Largest accepted number cn of latent values, for full sites and prior covariances that are matrices.
    """

    order: int = field(default=10, metadata=at_least(1))
    rule: Rule = field(default="truncated", metadata=one_of(*get_args(Rule)))
    full: bool = False
    max_size: int = field(default=3000, metadata=at_least(1))

    name: ClassVar[str] = "qep"
    needs: ClassVar[tuple[type, ...]] = (DifferenceQuadrature,)
    matches_moments: ClassVar[bool] = True
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS

    @property
    def site_form(self) -> SiteForm:
        return SiteForm.BLOCK if self.full else SiteForm.COUPLED

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        if self.full and (result := refused(problem, self.max_size)) is not None:
            return result
        (c, n), y, quadrature = problem.mean.shape, problem.labels, likelihood.computation(DifferenceQuadrature)
        given = self.rule == "gauss_hermite", quadrature_rule(self.rule, self.order), np.full((n, c - 1), -1)

        def full(at: CoupledSitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
            return True, *quadrature.full_update(*given, at.mean, at.cov, at.pi, at.nu, y, sites, target, scale)

        def diagonal(at: CoupledSitePosterior, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
            return True, *quadrature.diagonal_update(*given, at.mean, at.cov, y, sites, target, scale)

        posterior: CoupledSitePosterior = InnerSitePosterior(problem)
        update = diagonal
        if self.full:
            posterior, update = CoupledSitePosterior(problem, difference_sites, blocks=True), full
        options = self.iteration | {"largest_precision": likelihood.largest_precision}
        return posterior.found(site_ep(posterior, start.reshape(2, n, -1), history, update=update, **options))

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """Return the start with index `nearest` if sites are full: a combination of matrices may be indefinite."""
        return starts[nearest].copy() if self.full else super().between(starts, weights, nearest)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the start.

        Raises
        ------
        ValueError
            If there are too many latent functions for a quadrature.
        """
        c = n_functions
        dimensions = max(c - 1 if self.rule == "gauss_hermite" else c - 2, 0)
        if self.order**dimensions > _MOST_NODES:
            raise ValueError(
                f"{self.name} with {c} classes would take {self.order}^{dimensions} quadrature nodes a point, more "
                f"than {_MOST_NODES}. Lower order, or use nested_ep, which needs no quadrature."
            )
        return n_points * (c - 1) * (c if self.full else 2)

    def too_large(self, n_functions: int, n_points: int) -> str:
        c, size = n_functions, n_functions * n_points
        if self.full and size > self.max_size:
            return (
                f"{self.name} with full sites is slow for {size} latent values ({c} functions at {n_points} points). "
                f"Use method='nested_ep' or full=False, or allow it with max_size={size} (now {self.max_size})."
            )
        return ""

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """Return the tilted factors of nested EP."""
        return nested_factors(solution)
