"""The contract of solvers with inducing inputs: sites of points, and sweeps over them.

A kind of sites is one implementation of both. Scalar sites are in `pymc_gpep.solvers.sparse_ep`.

The information of rows on the inducing values is a sum over rows, and so is their part of the number that is computed.
A process that holds some of the rows needs nothing else of the others: sums may come from one process or from many.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.common_shift import CommonShift
from pymc_gpep.solvers.inducing import Block, Features, RowFeatures
from pymc_gpep.solvers.team import ALONE, Team
from pymc_gpep.solvers.whitened_posterior import Whitened

_PART = 1024  # rows at least that are handed to a thread
_PARTS = 8  # of a block

type Pull = Callable[[slice, Block], None]
"""Takes the derivatives with respect to the moments of a block of rows."""


class LeftOut(NamedTuple):
    """Latent values of some points, each given the sites of all others."""

    rows: slice
    mean: Array
    """(B, c)."""
    cov: Array
    """(B, c, c)."""
    log_density: Array | None = None
    """Log density (B,) of the labels of these points given all others, NaN where it follows from the moments."""


class SiteSweeps[P: Whitened](ABC):
    """The parts of an iteration, for one prior, whose sites imply posteriors of the type P.

    Parameters
    ----------
    features : RowFeatures
    team : Team
        The threads that work on it. Results do not depend on how many there are.
    """

    def __init__(self, features: RowFeatures, team: Team = ALONE) -> None:
        self._features = features
        self._team = team
        self._owner = features.owner

    @abstractmethod
    def natural(self, sites: Array) -> tuple[Array, Array]:
        """S and h of sites (2, n, d), as `implied` takes them: sums over rows."""

    @abstractmethod
    def implied(self, precision: Array, location: Array) -> P:
        """The posterior of the whitened inducing values for S and h.

        Raises
        ------
        LinAlgError
            If its precision has no Cholesky factor, or is not finite.
        """

    def shifted(
        self, precision: Array, location: Array, each: Callable[[Callable[[Any], Any]], Iterable[Any]]
    ) -> tuple[P, CommonShift | None]:
        """The posterior from which a sweep goes on, and how the sites of each row move with it, if they do.

        `precision` and `location` are those of `natural`, and `each` yields what a function makes of every block, see
        `over_blocks`.
        """
        return self.implied(precision, location), None

    @abstractmethod
    def over_blocks[R](self, sites: Array, work: Callable[[Any], R]) -> Iterator[R]:
        """Yield the results of a function on every block, as this kind of sites has it."""

    @abstractmethod
    def match(
        self, sites: Array, posterior: P, shift: CommonShift | None, target: Array, scale: Array
    ) -> tuple[float, float]:
        """Where sites are to go: what their points add to the number that is computed, and the largest change.

        The sites are moved by the `shift` first. Both are NaN where there are no such sites.
        """

    def of_posterior(self, posterior: P) -> float:
        """Return the part of the number that is computed which the posterior itself adds."""
        return posterior.log_normaliser

    @abstractmethod
    def pulled(self, sites: Array, posterior: P, pull: Pull) -> Array:
        """Give derivatives to `pull`, block by block, and return what `Whitening.pull_factor` wants of all rows."""

    @abstractmethod
    def left_out(self, sites: Array, posterior: Whitened) -> Iterator[LeftOut]:
        """All points in their order, part by part, each without its own sites, which are in the posterior."""

    def posterior(self, sites: Array) -> P:
        """The posterior that sites (2, n, d) imply. See `implied` for what it raises."""
        return self.implied(*self.natural(sites))

    def sweep(self, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        """One parallel sweep, see `pymc_gpep.solvers.accelerated_ep.Sweep`."""
        try:
            posterior, shift = self.shifted(*self.natural(sites), lambda work: self.over_blocks(sites, work))
        except LinAlgError:  # and nothing else: rows may be such that they cannot be read
            return False, np.nan, np.nan
        terms, residual = self.match(sites, posterior, shift, target, scale)
        return not np.isnan(residual), self.of_posterior(posterior) + terms, residual

    def derivatives(self, sites: Array, posterior: P, pull: Pull) -> Array:
        """Give derivatives to `pull`, block by block, and return those in `inducing()` (q, M, M)."""
        return self._features.whitening.pull_factor(self.pulled(sites, posterior, pull))

    def _by_parts[R](self, one: Callable[[tuple[slice, Features]], R]) -> Iterator[R]:
        """Yield the results of `one` on all rows, part by part in their order, side by side within a block."""
        for rows, features in self._features.blocks():
            yield from self._team.each(one, _parts(rows, features))


class PointSites(Protocol):
    """The sites that stand for the likelihood of all points: two numbers each."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d): d sites for each of n points."""

    def widening(self) -> Self | None:
        """The same whose sites may have negative precisions; None where none would that matches moments.

        Where there is one, the sites themselves match no more than a mean instead.
        """

    def sweeps(self, features: RowFeatures, team: Team) -> SiteSweeps[Any]:
        """Return the parts of an iteration over the sites. Results do not depend on the size of the team."""


def _parts(rows: slice, features: Features) -> Iterator[tuple[slice, Features]]:
    """A block in parts that can be worked on side by side."""
    count = rows.stop - rows.start
    size = max(_PART, -(-count // _PARTS))
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        yield (
            slice(rows.start + part.start, rows.start + part.stop),
            Features(features.w[..., part], features.rest[:, part], features.mean[:, part]),
        )
