"""Laplace's method, EP and KL for rows of several linear predictors, with curvatures of any sign.

A Newton step uses the exact curvature W, or its absolute eigenvalues if the posterior with W is not proper. At the mode
it uses W. The evidence has the derivatives of `pymc_gpep.approximations.laplace`, with blocks in place of numbers.

EP: a row has predictors f with the posterior N(m, Σ), a site of precision Π and weights b. Its cavity has the
covariance V = (Σ⁻¹ − Π)⁻¹ and the mean μ = m − V b. Tilted moments are computed by quadrature
(`pymc_gpep.likelihoods.tilted_rows`). Let h = log ∫ p(y | f) N(f | μ, V) df, the prior have mean m₀ and covariance K,
and sites be scaled to 1 at m. The log evidence is

    Σ [h + ½ bᵀV b + ½ log|V| − ½ log|Σ|] − ½ log|I + ΠK| − ½ bᵀ(m − m₀).

At the fixed point it is stationary in the sites, so derivatives are computed at fixed sites. EP starts from Laplace's
sites. For a product of predictors these are away from the saddle at zero.

KL: q is the Gaussian nearest to the posterior (Opper and Archambeau 2009), with sites of the same form. The bound is Σ
E_q[log p(y_i | f_i)] − KL(q ‖ prior). At its maximum the sites have the precision −E_q[∇∇ log p] and the force E_q[∇
log p] at the mean. Averages are sums over nodes: a product of Gauss–Hermite rules for up to three predictors, and
points of a rule of degree 3 for more.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigs

from pymc_gpep.approximations.approximator import AcceleratedEP
from pymc_gpep.approximations.kl import AcceleratedBound
from pymc_gpep.approximations.laplace import BlockAscent, NewtonApproximation, found_at_mode
from pymc_gpep.approximations.limits import at_least
from pymc_gpep.array_types import Array, Observed
from pymc_gpep.gaussians.prior_form import covariance_root
from pymc_gpep.gaussians.sites import SiteForm
from pymc_gpep.kernels.moments.predictor_sites import (
    block_cavities,
    matched_sites,
    pack_precision,
    pack_sites,
    packed_size,
    shrink_negative,
    unpack_sites,
)
from pymc_gpep.kernels.status import CONVERGED, NOT_CONCAVE, OUT_OF_DIGITS
from pymc_gpep.likelihoods.factor_averages import normal_rule
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import (
    BlockCurvature,
    PredictorsDensity,
    PredictorsDerivatives,
    PredictorsNodes,
)
from pymc_gpep.solvers.newton import log_posterior, newton
from pymc_gpep.solvers.problem import Algebra, Found, History, Problem
from pymc_gpep.solvers.scalar_bound import accelerated_ascent
from pymc_gpep.solvers.site_algebra import Moved
from pymc_gpep.solvers.site_ep import SCHEMES, Ended, SitePosterior, largest_change, site_ep

_MOST_STEPS = 50  # Largest number of steps to the smoothed means.
_TOLERANCE = 1e-8  # Largest change of a smoothed mean that counts as converged.
_LEAST = 1e-3  # Smallest absolute eigenvalue of W in a step; smaller values are raised to it.
# Largest number of escapes from saddles; number of trial directions at a saddle.
_ESCAPES, _DIRECTIONS = 20, 8
_AWAY = 4.0 * 0.5 ** np.arange(12)  # Distances of trial points from a saddle, in units of standard normals.


class _PredictorsAscent(BlockAscent):
    """Objective of Newton's method, for a likelihood whose curvature may have any sign.

    Attributes
    ----------
    exact : bool
        Whether the last factorised curvature is the curvature W of the log density. If the posterior with W is not
        proper, absolute values replace the eigenvalues of W, so steps go up.
    """

    sees_common = True

    def __init__(self, problem: Problem, density: PredictorsDensity) -> None:
        parameters = problem.parameters
        kernels = BlockCurvature(
            lambda f, y, gradient: density.log_density(f, y, parameters, gradient),
            lambda f, y, w: density.curvature(f, y, parameters, w),
            lambda f, y, cov, slope: density.curvature_slope(f, y, parameters, cov, slope),
        )
        super().__init__(problem, kernels, signed=True)
        self._parameter_slopes, self.exact = density.parameter_slopes, False

    def factorise(self) -> tuple[bool, float]:
        ok, log_det = super().factorise()
        self.exact = ok
        if ok or not np.isfinite(self.precision).all():
            return ok, log_det
        values, vectors = np.linalg.eigh(self.precision)
        return self.algebra.factorise(
            np.einsum("iak,ik,ibk->iab", vectors, np.maximum(np.abs(values), _LEAST), vectors)
        )

    def parameter_slopes(self, cov: Array, moved: Moved) -> Array:
        problem, image = self._problem, np.empty_like(self.f)
        slopes = np.full_like(problem.parameters, np.nan)
        if slopes.size and problem.slopes:
            problem.prior.multiply(moved.coordinates, image)
            self._parameter_slopes(self.f, problem.labels, problem.parameters, cov, image, slopes)
        return slopes

    def away(self, x: Array) -> Array:
        """Return coordinates near a saddle: the trial along upward directions with the highest log posterior.

        For the prior covariance K and the curvature W, a direction is K b with W K b = λ b and λ < −1.
        """
        prior, image = self._problem.prior, np.empty_like(self.f)

        def product(b: Array) -> Array:
            prior.multiply(prior.coordinates(b.reshape(self.f.shape)), image)
            return np.einsum("iab,bi->ai", self.precision, image).ravel()

        operator = LinearOperator((image.size, image.size), product, dtype=np.float64)
        rng = np.random.default_rng(0)
        count = min(_DIRECTIONS, image.size - 2)
        values, vectors = eigs(operator, k=count, which="SR", v0=rng.standard_normal(image.size), tol=1e-3)
        direction = np.zeros_like(x)
        for b in vectors.T[(values.real < -1.0) | (values.real == values.real.min())]:
            own = prior.coordinates(np.ascontiguousarray(b.real).reshape(self.f.shape))
            prior.multiply(own, image)
            direction += own / np.sqrt(prior.inner(own, own, image))
        tried = [x + t * direction for t in (*_AWAY, *-_AWAY)]
        return max(tried, key=lambda at: np.nan_to_num(log_posterior(self._problem, at, self, image), nan=-np.inf))


class _AveragedAscent(_PredictorsAscent):
    """Objective with the average log density over normal latent values with mean f and covariances (n, c, c)."""

    def __init__(self, problem: Problem, density: PredictorsDensity, cov: Array) -> None:
        super().__init__(problem, density)
        root = covariance_root(cov)
        k = cov.shape[1]
        nodes, weights = averaging_rule(k, _NODES.get(k, 0))
        moves = [(weight, root @ node) for weight, node in zip(weights, nodes, strict=True)]
        of_point, of_curvature, _ = self._density

        def log_density(f: Array, y: Observed, gradient: Array) -> float:
            value, own = 0.0, np.empty_like(gradient)
            gradient[:] = 0.0
            for weight, move in moves:
                value += weight * of_point(f + move.T, y, own)
                gradient += weight * own
            return value

        def curvature(f: Array, y: Observed, w: Array) -> None:
            own = np.empty_like(w)
            w[:] = 0.0
            for weight, move in moves:
                of_curvature(f + move.T, y, own)
                w += weight * own

        self._density = self._density._replace(log_density=log_density, curvature=curvature)


@lru_cache
def averaging_rule(k: int, count: int) -> tuple[Array, Array]:
    """Return nodes (d, k) and weights (d,) of a rule for averages over k standard normals.

    The rule is exact at least for cubic functions. For up to three normals it has `count` nodes along each.
    """
    if k not in _NODES:
        return math.sqrt(k) * np.concatenate([np.eye(k), -np.eye(k)]), np.full(2 * k, 0.5 / k)
    return normal_rule(count, k)


_NODES = {1: 9, 2: 7, 3: 5}  # Number of nodes along each latent value, by number of latent values.


def laplace_predictors(
    problem: Problem,
    start: Array,
    history: History,
    *,
    density: PredictorsDensity,
    smoothed_mean: bool,
    tolerance: float,
) -> Found:
    """Run the Laplace approximation. `start` has the weights b (c, n), and is overwritten.

    If a search ends at a saddle of the log posterior, such as zero for a product of predictors, it starts again nearby.
    """
    b = start.reshape(problem.mean.shape)
    ascent = _PredictorsAscent(problem, density)
    x = problem.prior.coordinates(b).copy()
    for _ in range(_ESCAPES):
        evidence, status = newton(problem, x, ascent, history, tolerance=tolerance)
        if ascent.exact or status not in (CONVERGED, OUT_OF_DIGITS):
            break
        status = NOT_CONCAVE
        x = ascent.away(x)
    b[:] = problem.prior.weights(x, ascent.gradient)
    found = found_at_mode(problem, b, x, ascent, evidence, status, exact=ascent.exact)
    if not (smoothed_mean and status == CONVERGED):
        return found
    averaged, smooth = _AveragedAscent(problem, density, found.cov), x.copy()
    steps = History(_MOST_STEPS, watched=False)
    _, status = newton(problem, smooth, averaged, steps, tolerance=max(tolerance, _TOLERANCE))
    weights = problem.prior.weights(smooth, averaged.gradient).copy()
    return found._replace(status=status, weights=weights, mean=averaged.f)


@dataclass(frozen=True)
class LaplacePredictors(NewtonApproximation):
    """Gaussian with the posterior mode as mean, and the curvature of the log posterior at the mode.

    Parameters
    ----------
    smoothed_mean : bool
        Whether means maximise the log density averaged over Laplace's covariances. Such means are nearer to the means
        of a skewed posterior. Variances and evidence are computed at the mode.
    """

    smoothed_mean: bool = False

    name: ClassVar[str] = "laplace"
    site_form: ClassVar[SiteForm] = SiteForm.SIGNED
    needs: ClassVar[tuple[type, ...]] = (PredictorsDensity,)
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    follows_parameters: ClassVar[bool] = True

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        density = likelihood.computation(PredictorsDensity)
        return laplace_predictors(problem, start, history, density=density, **self.settings)


_AT_MODE, _FEW = 1e-4, 100  # Tolerance and largest number of iterations of the mode from which a cold solve starts.
_WIDEST = 10.0  # Larger variances of cavities are lowered to this many prior variances.
_AT_A_TIME = 16_384  # Number of nodes in a batch of derivatives.
_CLOSE = 1e-2  # Residual below which quadrature rules are compared with larger rules.


class BlockSitePosterior(SitePosterior):
    """Posterior of k predictors under packed sites (2, n, d), see `pymc_gpep.kernels.moments.predictor_sites`."""

    def __init__(self, problem: Problem) -> None:
        (k, n), self._problem, self.least = problem.mean.shape, problem, -np.inf
        self._algebra = problem.prior.blocks(k, signed=True)
        self.precision, self.cov = np.full((2, n, k, k), np.nan)
        self._location, self.weights, self.mean = np.full((3, k, n), np.nan)
        self._coordinates = np.empty(0)

    def take(self, sites: Array) -> tuple[bool, float]:
        """See `ImpliedPosterior`. Sites are scaled to be 1 at the posterior mean."""
        prior, prior_mean = self._problem.prior, self._problem.mean
        self.precision = np.empty_like(self.precision)
        unpack_sites(sites, self.precision, self._location)
        ok, log_det = self._algebra.factorise(self.precision)
        if not ok:
            return False, np.nan
        moved = self._algebra.moved(self._location - np.einsum("iab,bi->ai", self.precision, prior_mean))
        self.weights[:], self._coordinates = moved.weights, moved.coordinates
        prior.multiply(moved.coordinates, self.mean)
        length = prior.inner(moved.coordinates, moved.coordinates, self.mean)
        self.mean += prior_mean
        self.cov[:] = self._algebra.marginal_covariances()
        return True, -0.5 * (log_det + length)

    def shrink(self, sites: Array, factor: float) -> bool:
        """See `ImpliedPosterior`. Negative eigenvalues of site precisions are multiplied by `factor`."""
        precision, location = np.empty_like(self.precision), np.empty_like(self._location)
        unpack_sites(sites, precision, location)
        return bool(np.isfinite(precision).all() and shrink_negative(precision, factor, sites))

    def gradient(self) -> Array:
        return self._algebra.gradient(self.weights, None, self._coordinates)


def sites_at_laplace(problem: Problem, density: PredictorsDensity) -> Array | None:
    """Return packed sites (2, n, d) at Laplace's mode; None if the search fails."""
    k, n = problem.mean.shape
    without, history = problem._replace(slopes=False), History(_FEW, watched=False)
    at_mode = laplace_predictors(
        without, np.zeros(k * n), history, density=density, smoothed_mean=False, tolerance=_AT_MODE
    )
    if not (np.isfinite(at_mode.cov).all() and np.isfinite(at_mode.weights).all()):
        return None
    sites = np.zeros((2, n, packed_size(k)))
    sites[1, :, :k] = (at_mode.weights + np.einsum("iab,bi->ai", at_mode.precision, at_mode.mean)).T
    for i, own in enumerate(at_mode.precision):
        pack_precision(own, sites, i)
    return sites


