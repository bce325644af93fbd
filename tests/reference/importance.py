"""Evidence and averages over the posterior of latent values by importance sampling, for log-concave likelihoods.

Draws come from a Student t distribution at the mode, with the curvature there. Its tails are heavier than those of any
log-concave posterior.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logsumexp, softmax
from scipy.stats import multivariate_t

__all__ = ["Likelihood", "Weighted", "logistic", "logistic_counts", "softmax_counts", "weighted_draws"]

Array = NDArray[np.float64]
_DEGREES = 30


class Likelihood(NamedTuple):
    """A likelihood of stacked latent values f (d,)."""

    log_density: Callable[[Array], Array]
    """log p(y | f) (s,) for f (s, d)."""
    slopes: Callable[[Array], tuple[Array, Array]]
    """Gradient (d,) and minus the Hessian (d, d) of log p(y | f) at f (d,)."""


class Weighted(NamedTuple):
    """Draws of the latent values with weights."""

    evidence: float
    error: float
    """Standard error of the evidence, by the delta method."""
    f: Array
    """Draws (s, d)."""
    weights: Array
    """Weights (s,) with sum 1."""

    def average(self, values: Array) -> Array:
        """The posterior mean of values (s, ...)."""
        return np.tensordot(self.weights, values, axes=1)

    def at(self, cross: Array, k: Array, variance: Array, of: Callable[[Array], Array] = expit) -> Array:
        """Posterior mean of a function of one latent value at new points (m,), by quadrature given each draw."""
        left = np.linalg.solve(k, cross)
        mean, sd = self.f @ left, np.sqrt(np.maximum(variance - (left * cross).sum(axis=0), 0.0))
        nodes, weights = np.polynomial.hermite_e.hermegauss(30)
        given = of(mean[:, :, None] + sd[:, None] * nodes) @ (weights / weights.sum())
        return self.average(given)


def weighted_draws(k: Array, likelihood: Likelihood, draws: int = 4000, seed: int = 0) -> Weighted:
    """Draw f ~ N(0, k) given observations, with weights."""
    root = np.linalg.cholesky(k)
    n = len(k)
    z = np.zeros(n)

    def height(z: Array) -> float:
        return float(likelihood.log_density((root @ z)[None])[0] - 0.5 * z @ z)

    for _ in range(200):
        gradient, curvature = likelihood.slopes(root @ z)
        hessian = np.eye(n) + root.T @ curvature @ root
        step = np.linalg.solve(hessian, root.T @ gradient - z)
        length = 1.0
        while height(z + length * step) < height(z) - 1e-12 * abs(height(z)) and length > 1e-6:
            length *= 0.5
        z = z + length * step
        if np.abs(step).max() < 1e-10:
            break
    spread = np.linalg.cholesky(np.linalg.inv(hessian))
    t = multivariate_t(shape=np.eye(n), df=_DEGREES, seed=seed)
    standard = t.rvs(size=draws).reshape(draws, n)
    moved = z + standard @ spread.T
    f = moved @ root.T
    log_weights = likelihood.log_density(f) - 0.5 * (moved**2).sum(axis=1) - 0.5 * n * np.log(2 * np.pi)
    log_weights -= t.logpdf(standard) - np.log(spread.diagonal()).sum()
    evidence = logsumexp(log_weights) - np.log(draws)
    weights = np.exp(log_weights - evidence) / draws
    return Weighted(float(evidence), float(np.sqrt((weights**2).sum() - 1 / draws)), f, weights / weights.sum())


def logistic_counts(successes: Array, trials: Array) -> Likelihood:
    """Each trial at a place has the success probability expit(f). The binomial coefficient is left out."""
    return Likelihood(
        lambda f: (successes * log_expit(f) + (trials - successes) * log_expit(-f)).sum(axis=1),
        lambda f: (successes - trials * expit(f), np.diag(trials * expit(f) * expit(-f))),
    )


def logistic(y: Array) -> Likelihood:
    """Labels 0 and 1."""
    return logistic_counts(y, np.ones_like(y))


def softmax_counts(votes: Array) -> Likelihood:
    """Votes (n, c) for the classes, each with probabilities softmax(f), for f stacked class by class."""
    n, c = votes.shape
    trials = votes.sum(axis=1)

    def log_density(f: Array) -> Array:
        each = f.reshape(-1, c, n)
        return (votes.T * each).sum(axis=(1, 2)) - (trials * logsumexp(each, axis=1)).sum(axis=1)

    def slopes(f: Array) -> tuple[Array, Array]:
        p = softmax(f.reshape(c, n), axis=0)
        hessian = np.zeros((c, n, c, n))
        for i in range(n):
            hessian[:, i, :, i] = trials[i] * (np.diag(p[:, i]) - np.outer(p[:, i], p[:, i]))
        return (votes.T - trials * p).ravel(), hessian.reshape(c * n, c * n)

    return Likelihood(log_density, slopes)
