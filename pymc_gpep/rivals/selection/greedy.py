"""Greedy choice of active rows: score candidates, include the best, update the others (Seeger and Jordan 2004)."""

from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.selection.growth import EVEN, CoupledGrowth, Growth, IndependentGrowth, LiquidGrowth, Reweighting
from pymc_gpep.rivals.selection.row_site_rules import (
    SCORES,
    DenseRows,
    Matched,
    Places,
    PriorBlocks,
    RowSiteRule,
    SeenRows,
    Selection,
)

_DENSE = 4_000_000  # numbers in the covariance of all rows, which is had at once where all are candidates: 32 MB
_FIRST = 3  # rows of different classes to begin with, before scores say anything


@dataclass
class Candidates:
    """Some of the rows, which know what the active ones say of them.

    Where the rule is `separate`, each function chooses rows as if it were the only one (Seeger and Jordan 2004,
    section 6). It goes by what a site on its own latent value would tell. The site itself comes from the tilted
    distribution of all functions of the row. The active rows are then the union, in the order of their first choice.

    Parameters
    ----------
    prior : RowPrior
    labels : array (n,)
    likelihood : Likelihood
    rule : RowSiteRule
    capacity : int
        Most active rows; of each function where these choose rows of their own.
    rows : array (p,) of int
        The candidates to begin with.
    liquid : int
        Active rows, the latest ones, whose sites move until later ones take their turn.
    passes : int
        Times that they move after each inclusion.
    weights : Reweighting
        Weights of their likelihood meanwhile.

    Attributes
    ----------
    waiting : array (g, p) of bool
        Whether a row may get a site, and has none yet, for each group of functions that choose rows together.
    """

    prior: PriorBlocks
    labels: NDArray[np.int64]
    likelihood: Likelihood
    rule: RowSiteRule
    capacity: int
    rows: Places
    liquid: int = 1
    passes: int = 0
    weights: Reweighting = EVEN

    def __post_init__(self) -> None:
        c, p = self.prior.n_functions, len(self.rows)
        self.rows = self.rows.copy()
        self._groups = [slice(k, k + 1) for k in range(c)] if self.rule.separate else [slice(0, c)]
        self.growths = [self._growth(group.stop - group.start) for group in self._groups]
        self.waiting = np.ones((len(self._groups), p), bool)
        self._prior_mean: Array = np.empty((c, p))
        self._wants = np.zeros(p, np.int64)  # group whose site on a candidate scores best
        self._position: dict[int, int] = {}  # of each active row, in their order
        self._scores: list[float] = []
        self._chosen: list[list[int]] = [[] for _ in self._groups]  # positions of the rows of each group
        self.replace(np.arange(p), self.rows)

    def _growth(self, c: int) -> Growth | LiquidGrowth:
        kind: type[Growth] = CoupledGrowth if self.rule.form is SiteForm.COUPLED else IndependentGrowth
        stubs = 1 if self.rule.shares and self.prior.n_covariances == 1 else c
        growth = kind(c, stubs, self.capacity, len(self.rows))
        if self.liquid == 1:
            return growth
        q = self.prior.n_covariances
        return LiquidGrowth(growth, self._match, self.rule.from_cavity, q, self.liquid, self.passes, self.weights)

    @property
    def taken(self) -> Places:
        """The rows that cannot be chosen any more: each group that may have more sites has one on them."""
        left = [self._active[own] for own, room in zip(self._chosen, self._room, strict=True) if room]
        return reduce(np.intersect1d, left) if left else self._active

    @property
    def _active(self) -> Places:
        return np.array(list(self._position), np.int64)

    @property
    def _room(self) -> NDArray[np.bool_]:
        """Whether a group may have more sites, (g,)."""
        return np.array([len(own) < self.capacity for own in self._chosen])

    @property
    def full(self) -> bool:
        """Whether there are as many active rows as there may be."""
        return not self._room.any()

    @property
    def held(self) -> Places:
        """Places of candidates that must stay."""
        return np.concatenate([growth.held for growth in self.growths])

    def _covariances(self, group: slice) -> slice:
        """Covariances of the functions of a group, among those of the prior."""
        return slice(0, 1) if self.prior.n_covariances == 1 else group

    def include_first(self, count: int) -> Self:
        """Make the first candidates active, in their order."""
        for place in range(count):
            self.include(place)
        return self

    def replace(self, places: Places, rows: Places) -> None:
        """Put other rows in some places."""
        self.rows[places] = rows
        active = self._active
        block = self.prior.block(active, rows)
        self._prior_mean[:, places] = block.mean
        for k, (group, growth, chosen) in enumerate(zip(self._groups, self.growths, self._chosen, strict=True)):
            own = self._covariances(group)
            growth.fill(places, block.cross[own][:, chosen], block.variance[own], block.mean[group])
            self.waiting[k, places] = ~np.isin(rows, active[chosen])

    def moments(self, places: Places) -> tuple[Array, Array]:
        """Means (c, ·) and covariances (·, c, c) of some candidates."""
        c = self.prior.n_functions
        mean, cov = np.empty((c, len(places))), np.zeros((len(places), c, c))
        for group, growth in zip(self._groups, self.growths, strict=True):
            mean[group], cov[:, group, group] = growth.mean[:, places], growth.covariance(places)
        return mean, cov

    def _seen(self, places: Places, mean: Array, cov: Array) -> SeenRows:
        rows = self.rows[places]
        moments = np.ascontiguousarray(mean), np.ascontiguousarray(cov)
        return SeenRows(self.likelihood.at(rows), self.labels[rows], *moments)

    def _match(self, places: Places, mean: Array, cov: Array, weights: Array) -> Matched:
        """Sites of some candidates, whose likelihood has their latent values times a weight."""
        found = self.rule.match(self._seen(places, weights * mean, weights[:, None, None] ** 2 * cov))
        return Matched(weights**2 * found.precision, weights * found.location)

    def scores(self, name: str) -> tuple[Places, Array]:
        """Places where some group may have a site, and the highest of the scores of these sites.

        Separate sites that tell nothing are left out, as in the paper.
        """
        waiting = self.waiting & self._room[:, None]
        places = np.flatnonzero(waiting.any(axis=0))
        found = np.atleast_2d(SCORES[name](self.rule, self._seen(places, *self.moments(places))))
        if self.rule.separate:
            found = np.where(waiting[:, places] & (found > 0.0), found, -np.inf)
            told = np.isfinite(found).any(axis=0)
            places, found = places[told], found[:, told]
        self._wants[places] = found.argmax(axis=0)
        return places, found.max(axis=0)

    def include(self, place: int, score: float = np.nan) -> None:
        """Give a candidate its site for the group that scored best, or for all where there was no score."""
        row, own = int(self.rows[place]), np.array([place])
        site = self._match(own, *self.moments(own), self.weights(1, len(self._position) + 1))
        column = self.prior.block(self.rows[own], self.rows).cross[:, 0]
        at = self._position.setdefault(row, len(self._position))
        if at == len(self._scores):
            self._scores.append(score)
        for k in range(len(self._groups)) if np.isnan(score) else [int(self._wants[place])]:
            group = self._groups[k]
            told = site.precision[group, 0], site.location[group, 0], self._prior_mean[group, place]
            self.growths[k].include(place, column[self._covariances(group)], *told)
            self._chosen[k].append(at)
            self.waiting[k, place] = False

    def finish(self) -> Self:
        """Let all active rows say what they say, once there are no more to choose."""
        for growth in self.growths:
            growth.finish()
        return self

    @property
    def selection(self) -> Selection:
        """The active rows and their sites: zero where a function has none."""
        sites = np.zeros((2, self.prior.n_functions, len(self._scores)))
        for group, growth, chosen in zip(self._groups, self.growths, self._chosen, strict=True):
            sites[:, group, chosen] = growth.sites
        return Selection(self._active, np.array(self._scores), *sites)


