"""Greedy choice of active rows: score candidates, include the best, let all others know (Seeger and Jordan 2004)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.selection.growth import CoupledGrowth, Growth, IndependentGrowth
from pymc_gpep.approximations.selection.liquid import LiquidGrowth
from pymc_gpep.approximations.selection.scores import SCORES
from pymc_gpep.approximations.selection.selection import DenseRows, Places, RowPrior, Selection
from pymc_gpep.approximations.selection.separate import SeparateCandidates
from pymc_gpep.approximations.selection.site_rules.row_site_rule import Matched, RowSiteRule
from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood

__all__ = ["Candidates", "choose_rows", "include_rows"]

_DENSE = 4_000_000  # numbers in the covariance of all rows, which is had at once where all are candidates: 32 MB
_FIRST = 3  # rows of different classes to begin with, before scores say anything


@dataclass
class Candidates:
    """Some of the rows, which know what the active ones say of them.

    Parameters
    ----------
    prior : RowPrior
    labels : array (n,)
    likelihood : Likelihood
    rule : RowSiteRule
    capacity : int
        Most active rows.
    rows : array (p,) of int
        The candidates to begin with.
    liquid : int
        Active rows, the latest ones, whose sites move until later ones take their turn.
    passes : int
        Times that they move after each inclusion.
    """

    prior: RowPrior
    labels: NDArray[np.int64]
    likelihood: Likelihood
    rule: RowSiteRule
    capacity: int
    rows: Places
    liquid: int = 1
    passes: int = 0

    def __post_init__(self) -> None:
        c = self.prior.n_functions
        self.rows = self.rows.copy()
        self.prior_mean: Array = np.empty((c, len(self.rows)))
        self.waiting = np.ones(len(self.rows), bool)
        kind: type[Growth] = CoupledGrowth if self.rule.form is SiteForm.COUPLED else IndependentGrowth
        stubs = 1 if self.rule.shares and self.prior.n_covariances == 1 else c
        self.growth: Growth | LiquidGrowth = kind(c, stubs, self.capacity, len(self.rows))
        if self.liquid > 1:
            self.growth = LiquidGrowth(
                self.growth, self._match, self.rule.from_cavity, self.prior.n_covariances, self.liquid, self.passes
            )
        self.active = np.empty(0, np.int64)
        self._scores: list[float] = []
        self.replace(np.arange(len(self.rows)), self.rows)

    def replace(self, places: Places, rows: Places) -> None:
        """Put other rows in some places."""
        self.rows[places] = rows
        block = self.prior.block(self.active, rows)
        self.prior_mean[:, places] = block.mean
        self.growth.fill(places, block.cross, block.variance, block.mean)
        self.waiting[places] = True

    def scores(self, name: str) -> tuple[Places, Array]:
        """Places of all that are not active, and their scores."""
        places = np.flatnonzero(self.waiting)
        growth, labels = self.growth, self.labels[self.rows[places]]
        found = SCORES[name](
            self.rule, self.likelihood.at(self.rows[places]), labels, growth.mean[:, places], growth.covariance(places)
        )
        return places, found

    def _match(self, places: Places, mean: Array, cov: Array) -> Matched:
        """Sites of some candidates."""
        rows = self.rows[places]
        return self.rule.match(self.likelihood.at(rows), self.labels[rows], mean, cov)

    def include(self, place: int, score: float = np.nan) -> None:
        """Make a candidate active."""
        growth, row = self.growth, self.rows[place : place + 1]
        own = np.array([place])
        site = self._match(own, growth.mean[:, own], growth.covariance(own))
        column = self.prior.block(row, self.rows).cross[:, 0]
        growth.include(place, column, site.precision[:, 0], site.location[:, 0], self.prior_mean[:, place])
        self.active = np.append(self.active, row)
        self.waiting[place] = False
        self._scores.append(score)

    @property
    def full(self) -> bool:
        """Whether there are as many active rows as there may be."""
        return len(self.active) == self.capacity

    @property
    def taken(self) -> Places:
        """The rows that cannot be chosen any more."""
        return self.active

    @property
    def held(self) -> Places:
        """Places of candidates that must stay."""
        return self.growth.held

    @property
    def selection(self) -> Selection:
        """The active rows and their sites."""
        return Selection(self.active, np.array(self._scores), *self.growth.sites)


def include_rows(
    prior: RowPrior,
    labels: NDArray[np.int64],
    likelihood: Likelihood,
    rule: RowSiteRule,
    rows: Places,
    liquid: int = 1,
    passes: int = 0,
) -> Candidates:
    """Include rows in a given order."""
    candidates = Candidates(prior, labels, likelihood, rule, len(rows), rows, liquid, passes)
    for place in range(len(rows)):
        candidates.include(place)
    return candidates


def choose_rows(
    prior: RowPrior,
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
) -> Selection:
    """Choose rows by their scores.

    Parameters
    ----------
    prior : RowPrior
    labels : array (n,)
    likelihood : Likelihood
    rule : RowSiteRule
    active : int
        Number of active rows, d ≤ n; of each function where the rule is `separate`.
    criterion : str
        Name of a score, one of `SCORES`.
    pool : int
        Candidates that are scored at each inclusion. With fewer than all rows the part `retained` of them, those that
        score best, stay, and others are drawn in place of the rest.
    retained : float
    rng : np.random.Generator
    liquid, passes : int
        Of `Candidates`.
    """
    n = prior.n_points
    order = rng.permutation(n)
    first = order[np.sort(np.unique(labels[order], return_index=True)[1])][: min(_FIRST, active)]
    others = order[~np.isin(order, first)]
    moving = liquid if liquid > 1 else 0  # rows that stay among the candidates and are not scored
    size = min(max(pool, len(first), 2) + moving, n)
    if size == n and prior.n_covariances * n * n <= _DENSE:
        prior = DenseRows.of(prior)
    rows = np.concatenate([first, others])[:size]
    candidates: Candidates | SeparateCandidates
    if rule.separate:
        candidates = SeparateCandidates(prior, labels, likelihood, rule, active, rows)
    else:
        candidates = Candidates(prior, labels, likelihood, rule, active, rows, liquid, passes)
    for place in range(len(first)):
        candidates.include(place)
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
    return candidates.selection


def _refresh(candidates: Candidates | SeparateCandidates, kept: Places, n: int, rng: np.random.Generator) -> None:
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
    candidates.waiting[..., places[count:]] = False