@dataclass(frozen=True)
class EPPredictors(AcceleratedEP):
    """Gaussian sites that match mean and covariance of a row's predictors under its tilted distribution."""

    name: ClassVar[str] = "ep"
    site_form: ClassVar[SiteForm] = SiteForm.SIGNED
    needs: ClassVar[tuple[type, ...]] = (PredictorsDensity, PredictorsNodes)
    matches_moments: ClassVar[bool] = True
    whole_factors: ClassVar[str] = "of several linear predictors"
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    follows_parameters: ClassVar[bool] = True
    looseness: ClassVar[float] = 50.0
    schemes: ClassVar[tuple[str, ...]] = (*SCHEMES, "EP with site precisions of at least 0")

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts: packed sites, and rule index + 1 of each row."""
        return n_points * (2 * int(packed_size(n_functions)) + 1)

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """Return the nearest start, since combinations of blocks may be improper."""
        return starts[nearest].copy()

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        k, n = problem.mean.shape
        packed, ranks = start[:-n], start[-n:]
        if (
            not start.any()
            and (begin := sites_at_laplace(problem, likelihood.computation(PredictorsDensity))) is not None
        ):
            packed[:] = begin.ravel()
        rows = likelihood.computation(PredictorsNodes).rows(problem.labels, problem.parameters, k)
        # Rules of the start were compared with larger rules at other hyperparameters: do not compare them again.
        compared = -np.inf if ranks.any() else np.inf
        if ranks.any():
            rows.ranks = ranks.astype(np.intp) - 1
        at, wide = np.empty((n, k)), np.empty((n, k, k))
        root = np.empty((n, k, k))
        widest = np.ascontiguousarray(np.broadcast_to(_WIDEST * problem.prior.variances, (k, n)))

        def matched(
            posterior: BlockSitePosterior, sites: Array, target: Array, scale: Array
        ) -> tuple[bool, float, float]:
            nonlocal compared
            terms = block_cavities(
                posterior.mean, posterior.cov, posterior.precision, posterior.weights, widest, at, wide
            )
            root[:] = rows.cavities(at, wide)
            tilted = rows.moments(at, root)
            matched_sites(at, root, tilted.mean, tilted.cov, posterior.cov, posterior.least, target, scale)
            residual = largest_change(target, sites, scale)
            if residual < _CLOSE * min(compared, 1.0):
                compared = residual
                if rows.refine(at, root):
                    tilted = rows.moments(at, root)
                    matched_sites(at, root, tilted.mean, tilted.cov, posterior.cov, posterior.least, target, scale)
                    residual = largest_change(target, sites, scale)
            return True, float(tilted.log_z.sum()) + terms, residual

        posterior = BlockSitePosterior(problem)
        sites = packed.reshape(2, n, -1)
        ended = site_ep(
            posterior, sites, history, update=matched, last_least=-np.inf, largest_precision=np.inf, **self.iteration
        )

        if np.isfinite(compared):
            ranks[:] = rows.ranks + 1.0

        def parameters() -> Array:
            slopes = np.full_like(problem.parameters, np.nan)
            if slopes.size and problem.slopes:
                rows.parameter_slopes(at, root, slopes)
            return slopes

        return posterior.found(ended, parameters)


@dataclass(frozen=True)
class KLPredictors(AcceleratedBound):
    """Gaussian q with the smallest KL(q ‖ posterior). The evidence is the largest lower bound by a Gaussian.

    Parameters
    ----------
    order : int
        Number of quadrature nodes along each predictor, for up to three predictors.
    """

    order: int = field(default=12, metadata=at_least(2))

    name: ClassVar[str] = "kl"
    site_form: ClassVar[SiteForm] = SiteForm.SIGNED
    needs: ClassVar[tuple[type, ...]] = (PredictorsDensity, PredictorsDerivatives)
    algebra: ClassVar[Algebra] = Algebra.FUNCTIONS
    follows_parameters: ClassVar[bool] = True

    def start_size(self, n_functions: int, n_points: int) -> int:
        """Return the length of the vector from which a solve starts: packed sites."""
        return 2 * n_points * int(packed_size(n_functions))

    def between(self, starts: Array, weights: Array, nearest: int) -> Array:
        """Return the nearest start, since combinations of blocks may be improper."""
        return starts[nearest].copy()

    def solver(self, problem: Problem, start: Array, history: History, *, likelihood: Likelihood) -> Found:
        n = problem.mean.shape[1]
        density = likelihood.computation(PredictorsDensity)
        if not start.any() and (begin := sites_at_laplace(problem, density)) is not None:
            start[:] = begin.ravel()
        averages = _Averages(problem, likelihood.computation(PredictorsDerivatives), self.order)
        posterior = BlockSitePosterior(problem)

        def sweep(sites: Array, natural: Array, better: Array, scale: Array) -> tuple[bool, float, float]:
            ok, value = posterior.take(sites)
            if not ok:
                return False, np.nan, np.nan
            total, slope, curvature = averages(posterior.mean, posterior.cov)
            value += total + 0.5 * float((posterior.precision * posterior.cov).sum())
            location = slope + np.einsum("iab,bi->ai", curvature, posterior.mean)
            pack_sites(curvature, location, posterior.cov, natural, scale)
            better[:] = natural
            return True, value, largest_change(natural, sites, scale)

        evidence, status = accelerated_ascent(
            sweep, start.reshape(2, n, -1), history, tolerance=self.tolerance, depth=self.depth, mixing=self.mixing
        )
        return posterior.found(
            Ended(evidence, status, 0), lambda: averages.parameter_slopes(posterior.mean, posterior.cov)
        )


class _Averages:
    """Averages of a log density and of its derivatives over normal latent values of rows."""

    def __init__(self, problem: Problem, density: PredictorsDerivatives, order: int) -> None:
        self._problem, self._density = problem, density
        self._nodes, self._weights = averaging_rule(len(problem.mean), order)

    def __call__(self, mean: Array, cov: Array) -> tuple[float, Array, Array]:
        """Return Σ E[log p], the average gradients (k, n), and minus the average second derivatives (n, k, k)."""
        total, slope, curvature = 0.0, np.empty_like(mean), np.empty_like(cov)
        for rows, f, y, parameters in self._parts(mean, cov):
            value, gradient, hessian = self._density.derivatives(f, y, parameters)
            shape, k = (len(self._weights), -1), len(mean)
            total += float((self._weights @ value.reshape(shape)).sum())
            slope[:, rows] = np.einsum("d,kdm->km", self._weights, gradient.reshape(k, *shape))
            curvature[rows] = -np.einsum("d,dmab->mab", self._weights, hessian.reshape(*shape, k, k))
        return total, slope, curvature

    def parameter_slopes(self, mean: Array, cov: Array) -> Array:
        """Return derivatives (p, n) of averages with respect to parameters."""
        out = np.full_like(self._problem.parameters, np.nan)
        if out.size and self._problem.slopes:
            for rows, f, y, parameters in self._parts(mean, cov):
                found = self._density.slopes(f, y, parameters).reshape(len(out), len(self._weights), -1)
                out[:, rows] = np.einsum("d,pdm->pm", self._weights, found)
        return out

    def _parts(self, mean: Array, cov: Array) -> Iterator[tuple[slice, Array, Observed, Array]]:
        """Yield a slice of m rows, and latent values (k, d m), observations and parameters at their d nodes each."""
        d, n = len(self._weights), mean.shape[1]
        root = covariance_root(cov)
        step = max(1, _AT_A_TIME // d)
        for begin in range(0, n, step):
            rows = slice(begin, begin + step)
            f = mean[:, None, rows] + np.einsum("mab,db->adm", root[rows], self._nodes)
            y, parameters = self._problem.labels[rows], self._problem.parameters[:, rows]
            yield rows, f.reshape(len(mean), -1), np.tile(y, d), np.tile(parameters, d)
