"""Assumed density filtering, its scores and its bound, by dense algebra and quadrature, without regard to speed.

Vectors over all latent values are sorted by function, with n entries for each function.
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

__all__ = [
    "MATCHES",
    "Filtered",
    "Separate",
    "adf",
    "average_log_density",
    "bound",
    "divergence",
    "label_probability",
    "separate",
]

Array = NDArray[np.float64]
type Match = Callable[[Array, Array, int], tuple[Array, Array]]


class Filtered(NamedTuple):
    """Mean (c, n) and covariance (cn, cn) of all latent values, and sites (d, c, c) and (d, c) of the included rows."""

    mean: Array
    covariance: Array
    precision: Array
    location: Array


def adf(K: Array, m: Array, y: NDArray[np.int64], order: Sequence[int], match: Match) -> Filtered:
    """Include rows one after another, with dense inverses."""
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
    """The site of full rank with which the Gaussian has the moments of the tilted distribution."""
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
    """Match for a softmax of three functions.

    The site of the differences has the coupled form unless its coupling is negative.
    """
    away = directions(y, len(mean)).T
    inner, own = away @ covariance @ away.T, away @ mean
    tilted = softmax_tilted(own, inner)
    precision, location = _from_moments(own, inner, tilted.mean, tilted.covariance)
    return away.T @ precision @ away, away.T @ location


def _softmax_independent(mean: Array, covariance: Array, y: int) -> tuple[Array, Array]:
    """Match moments of the differences x. Latent values follow by the regression Cov(f, x) Cov(x)⁻¹."""
    away = directions(y, len(mean)).T
    own = np.diag(covariance.diagonal())
    inner = away @ own @ away.T
    tilted = softmax_tilted(away @ mean, inner)
    gain = np.linalg.solve(inner, away @ own).T
    tilted_cov = own - gain @ (inner - tilted.covariance) @ gain.T
    tilted_mean = mean + gain @ (tilted.mean - away @ mean)
    return _from_moments(mean, own, tilted_mean, np.diag(tilted_cov.diagonal()))


MATCHES: dict[tuple[str, str], Match] = {
    ("multinomial_probit", "coupled"): _coupled,
    ("multinomial_probit", "independent"): _independent,
    ("multinomial_probit", "utility"): _utility,
    ("softmax", "coupled"): _softmax,
    ("softmax", "independent"): _softmax_independent,
    ("probit", "independent"): _of_link("probit"),
    ("logit", "independent"): _of_link("logit"),
    ("complementary_log_log", "independent"): _complementary,
}
"""Functions that match moments, by likelihood and kind of sites."""


def divergence(mean: Array, covariance: Array, precision: Array, location: Array) -> float:
    """KL(posterior with one more site ‖ posterior without), for the latent values of the row of the site."""
    after = np.linalg.inv(np.linalg.inv(covariance) + precision)
    moved = after @ (np.linalg.solve(covariance, mean) + location) - mean
    ratio = np.linalg.solve(covariance, after)
    quadratic = moved @ np.linalg.solve(covariance, moved)
    return float(0.5 * (np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1] + quadratic))


class Separate(NamedTuple):
    """Pairs (function, row) in the order of their sites, the sites (2, c, n), and moments as in `Filtered`."""

    pairs: list[tuple[int, int]]
    sites: Array
    mean: Array
    covariance: Array


def separate(
    likelihood: str, K: Array, m: Array, y: NDArray[np.int64], first: Sequence[int], active: int, score: str
) -> Separate:
    """Select rows for each function (Seeger and Jordan 2004, section 6), after `first` rows for all functions.

    The next site belongs to the pair of a function and a row with the highest score.
    """
    c, n = m.shape
    match = MATCHES[likelihood, "independent"]
    mean, covariance = m.ravel().copy(), block_diagonal(K, c)
    pairs: list[tuple[int, int]] = []
    sites = np.zeros((2, c, n))

    def told(i: int, label: int) -> tuple[Array, Array, Array]:
        """Divergences by a site on each function (c,), given a label, and precisions and locations of these sites."""
        where = np.arange(c) * n + i
        precision, location = match(mean[where], covariance[np.ix_(where, where)], label)
        pi = precision.diagonal()
        each = [
            divergence(mean[[a]], covariance[[a]][:, [a]], pi[[k]][None], location[[k]]) for k, a in enumerate(where)
        ]
        return np.array(each), pi, location

    def scores(i: int) -> Array:
        if score == "information":
            return told(i, int(y[i]))[0]
        where = np.arange(c) * n + i
        own = mean[where], np.diag(covariance[where, where])
        p = np.array([label_probability(likelihood, *own, label) for label in range(c)])
        return np.asarray(p @ np.array([told(i, label)[0] for label in range(c)]) / p.sum())

    def include(k: int, i: int, pi: float, location: float) -> None:
        nonlocal mean, covariance
        at = k * n + i
        column = covariance[:, at] / (1.0 + pi * covariance[at, at])
        mean = mean + column * (location - pi * mean[at])
        covariance = covariance - pi * np.outer(column, covariance[at])
        pairs.append((k, i))
        sites[:, k, i] = pi, location

    for i in first:
        _, pi, location = told(i, int(y[i]))
        for k in range(c):
            include(k, i, pi[k], location[k])
    while len(pairs) < c * active:
        table = np.stack([scores(i) for i in range(n)], axis=1)
        full = [sum(own == k for own, _ in pairs) == active for k in range(c)]
        table[full] = -np.inf
        for pair in pairs:
            table[pair] = -np.inf
        k, i = np.unravel_index(table.argmax(), table.shape)
        _, pi, location = told(int(i), int(y[i]))
        include(int(k), int(i), pi[k], location[k])
    return Separate(pairs, sites, mean.reshape(c, n), covariance)


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
    """Latent values and weights. With several functions the value of class y is 0, since only differences count."""
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
    """E p(y | f) under one normal distribution.

    For the multinomial probit it is computed by inner EP, as in the package.
    """
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
    """Σ E log p(y_i | f_i) − KL(q(f_I) ‖ p(f_I)) over all rows. q is the prior of the rows I times sites (d, c, c)."""
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
