"""Methods along a path of hyperparameters, on which successive points are neighbours."""

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar

from benchmarks.binary_paper.covariances import JITTER, Prior, Priors
from benchmarks.binary_paper.methods import EVERY, AuthorsLabelRegression, printed_bound
from benchmarks.paper.data import Split
from pymc_gpep.approximations import Solution
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.likelihoods.local_computations import AverageLogDensity, GaussianAverage
from pymc_gpep.likelihoods.one_function import TwoClasses
from pymc_gpep.rivals.label_regression import LabelRegression

Array = np.ndarray

STEPS = 100
"""Number of steps after which the authors' code ends the iteration of the factorial method or of naive TAP."""
STEPPED = {f"FV, {STEPS} steps": "FV", f"TAPnaive, {STEPS} steps": "TAPnaive"}
"""Names of these two iterations, which differ from the authors' in detail, and of the methods they approach."""
PROGRAMS = {"FV, program": "FV", "TAPnaive, program": "TAPnaive"}
"""Names of the iterations of the authors' public program, and of the methods they approach."""
RIDGES = {f"FV, program, ridge {ridge:g}": ridge for ridge in (1e-8, 1e-4, 1e-2)}
"""The program's FV with other values on the diagonal of K, where the program has `JITTER`."""
TOLERANCES = {"LA": 1e-4, "EP": 1e-4, "KL": 1e-4, "VB": 1e-5, "FV": 1e-4, "TAPnaive": 1e-4, "TAPnaive, code": 1e-4}
"""Tolerances at which information has all digits of the table of 96 trials and one more, as a test verifies."""
_LIMITS = LabelRegression().least, LabelRegression().most
_KEPT = 4  # number of earlier solves for a predicted start
_POSITIVE = 1e-12  # rounding error that a variance may have
_UNIT = 0.8  # unit of log ℓ and log σ_f, two steps of the coarse grid: starts vary smoothly over a few units


class Point(NamedTuple):
    """Results of a method at a point of the grid."""

    converged: bool
    iterations: int
    evidence: float
    bound: float
    printed: float
    """Bound of the factorial method as printed, see `printed_bound`. NaN for other methods."""
    mean: Array
    """Means of the latent values at the test points, (m,)."""
    variance: Array


def nothing(prior: Prior, iterations: int) -> Point:
    """Result for a method that does not converge."""
    unknown = np.full(len(prior.cross), np.nan)
    return Point(False, iterations, np.nan, np.nan, np.nan, unknown, unknown)


class Path(Protocol):
    """State of a method on its path."""

    def at(self, place: tuple[float, float], prior: Prior) -> Point:
        """Run the method at log ℓ and log σ_f."""


class Solves:
    """A method of the package. Each solve starts at a prediction from earlier solves."""

    def __init__(self, method: str, split: Split, link: TwoClasses, rough: bool) -> None:
        approximator = EVERY[method]
        self._approximator = replace(approximator, tolerance=TOLERANCES[method]) if rough else approximator
        self._factorial, self._link, self._labels = method == "FV", link, split.y
        self._near = Neighbours((), ())

    def at(self, place: tuple[float, float], prior: Prior) -> Point:
        where = np.array(place) / _UNIT
        start = self._near.predict(self._approximator, where) if self._near.places else None
        zero = np.zeros((1, self._labels.size))
        solution = self._approximator.solve_near(prior.k, zero, self._labels, start, likelihood=self._link)
        convergence = solution.convergence
        if not convergence.converged:
            self._near = Neighbours((), ())
            return nothing(prior, convergence.iterations)
        self._near = self._near.joined(where, solution.start, _KEPT)
        printed = printed_bound(solution, self._link) if self._factorial else np.nan
        bound = solution.lower_bound
        return Point(
            True, convergence.iterations, solution.evidence, bound, printed, *at_held_out(solution, prior)
        )  # fmt: skip


