"""What solvers with inducing inputs are to each other: sites of points, and sweeps over them.

A kind of sites is one implementation of both. Those that are scalar are in `pymc_gpep.solvers.sparse_ep`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, Self

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.inducing import Block, RowFeatures
from pymc_gpep.solvers.team import Team
from pymc_gpep.solvers.whitened_posterior import Whitened

__all__ = ["LeftOut", "PointSites", "Pull", "SiteSweeps"]

type Pull = Callable[[slice, Block], None]
"""Takes the derivatives with respect to the moments of a block of rows."""


class LeftOut(NamedTuple):
    """Latent values of some points, each given the sites of all others."""

    rows: slice
    mean: Array
    """(B, c)."""
    cov: Array
    """(B, c, c)."""


class SiteSweeps(Protocol):
    """What an iteration is made of, for one prior."""

    def sweep(self, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        """One parallel sweep, see `pymc_gpep.solvers.accelerated_ep.Sweep`."""

    def posterior(self, sites: Array) -> Whitened:
        """The posterior of the whitened inducing values that sites (2, n, d) imply.

        Raises
        ------
        LinAlgError
            If its precision has no Cholesky factor, or is not finite.
        """

    def derivatives(self, sites: Array, pull: Pull) -> Array:
        """Give derivatives of the evidence to `pull`, block by block, and return those in `inducing()` (q, M, M)."""

    def left_out(self, sites: Array, posterior: Whitened) -> Iterator[LeftOut]:
        """All points in their order, part by part, each without its own sites, which are in the posterior."""


class PointSites(Protocol):
    """The sites that stand for the likelihood of all points: two numbers each."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d): d sites for each of n points."""

    def widening(self) -> Self | None:
        """The same whose sites may have negative precisions; None where none would that matches moments.

        Where there is one, the sites themselves match no more than a mean instead.
        """

    def sweeps(self, features: RowFeatures, team: Team) -> SiteSweeps:
        """What an iteration over them is made of. Results do not depend on the size of the team."""
