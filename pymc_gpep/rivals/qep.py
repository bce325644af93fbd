"""Expectation propagation by quadrature (Riihimäki, Jylänki and Vehtari 2013, section 3.3).

The posterior is that of nested EP, and tilted moments are computed by quadrature.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.cumulants import TiltedFactors
from pymc_gpep.approximations.limits import at_least, one_of
from pymc_gpep.approximations.solution import Solution
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.moments.full_sites import packed_size
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.computations import DifferenceQuadrature
from pymc_gpep.rivals.kernels.quadrature_ep import difference_sites
from pymc_gpep.rivals.responses import nested_factors
from pymc_gpep.solvers.accelerated_ep import ep_ladder
from pymc_gpep.solvers.block_ep import BlockEP, BlockSpace, derivatives, refused, site_posterior, site_posterior_space
from pymc_gpep.solvers.prior_form import Algebra
from pymc_gpep.solvers.problem import NO_PARAMETERS, Found, History, Problem


def qep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    hermite: bool,
    rule: Array,
    **options: Any,
) -> Found:
    """EP by quadrature, its posterior that of nested EP.

    `start`, which is overwritten, is diag Λ and ξ (2, n, c − 1). `rule` (2, order) has nodes and log weights,
    Gauss–Hermite's if `hermite`; `update` is the kernel `diagonal_update` of
    `pymc_gpep.rivals.computations.DifferenceQuadrature`; the other options are those of `ep_ladder`.
    """
    c, n = problem.mean.shape
    sites = start.reshape(2, n, c - 1)
    space = site_posterior_space(problem)
    orders = np.full((n, c - 1), -1)

    def sweep(sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        ok, gaussian = site_posterior(problem, sites, space)
        if not ok:
            return False, np.nan, np.nan
        terms, residual = update(hermite, rule, orders, space.mean, space.cov, problem.labels, sites, target, scale)
        return True, gaussian + terms, residual

    evidence, status, rung = ep_ladder(sweep, sites, history, **options)
    return Found(evidence, status, space.weights, space.mean, space.cov, space.pi, lambda: derivatives(space), rung)


def full_qep(
    problem: Problem,
    start: Array,
    history: History,
    *,
    update: Callable[..., tuple[float, float]],
    hermite: bool,
    rule: Array,
    max_size: int,
    **options: Any,
) -> Found:
    """EP with nothing left out but quadrature's error.

    The posterior has all the tilted means and covariances of g, and so of f, and the evidence is stationary in the
    sites. `start` has the layout of the kernels of full sites and is overwritten. Options are those of `qep`, with the
    kernel `full_update`. `max_size` is the largest number cn of latent values whose covariance is a matrix.
    """
    y = problem.labels
    c, n = problem.mean.shape
    sites = start.reshape(2, n, packed_size(c))
    orders = np.full((n, c - 1), -1)
    if (result := refused(problem, max_size)) is not None:
        return result

    def quadrature(space: BlockSpace, sites: Array, target: Array, scale: Array) -> tuple[float, float]:
        return update(hermite, rule, orders, space.mean, space.cov, space.pi, space.nu, y, sites, target, scale)

    ep = BlockEP(problem, problem.prior.blocks(c), difference_sites, quadrature)
    evidence, status, rung = ep_ladder(ep.sweep, sites, history, **options)
    return ep.found(evidence, status, rung, NO_PARAMETERS)


Rule = Literal["truncated", "gauss_hermite"]
"""What a quadrature rule stands on: the truncated normal behind the probit factors, or the cavity."""

_MOST_NODES = 10**6  # for each point and sweep


def quadrature_rule(rule: Rule, order: int) -> Array:
    """Nodes, as the kernel wants them, and log weights of a rule for one dimension, (2, order).

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
    """EP with between-class coupling like `"nested_ep"`, but tilted moments by quadrature.

    With full sites this is EP without further approximations, up to quadrature's error: what nested EP aims at. Time
    grows with (n(c − 1))³ where prior covariances are matrices. With diagonal sites, the choice of Riihimäki, Jylänki
    and Vehtari (2013), the posterior has nested EP's structure and cost. They match the tilted means, and of the tilted
    covariances only the diagonal of the precision that they add. So their fixed point is not a stationary point of the
    evidence. The derivatives that are reported take the sites as constants, and miss those of the evidence by a percent
    or so.

    Parameters
    ----------
    order : int
        Nodes for each dimension of the quadrature.
    rule : {"truncated", "gauss_hermite"}
        `"truncated"` integrates over c − 2 dimensions of the truncated normal distribution that the probit factors make
        of the utilities. It is as accurate for large variances as for small ones. `"gauss_hermite"` is the product rule
        in c − 1 dimensions of the paper.
    full : bool
        Whether sites are full or diagonal.
    max_size : int
        Largest number cn of latent values to accept with full sites where prior covariances are matrices.
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
        settings = self.settings
        rule = quadrature_rule(settings.pop("rule"), settings.pop("order"))
        full, max_size = settings.pop("full"), settings.pop("max_size")
        settings |= {
            "hermite": self.rule == "gauss_hermite",
            "rule": rule,
            "largest_precision": likelihood.largest_precision,
        }
        quadrature = likelihood.computation(DifferenceQuadrature)
        if full:
            return full_qep(problem, start, history, update=quadrature.full_update, max_size=max_size, **settings)
        return qep(problem, start, history, update=quadrature.diagonal_update, **settings)

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """The nearest start where sites are full: between matrices some combinations are not positive definite."""
        return starts[nearest].copy() if self.full else super().between(starts, weights, nearest)

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Length of the vector that a solve starts from.

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
                f"{self.name} with full sites is slow for {c} latent functions at {n_points} points: they are {size} "
                f"latent values. Use nested_ep, which is made for so many, or full=False, or allow it with "
                f"max_size={size} (now {self.max_size})."
            )
        return ""

    def tilted_factors(self, solution: Solution) -> TiltedFactors:
        """The tilted factors of nested EP."""
        return nested_factors(solution)
