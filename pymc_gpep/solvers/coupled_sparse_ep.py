"""Nested EP whose sites act on projections of whitened inducing values: the coupling of the functions is kept.

A point's site acts on x = (x_1 … x_c), x_k = w_kᵀv_k, and has the form that nested EP gives it. Its noise is all noise
around the x: the likelihood's own, and the residual of the features. The site follows from d
scalar inner sites of the likelihood's factors. The posterior of v couples all functions. The functions of a point enter
by their differences, and the part that all have in common stays as it is in the prior.

Derivatives: with the sites held as functions of x, features are in the posterior of v alone. At a fixed point the
derivative of its normaliser is that of the evidence. With ρ = ν − Π E[x] it is μρᵀ − ΣWΠ in the features and ρ in the
prior mean. A point's log normaliser depends on its cavity's variance of x_k and on s_k by their sum. The derivative in
s_k is thus ½(ρ_k² − (Π − Π Cov[x] Π)_kk).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.moments.inner_ep import relative_location
from pymc_gpep.solvers.common_shift import CommonShift
from pymc_gpep.solvers.inducing import Block, Features, RowFeatures
from pymc_gpep.solvers.sparse_sweeps import LeftOut, Pull, SiteSweeps
from pymc_gpep.solvers.team import ALONE, Team
from pymc_gpep.solvers.whitened_posterior import (
    CoupledWhitened,
    Whitened,
    coupled_precision,
    coupled_whitened,
    shared_precision,
)


class CoupledFactors(NamedTuple):
    """The likelihood as factors of differences of utilities."""

    labels: NDArray[np.int64]
    """(n,)."""
    n_functions: int
    update: Callable[..., tuple[float, float]]
    """New inner sites, see `pymc_gpep.kernels.moments.inner_ep.noisy_inner_ep_update`."""
    site_parameters: Callable[..., float]
    """The sites that inner ones imply, see `pymc_gpep.kernels.moments.inner_ep.noisy_site_parameters`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, c − 1)."""
        return len(self.labels), self.n_functions - 1

    def widening(self) -> None:
        """Return None, since factors of inner EP are log-concave."""

    def sweeps(self, features: RowFeatures, team: Team) -> "CoupledSparseSweeps":
        """Return the parts of an iteration over the inner sites."""
        return CoupledSparseSweeps(features, self, team)


class _Rows(NamedTuple):
    """Some of the rows, and their sites."""

    rows: slice
    features: Features
    w: list[Array]
    """Features of each function, (M, B)."""
    rest: Array
    """s of each function, (c, B)."""
    pi: Array
    """Π = diag(π) − ππᵀ / 1ᵀπ, (c, B)."""
    nu: Array
    """Location relative to the prior mean, (c, B)."""
    constant: float
    """Log of the sites at x = 0, where the inner variable u is integrated out."""


class CoupledSparseSweeps(SiteSweeps[CoupledWhitened]):
    """The parts of an iteration, for one prior.

    Parameters
    ----------
    features : RowFeatures
    factors : CoupledFactors
    team : Team
        The threads that work on it. Results do not depend on how many there are.
    """

    def __init__(self, features: RowFeatures, factors: CoupledFactors, team: Team = ALONE) -> None:
        super().__init__(features, team)
        self._factors = factors
        self._shared = max(self._owner) == 0

    def natural(self, sites: Array) -> tuple[Array, Array]:
        """S (cM, cM), whose lower triangle counts, and h (c, M)."""
        c, size = len(self._owner), self._features.whitening.size
        precision, location = np.zeros((c * size, c * size)), np.zeros((c, size))

        def part(at: _Rows) -> tuple[Array, Array]:
            of_precision = shared_precision(at.w[0], at.pi) if self._shared else coupled_precision(at.w, at.pi)
            return of_precision, np.stack([w @ nu for w, nu in zip(at.w, at.nu, strict=True)])

        for of_precision, of_location in self._each(sites, part):
            precision += of_precision
            location += of_location
        return precision, location

    def implied(self, precision: Array, location: Array) -> CoupledWhitened:
        return coupled_whitened(precision, location)

    def _each[R](self, sites: Array, work: Callable[[_Rows], R]) -> Iterator[R]:
        """Yield the results of `work` on all rows, part by part in their order."""

        def one(part: tuple[slice, Features]) -> R:
            rows, features = part
            rest = features.rest[self._owner]
            pi, nu = np.empty((2, *rest.shape))
            with np.errstate(all="ignore"):  # which each thread has for itself
                constant = self._factors.site_parameters(self._factors.labels[rows], rest, *sites[:, rows], pi, nu)
                constant += relative_location(features.mean, pi, nu)
                w = [features.w[own] for own in self._owner]
                return work(_Rows(rows, features, w, rest, pi, nu, constant))

        return self._by_parts(one)

    def over_blocks[R](self, sites: Array, work: Callable[[Any], R]) -> Iterator[R]:
        """Yield the results of a function on every block."""
        return self._each(sites, work)

    def match(
        self, sites: Array, posterior: CoupledWhitened, shift: CommonShift | None, target: Array, scale: Array
    ) -> tuple[float, float]:
        """See `SiteSweeps`. A change to what is no number is an infinite one: an iteration then begins from nothing."""

        def part(at: _Rows) -> tuple[float, float]:
            rows, (mean, cov) = at.rows, self._moments(posterior, at)
            mean += at.features.mean
            given: Any = self._factors.labels[rows], at.rest, *sites[:, rows], 1, 0.0
            terms, residual = self._factors.update(mean, cov, *given, *target[:, rows], scale[rows])
            # A site without a cavity is NaN, which the largest change of a loop of comparisons passes over.
            return terms + at.constant, residual if np.isfinite(terms + residual) else np.inf

        terms, residuals = np.array(list(self._each(sites, part))).T
        return float(terms.sum()), float(residuals.max())

    def pulled(self, sites: Array, posterior: CoupledWhitened, pull: Pull) -> Array:
        """Give derivatives to `pull`, block by block, and return what `Whitening.pull_factor` wants of all rows."""
        whitening = self._features.whitening
        product = np.zeros_like(whitening.factor)

        def part(at: _Rows) -> tuple[slice, Block, Array]:
            features = at.features
            rho, rest_bar = _point_slopes(*self._moments(posterior, at), at.pi, at.nu)
            if self._shared:
                w_bar = (posterior.mean.T @ rho - posterior.shared_smoothed(at.w[0], at.pi))[None]
                rest_bar = rest_bar.sum(axis=0, keepdims=True)
            else:
                w_bar = posterior.mean[:, :, None] * rho[:, None] - posterior.smoothed(at.w, at.pi)
            bars, of_factor = whitening.pull_back(features, w_bar, rest_bar, rho)
            return at.rows, bars, of_factor

        for rows, bars, of_factor in self._each(sites, part):
            product += of_factor
            pull(rows, bars)
        return product

    def _moments(self, posterior: CoupledWhitened, at: _Rows) -> tuple[Array, Array]:
        return posterior.shared_moments(at.w[0]) if self._shared else posterior.moments(at.w)

    def left_out(self, sites: Array, posterior: Whitened) -> Iterator[LeftOut]:
        """All points in their order, part by part, each without its own site, which is in the posterior.

        With the covariance V of x that of the cavity is (I − VΠ)⁻¹ V; the site pulls with the force ν − Π E[x].
        """
        every = np.arange(len(self._owner))

        def part(at: _Rows) -> LeftOut:
            mean, cov = posterior.moments(at.w)
            pi = _precisions(at.pi)
            wide = np.linalg.solve(np.eye(len(every)) - cov @ pi, cov)
            force = at.nu.T - np.einsum("bkl,lb->bk", pi, mean)
            wide = 0.5 * (wide + wide.swapaxes(1, 2))
            less = (at.features.mean + mean).T - np.einsum("bkl,bl->bk", wide, force)
            wide[:, every, every] += at.rest.T
            return LeftOut(at.rows, less, wide)

        return self._each(sites, part)


def _precisions(pi: Array) -> Array:
    """Π of each point (B, c, c), from π (c, B); 0 where there is no site."""
    total = pi.sum(axis=0)
    shared = np.einsum("kb,lb->bkl", pi, pi / np.where(total > 0.0, total, 1.0))
    return pi.T[:, :, None] * np.eye(len(pi)) - shared


def _point_slopes(mean: Array, cov: Array, pi: Array, nu: Array) -> tuple[Array, Array]:
    """ρ, and derivatives in the s, (c, B), from moments (c, B), (B, c, c) of the x relative to the prior mean."""
    total = pi.sum(axis=0)
    rho = nu - pi * (mean - (pi * mean).sum(axis=0) / total)
    average = np.einsum("kb,bkl->lb", pi, cov) / total
    within = np.einsum("bkk->kb", cov) - 2.0 * average + (pi * average).sum(axis=0) / total
    return rho, 0.5 * (rho * rho - pi + pi * pi * (1.0 / total + within))
