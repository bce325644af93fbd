"""Base classes of sweeps over sites with inducing inputs, and of sweeps over scalar sites.

Kinds of sites are subclasses; scalar and coupled sites are in `pymc_gpep.solvers.sparse_ep`. The information of rows on
the inducing values is a sum over rows, and so are the rows' terms of the evidence. A single process can compute the
sums, or many processes with a part of the rows each.

A point has d scalar sites exp(ν x_k − ½ t x_k²), each on the projection x_k = wᵀv_k of one function. The whitened
inducing values v_k have the posterior N(μ, Σ). Here Σ = (I + S)⁻¹, μ = Σ h, S = Σ t w wᵀ and h = Σ ν w. The sites of a
point depend only on the c means and variances of its x_k (Villacampa-Calvo and Hernández-Lobato 2017, in whitened
coordinates). Rows are read in blocks, and only sites are stored between sweeps.

Derivatives are at fixed sites as natural parameters of v, whose prior N(0, I) has no hyperparameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.common_shift import CommonShift, SiteSums, own_features_shift, shared_features_shift
from pymc_gpep.solvers.inducing import Block, Features, RowFeatures
from pymc_gpep.solvers.team import ALONE, Team
from pymc_gpep.solvers.whitened_posterior import (
    Whitened,
    WhitenedPosterior,
    lower_product,
    squared_columns,
    weighted_gram,
    whitened_posterior,
)

_PART = 1024  # Smallest number of rows in a part for a thread.
_PARTS = 8  # Largest number of parts of a block.


class LeftOut(NamedTuple):
    """Leave-one-out moments of latent values: each of B points given the sites of all other points."""

    rows: slice
    mean: Array
    """Leave-one-out means, (B, c)."""
    cov: Array
    """Leave-one-out covariances, (B, c, c)."""
    log_density: Array | None = None
    """Log densities (B,) of the labels given all other points. NaN if they must be computed from the moments."""


class Bars(NamedTuple):
    """Derivatives with respect to the prior moments of a block of rows."""

    rows: slice
    block: Block
    product: Array
    """W̄ Wᵀ (q, M, M). The argument of `InducingWhitening.pull_factor` is the sum over all rows."""


class SiteSweeps[B, P: Whitened](ABC):
    """Sweeps over sites for one prior, with blocks of type B and posteriors of type P.

    Parameters
    ----------
    features : RowFeatures
    team : Team
        Threads for the sweeps. Results do not depend on their number.
    """

    least: float = 0.0
    _taken: tuple[P, CommonShift | None]

    def __init__(self, features: RowFeatures, team: Team = ALONE) -> None:
        self._features = features
        self._team = team
        self._owner = features.owner
        self._shared = max(self._owner) == 0

    @abstractmethod
    def _block(self, rows: slice, features: Features, sites: Array) -> B:
        """Return a block of rows with their features and sites, from sites (2, n, d)."""

    @abstractmethod
    def _sums(self, block: B) -> tuple[Array, Array]:
        """Return the sums S = Σ t w wᵀ and h = Σ ν w over the sites of a block."""

    @abstractmethod
    def implied(self, precision: Array, location: Array) -> P:
        """Return the posterior of the whitened inducing values for S and h.

        Raises
        ------
        LinAlgError
            If its precision has no Cholesky factor, or is not finite.
        """

    def shifted(
        self, precision: Array, location: Array, each: Callable[[Callable[[B], Any]], Iterable[Any]]
    ) -> tuple[P, CommonShift | None]:
        """Return the posterior for the next sweep, and the shift of the sites of each row (None without a shift).

        `precision` and `location` come from `natural`, and `each` yields a function's result for every block, see
        `over_blocks`.
        """
        return self.implied(precision, location), None

    @abstractmethod
    def match(
        self, sites: Array, posterior: P, shift: CommonShift | None, target: Array, scale: Array
    ) -> tuple[float, float]:
        """Compute target sites. Return the terms of the points in the evidence or bound, and the largest change.

        The sites are first moved by the `shift`. Both numbers are NaN if target sites do not exist.
        """

    def of_posterior(self, posterior: P) -> float:
        """Return the term of the posterior in the evidence or bound."""
        return posterior.log_normaliser

    @abstractmethod
    def bars(self, sites: Array, posterior: P) -> Iterator[Bars]:
        """Yield the derivatives with respect to prior moments, in blocks."""

    @abstractmethod
    def left_out(self, sites: Array, posterior: Whitened) -> Iterator[LeftOut]:
        """Yield leave-one-out moments of all points in parts, in order: each point without its sites."""

    def natural(self, sites: Array) -> tuple[Array, Array]:
        """Return S = Σ t w wᵀ and h = Σ ν w over all sites (2, n, d): the arguments of `implied`."""
        parts = self.over_blocks(sites, self._sums)
        total = next(parts)
        for found in parts:
            for whole, part in zip(total, found, strict=True):
                whole += part
        return total

    def posterior(self, sites: Array) -> P:
        """Return the posterior for sites (2, n, d). Raise the errors of `implied`."""
        return self.implied(*self.natural(sites))

    def take(self, sites: Array) -> tuple[bool, float]:
        """Compute the posterior of a sweep; see `pymc_gpep.solvers.site_ep.ImpliedPosterior`."""
        try:
            self._taken = self.shifted(*self.natural(sites), lambda work: self.over_blocks(sites, work))
        except LinAlgError:  # Other errors, such as errors of reading rows, are raised.
            return False, np.nan
        return True, self.of_posterior(self._taken[0])

    def shrink(self, sites: Array, factor: float) -> bool:
        """Return False, without a change: iterations with negative precisions start near a fixed point."""
        return False

    def update(self, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        """Match moments of the posterior of `take`; see `pymc_gpep.solvers.site_ep.Update`."""
        terms, residual = self.match(sites, *self._taken, target, scale)
        return not np.isnan(residual), terms, residual

    def over_blocks[R](self, sites: Array, work: Callable[[B], R]) -> Iterator[R]:
        """Yield the results of `work` on all rows in parts, in order. Parts of a block run in parallel."""

        def one(part: tuple[slice, Features]) -> R:
            with np.errstate(all="ignore"):  # Each thread has its own errstate.
                return work(self._block(*part, sites))

        for rows, features in self._features.blocks():
            yield from self._team.each(one, _parts(rows, features))


class PointSites(Protocol):
    """Sites that approximate the likelihood of all points; a site has a precision and a location."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (n, d): d sites for each of n points."""

    def widening(self) -> Self | None:
        """Return a copy that allows negative precisions; None if they are not needed or not supported.

        If negative precisions are not allowed, sites that need them match only the mean.
        """

    def sweeps(self, features: RowFeatures, team: Team) -> SiteSweeps[Any, Any]:
        """Return the sweeps over the sites. Results do not depend on the size of the team."""


