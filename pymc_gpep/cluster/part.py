"""A part that one worker holds: some rows, their sites, and what an iteration remembers of these.

A part runs numbered tasks in order. If the last task is asked for again, the part returns the result that it kept, so
that nothing is done twice. A part that was made anew, because its worker is gone, reports itself as lost.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from pymc.blocking import PointType

from pymc_gpep.approximations.accelerated_ep import sites_between
from pymc_gpep.approximations.site_rules.site_rule import SiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.row_labels import checked_labels
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks, PriorAt
from pymc_gpep.solvers.accelerated_ep import SiteVector
from pymc_gpep.solvers.common_shift import CommonShift
from pymc_gpep.solvers.inducing import Block, InducingWhitening, RowFeatures
from pymc_gpep.solvers.sparse_sweeps import SiteSweeps
from pymc_gpep.solvers.team import ALONE, one_blas_thread
from pymc_gpep.solvers.whitened_posterior import Whitened

_GRAPHS = threading.Lock()  # a graph's function works in storage of its own
_KEPT = 4  # solves whose sites are kept to start from
_RECOVERED = 1e-13  # change of a site, in units of its marginal
_ATTEMPTS = 200


class Recipe(NamedTuple):
    """Ingredients that a part is made of."""

    blocks: InducingBlocks
    """Blocks with the rows of the part."""
    likelihood: Likelihood
    rule: SiteRule
    depth: int


class Begin(NamedTuple):
    """A prior, and where to start from: numbers of former solves and their weights, or nothing."""

    point: PointType
    z: Array
    whitening: InducingWhitening
    start: Array


class Sums(NamedTuple):
    """What is added over parts, and what the largest is taken of."""

    added: tuple[Any, ...]
    largest: float = 0.0
    lost: tuple[int, ...] = ()
    """Parts that do not have what they need."""

    def __add__(self, other: object) -> "Sums":
        assert isinstance(other, Sums)
        if self.lost or other.lost:
            return Sums((), np.nan, self.lost + other.lost)
        both = tuple(a + b for a, b in zip(self.added, other.added, strict=True))
        return Sums(both, float(np.maximum(self.largest, other.largest)))


def added(*sums: Sums) -> Sums:
    """The sum of several, in their order."""
    total = sums[0]
    for each in sums[1:]:
        total = total + each
    return total


type Task = Callable[["Part"], Sums]


class _Prior(PriorAt):
    """Evaluated by one thread at a time."""

    def block(self, rows: slice) -> Block:
        with _GRAPHS:
            return super().block(rows)

    def slopes(self, rows: slice, bars: Block) -> tuple[Array, Array]:
        with _GRAPHS:
            return super().slopes(rows, bars)


class Part:
    """Some rows and their sites.

    Parameters
    ----------
    number : int
        Which part it is.
    recipe : Recipe
    """

    def __init__(self, number: int, recipe: Recipe) -> None:
        self.number = number
        self._recipe = recipe
        rows, c = recipe.blocks.rows, recipe.blocks.n_functions
        labels = checked_labels(rows, recipe.likelihood, c)
        self._factors = recipe.rule.factors(recipe.likelihood, labels, c)
        self._prior: _Prior | None = None
        self._sweeps: SiteSweeps[Any] | None = None
        self._vector = self._new(np.zeros((2, *self._factors.shape)))
        self._past = False
        self._done = -1
        self._last = Sums((), lost=(number,))
        self._ends: dict[int, Array] = {}

    def _new(self, sites: Array) -> SiteVector:
        vector = SiteVector(sites, self._recipe.depth)
        vector.rest()
        return vector

    def act(self, number: int, task: Task) -> Sums:
        """Do the thing of this number."""
        if number == self._done:
            return self._last
        if number != self._done + 1 or self._sweeps is None:
            return Sums((), lost=(self.number,))
        with one_blas_thread(), np.errstate(all="ignore"):
            self._last = task(self)
        self._done = number
        return self._last

    def begin(self, number: int, what: Begin, posterior: Whitened | None = None) -> Sums:
        """Start with a prior. A part that was lost begins with the sites that the `posterior` implies."""
        self._prior = _Prior(self._recipe.blocks, what.point, what.z)
        self._sweeps, self._past = self._factors.sweeps(RowFeatures(self._prior, what.whitening), ALONE), False
        sites = np.zeros((2, *self._factors.shape))
        if what.start.size:
            sites[:] = self._start(what.start).reshape(sites.shape)
        self._vector = self._new(sites)
        with one_blas_thread(), np.errstate(all="ignore"):
            if posterior is not None:
                self._recover(posterior)
                self._vector.rest()
            self._done, self._last = number, self.natural()
        return self._last

    def _start(self, start: Array) -> Array:
        nearest, rest = int(start[0]), start[1:]
        numbers, weights = np.split(rest, 2)
        ends = [self._ends.get(int(number)) for number in numbers]
        if any(end is None for end in ends):
            return np.zeros(self._vector.sites.size)
        return sites_between(np.array(ends), weights, nearest)

    def _recover(self, posterior: Whitened) -> None:
        """At a fixed point a site is what the posterior without it implies: iterate to that, posterior held."""
        sites = self._vector.sites
        for _ in range(_ATTEMPTS):
            _, residual = self.sweeps.match(sites, posterior, None, self._vector.target, self._vector.scale)
            if not np.isfinite(residual):
                sites[:] = 0.0
                return
            sites[:] = self._vector.target
            if residual < _RECOVERED:
                return

    @property
    def sweeps(self) -> SiteSweeps[Any]:
        """Sweeps of the prior that the part began with."""
        assert self._sweeps is not None
        return self._sweeps

    def natural(self) -> Sums:
        """S and h."""
        return Sums(self.sweeps.natural(self._vector.sites))

    def over_blocks(self, work: Callable[[Any], tuple[Array, ...]]) -> Sums:
        """Results of a function on all blocks, added."""
        found = self.sweeps.over_blocks(self._vector.sites, work)
        return Sums(tuple(sum(column[1:], column[0]) for column in zip(*found, strict=True)))

    def match(self, posterior: Whitened, shift: CommonShift | None) -> Sums:
        """Where the sites are to go: what their points add to the evidence, squared norm, and the largest change."""
        vector = self._vector
        terms, residual = self.sweeps.match(vector.sites, posterior, shift, vector.target, vector.scale)
        return Sums((terms, vector.norm()), residual)

    def products(self, slot: int | None, used: int) -> Sums:
        """Keep the last change, if a place is given for it, and return inner products of those that are kept."""
        if slot is not None and self._past:
            self._vector.remember(slot)
        elif slot is not None:
            self._vector.forget(slot)
        return Sums(self._vector.products(used))

    def combine(self, gamma: Array, mixing: float, damping: float, interval: tuple[float, float]) -> Sums:
        """Take an accelerated step, and return S and h."""
        self._vector.combine(gamma, mixing, damping, interval)
        self._past = True
        return self.natural()

    def damp(self, damping: float) -> Sums:
        """Take a part of the residual, and return S and h."""
        self._vector.damp(damping)
        self._past = True
        return self.natural()

    def clear(self) -> Sums:
        """Make all sites 0, and return S and h."""
        self._vector.clear()
        return self.natural()

    def end(self, number: int) -> Sums:
        """Keep the sites under a number, and return S and h."""
        self._ends[number] = self._vector.sites.ravel().copy()
        for old in list(self._ends)[:-_KEPT]:
            del self._ends[old]
        return self.natural()

    def slopes(self, posterior: Whitened) -> Sums:
        """Derivatives in hyperparameters and inducing inputs, and what those in the prior covariance are made of."""
        assert self._prior is not None
        prior, total = self._prior, list[Array]()

        def pull(rows: slice, bars: Block) -> None:
            found = prior.slopes(rows, bars)
            total[:] = [a + b for a, b in zip(total, found, strict=True)] if total else found

        product = self.sweeps.pulled(self._vector.sites, posterior, pull)
        return Sums((*total, product))
