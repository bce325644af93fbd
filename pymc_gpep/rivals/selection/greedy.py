"""The posterior given active rows, and moments of many candidates, while rows are included one after another.

Let K_k be the prior covariance of function k at the active rows, and D_k the diagonal matrix of its site precisions.
Let A_k = I + D_k^½ K_k D_k^½ = L_k L_kᵀ. Each candidate j has a column m_k = L_k⁻¹ D_k^½ K_k,j, with one number for
each active row. The column of a new candidate is a matrix product with its prior covariances with the active rows.

`LiquidGrowth` moves the sites of the latest active rows by EP, before they are fixed (Seeger and Jordan 2004, appendix
D). The latent values f_L of these rows have sites exp(νᵀf − ½ fᵀΠf). Given the rows with fixed sites, f_L has the
covariance G and the mean h. Let C be the covariance of a candidate with f_L, Π = R Rᵀ and S = I + RᵀG R. The candidate
has the moments

    mean + C w,  w = (I − B G)(ν − Πh),  and covariance A − C B Cᵀ,  B = R S⁻¹Rᵀ          (32, 33).

where A is the covariance of the candidate given the rows with fixed sites. When the site of a row is fixed, G, h, C and
A are conditioned on this site. With `Reweighting`, the labels of these rows are less informative at first: a weight γ
multiplies the latent values of a row in its likelihood.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import FLOOR, CoupledSites, IndependentSites, SiteForm
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.rivals.kernels.active_rows import append_coupled
from pymc_gpep.rivals.selection.row_site_rules import (
    SCORES,
    DenseRows,
    Matched,
    Places,
    RowBlocks,
    RowSiteRule,
    SeenRows,
    Selection,
)


class Growth(ABC):
    """Posterior moments of p candidate rows given the active rows. At first no row is active.

    Parameters
    ----------
    n_functions : int
        Number c of functions.
    n_stubs : int
        Number of stored factors: 1 if all functions share the covariance and the site precisions; else c.
    capacity : int
        Largest number of active rows.
    candidates : int
        Number p of candidates.

    Attributes
    ----------
    size : int
        Number of active rows.
    mean : array (c, p)
    held : array (·,) of int
        Positions of candidates that may not be replaced, by default empty.
    """

    sites_class: ClassVar[type[CoupledSites | IndependentSites]]
    """Class of the sites of rows."""
    held: Places = np.empty(0, np.int64)

    def __init__(self, n_functions: int, n_stubs: int, capacity: int, candidates: int) -> None:
        self.size = 0
        self.n_functions = n_functions
        self._rows = np.zeros((n_stubs, capacity, capacity))  # B = L⁻¹ D^½
        self._stubs = np.zeros((n_stubs, capacity, candidates))
        self._weights = np.zeros((n_functions, capacity))  # β = L⁻¹ D^{-½} ν
        self._sites = np.zeros((2, n_functions, capacity))
        self.mean = np.zeros((n_functions, candidates))

    @property
    def sites(self) -> tuple[Array, Array]:
        """Site precisions and locations of the active rows, (c, size) each."""
        precision, location = self._sites[:, :, : self.size]
        return precision, location

    def finish(self) -> None:  # noqa: B027  # The default does nothing.
        """Make the sites of all active rows final. By default they are final already."""

    @abstractmethod
    def covariance(self, places: Places | slice = slice(None)) -> Array:
        """Return covariances (·, c, c) of the functions at the candidates `places`."""

    def between(self, place: int, column: Array, places: Places | slice = slice(None)) -> Array:
        """Return covariances (c, ·, c) of functions at candidate `place` with functions at candidates `places`.

        Parameters
        ----------
        place : int
        column : array (q, ·)
            Prior covariances of the candidates `places` with candidate `place`.
        places : array of int
            Positions of candidates; the default is all candidates.
        """
        size, every = self.size, np.arange(self.n_functions)
        known = np.matmul(self._stubs[:, None, :size, place], self._stubs[:, :size, places])[:, 0]
        found = np.zeros((len(every), column.shape[1], len(every)))
        found[every, :, every] = column - known
        return found

    def fill(self, places: Places, cross: Array, variance: Array, mean: Array) -> None:
        """Replace candidates by new candidates.

        Parameters
        ----------
        places : array (f,) of int
            Positions of the new candidates.
        cross : array (q, size, f)
            Prior covariances with the active rows, in order.
        variance : array (q, f)
            Prior variance.
        mean : array (c, f)
            Prior mean.
        """
        size, n_stubs = self.size, len(self._stubs)
        stubs = np.matmul(self._rows[:, :size, :size], np.broadcast_to(cross, (n_stubs, *cross.shape[1:])))
        self._stubs[:, :size, places] = stubs
        weights = self._weights[:, None, :size]
        self.mean[:, places] = mean + np.matmul(weights, np.broadcast_to(stubs, (len(weights), *stubs.shape[1:])))[:, 0]
        self._fill(places, stubs, variance - (stubs * stubs).sum(axis=1))

    @abstractmethod
    def _fill(self, places: Places, stubs: Array, variance: Array) -> None:
        """Write covariances, given columns m (·, size, f) in `stubs`, and variances (·, f) of uncoupled functions."""

    def include(self, place: int, column: Array, precision: Array, location: Array, prior_mean: Array) -> None:
        """Make a candidate active. The row remains a candidate, and its moments are still updated.

        Parameters
        ----------
        place : int
            Index of the candidate.
        column : array (q, p)
            Prior covariance of all candidates with this candidate.
        precision, location : array (c,)
            Precision and location of the candidate's site.
        prior_mean : array (c,)
        """
        size, n_stubs = self.size, len(self._stubs)
        self._sites[:, :, size] = precision, location
        site = self.sites_class(precision[:, None], location[:, None])
        pull = site.slope(prior_mean[:, None])[:, 0]
        root = np.sqrt(np.maximum(precision[:n_stubs], FLOOR))
        own = self._stubs[:, :size, place]
        column = np.broadcast_to(column, (n_stubs, column.shape[1]))
        known = np.matmul(own[:, None], self._stubs[:, :size])[:, 0]
        corner = np.sqrt(1.0 + root**2 * (column[:, place] - known[:, place]))
        stretch = root / corner
        new = stretch[:, None] * (column - known)
        rows = -stretch[:, None] * np.matmul(own[:, None], self._rows[:, :size, :size])[:, 0]
        seen = (np.broadcast_to(own, (self.n_functions, size)) * self._weights[:, :size]).sum(axis=1)
        new_weights = (pull / root - root * seen) / corner
        self._rows[:, size, :size], self._rows[:, size, size] = rows, stretch
        self._stubs[:, size] = new
        self._weights[:, size] = new_weights
        self._include(new, rows, stretch, new_weights)
        self.size += 1

    @abstractmethod
    def _include(self, new: Array, rows: Array, stretch: Array, new_weights: Array) -> None:
        """Update the moments and the low-rank factors B and β for one more active row."""


class IndependentGrowth(Growth):
    """Growth with sites that leave functions independent (Seeger and Jordan 2004, appendix B)."""

    sites_class = IndependentSites

    def __init__(self, n_functions: int, n_stubs: int, capacity: int, candidates: int) -> None:
        super().__init__(n_functions, n_stubs, capacity, candidates)
        self._variance = np.zeros((n_stubs, candidates))

    def covariance(self, places: Places | slice = slice(None)) -> Array:
        variance, every = np.broadcast_to(self._variance, self.mean.shape)[:, places].T, np.arange(self.n_functions)
        found = np.zeros((*variance.shape, self.n_functions))
        found[:, every, every] = variance
        return found

    def _fill(self, places: Places, stubs: Array, variance: Array) -> None:
        self._variance[:, places] = np.maximum(variance, 0.0)

    def _include(self, new: Array, rows: Array, stretch: Array, new_weights: Array) -> None:
        self.mean += new_weights[:, None] * new
        self._variance = np.maximum(self._variance - new * new, 0.0)


class CoupledGrowth(Growth):
    """Growth with sites that couple the functions of a row (Seeger and Jordan 2004, section 4.2)."""

    sites_class = CoupledSites

    def __init__(self, n_functions: int, n_stubs: int, capacity: int, candidates: int) -> None:
        super().__init__(n_functions, n_functions, capacity, candidates)
        self._lower = np.zeros((capacity, capacity))
        self._shared = np.zeros((n_functions, capacity, candidates))
        self._common = np.zeros(capacity)
        self._covariance = np.zeros((candidates, n_functions, n_functions))

    def between(self, place: int, column: Array, places: Places | slice = slice(None)) -> Array:
        own = self._shared[:, : self.size, place]
        return super().between(place, column, places) + np.einsum(
            "al,elj->aje", own, self._shared[:, : self.size, places], optimize=True
        )

    def covariance(self, places: Places | slice = slice(None)) -> Array:
        return self._covariance[places]

    def _fill(self, places: Places, stubs: Array, variance: Array) -> None:
        size, c = self.size, self.n_functions
        every = range(c)
        cov = np.zeros((len(places), c, c))
        if size:
            back = np.matmul(self._rows[:, :size, :size].swapaxes(1, 2), stubs)
            flat = back.swapaxes(0, 1).reshape(size, -1)
            lower = self._lower[:size, :size]
            shared = solve_triangular(lower, flat, lower=True, check_finite=False).reshape(size, c, -1).swapaxes(0, 1)
            self._shared[:, :size, places] = shared
            self.mean[:, places] -= np.matmul(self._common[:size], shared)
            cov = np.einsum("alj,elj->jae", shared, shared, optimize=True)
        cov[:, every, every] += variance.T
        self._covariance[places] = cov

    def _include(self, new: Array, rows: Array, stretch: Array, new_weights: Array) -> None:
        # Two terms of the variance would cancel and are omitted: the rotation of m, and mᵀm.
        append_coupled(
            self.size, self._lower, self._common, self._shared, new, rows.copy(), stretch, new_weights, self.mean,
            self._covariance,
        )  # fmt: skip


_STEP = 0.8  # Step size towards matched sites. It is below 1, since all sites in the moving window move at once.
_ROUNDING = 1e-10  # An eigenvalue below this fraction of the largest counts as zero.

# Largest number of updates after weights are set to 1, and largest change that counts as converged.
_LAST, _STILL = 100, 1e-4

type Match = Callable[[Places, Array, Array, Array], Matched]


class Reweighting(NamedTuple):
    """Weights of rows in the moving window, which rise to 1 (Seeger and Jordan 2004, appendix D.5)."""

    first: float
    """γ₀, in (0, 1]: weight of the first active row when it is included."""
    rate: float
    """α₀, in (0, 1): the weight of the latest of d rows is 1 − (1 − γ₀) exp(−α₀ (d − 1))."""
    rows: int
    """L₀: number of rows with a weight below 1. It is less than the size of the moving window."""

    def __call__(self, moving: int, active: int) -> Array:
        """Return the weights of the moving rows, oldest first, for a number of active rows."""
        latest = 1.0 - (1.0 - self.first) * np.exp(-self.rate * (active - 1))
        return np.minimum(1.0, latest + (1.0 - latest) / self.rows * np.arange(moving)[::-1])


EVEN = Reweighting(1.0, 0.5, 1)
"""All weights are 1."""


class LiquidGrowth:
    """Growth in which EP still updates the sites of the latest active rows, the moving window. See `Growth`.

    Parameters
    ----------
    frozen : Growth
        Growth by the rows whose sites are fixed.
    match : callable
        Function of positions of candidates, means (c, ·), covariances (·, c, c) and weights (·,) that returns sites.
    from_cavity : bool
        Whether `match` needs the moments of a row without the site of the row.
    n_covariances : int
        Number of covariances, q.
    liquid : int
        Largest number of rows in the moving window.
    passes : int
        Number of updates of the sites in the moving window after each inclusion.
    weights : Reweighting
        Weights of the rows in the moving window.

    Attributes
    ----------
    held : array (k,) of int
        Positions of the rows in the moving window, oldest first.
    """

    def __init__(
        self,
        frozen: Growth,
        match: Match,
        from_cavity: bool,
        n_covariances: int,
        liquid: int,
        passes: int,
        weights: Reweighting = EVEN,
    ) -> None:
        c, p = frozen.mean.shape
        self._frozen = frozen
        self._match = match
        self._from_cavity = from_cavity
        self._passes = passes
        self._reweighting = weights
        self.held: Places = np.empty(0, np.int64)
        self._columns = np.empty((liquid, n_covariances, p))
        self._cross = np.empty((liquid, c, p, c))  # Covariances with candidates, given the rows with fixed sites.
        self._prior_mean = np.empty((c, liquid))
        self._own = np.empty((2, c, liquid))  # Precisions and locations of sites.
        self._weights = np.empty(0)  # w
        self._gain = np.empty((0, 0))  # L⁻¹Rᵀ, S = L Lᵀ

    @property
    def sites(self) -> tuple[Array, Array]:
        """Site precisions and locations of the active rows, (c, size) each."""
        frozen, own = self._frozen.sites, self._own[:, :, : len(self.held)]
        return np.concatenate([frozen[0], own[0]], axis=1), np.concatenate([frozen[1], own[1]], axis=1)

    @property
    def mean(self) -> Array:
        """Return the posterior means of the candidates, (c, p)."""
        c, p = self._frozen.mean.shape
        moved = self._weights @ self._cross[: len(self.held)].reshape(len(self._weights), p * c)
        return np.asarray(self._frozen.mean + moved.reshape(p, c).T)

    def covariance(self, places: Places | slice = slice(None)) -> Array:
        """Return covariances (·, c, c) of the functions at the candidates `places`."""
        found = self._frozen.covariance(places).copy()
        f, c, _ = found.shape
        cross = self._cross[: len(self.held)][:, :, places]
        seen = (self._gain @ cross.reshape(len(self._gain), f * c)).reshape(-1, f, c)
        found -= np.matmul(seen.transpose(1, 2, 0), seen.transpose(1, 0, 2))
        every = range(c)
        found[:, every, every] = np.maximum(found[:, every, every], 0.0)
        return found

    def fill(self, places: Places, cross: Array, variance: Array, mean: Array) -> None:
        """Replace candidates by new candidates, see `Growth`. `places` may not include `held`."""
        size = self._frozen.size
        self._frozen.fill(places, cross[:, :size], variance, mean)
        for at, place in enumerate(self.held):
            column = cross[:, size + at]
            self._columns[at][:, places] = column
            self._cross[at][:, places] = self._frozen.between(place, column, places)

    def include(self, place: int, column: Array, precision: Array, location: Array, prior_mean: Array) -> None:
        """Make a candidate active, see `Growth`. If the moving window is full, the site of its oldest row is fixed."""
        if len(self.held) == len(self._cross):
            self._freeze()
        at = len(self.held)
        self._columns[at], self._cross[at] = column, self._frozen.between(place, column)
        self._prior_mean[:, at] = prior_mean
        self._own[:, :, at] = precision, location
        self.held = np.append(self.held, place)
        self._update()
        self.settle(self._passes)

    def settle(self, passes: int) -> float:
        """Update all sites in the moving window `passes` times. Return the largest step of the last update."""
        moved = np.inf
        for _ in range(passes):
            moved = self._move()
            self._update()
        return moved

    def finish(self) -> None:
        """Set all weights to 1, see `Growth`, and update the sites until convergence."""
        if self._reweighting != EVEN:
            self._reweighting = EVEN
            for _ in range(_LAST):
                if self.settle(1) < _STILL:
                    break

    def _update(self) -> None:
        """Compute L⁻¹Rᵀ with S = L Lᵀ, and the weights w, from the sites in the moving window."""
        k, c = len(self.held), self._frozen.n_functions
        roots = np.zeros((k, c, k, c))
        precision, location = self._own[:, :, :k]
        roots[range(k), :, range(k)] = self._frozen.sites_class(precision, location).roots
        root = roots.reshape(k * c, k * c)
        prior = self._cross[:k][:, :, self.held].reshape(k * c, k * c)
        stretch = root.T @ prior @ root
        stretch.flat[:: k * c + 1] += 1.0
        self._gain = solve_triangular(np.linalg.cholesky(stretch), root.T, lower=True, check_finite=False)
        pull = location.T.ravel() - root @ (root.T @ self._frozen.mean[:, self.held].T.ravel())
        self._weights = pull - self._gain.T @ (self._gain @ (prior @ pull))

    def _move(self) -> float:
        """Take a damped step to the matched sites. Return the largest step, in units of marginals."""
        k, c = len(self.held), self._frozen.n_functions
        precision, location = self._own[:, :, :k]
        mean, cov = self.mean[:, self.held], self.covariance(self.held)
        good = np.ones(k, bool)
        without, spread = mean, cov
        if self._from_cavity:
            roots = self._frozen.sites_class(precision, location).roots
            inner = np.eye(c) - cov @ roots @ roots.swapaxes(1, 2)
            right = np.concatenate([(mean.T - np.einsum("kae,ek->ka", cov, location))[:, :, None], cov], axis=2)
            try:
                found = np.linalg.solve(inner, right)
            except np.linalg.LinAlgError:
                return 0.0
            without, spread = found[:, :, 0].T, 0.5 * (found[:, :, 1:] + found[:, :, 1:].swapaxes(1, 2))
            good = np.isfinite(found).all(axis=(1, 2))
            values = np.linalg.eigvalsh(np.where(good[:, None, None], spread, 0.0))
            good &= values[:, 0] > -_ROUNDING * values[:, -1]
            good &= values[:, -1] > 0.0
        places = np.flatnonzero(good)
        if not len(places):
            return 0.0
        weights = self._reweighting(k, self._frozen.size + k)[places]
        target = np.stack(self._match(self.held[places], without[:, places], spread[places], weights))
        target = np.where(np.isfinite(target).all(axis=(0, 1)), target, self._own[:, :, places])
        step = _STEP * (target - self._own[:, :, places])
        self._own[:, :, places] += step
        variance = cov[places].diagonal(axis1=1, axis2=2).T
        return float(max(np.abs(step[0] * variance).max(), np.abs(step[1] * np.sqrt(variance)).max()))

    def _freeze(self) -> None:
        """Fix the site of the oldest row in the moving window."""
        k, place = len(self.held), int(self.held[0])
        precision, location = self._own[:, :, 0].copy()
        root = self._frozen.sites_class(precision[:, None], location[:, None]).roots[0]
        first = self._cross[0].copy()
        own = first[:, place]
        gain = root @ np.linalg.solve(np.eye(len(root)) + root.T @ own @ root, root.T)
        told = self._cross[1:k, :, place] @ gain
        self._cross[: k - 1] = self._cross[1:k] - np.tensordot(told, first, axes=1)
        self._frozen.include(place, self._columns[0].copy(), precision, location, self._prior_mean[:, 0].copy())
        self._columns[: k - 1] = self._columns[1:k]
        self._prior_mean[:, : k - 1] = self._prior_mean[:, 1:k]
        self._own[:, :, : k - 1] = self._own[:, :, 1:k]
        self.held = self.held[1:]


_DENSE = 4_000_000  # Largest covariance of all rows that is computed at once (32 MB).
_FIRST = 3  # Largest number of first rows. They are of different classes, and chosen without scores.


@dataclass
class Candidates:
    """Candidate rows with their posterior moments given the active rows.

    With the rule `separate`, each function chooses rows independently (Seeger and Jordan 2004, section 6). The score of
    a row is the information from a site on the function's latent value. The site itself comes from the tilted
    distribution of all functions of the row. Active rows are then the union over functions, in order of first choice.

    Parameters
    ----------
    prior : RowPrior
    labels : array (n,)
    likelihood : Likelihood
    rule : RowSiteRule
    capacity : int
        Largest number of active rows. A `separate` rule applies it to each function.
    rows : array (p,) of int
        Initial candidates.
    liquid : int
        Size of the moving window: number of latest active rows whose sites are still updated.
    passes : int
        Number of updates of the sites in the moving window after each inclusion.
    weights : Reweighting
        Weights of the rows in the moving window.

    Attributes
    ----------
    waiting : array (g, p) of bool
        Mask of candidates that can still be chosen, for each group of functions that choose rows together.
    """

    prior: RowBlocks
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
        self._wants = np.zeros(p, np.int64)  # Group with the best score, for each candidate.
        self._position: dict[int, int] = {}  # Active row → its position in the order of choice.
        self._scores: list[float] = []
        self._chosen: list[list[int]] = [[] for _ in self._groups]  # Positions of the active rows of each group.
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
        """Rows that cannot be chosen: they have a site of every group with room for more sites."""
        left = [self._active[own] for own, room in zip(self._chosen, self._room, strict=True) if room]
        return reduce(np.intersect1d, left) if left else self._active

    @property
    def _active(self) -> Places:
        return np.array(list(self._position), np.int64)

    @property
    def _room(self) -> NDArray[np.bool_]:
        """Mask (g,) of groups with room for more sites."""
        return np.array([len(own) < self.capacity for own in self._chosen])

    @property
    def full(self) -> bool:
        """Whether the number of active rows has reached its limit."""
        return not self._room.any()

    @property
    def held(self) -> Places:
        """Positions of candidates that may not be replaced."""
        return np.concatenate([growth.held for growth in self.growths])

    def _covariances(self, group: slice) -> slice:
        """Return the slice of the prior's covariances that the functions of a group use."""
        return slice(0, 1) if self.prior.n_covariances == 1 else group

    def include_first(self, count: int) -> Self:
        """Make the first candidates active, in order."""
        for place in range(count):
            self.include(place)
        return self

    def replace(self, places: Places, rows: Places) -> None:
        """Replace some candidates by other rows."""
        self.rows[places] = rows
        active = self._active
        block = self.prior.block(active, rows)
        self._prior_mean[:, places] = block.mean
        for k, (group, growth, chosen) in enumerate(zip(self._groups, self.growths, self._chosen, strict=True)):
            own = self._covariances(group)
            growth.fill(places, block.cross[own][:, chosen], block.variance[own], block.mean[group])
            self.waiting[k, places] = ~np.isin(rows, active[chosen])

    def moments(self, places: Places) -> tuple[Array, Array]:
        """Return means (c, ·) and covariances (·, c, c) of the latent values at the candidates `places`."""
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
        """Return sites of candidates from moments of latent values and their weights in the likelihood."""
        found = self.rule.match(self._seen(places, weights * mean, weights[:, None, None] ** 2 * cov))
        return Matched(weights**2 * found.precision, weights * found.location)

    def scores(self, name: str) -> tuple[Places, Array]:
        """Return positions of candidates, and the highest score of each candidate over groups of functions.

        With the rule `separate`, candidates without information are left out, as in the paper.
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
        """Add the site of a candidate, for the group with the best score, or for all groups without scores."""
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
        """Finish the growth after the last choice, so that the sites of all active rows are final."""
        for growth in self.growths:
            growth.finish()
        return self

    @property
    def selection(self) -> Selection:
        """Active rows and their sites. Sites are zero where a function has no site."""
        sites = np.zeros((2, self.prior.n_functions, len(self._scores)))
        for group, growth, chosen in zip(self._groups, self.growths, self._chosen, strict=True):
            sites[:, group, chosen] = growth.sites
        return Selection(self._active, np.array(self._scores), *sites)


def choose_rows(
    prior: RowBlocks,
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
    """Return active rows, chosen one after another by the best score.

    Parameters
    ----------
    prior, labels, likelihood, rule, liquid, passes, weights
        See `Candidates`.
    active : int
        Number of active rows, d ≤ n. With a `separate` rule, each function has d active rows.
    criterion : str
        Name of a score in `SCORES`.
    pool : int
        Number of candidates that are scored for each inclusion. If it is below the number of rows, the share `retained`
        with the best scores remains, and new candidates replace the rest.
    retained : float
    rng : np.random.Generator
    """
    n = prior.n_points
    order = rng.permutation(n)
    first = order[np.sort(np.unique(labels[order], return_index=True)[1])][: min(_FIRST, active)]
    others = order[~np.isin(order, first)]
    moving = liquid if liquid > 1 else 0  # Number of candidates that are active rows without a score.
    size = min(max(pool, len(first) + 1) + moving, n)  # Score at least one row in addition to the first rows.
    if size == n and prior.n_covariances * n * n <= _DENSE:
        prior = DenseRows.of(prior)
    rows = np.concatenate([first, others])[:size]
    candidates = Candidates(prior, labels, likelihood, rule, active, rows, liquid, passes, weights)
    candidates.include_first(len(first))
    keep = int(retained * (size - moving))
    while not candidates.full:
        places, scores = candidates.scores(criterion)
        if not len(places):  # No remaining candidate has information.
            break
        scores = np.where(np.isfinite(scores), scores, -np.inf)
        best = int(scores.argmax())
        candidates.include(int(places[best]), float(scores[best]))
        if size < n:
            _refresh(candidates, places[np.argsort(-scores, kind="stable")][1 : 1 + keep], n, rng)
    return candidates.finish().selection


def _refresh(candidates: Candidates, kept: Places, n: int, rng: np.random.Generator) -> None:
    """Replace the candidates outside `kept` by new rows."""
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
