"""EP with inducing inputs (Villacampa-Calvo and Hernández-Lobato 2017), without a covariance matrix of all rows."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.limits import fraction, one_of
from pymc_gpep.approximations.site_rules import RULE_NAMES, RULES, SiteRule, chosen_rule, site_rule
from pymc_gpep.approximations.sparse import Iterated, Number, SitesOfRows, SparseApproximation
from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.accelerated_ep import SCHEMES, Steps, Sweep, accelerated_ep, ep_ladder
from pymc_gpep.solvers.problem import History
from pymc_gpep.solvers.sparse_sweeps import PointSites

_ELSEWHERE = {"coupled": "nested", "independent": "quadrature"}  # what the IVM calls them
_SHORT = 0.4  # of steps with sites that widen, in units of others
_PATIENCE = 40  # sweeps without progress that these may take


@dataclass(frozen=True)
class SparseEP(SparseApproximation):
    """EP whose sites act on a few inducing values, given which latent values are independent (FITC).

    For n points, c functions and M inducing inputs each, an iteration takes O(c n M²), or O(c² n M² + c³ M³) with
    `sites="nested"`. No matrix has two axes over points. The posterior leaves the functions independent otherwise.

    `pm.fit` has more options than these, among them `inducing`, `shared_inducing`, `learn_inducing`, `update`, `data`
    and `client`. It has others with `batch_size`. See the page "Options of methods for many rows" of the documentation.

    Parameters
    ----------
    sites : {"nested", "quadrature", "pairwise"}, optional
        How the likelihood of a point is taken apart. If not given, `"nested"` for three functions or more that have up
        to 4000 inducing inputs together, and `"quadrature"` for others. `"nested"`: not at all, with sites that couple
        the functions of a point; with all points as inducing inputs the method is then `"nested_ep"`. `"quadrature"`:
        not at all either, with sites that leave them independent; with all points it is `"qiep"`, or `"ep"` for a
        likelihood of one function. `"pairwise"`: the paper's product over the other classes, whose evidence is a lower
        bound factor by factor and cannot be compared with any other.
    depth : int
        Past steps that Anderson acceleration combines, each as long as two starts; 0 is plain damped EP.
    damping : float
        Part of the full update that a plain step takes, in (0, 1].
    ladder : bool
        Whether to go on, where the iteration does not get closer any more, with plain steps, and ever smaller ones.
    """

    sites: str | None = field(default=None, metadata=one_of(*RULE_NAMES, elsewhere=_ELSEWHERE))
    damping: float = field(default=0.7, metadata=fraction())
    ladder: bool = True

    name: ClassVar[str] = "sparse_ep"
    first_scheme: ClassVar[str] = SCHEMES[0]

    @classmethod
    def approximates(cls, likelihood: Likelihood) -> bool:
        return any(rule.fits(likelihood) for rule in RULES)

    def named(self, likelihood: Likelihood, c: int, size: int) -> Self:
        sites = chosen_rule(likelihood, c, size) if self.sites is None else self.sites
        site_rule(sites, likelihood)
        return replace(self, sites=sites)

    @property
    def chosen(self) -> str:
        return f"sites={self.sites!r}, "

    def one_sweep(self) -> Self:
        return replace(self, max_iterations=1, depth=0, ladder=False)

    def rule(self, likelihood: Likelihood, c: int, size: int) -> SiteRule:
        """How a likelihood is taken apart; a ValueError if it cannot be."""
        return site_rule(self.sites or chosen_rule(likelihood, c, size), likelihood)

    def number(self, likelihood: Likelihood, c: int, size: int) -> Number:
        return Number.EVIDENCE if self.rule(likelihood, c, size).exact else Number.OBJECTIVE

    def point_sites(self, likelihood: Likelihood, labels: NDArray[np.int64], c: int, size: int) -> PointSites:
        return self.rule(likelihood, c, size).factors(likelihood, labels, c)

    def iterate(self, of: SitesOfRows, sites: Array, history: History) -> Iterated:
        """By the ladder; then, where moments want it, with sites that widen, from where those that narrow ended."""
        wider, sweep = of.points.widening(), of.sweeps.sweep
        if wider is not None and (sites[0] < 0.0).any():  # from a neighbour that has such sites
            widened = self._widen(wider.sweeps(of.features, of.team).sweep, sites, history)
            if widened is not None:
                return Iterated(widened, CONVERGED, SCHEMES[0])
        evidence, status, rung = ep_ladder(sweep, sites, history, **self.steps(of.likelihood))
        if wider is None or status != CONVERGED:
            return Iterated(evidence, status, SCHEMES[rung])
        widened = self._widen(wider.sweeps(of.features, of.team).sweep, sites, history)
        if widened is not None:
            return Iterated(widened, status, SCHEMES[rung])
        return Iterated(evidence, status, SCHEMES[rung], _at_the_floor(sweep, sites))

    def steps(self, likelihood: Likelihood) -> dict[str, Any]:
        """How the iteration goes, for `pymc_gpep.solvers.accelerated_ep.climb`."""
        names = "tolerance", "depth", "mixing", "damping", "ladder"
        return {name: getattr(self, name) for name in names} | {"largest_precision": likelihood.largest_precision}

    def _widen(self, sweep: Sweep, sites: Array, history: History) -> float | None:
        """Iterate from sites close to the end, with short steps; None, and the sites are what they were, if in vain."""
        steps = Steps(
            self.tolerance, self.depth, _SHORT * self.mixing, _SHORT * self.damping, np.inf, least_precision=-np.inf
        )
        moved = sites.copy()
        evidence, status = accelerated_ep(sweep, moved, history, steps, patience=_PATIENCE)
        if status != CONVERGED:
            return None
        sites[:] = moved
        return evidence


def _at_the_floor(sweep: Sweep, sites: Array) -> int:
    """How many sites go to a precision of 0."""
    target, scale = np.empty_like(sites), np.empty(sites.shape[1:])
    sweep(sites.copy(), target, scale)
    return int((target[0] <= 0.0).sum())
