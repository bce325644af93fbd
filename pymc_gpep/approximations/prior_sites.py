"""Leave-one-out of rows, with an update of the sites of prior factors.

The site of a prior factor p(u_k) of effect k approximates p(u_k) near the posterior of u_k. If a row of an effect with
few rows is left out, the posterior moves. EP then updates the sites of the effects of the row, with all other sites
fixed. Let q₋ be the posterior without the sites of row i and of these factors. The leave-one-out density of row i, with
observation y_i and latent value f_i, is a ratio of evidences:

    p(y_i | y_-i) = ∫ q₋ p(y_i | f_i) ∏ p(u_k) / ∫ q₋ ∏ p(u_k).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.posterior import Posterior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import GaussianAverage
from pymc_gpep.solvers.sparse_sweeps import LeftOut

_MOVES = 0.01  # A site is updated for larger relative changes of a variance, or squared shifts of a mean in variances.
_MOST = 24  # Largest number of prior factors whose sites are updated when a row is left out.
_SWEEPS, _DAMPED, _TOLERANCE = 200, 20, 1e-9
_FEW = 0.7  # If at most this share of problems is unconverged, sweeps continue with these problems only.
_TOGETHER = 800  # Largest number of rows, or of effects, in a batch of covariances.


class Factor(NamedTuple):
    """Factors of several problems; each factor depends on a single latent value."""

    likelihood: Likelihood
    labels: Observed
    problem: NDArray[np.intp]
    """Index of the problem of each factor, (F,)."""
    place: NDArray[np.intp]
    """Position of the factor's latent value in the problem, (F,)."""

    def of(self, problems: NDArray[np.bool_]) -> "Factor":
        """Return the factors of the problems in a mask."""
        kept = np.flatnonzero(problems[self.problem])
        problem = np.cumsum(problems)[self.problem[kept]] - 1
        return Factor(self.likelihood.at(kept), self.labels[kept], problem, self.place[kept])

    def averages(self, mean: Array, variance: Array) -> Array:
        """Return the terms (5, F) of `GaussianAverage`, from cavity means and variances (problems, values)."""
        out = np.empty((5, len(self.place)))
        own = (np.ascontiguousarray(each[self.problem, self.place]) for each in (mean, variance))
        kernel = self.likelihood.computation(GaussianAverage).terms
        kernel(*own, self.labels, self.likelihood.parameters, out)
        return out


class LocalEP(NamedTuple):
    """Sites of B small EP problems that are solved together, each with d latent values."""

    base_mean: Array
    """Means without sites, (B, d)."""
    base: Array
    """Covariances without sites, (B, d, d)."""
    precision: Array
    """Precisions of sites, (B, d)."""
    location: Array
    """Locations ν of sites exp(ν f − ½ τ f²), (B, d)."""

    def moments(self) -> tuple[Array, Array]:
        """Return means (B, d) and covariances (B, d, d) with sites."""
        inner = np.eye(self.base.shape[1]) + self.precision[:, :, None] * self.base
        cov = np.asarray(self.base @ np.linalg.inv(inner))
        return self.base_mean + np.einsum("bij,bj->bi", cov, self.location - self.precision * self.base_mean), cov

    def solved(self, factors: Sequence[Factor]) -> tuple["LocalEP", NDArray[np.bool_]]:
        """Run EP on the sites of factors. Return the result, and a mask (B,) of converged problems."""
        own = self._replace(precision=self.precision.copy(), location=self.location.copy())
        active, done = np.arange(len(self.base)), np.zeros(len(self.base), bool)
        found = own._replace(precision=own.precision.copy(), location=own.location.copy())
        for sweep in range(_SWEEPS):
            mean, cov = own.moments()
            variance = np.einsum("bii->bi", cov)
            moved = np.zeros(len(active))
            precision, location = own.precision.copy(), own.location.copy()
            cavity = 1.0 / (1.0 / variance - precision)
            centre = cavity * (mean / variance - location)
            for factor in factors:
                at = factor.problem, factor.place
                _, slope, curvature, *_ = factor.averages(centre, cavity)
                rest = 1.0 + cavity[at] * curvature
                step = np.stack(
                    [-curvature / rest - precision[at], (slope - centre[at] * curvature) / rest - location[at]]
                )
                step = np.where(cavity[at] > 0.0, step, 0.0)  # A site with an improper cavity does not change.
                size = np.abs(step[0] * cavity[at]) + np.abs(step[1]) * np.sqrt(np.abs(cavity[at]))
                np.maximum.at(moved, factor.problem, np.where(np.isfinite(size), size, np.inf))
                damping = 1.0 if sweep < _DAMPED else 0.5
                precision[at] += damping * step[0]
                location[at] += damping * step[1]
            done[active] |= moved < _TOLERANCE
            going = ~done[active] & np.isfinite(precision).all(axis=1) & np.isfinite(location).all(axis=1)
            own.precision[going], own.location[going] = precision[going], location[going]
            found.precision[active], found.location[active] = own.precision, own.location
            going &= np.isfinite(moved)
            if not going.any():
                break
            if going.sum() <= _FEW * len(going):  # Continue with unconverged problems only.
                own, active = LocalEP(*(each[going] for each in own)), active[going]
                factors = [each.of(going) for each in factors]
        return found, done

    def log_evidence(self, factors: Sequence[Factor]) -> Array:
        """Return EP's log evidences (B,) for factors and their sites."""
        mean, cov = self.moments()
        variance = np.einsum("bii->bi", cov)
        cavity = 1.0 / (1.0 / variance - self.precision)
        centre = cavity * (mean / variance - self.location)
        found = self._log_sites(self.base_mean, self.base)
        for factor in factors:
            at = factor.problem, factor.place
            alone = LocalEP(
                centre[at][:, None], cavity[at][:, None, None], self.precision[at][:, None], self.location[at][:, None]
            )
            own = factor.averages(centre, cavity)[0] - alone._log_sites(alone.base_mean, alone.base)
            # With an improper cavity, use log density minus log site at the mean, which is exact for Gaussian factors.
            site = self.location[at] * mean[at] - 0.5 * self.precision[at] * mean[at] ** 2
            at_mean = factor.likelihood.log_densities(mean[at][None], factor.labels) - site
            own = np.where(cavity[at] > 0.0, own, at_mean)
            found = found + np.bincount(factor.problem, own, len(found))
        return found

    def _log_sites(self, mean: Array, cov: Array) -> Array:
        """Return log ∫ N(f | mean, cov) exp(νᵀf − ½ fᵀΤf) df, (B,), for site locations ν and precisions Τ."""
        inner = np.eye(cov.shape[1]) + self.precision[:, :, None] * cov
        force = self.location - self.precision * mean
        posterior = cov @ np.linalg.inv(inner)
        level = (self.location * mean - 0.5 * self.precision * mean**2).sum(axis=1)
        quadratic = np.einsum("bi,bij,bj->b", force, posterior, force)
        return np.asarray(level + 0.5 * quadratic - 0.5 * np.linalg.slogdet(inner)[1])