def choose_rows(
    prior: PriorBlocks,
    labels: NDArray[np.int64],
    likelihood: Likelihood,
    rule: RowSiteRule,
    *,
    active: int,
    criterion: str,
    pool: int,
    retained: float,
    rng: np.random.Generator,
    liquid: int = 1,
    passes: int = 0,
    weights: Reweighting = EVEN,
) -> Selection:
    """Choose rows by their scores.

    Parameters
    ----------
    prior, labels, likelihood, rule, liquid, passes, weights
        See `Candidates`.
    active : int
        Number of active rows, d ≤ n; of each function where the rule is `separate`.
    criterion : str
        Name of a score, one of `SCORES`.
    pool : int
        Candidates that are scored at each inclusion. With fewer than all rows the part `retained` of them, those that
        score best, stay, and others are drawn in place of the rest.
    retained : float
    rng : np.random.Generator
    """
    n = prior.n_points
    order = rng.permutation(n)
    first = order[np.sort(np.unique(labels[order], return_index=True)[1])][: min(_FIRST, active)]
    others = order[~np.isin(order, first)]
    moving = liquid if liquid > 1 else 0  # rows that stay among the candidates and are not scored
    size = min(max(pool, len(first) + 1) + moving, n)  # one at least besides the first, which are not scored
    if size == n and prior.n_covariances * n * n <= _DENSE:
        prior = DenseRows.of(prior)
    rows = np.concatenate([first, others])[:size]
    candidates = Candidates(prior, labels, likelihood, rule, active, rows, liquid, passes, weights)
    candidates.include_first(len(first))
    keep = int(retained * (size - moving))
    while not candidates.full:
        places, scores = candidates.scores(criterion)
        if not len(places):  # no row would tell anything
            break
        scores = np.where(np.isfinite(scores), scores, -np.inf)
        best = int(scores.argmax())
        candidates.include(int(places[best]), float(scores[best]))
        if size < n:
            _refresh(candidates, places[np.argsort(-scores, kind="stable")][1 : 1 + keep], n, rng)
    return candidates.finish().selection


def _refresh(candidates: Candidates, kept: Places, n: int, rng: np.random.Generator) -> None:
    """Draw other rows in place of all that are not kept."""
    stays = np.zeros(len(candidates.rows), bool)
    stays[kept] = True
    stays[candidates.held] = True
    free = np.ones(n, bool)
    free[candidates.taken] = False
    free[candidates.rows[stays]] = False
    available = np.flatnonzero(free)
    places = np.flatnonzero(~stays)
    count = min(len(places), len(available))
    if count:
        candidates.replace(places[:count], rng.choice(available, count, replace=False))
    candidates.waiting[:, places[count:]] = False
