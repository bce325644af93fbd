"""Assumed density filtering, its scores and its bound with dense algebra and quadrature: no thought of speed.

Vectors over all latent values are stacked function by function, each of length n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from tests.reference.binary_links import LINKS
from tests.reference.dense_nested_ep import block_diagonal, inner_ep, site
from tests.reference.exact import log_likelihood
from tests.reference.softmax_ep import softmax_tilted
from tests.reference.tilted import directions, independent_tilted

__all__ = ["MATCHES", "Filtered", "adf", "average_log_density", "bound", "divergence", "label_probability"]

Array = NDArray[np.float64]
type Match = Callable[[Array, Array, int], tuple[Array, Array]]


class Filtered(NamedTuple):
    """Mean (c, n) and covariance (cn, cn) of all latent values, and sites (d, c, c), (d, c) of the rows included."""

    mean: Array
    covariance: Array
    precision: Array
    location: Array


def adf(K: Array, m: Array, y: NDArray[np.int64], order: Sequence[int], match: Match) -> Filtered:
    """Include rows one after the other, by inverting what is to be inverted."""
    c, n = m.shape
    mean, covariance = m.ravel().copy(), block_diagonal(K, c)
    sites = []
    for i in order:
        where = np.arange(c) * n + i
        own = covariance[np.ix_(where, where)]
        precision, location = match(mean[where], own, int(y[i]))
        gain = np.linalg.solve((np.eye(c) + precision @ own).T, covariance[where]).T
        mean = mean + gain @ (location - precision @ mean[where])
        covariance = covariance - gain @ precision @ covariance[where]
        sites.append((precision, location))
    precisions, locations = (np.array(each) for each in zip(*sites, strict=True))
    return Filtered(mean.reshape(c, n), covariance, precisions, locations)


def _coupled(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
    inner = inner_ep(mean, covariance, y)
    return site(inner.alpha, inner.beta, y)


def _from_moments(mean: Array, covariance: Array, tilted_mean: Array, tilted: Array) -> tuple[Array, Array]:
    """The site by which moments become those of the tilted distribution, of full rank."""
    precision = np.linalg.inv(tilted) - np.linalg.inv(covariance)
    return precision, np.linalg.solve(tilted, tilted_mean) - np.linalg.solve(covariance, mean)


def _independent(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
    tilted = independent_tilted(mean, covariance.diagonal(), y)
    return _from_moments(mean, np.diag(covariance.diagonal()), tilted.mean, np.diag(tilted.covariance.diagonal()))


def _of_link(name: str) -> Match:
    def match(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
        _, tilted_mean, variance = LINKS[name].moments(2.0 * y - 1.0, float(mean[0]), float(covariance[0, 0]))
        return _from_moments(mean, covariance, np.array([tilted_mean]), np.array([[variance]]))

    return match


def _complementary(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
    f, weight = _points(mean, covariance, y, 100)
    weight = weight * np.exp(_log_density("complementary_log_log", f, y))
    weight /= weight.sum()
    tilted_mean = weight @ f
    return _from_moments(mean, covariance, tilted_mean, (weight @ (f - tilted_mean) ** 2)[:, None])


def _utility(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
    step = 1e-4 * np.eye(len(mean))
    higher, lower = (log_likelihood(mean + side * step, np.full(len(mean), y)) for side in (1.0, -1.0))
    return np.eye(len(mean)), mean + (higher - lower) / 2e-4


def _softmax(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
    """Of three functions, where the site of the differences is of the wanted form unless its coupling is negative."""
    away = directions(y, len(mean)).T
    inner, own = away @ covariance @ away.T, away @ mean
    tilted = softmax_tilted(own, inner)
    precision, location = _from_moments(own, inner, tilted.mean, tilted.covariance)
    return away.T @ precision @ away, away.T @ location


MATCHES: dict[tuple[str, str], Match] = {
    ("multinomial_probit", "coupled"): _coupled,
    ("multinomial_probit", "independent"): _independent,
    ("multinomial_probit", "utility"): _utility,
    ("softmax", "coupled"): _softmax,
    ("probit", "independent"): _of_link("probit"),
    ("logit", "independent"): _of_link("logit"),
    ("complementary_log_log", "independent"): _complementary,
}
"""By likelihood and sites."""


def divergence(mean: Array, covariance: Array, precision: Array, location: Array) -> float:
    """KL(posterior with one more site ‖ posterior without), of the latent values of its row."""
    after = np.linalg.inv(np.linalg.inv(covariance) + precision)
    moved = after @ (np.linalg.solve(covariance, mean) + location) - mean
    ratio = np.linalg.solve(covariance, after)
    quadratic = moved @ np.linalg.solve(covariance, moved)
    return float(0.5 * (np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1] + quadratic))


def _log_density(likelihood: str, f: Array, y: int) -> Array:
    """log p(y | f) of f (..., c)."""
    if likelihood == "multinomial_probit":
        return log_likelihood(f, np.full(f.shape[:-1], y))
    if likelihood == "softmax":
        return np.asarray(f[..., y] - logsumexp(f, axis=-1))
    if likelihood == "complementary_log_log":
        rate = np.exp(f[..., 0])
        return np.log(-np.expm1(-rate)) if y else -rate
    return LINKS[likelihood].log_sig((2.0 * y - 1.0) * f[..., 0])


def _points(mean: Array, covariance: Array, y: int, order: int) -> tuple[Array, Array]:
    """Latent values and weights. With several functions that of class y is 0: only differences count."""
    c = len(mean)
    if c > 1:
        away = directions(y, c).T
        mean, covariance = away @ mean, away @ covariance @ away.T
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(*[nodes] * len(mean), indexing="ij"), axis=-1).reshape(-1, len(mean))
    weight = np.stack(np.meshgrid(*[weights] * len(mean), indexing="ij"), axis=-1).reshape(-1, len(mean)).prod(axis=1)
    found = mean + grid @ np.linalg.cholesky(covariance).T
    return (np.insert(-found, y, 0.0, axis=1) if c > 1 else found), weight / weight.sum()


def label_probability(likelihood: str, mean: Array, covariance: Array, y: int, order: int = 30) -> float:
    """E p(y | f) under one normal distribution; by inner EP for the multinomial probit, as the package has it."""
    if likelihood == "multinomial_probit" and np.count_nonzero(covariance - np.diag(covariance.diagonal())):
        return float(np.exp(inner_ep(mean, covariance, y).log_normaliser))
    f, weight = _points(mean, covariance, y, order)
    return float(weight @ np.exp(_log_density(likelihood, f, y)))


def average_log_density(likelihood: str, mean: Array, covariance: Array, y: int, order: int = 16) -> float:
    """E log p(y | f) under one normal distribution."""
    f, weight = _points(mean, covariance, y, order)
    return float(weight @ _log_density(likelihood, f, y))


def bound(
    likelihood: str, K: Array, m: Array, y: NDArray[np.int64], rows: Sequence[int], precision: Array, location: Array
) -> float:
    """Σ E log p(y_i | f_i) − KL(q(f_I) ‖ p(f_I)) over all rows, q the prior of the rows I times sites (d, c, c)."""
    c, n = m.shape
    whole = block_diagonal(K, c)
    places = (np.arange(c)[:, None] * n + np.asarray(rows)).ravel()  # function by function
    d = len(rows)
    sites, pull = np.zeros((c * d, c * d)), np.zeros(c * d)
    for j in range(d):
        where = np.arange(c) * d + j
        sites[np.ix_(where, where)], pull[where] = precision[j], location[j]
    prior, prior_mean = whole[np.ix_(places, places)], m.ravel()[places]
    covariance = np.linalg.inv(np.linalg.inv(prior) + sites)
    mean = covariance @ (np.linalg.solve(prior, prior_mean) + pull)
    ratio, away = np.linalg.solve(prior, covariance), mean - prior_mean
    kl = 0.5 * (np.trace(ratio) - c * d - np.linalg.slogdet(ratio)[1] + away @ np.linalg.solve(prior, away))
    gain = np.linalg.solve(prior, whole[places]).T
    total_mean = m.ravel() + gain @ away
    total = whole + gain @ (covariance - prior) @ gain.T
    value = -float(kl)
    for i in range(n):
        where = np.arange(c) * n + i
        value += average_log_density(likelihood, total_mean[where], total[np.ix_(where, where)], int(y[i]))
    return value