class Steps:
    """Fixed-point iteration for the weights b of the factorial method or naive TAP, from 0, for some steps.

    It is b ← b + η (h′(Kb − Db, D) − b), see `pymc_gpep.solvers.newton`. According to the paper steps are adapted,
    without details. Here η grows by a tenth if Σ (h′ − b)² / γ falls. Otherwise the step is undone, and η is halved.
    """

    def __init__(self, method: str, split: Split, link: TwoClasses, steps: int = STEPS) -> None:
        self._factorial, self._labels, self._steps = method == "FV", split.y, steps
        self._average, self._parameters = link.computation(GaussianAverage).terms, link.parameters

    def at(self, place: tuple[float, float], prior: Prior) -> Point:
        k, n = prior.k, len(prior.k)
        try:
            inverse = np.linalg.inv(k) if self._factorial else np.empty((0, 0))
        except np.linalg.LinAlgError:  # for matrices of low rank with a ridge below rounding errors
            return nothing(prior, 0)
        width = 1.0 / np.maximum(inverse.diagonal(), _POSITIVE) if self._factorial else k.diagonal().copy()
        h, b, good, step = np.empty((5, n)), np.zeros(n), np.zeros(n), np.zeros(n)
        eta, last, weight = 1.0, np.inf, np.ones(n)
        with np.errstate(all="ignore"):
            for taken in range(self._steps + 1):
                self._average(k @ b - width * b, width, self._labels, self._parameters, h)
                left = h[1] - b
                if np.abs(left).max() < TOLERANCES["FV"] or taken == self._steps:
                    break
                if weight @ left**2 < last:
                    weight = 1.0 / np.maximum(-h[2], _POSITIVE)
                    eta, last, good, step = min(1.0, 1.1 * eta), weight @ left**2, b, left
                else:  # also for NaN
                    eta *= 0.5
                b = good + eta * step
            if not np.isfinite(h).all():
                return nothing(prior, taken)
            kept = np.maximum(1.0 + width * h[2], _POSITIVE)
            variance = np.maximum(self._spread(prior, inverse, width * kept, -h[2] / kept), _POSITIVE)
        return Point(True, taken, np.nan, np.nan, np.nan, prior.cross @ b, variance)

    def _spread(self, prior: Prior, inverse: Array, factors: Array, precision: Array) -> Array:
        """Predictive variances, with variances of the factors or precisions of sites."""
        if self._factorial:
            weights = prior.cross @ inverse
            return prior.variance - (weights * prior.cross).sum(axis=1) + weights**2 @ factors
        root = np.sqrt(np.maximum(precision, 0.0))
        factor = cho_factor(np.eye(len(root)) + root[:, None] * prior.k * root)
        seen = root[:, None] * prior.cross.T
        return prior.variance - (seen * cho_solve(factor, seen)).sum(axis=0)


class Programs:
    """Iterations of the authors' public program of May 2007, by reading it, for FV and naive TAP.

    A step η is halved if the largest squared change grows, and the step itself is kept. FV iterates on the means m,
    from η = 0.5, at most 500 times. Naive TAP iterates on α = K⁻¹m, from η = 0.05, at most 100 times. Its cavities have
    the variance K_ii − 1, here 0 if this is negative. Its W is that of equation (11), second line, which is not the
    derivative of its α.
    """

    def __init__(self, method: str, split: Split, link: TwoClasses, ridge: float = JITTER) -> None:
        self._factorial, self._labels, self._ridge = method == "FV", split.y, ridge
        self._average, self._parameters = link.computation(GaussianAverage).terms, link.parameters

    def at(self, place: tuple[float, float], prior: Prior) -> Point:
        if self._ridge != JITTER:
            prior = prior._replace(k=prior.k + (self._ridge - JITTER) * np.eye(len(prior.k)))
        with np.errstate(all="ignore"):
            steps, mean, variance = (self._of_means if self._factorial else self._of_weights)(prior)
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            return nothing(prior, steps)
        return Point(True, steps, np.nan, np.nan, np.nan, mean, np.maximum(variance, _POSITIVE))

    def _slopes(self, mean: Array, variance: Array) -> Array:
        """log ∫ p(y | f) N(f | mean, variance) df, and derivatives of it in the mean, (5, n)."""
        h = np.empty((5, mean.size))
        self._average(mean, variance, self._labels, self._parameters, h)
        return h

    def _of_means(self, prior: Prior) -> tuple[int, Array, Array]:
        """Return the number of steps, and means and variances at the test points, by FV."""
        try:
            inverse = np.linalg.inv(prior.k)  # with the ridge of `Priors`, which equals the program's
        except np.linalg.LinAlgError:
            return 0, np.full(len(prior.cross), np.nan), prior.variance
        width = 1.0 / np.maximum(inverse.diagonal(), _POSITIVE)
        m = np.zeros(len(prior.k))
        eta, error, steps = 0.5, np.inf, 0
        while error > 5e-6 and steps <= 500:
            mu = m - width * (inverse @ m)
            h = self._slopes(mu, width)
            change = mu + width * h[1] - m
            last, error = error, float((change**2).max())
            m = m + eta * change
            steps += 1
            eta = min(1.1 * eta, 1.0) if last > error else 0.5 * eta
        weights = prior.cross @ inverse
        spread = width * (1.0 + width * h[2])
        variance = prior.variance - (weights * prior.cross).sum(axis=1) + weights**2 @ spread
        return steps, weights @ (mu + width * h[1]), variance

    def _of_weights(self, prior: Prior) -> tuple[int, Array, Array]:
        """Return the number of steps, and predictive means and variances, by naive TAP."""
        own = prior.k.diagonal()
        alpha = np.zeros(len(own))
        eta, error, steps, change = 0.05, np.inf, 0, np.inf
        while error > 1e-5 and steps <= 100:
            last, error = error, float(np.max(np.square(change)))
            m = prior.k @ alpha
            change = self._slopes(m - own * alpha, np.maximum(own - 1.0, 0.0))[1] - alpha
            alpha = alpha + eta * change
            steps += 1
            eta = 1.1 * eta if last > error else 0.5 * eta
        root = 1.0 / (np.sqrt(np.abs(own * (1.0 / (m * alpha) - 1.0))) + np.finfo(float).eps)
        factor = cho_factor(np.eye(len(root)) + root[:, None] * prior.k * root, check_finite=False)
        seen = root[:, None] * prior.cross.T
        variance = prior.variance - (seen * cho_solve(factor, seen, check_finite=False)).sum(axis=0)
        return steps, prior.cross @ alpha, variance


