"""Nodes for what differs among classes, N(0, I − 11ᵀ/d): alike in any order of the d classes."""

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import gamma, logsumexp, ndtri
from scipy.stats import qmc

from pymc_gpep.array_types import Array

_LATTICE = 5  # dimensions from which on a lattice needs too many points
_WIDEST = 8.0  # radius, in standard deviations
_FINEST = 0.1  # distance of points
_SEED = 20_040_661


class Nodes(NamedTuple):
    """A rule for what differs among d classes, N(0, I − 11ᵀ/d)."""

    points: Array
    """(N, d), each with the sum 0."""
    log_weights: Array
    """(N,)."""


@lru_cache(maxsize=8)
def class_nodes(d: int, most: int) -> Nodes:
    """Return about `most` nodes at most, or the few that are enough, for d classes.

    Up to five dimensions, six classes, they are a lattice A*, ℤᵈ projected along 1, in a ball. That is the trapezoidal
    rule of its kind. Its error for smooth functions that fall like a normal density is exponentially small in both the
    distance of points and the radius.

    In more dimensions they are scrambled Sobol points, made normal, with all signs and cyclic orders of their
    coordinates.

    Both are scaled to the covariance that they are to have. Otherwise sites are off where evidences are not. Gradients
    take sites as constants: with 2000 nodes for seven classes they would be off by five percent.
    """
    e = d - 1
    if e == 0:
        return Nodes(np.zeros((1, 1)), np.zeros(1))
    if e > _LATTICE:
        return _sobol(d, most)
    ball = math.pi ** (e / 2) / float(gamma(e / 2 + 1))
    # The errors exp(−r² / 2) and exp(−2π² / h²) agree where r h = 2π.
    radius = min(_WIDEST, ((2 * math.pi) ** e * most / ball) ** (1 / (2 * e)))
    distance = max(_FINEST, radius * (ball / most) ** (1 / e))
    edge = distance * d ** (1 / (2 * e))  # a cell of the lattice has the volume edgeᵉ / √d
    reach = int(radius * math.sqrt(2.0) / edge) + 1
    integers = np.array([(*x, 0) for x in product(range(-reach, reach + 1), repeat=e)], float)
    points = edge * (integers - integers.mean(axis=1, keepdims=True))
    squares = (points**2).sum(axis=1)
    inside = squares <= radius**2
    points, squares = points[inside], squares[inside]
    log_weights = -0.5 * squares
    log_weights -= logsumexp(log_weights)
    if spread := float(np.exp(log_weights) @ squares):  # 0 where the origin is the only point
        points *= math.sqrt(e / spread)
    return Nodes(points, log_weights)


@lru_cache(maxsize=8)
def edge_nodes(d: int) -> Nodes:
    """Return the d (d − 1) / 2 middles of a simplex's edges, d corners, and their opposites: right for cubic functions.

    The nodes are for a few digits in many dimensions. Means and covariances are those of nodes, so that functions which
    are nearly normal are averaged without noise.
    """
    corners = np.eye(d) - 1.0 / d
    first, second = np.triu_indices(d, 1)
    middles = corners[first] + corners[second]
    middles *= math.sqrt(d - 1) / np.linalg.norm(middles, axis=1, keepdims=True)
    points = np.concatenate([middles, -middles])
    return Nodes(points, np.full(len(points), -math.log(len(points))))


def _sobol(d: int, most: int) -> Nodes:
    level = max(int(math.log2(max(most / (2 * d), 1.0))), 0)
    uniform = qmc.Sobol(d, rng=np.random.default_rng(_SEED)).random_base2(level)
    normals = ndtri(np.clip(uniform, 1e-12, 1.0 - 1e-12))
    normals -= normals.mean(axis=1, keepdims=True)
    points = np.concatenate([sign * np.roll(normals, shift, axis=1) for sign in (1.0, -1.0) for shift in range(d)])
    # Their covariance made what it should be: what is nearly normal is then averaged with less noise.
    values, vectors = np.linalg.eigh(points.T @ points / len(points))
    roots = 1.0 / np.sqrt(values[1:])  # the first is that along 1, zero
    points = points @ (vectors[:, 1:] * roots) @ vectors[:, 1:].T
    return Nodes(np.ascontiguousarray(points), np.full(len(points), -math.log(len(points))))