class PriorSites:
    """Sites of prior factors, which are updated if rows are left out.

    Parameters
    ----------
    solution : Solution
        Solution for one latent function, with prior factors among its points.
    posterior : Posterior
        Posterior from which sites are left out.
    """

    def __init__(self, solution: Any, posterior: Posterior) -> None:
        self._solution, self._posterior = solution, posterior
        self.points = np.concatenate([rows for rows, _ in solution.likelihood.priors()])

    @classmethod
    def of(cls, solution: Any, posterior: Posterior) -> "PriorSites | None":
        """Return the sites of prior factors; None without such factors, or if sites couple points."""
        if not solution.likelihood.of_prior or not posterior.sites.pointwise:
            return None
        return cls(solution, posterior)

    def natural(self, points: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return site precisions and locations (m,) of points."""
        precision = self._posterior.sites.at(points).blocks[:, 0, 0]
        return precision, self._posterior.weights[0, points] + precision * self._posterior.mean[0, points]

    def moved(self, points: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return for each of B points the indices (B, K) of factors to update if it is left out, padded by −1."""
        found = []
        for some in np.array_split(points, max(1, -(-len(points) // _TOGETHER))):
            cross = self._cross(some)
            precision, _ = self.natural(some)
            variance = self._solution.cov[some, 0, 0]
            own = self._solution.cov[self.points, 0, 0]
            left = np.maximum(1.0 - precision * variance, 1e-12)
            change = cross**2 * (precision / left)[:, None] / own
            force = cross * (self._posterior.weights[0, some] / left)[:, None]
            change = np.maximum(np.abs(change), force**2 / own)
            order = np.argsort(-change, axis=1)[:, :_MOST]
            found.append(np.where(np.take_along_axis(change, order, axis=1) > _MOVES, order, -1))
        whole = np.concatenate(found)
        return whole[:, : max(1, int((whole >= 0).sum(axis=1).max(initial=0)))]

    def _cross(self, points: NDArray[np.intp]) -> Array:
        """Return posterior covariances (m, F) of points with the effects of prior factors."""
        parts = np.array_split(self.points, max(1, -(-len(self.points) // _TOGETHER)))
        m = len(points)
        found = [self._posterior.covariance_among(np.concatenate([points, own]))[0, :m, 0, m:] for own in parts]
        return np.concatenate(found, axis=1)

    def followed(
        self,
        found: LeftOut,
        alike: NDArray[np.int64] | None,
        of: NDArray[np.int64] | None,
        rest: Callable[[NDArray[np.intp]], Sequence[Factor]],
    ) -> LeftOut:
        """Return leave-one-out moments of rows. For each row the sites of prior factors are updated.

        Parameters
        ----------
        found : LeftOut
            Leave-one-out moments with the sites of the fit.
        alike : array (n,) or None
            Group number of each row; equal rows have the same number.
        of : array (n,) or None
            Index of the point of each row; None if rows are points.
        rest : callable
            Function that returns, for rows, the likelihood factors of the other rows at their points.
        """
        own = np.arange(found.rows.start, found.rows.stop)
        _, first, back = np.unique(own if alike is None else alike[own], return_index=True, return_inverse=True)
        rows = own[first]
        points = rows if of is None else of[rows]
        moved = self.moved(points)
        which = np.flatnonzero((moved >= 0).any(axis=1) & ~np.isin(points, self.points))
        if not which.size:
            return found
        results = np.full((3, len(rows)), np.nan)
        results[:, which] = self.without(points[which], moved[which], rest(rows[which]))
        log_density, mean, variance = results[:, back]
        same = np.isfinite(log_density)
        row_mean, row_cov = found.mean.copy(), found.cov.copy()
        row_mean[same, 0], row_cov[same, 0, 0] = mean[same], variance[same]
        before = np.full(len(own), np.nan) if found.log_density is None else found.log_density
        return LeftOut(found.rows, row_mean, row_cov, np.where(same, log_density, before))

    def without(
        self, points: NDArray[np.intp], moved: NDArray[np.intp], rest: Sequence[Factor]
    ) -> tuple[Array, Array, Array]:
        """Return leave-one-out log densities of rows, and means and variances (B,) of their latent values.

        Parameters
        ----------
        points : array (B,)
            Point of each row.
        moved : array (B, K)
            Indices of factors to update, padded by −1.
        rest : sequence of Factor
            Factors of the other rows at the points. In each local problem, the point's latent value is first.
        """
        solution = self._solution
        base, prior, sites = self._base(points[:, None], moved)
        whole = solution.likelihood.at(points)
        problem = np.arange(len(points))
        own = Factor(whole, solution.labels[points], problem, np.zeros(len(points), np.intp))
        with np.errstate(all="ignore"):
            everything = base._replace(precision=sites[0], location=sites[1]).log_evidence([own, prior])
            start = _proper(sites[0], 1)
            others, done = base._replace(precision=start * sites[0], location=start * sites[1]).solved([*rest, prior])
            mean, cov = others.moments()
            found = everything - others.log_evidence([*rest, prior])
        return np.where(done, found, np.nan), mean[:, 0], cov[:, 0, 0]

    def _base(self, rows: NDArray[np.intp], moved: NDArray[np.intp]) -> tuple[LocalEP, Factor, tuple[Array, Array]]:
        """Return problems without the sites of rows (B, m) and factors (B, K), these factors, and these sites."""
        solution, posterior, m = self._solution, self._posterior, rows.shape[1]
        problem, place = np.nonzero(moved >= 0)
        chosen = self.points[moved[problem, place]]
        points = np.concatenate([rows, self.points[np.maximum(moved, 0)]], axis=1)
        real = np.concatenate([np.ones(rows.shape, bool), moved >= 0], axis=1)
        among = np.stack([posterior.covariance_among(own)[0, :, 0] for own in points])
        cov = np.where(real[:, :, None] & real[:, None], among, np.eye(points.shape[1]))
        mean = np.where(real, posterior.mean[0, points], 0.0)
        sites = tuple(np.where(real, each.reshape(points.shape), 0.0) for each in self.natural(points.ravel()))
        precision, location = sites
        outside = cov @ np.linalg.inv(np.eye(points.shape[1]) - precision[:, :, None] * cov)
        centre = mean - np.einsum("bij,bj->bi", outside, location - precision * mean)
        nothing = np.zeros(points.shape)
        prior = Factor(solution.likelihood.at(chosen), solution.labels[chosen], problem, m + place)
        return LocalEP(centre, outside, nothing, nothing), prior, (precision, location)

    def of_group(self, points: NDArray[np.intp]) -> tuple[NDArray[np.intp], Array, Array]:
        """Return the prior factors to update without `points`: their points, site precisions and locations.

        EP computes the new precisions and locations. If EP does not converge, the sites of the fit are returned.
        """
        cross = self._cross(points)
        precision, _ = self.natural(points)
        left = np.eye(len(points)) - precision[:, None] * self._posterior.covariance_among(points)[0, :, 0]
        with np.errstate(all="ignore"):
            inner = np.linalg.pinv(left)
            own = self._solution.cov[self.points, 0, 0]
            wider = np.einsum("if,ij,jf->f", cross, inner * precision, cross) / own
            change = np.maximum(np.abs(wider), (cross.T @ (inner @ self._posterior.weights[0, points])) ** 2 / own)
        order = np.argsort(-change)[:_MOST]
        moved = order[change[order] > _MOVES]
        if not moved.size:
            return np.zeros(0, np.intp), np.zeros(0), np.zeros(0)
        base, prior, (tau, nu) = self._base(points[None], moved[None])
        m = len(points)
        start = _proper(tau, m)
        with np.errstate(all="ignore"):
            found, done = base._replace(precision=start * tau, location=start * nu).solved([prior])
        sites = (found.precision[0, m:], found.location[0, m:]) if done[0] else (tau[0, m:], nu[0, m:])
        return self.points[moved], *sites


def _proper(precision: Array, m: int) -> NDArray[np.bool_]:
    """Return a mask (B, m + K) of the initial sites of EP: sites with positive precisions, except of the m rows."""
    return np.asarray((np.arange(precision.shape[1]) >= m) & (precision > 0.0))