def _parts(rows: slice, features: Features) -> Iterator[tuple[slice, Features]]:
    """Yield the parts of a block, for parallel work."""
    count = rows.stop - rows.start
    size = max(_PART, -(-count // _PARTS))
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        yield (
            slice(rows.start + part.start, rows.start + part.stop),
            Features(features.w[..., part], features.rest[:, part], features.mean[:, part]),
        )


type Marginals = tuple[Array, Array]
"""Posterior means and variances of the projections of B points, (c, B)."""


class MatchedSites(NamedTuple):
    """Target sites of B points in a sweep."""

    precision: Array
    """Precisions of the target sites, (B, d)."""
    location: Array
    """Locations of the target sites, (B, d)."""
    variance: Array
    """Posterior variance of the projection of each site, (B, d)."""
    terms: float
    """Terms of the points in the evidence or bound; NaN if target sites do not exist."""


class Slopes(NamedTuple):
    """Derivatives of the evidence or bound at B points, for a fixed posterior of the inducing values."""

    mean: Array
    """Derivatives in the prior mean, (c, B)."""
    covariance: Array
    """Derivatives in w through Σ, as factors of Σ w, (c, B)."""
    rest: Array
    """Derivatives in the residual variances s, (c, B)."""


class SparseSweeps(SiteSweeps[SiteSums, WhitenedPosterior]):
    """Sweeps over scalar sites for one prior.

    Parameters
    ----------
    features : RowFeatures
    functions : array (n, d)
        Index of the function of each site.
    shifts : bool
        Whether the likelihood depends only on differences of functions.
    team : Team
        Threads for the sweeps. Results do not depend on their number.
    """

    def __init__(self, features: RowFeatures, functions: NDArray[np.int64], shifts: bool, team: Team = ALONE) -> None:
        super().__init__(features, team)
        self._functions = functions
        self._shifts = shifts

    @abstractmethod
    def _matched(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> MatchedSites:
        """Return the target sites of a slice of rows."""

    @abstractmethod
    def _slopes(self, rows: slice, features: Features, projected: Marginals, t: Array, nu: Array) -> Slopes:
        """Return the derivatives at a slice of rows."""

    def _projected(self, sums: SiteSums) -> SiteSums:
        """Return the sums of sites on latent values as sums of sites on projections. By default they are equal."""
        return sums

    def _sums(self, block: SiteSums) -> tuple[Array, Array]:
        w = [block.features.w[own] for own in self._owner]
        precision = np.empty((len(w), len(w[0]), len(w[0])))
        for own, of, t in zip(precision, w, block.precision, strict=True):
            weighted_gram(of, t, own)
        return precision, np.array([of @ nu for of, nu in zip(w, block.location, strict=True)])

    def _block(self, rows: slice, features: Features, sites: Array) -> SiteSums:
        precision, location = (self._by_function(rows, values[rows]) for values in sites)
        return self._projected(SiteSums(features, precision, location, rows))

    def implied(self, precision: Array, location: Array) -> WhitenedPosterior:
        return whitened_posterior(precision, location)

    def shifted(
        self, precision: Array, location: Array, each: Callable[[Callable[[SiteSums], Any]], Iterable[Any]]
    ) -> tuple[WhitenedPosterior, CommonShift | None]:
        """Return the posterior after the best common shift of all functions, and the shift."""
        posterior = self.implied(precision, location)
        if not self._shifts:
            return posterior, None
        if self._shared:
            return shared_features_shift(posterior, precision, location)
        return own_features_shift(posterior, each)

    def match(
        self, sites: Array, posterior: WhitenedPosterior, shift: CommonShift | None, target: Array, scale: Array
    ) -> tuple[float, float]:
        """Compute target sites. Return the terms of the points in the evidence or bound, and the largest change.

        The sites are first moved by the `shift`. Both numbers are NaN if target sites do not exist.
        """

        def part(block: SiteSums) -> tuple[float, float]:
            rows = block.rows
            t, nu = sites[:, rows]
            if shift is not None:
                nu += t * shift(block)[:, None]
            found = self._matched(rows, block.features, self._marginals(block.features, posterior), t, nu)
            if np.isnan(found.terms):
                return np.nan, np.nan
            target[0, rows], target[1, rows], scale[rows] = found.precision, found.location, found.variance
            moved_t = np.abs(found.precision - t) * found.variance
            moved_nu = np.abs(found.location - nu) * np.sqrt(found.variance)
            return found.terms, max(float(moved_t.max(initial=0.0)), float(moved_nu.max(initial=0.0)))

        terms, residuals = np.array(list(self.over_blocks(sites, part))).T
        return (np.nan, np.nan) if np.isnan(residuals).any() else (float(terms.sum()), float(residuals.max()))

    def bars(self, sites: Array, posterior: WhitenedPosterior) -> Iterator[Bars]:
        def part(block: SiteSums) -> Bars:
            rows, features = block.rows, block.features
            halves = [posterior.half(k, features.w[own]) for k, own in enumerate(self._owner)]
            mean = np.array([centre @ features.w[own] for centre, own in zip(posterior.mean, self._owner, strict=True)])
            projected = mean, np.array([squared_columns(half) for half in halves])
            slopes = self._slopes(rows, features, projected, *sites[:, rows])
            w_bar, rest_bar = np.zeros_like(features.w), np.zeros_like(features.rest)
            for k, (half, own) in enumerate(zip(halves, self._owner, strict=True)):
                half *= slopes.covariance[k]
                w_bar[own] += lower_product(posterior.root[k], half, transposed=True)
                rest_bar[own] += slopes.rest[k]
            if self._shared:
                w_bar[0] += posterior.mean.T @ slopes.mean
            else:
                w_bar += posterior.mean[:, :, None] * slopes.mean[:, None]
            return Bars(rows, *self._features.whitening.pull_back(features, w_bar, rest_bar, slopes.mean))

        return self.over_blocks(sites, part)

    def left_out(self, sites: Array, posterior: Whitened) -> Iterator[LeftOut]:
        """Yield leave-one-out moments of all points in parts, in order: each point without its sites.

        The functions must be independent in the posterior.
        """
        apart = np.eye(len(self._owner))

        def part(block: SiteSums) -> LeftOut:
            mean, cov = posterior.moments([block.features.w[own] for own in self._owner])
            variance = np.einsum("bkk->kb", cov)
            wide = variance / (1.0 - block.precision * variance)
            less = mean + wide * (block.precision * mean - block.location)
            whole = self._rest(block.features) + wide
            return LeftOut(block.rows, (block.features.mean + less).T, whole.T[:, :, None] * apart)

        return self.over_blocks(sites, part)

    def _marginals(self, features: Features, posterior: WhitenedPosterior) -> Marginals:
        if self._shared:
            return posterior.shared_marginals(features.w[0])
        pairs = [posterior.marginals(k, features.w[own]) for k, own in enumerate(self._owner)]
        mean, variance = (np.array(each) for each in zip(*pairs, strict=True))
        return mean, variance

    def _rest(self, features: Features) -> Array:
        """Return the residual variances s of each function, (c, B)."""
        return features.rest[self._owner]

    def _by_site(self, rows: slice, values: Array) -> Array:
        """Return the values (B, d) of the functions of the sites, from values of all functions (c, B)."""
        return np.take_along_axis(values.T, self._functions[rows], axis=1)

    def _by_function(self, rows: slice, values: Array) -> Array:
        """Return sums (c, B) of values (B, d) over the sites of each function."""
        functions, c = self._functions[rows], len(self._owner)
        at = functions + c * np.arange(len(functions))[:, None]
        return np.bincount(at.ravel(), values.ravel(), minlength=c * len(functions)).reshape(-1, c).T