class Regressions:
    """Label regression of the text or the authors' code, with one eigendecomposition for all magnitudes and noises.

    With K = Q Dg(λ) Qᵀ and sites of precision w, A⁻¹ = Q Dg(1 / (1 + wλ)) Qᵀ.
    """

    def __init__(self, authors: bool, split: Split, link: TwoClasses, priors: Priors) -> None:
        self._authors, self._labels, self._priors = authors, split.y, priors
        self._targets = 2.0 * split.y - 1.0
        self._average = link.computation(AverageLogDensity).terms
        self._parameters = link.parameters
        self._basis: tuple[float, tuple[Array, ...]] | None = None

    def at(self, place: tuple[float, float], prior: Prior) -> Point:
        values, vectors, squares, across = self._decomposed(place[0])
        scale = np.exp(2.0 * place[1])
        size = scale * values + JITTER
        seen = vectors.T @ self._targets

        def weights(log_noise: float) -> Array:
            """Weights b that solve (K + σ² I) b = targets."""
            return np.asarray(seen / (size + np.exp(2.0 * log_noise)))

        def precision(log_noise: float) -> float:
            return float(np.exp((2.0 if self._authors else -2.0) * log_noise))

        def bound(log_noise: float) -> float:
            w, b = precision(log_noise), weights(log_noise)
            kept = 1.0 / (1.0 + w * size)
            g = np.empty((3, self._labels.size))
            self._average(vectors @ (size * b), squares @ (size * kept), self._labels, self._parameters, g)
            return float(g[0].sum() - 0.5 * (size @ b**2 + (kept - 1.0 - np.log(kept)).sum()))

        tried = np.log(AuthorsLabelRegression.noises if self._authors else _LIMITS).tolist()
        if not self._authors:
            inner = minimize_scalar(lambda x: -bound(x), bounds=tried, method="bounded", options={"xatol": 1e-4})
            tried.append(float(inner.x))
        best = max(tried, key=bound)
        w, b = precision(best), weights(best)
        mean = scale * across @ b
        variance = np.maximum(prior.variance - scale**2 * (across**2 @ (w / (1.0 + w * size))), 0.0)
        return Point(True, len(tried), bound(best), bound(best), np.nan, mean, variance)

    def _decomposed(self, log_lengthscale: float) -> tuple[Array, ...]:
        """Eigendecomposition at σ_f = 1, squared eigenvectors, and covariances with test points."""
        if self._basis is None or self._basis[0] != log_lengthscale:
            unit = self._priors.unit(log_lengthscale)
            values, vectors = np.linalg.eigh(unit.k)
            parts = np.maximum(values, 0.0), vectors, vectors**2, unit.cross @ vectors
            self._basis = log_lengthscale, parts
        return self._basis[1]


def at_held_out(solution: Solution, prior: Prior) -> tuple[Array, Array]:
    """Means (m,) and variances (m,) of the latent values at the test points."""
    mean, cov = solution.posterior.predict(prior.cross[None], prior.variance[None], np.zeros((1, len(prior.cross))))
    return mean[0], cov[:, 0, 0]
