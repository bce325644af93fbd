"""EP whose sites act on projections of whitened inducing values, for any factors of the likelihood.

A point has d scalar sites exp(ν x_k − ½ t x_k²), each on the projection x_k = wᵀv_k of one function and of one factor,
which depends on the latent values f_k = m + x_k + e_k alone. With q(v_k) = N(μ, Σ), Σ = (I + S)⁻¹, S = Σ t w wᵀ and
h = Σ ν w, all that a point needs are the c means and variances of its x_k (Villacampa-Calvo and Hernández-Lobato 2017,
in whitened coordinates). Rows are streamed in blocks; what is held between sweeps are the sites.

Derivatives: with the sites held as natural parameters of v, whose prior N(0, I) has no hyperparameters, only the
factors depend on these, through w and s in the moments of their cavities. At a fixed point that is the derivative of
the evidence, and elsewhere that of the evidence with frozen sites.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.common_shift import CommonShift, SiteSums, own_features_shift, shared_features_shift
from pymc_gpep.solvers.inducing import Block, Features, RowFeatures
from pymc_gpep.solvers.team import ALONE, Team
from pymc_gpep.solvers.whitened_posterior import WhitenedPosterior, whitened_posterior

__all__ = ["Factors", "Pull", "SparseEPSweeps", "Tilted"]

_PART = 1024  # rows at least that are handed to a thread
_PARTS = 8  # of a block

type Pull = Callable[[slice, Block], None]
"""Takes the derivatives with respect to the moments of a block of rows."""


class Tilted(NamedTuple):
    """What a rule says of B points whose factors see normal latent values."""

    log_z: Array
    """Sum over factors of the log normalisers, (B,)."""
    rho: Array
    """∂ log Z / ∂ mean, for each site, (B, d)."""
    gamma: Array
    """ρ² − 2 ∂ log Z / ∂ variance, for each site, (B, d)."""


class Factors(NamedTuple):
    """The likelihood as factors."""

    functions: NDArray[np.int64]
    """Which function each site acts on, (n, d)."""
    tilted: Callable[[slice, Array, Array], Tilted]
    """Of some rows, from means and variances (B, d) of the latent values that the factor of each site sees."""
    shifts: bool
    """Whether they see differences of functions only."""


class _Cavities(NamedTuple):
    """Of the projections at B points, one for each site, (B, d)."""

    variance: Array
    """Of the posterior."""
    keep: Array
    """1 − t v."""
    without: Array
    """(t m − ν) / (1 − t v): how the cavity's mean differs from the posterior's, in units of the variance."""
    cavity_mean: Array
    cavity_variance: Array
    tilted: Tilted


class SparseEPSweeps:
    """What an iteration of EP is made of, for one prior.

    Parameters
    ----------
    features : RowFeatures
    factors : Factors
    team : Team
        Who works on it. Results do not depend on how many there are.
    """

    def __init__(self, features: RowFeatures, factors: Factors, team: Team = ALONE) -> None:
        self._features = features
        self._team = team
        self._factors = factors
        self._owner = features.owner

    def posterior(self, sites: Array) -> WhitenedPosterior:
        """The posterior that sites (2, n, d) imply. See `whitened_posterior` for what it raises."""
        return whitened_posterior(*self._natural(sites))

    def _natural(self, sites: Array) -> tuple[Array, Array]:
        """S (c, M, M) and h (c, M)."""
        c, size = len(self._owner), self._features.whitening.size
        precision, location = np.zeros((c, size, size)), np.zeros((c, size))

        def part(rows: slice, block: SiteSums) -> tuple[Array, Array]:
            w = [block.features.w[own] for own in self._owner]
            return (
                np.array([(w[k] * block.precision[k]) @ w[k].T for k in range(c)]),
                np.array([w[k] @ block.location[k] for k in range(c)]),
            )

        for of_precision, of_location in self._each(sites, part):
            precision += of_precision
            location += of_location
        return precision, location

    def _each[R](self, sites: Array, work: Callable[[slice, SiteSums], R]) -> Iterator[R]:
        """What `work` makes of all rows, part by part in their order."""

        def one(part: tuple[slice, Features]) -> R:
            rows, features = part
            with np.errstate(all="ignore"):  # which each thread has for itself
                return work(rows, SiteSums(features, *(self._by_function(rows, values[rows]) for values in sites)))

        for rows, features in self._features.blocks():
            yield from self._team.each(one, _parts(rows, features))

    def _shifted(self, sites: Array) -> tuple[WhitenedPosterior, CommonShift | None]:
        """The posterior of sites that have moved with the best function common to all, and that function."""
        precision, location = self._natural(sites)
        posterior = whitened_posterior(precision, location)
        if not self._factors.shifts:
            return posterior, None
        if max(self._owner) == 0:
            return shared_features_shift(posterior, precision, location)
        return own_features_shift(posterior, lambda work: self._each(sites, lambda _, block: work(block)))

    def sweep(self, sites: Array, target: Array, scale: Array) -> tuple[bool, float, float]:
        """One parallel sweep, see `pymc_gpep.solvers.accelerated_ep.Sweep`."""
        try:
            posterior, shift = self._shifted(sites)
        except (LinAlgError, ValueError):
            return False, np.nan, np.nan

        def part(rows: slice, block: SiteSums) -> tuple[float, float]:
            t, nu = sites[:, rows]
            if shift is not None:
                nu += t * shift(block)[:, None]
            at = self._cavities(rows, block.features, posterior, t, nu)
            if not (at.keep > 0.0).all():
                return np.nan, np.nan
            rho, gamma = at.tilted.rho, at.tilted.gamma
            narrower = 1.0 - gamma * at.cavity_variance
            target[0, rows] = gamma / narrower
            target[1, rows] = (rho + gamma * at.cavity_mean) / narrower
            scale[rows] = at.variance
            terms = float(at.tilted.log_z.sum()) - _site_terms(at.cavity_mean, at.cavity_variance, nu, t)
            moved_t = np.abs(target[0, rows] - t) * at.variance
            moved_nu = np.abs(target[1, rows] - nu) * np.sqrt(at.variance)
            return terms, max(float(moved_t.max(initial=0.0)), float(moved_nu.max(initial=0.0)))

        terms, residuals = np.array(list(self._each(sites, part))).T
        if np.isnan(residuals).any():
            return False, np.nan, np.nan
        return True, posterior.log_normaliser + float(terms.sum()), float(residuals.max())

    def derivatives(self, sites: Array, pull: Pull) -> Array:
        """Give derivatives of the evidence to `pull`, block by block, and return those in `inducing()` (q, M, M)."""
        posterior, whitening = self.posterior(sites), self._features.whitening
        product = np.zeros_like(whitening.factor)

        def part(rows: slice, block: SiteSums) -> tuple[slice, Block, Array]:
            features = block.features
            at = self._cavities(rows, features, posterior, *sites[:, rows])
            rho, gamma = at.tilted.rho, at.tilted.gamma
            delta = 0.5 * (rho * rho - gamma)  # in the variance
            of_mean, of_covariance, of_rest = (
                self._by_function(rows, values) for values in (rho, rho * at.without + 2.0 * delta / at.keep, delta)
            )
            w_bar = np.zeros_like(features.w)
            rest_bar = np.zeros_like(features.rest)
            for k, own in enumerate(self._owner):
                w_bar[own] += posterior.mean[k][:, None] * of_mean[k]
                w_bar[own] += posterior.covariances(k, features.w[own]) * of_covariance[k]
                rest_bar[own] += of_rest[k]
            cross_bar, variance_bar, of_factor = whitening.pull_back(features, w_bar, rest_bar)
            return rows, Block(cross_bar, variance_bar, of_mean), of_factor

        for rows, bars, of_factor in self._each(sites, part):
            product += of_factor
            pull(rows, bars)
        return whitening.pull_factor(product)

    def _cavities(
        self, rows: slice, features: Features, posterior: WhitenedPosterior, t: Array, nu: Array
    ) -> _Cavities:
        pairs = [posterior.marginals(k, features.w[own]) for k, own in enumerate(self._owner)]
        functions = self._factors.functions[rows]
        mean, variance = (self._by_site(functions, np.array(each)) for each in zip(*pairs, strict=True))
        prior_mean = self._by_site(functions, features.mean)
        rest = self._by_site(functions, features.rest[self._owner])
        keep = 1.0 - t * variance
        without = (t * mean - nu) / keep
        cavity_mean, cavity_variance = mean + variance * without, variance / keep
        tilted = self._factors.tilted(rows, prior_mean + cavity_mean, rest + cavity_variance)
        return _Cavities(variance, keep, without, cavity_mean, cavity_variance, tilted)

    @staticmethod
    def _by_site(functions: NDArray[np.int64], values: Array) -> Array:
        """Of values (c, B) of functions those that the sites act on, (B, d)."""
        return np.take_along_axis(values.T, functions, axis=1)

    def _by_function(self, rows: slice, values: Array) -> Array:
        """Sums (c, B) of values (B, d) of the sites on each function."""
        functions = self._factors.functions[rows]
        return np.array([np.where(functions == k, values, 0.0).sum(axis=1) for k in range(len(self._owner))])


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


def _site_terms(mean: Array, variance: Array, location: Array, precision: Array) -> float:
    """Σ log ∫ N(x | mean, variance) exp(νx − ½ t x²) dx."""
    stretch = 1.0 + precision * variance
    quadratic = location * location * variance + 2.0 * location * mean - precision * mean * mean
    return 0.5 * float((quadratic / stretch - np.log(stretch)).sum())
