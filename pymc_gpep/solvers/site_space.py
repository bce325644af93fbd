"""The vector space that an iteration of EP moves in: sites, what it remembers of past ones, and what it does with them.

The iteration itself, `pymc_gpep.solvers.accelerated_ep`, sees no vector. These may be in memory, or in parts on many
machines, of which only inner products are gathered.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.schemes.anderson import combination, combined_step, residual_products, weighted_norm

__all__ = ["SiteSpace", "SiteVector", "SitesInMemory", "Sweep", "combination"]

type Sweep = Callable[[Array, Array, Array], tuple[bool, float, float]]
"""One sweep of a kind of EP, `sweep(sites, target, scale)`.

It computes the posterior that the sites imply, writes the sites that match the tilted moments into `target` and the
marginal variances of what they act on into `scale` (n, d), and returns success, evidence, and the largest change of a
site in units of its marginal.
"""


class SiteSpace(Protocol):
    """The sites of an EP and their past, wherever they are."""

    def sweep(self) -> tuple[bool, float, float]:
        """One sweep from the present sites: success, evidence, and the largest change of a site."""

    def norm(self) -> float:
        """Squared norm of the residual, the change that the last sweep is for; it is free of units."""

    def remember(self, slot: int) -> None:
        """Keep the change of sites and residual since the sweep before, in one of the places of the memory."""

    def damp(self, damping: float) -> None:
        """Take a part of the residual."""

    def accelerate(self, used: int, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        """Take an accelerated step; a precision that would leave the interval takes a part of the residual."""

    def clear(self) -> None:
        """Make all sites 0."""


class SiteVector:
    """Sites (2, n, d) as a vector x, their residual f, weights that make it free of units, and differences of both.

    Parameters
    ----------
    sites : array (2, n, d)
        Precisions and locations. They are overwritten.
    memory : int
        How many differences are kept.
    """

    def __init__(self, sites: Array, memory: int) -> None:
        self.sites = sites
        self.target, self.scale = np.empty_like(sites), np.empty(sites.shape[1:])
        self._x = sites.reshape(-1)
        self._weight, self._step = np.empty((2, self._x.size))
        self._dx, self._df = np.empty((2, memory, self._x.size))
        self._f = self.target.reshape(-1)  # in place, as all is: sites of a million points are what takes the memory
        self._old_x, self._old_f = np.empty((2, self._x.size))

    def norm(self) -> float:
        """Squared norm of the residual that `target` and `scale` imply; it takes the place of `target`."""
        half = self._x.size // 2
        self._f -= self._x
        variance = self.scale.reshape(-1)
        self._weight[half:] = variance
        np.multiply(variance, variance, out=self._weight[:half])
        return float(weighted_norm(self._weight, self._f))

    def remember(self, slot: int) -> None:
        """See `SiteSpace`."""
        np.subtract(self._x, self._old_x, out=self._dx[slot])
        np.subtract(self._f, self._old_f, out=self._df[slot])

    def forget(self, slot: int) -> None:
        """Keep no change in one of the places of the memory."""
        self._dx[slot] = self._df[slot] = 0.0

    def rest(self) -> None:
        """Have no residual and no past, so that steps leave the sites where they are until the next sweep."""
        for values in (self.target, self.scale, self._weight, self._dx, self._df):
            values[:] = 0.0

    def damp(self, damping: float) -> None:
        """See `SiteSpace`."""
        self._old_x[:], self._old_f[:] = self._x, self._f
        self._f *= damping
        self._x += self._f

    def products(self, used: int) -> tuple[Array, Array]:
        """Return the inner products (used, used) and (used,) that choose a combination of the past."""
        gram, rhs = residual_products(self._weight, self._f, self._df, used)
        return gram, rhs

    def combine(self, gamma: Array, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        """Take the step that a combination (used,) of the past makes, see `SiteSpace.accelerate`."""
        half = self._x.size // 2
        self._old_x[:], self._old_f[:] = self._x, self._f
        combined_step(self._f, self._dx, self._df, gamma, mixing, self._step)
        self._step += self._x
        # Where acceleration takes a precision out of its interval, the plain step does not.
        precisions = self._step[:half]
        outside = ~((precisions >= interval[0]) & (precisions < interval[1]))
        precisions[outside] = self._x[:half][outside] + damping * self._f[:half][outside]
        self._x[:] = self._step

    def clear(self) -> None:
        """See `SiteSpace`."""
        self.sites[:] = 0.0


class SitesInMemory(SiteVector):
    """Sites that are arrays, as a `SiteSpace`.

    Parameters
    ----------
    sweep : Sweep
    sites : array (2, n, d)
        They are overwritten.
    memory : int
    """

    def __init__(self, sweep: Sweep, sites: Array, memory: int) -> None:
        super().__init__(sites, memory)
        self._sweep = sweep

    def sweep(self) -> tuple[bool, float, float]:
        """See `SiteSpace`."""
        return self._sweep(self.sites, self.target, self.scale)

    def accelerate(self, used: int, mixing: float, damping: float, interval: tuple[float, float]) -> None:
        """See `SiteSpace`."""
        self.combine(combination(*self.products(used)), mixing, damping, interval)
