"""Probabilities that each of several correlated utilities is the largest, by averages over their common factors.

Cheap quadrature rules are tried first. Most rules are randomised, and exact for polynomials of degree 3 or 5 (Genz and
Monahan 1998). Their points lie on a sphere with a random radius and a random rotation, so each rule is unbiased. Its
error consists of polynomial terms of higher degree.

A. Genz and J. Monahan (1998). Stochastic integration rules for infinite regions. *SIAM Journal on Scientific Computing*
19 (2), 426–439.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import combinations, product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import chi2, qmc, special_ortho_group, t

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.special.common_factors import average_over_factors
from pymc_gpep.solvers.team import gather_for_pieces, one_blas_thread

FEWEST = 5
"""Averages over common factors save time if there are at least this many classes."""

_SEED = 20_130_101  # Fixed seed of the random points: equal input then has equal results.
_CONFIDENCE = 0.99  # Confidence level of reported errors.
_PIECE = 8  # Number of points that a thread computes in one piece of work.
_FINEST = 1e-5  # No rule is tried for a smaller tolerance: tables and mixtures have errors of this size.


def normal_rule(count: int, k: int) -> tuple[Array, Array]:
    """Return nodes (d, k) and weights (d,) for averages over k standard normals, by a product of Gauss–Hermite rules.

    Parameters
    ----------
    count : int
        Number of nodes along each normal.
    k : int
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    every = np.array(list(product(range(count), repeat=k)))
    return nodes[every], (weights / weights.sum())[every].prod(axis=1)


class UtilityNoise(NamedTuple):
    """Noise with the same distribution for each class. A utility is a latent value plus its noise."""

    common: float
    """Variance of the normal part of the noise."""
    weights: Array
    """Weights of a mixture of normals for the rest of the noise. They sum to 1, and may be negative."""
    means: Array
    variances: Array
    error: float
    """Error of class probabilities due to interpolation in tables and to the mixture."""


class _Rules(NamedTuple):
    make: Callable[[int, np.random.Generator], tuple[Array, Array]]
    """Function of dimension and generator. It returns points (rules, points, dimension) and weights (rules, points)."""
    hopeless: float
    """These rules are skipped if the error of the previous rules, in units of the tolerance, is larger."""


def _third(dimension: int, rng: np.random.Generator) -> tuple[Array, Array]:
    return third_degree(dimension, 16, rng)


def _fifth(dimension: int, rng: np.random.Generator, *, least: int, points: int) -> tuple[Array, Array]:
    """Return at least `least` rules of degree 5, with about `points` points in total."""
    return fifth_degree(dimension, max(least, points // (2 * (dimension + 1) * (dimension + 2) + 1)), rng)


def _scrambled_sobol(dimension: int, rng: np.random.Generator, *, log2_points: int) -> tuple[Array, Array]:
    """Return points and weights of eight independently scrambled Sobol sequences, transformed to standard normals."""
    points = np.stack([qmc.Sobol(dimension, rng=rng).random_base2(log2_points) for _ in range(8)])
    return ndtri(np.clip(points, 1e-12, 1.0 - 1e-12)), np.full(points.shape[:2], 0.5**log2_points)


CHEAP = (_Rules(_third, np.inf), _Rules(partial(_fifth, least=6, points=1330), 400.0))
"""Rules with few points, in the order in which they are tried."""

DEAR = (
    _Rules(partial(_fifth, least=12, points=4000), np.inf),
    _Rules(partial(_scrambled_sobol, log2_points=10), 15.0),
    _Rules(partial(_scrambled_sobol, log2_points=11), 3.0),
)


def over_factors(
    mean: Array, cov: Array, noise: UtilityNoise, tolerance: float, rules: tuple[_Rules, ...] = CHEAP
) -> tuple[Array, Array]:
    """Return probabilities (m, c) that each utility is the largest, and the error (m,) of the least certain class.

    Parameters
    ----------
    mean : array (m, c)
        Means of the latent values, five classes or more.
    cov : array (m, c, c)
        Covariances of the latent values. They may be singular.
    noise : UtilityNoise
    tolerance : float
        Target absolute error. With strongly correlated classes no rule may reach it, so check the estimated errors.
        The errors are NaN if no rule was tried, as for tolerances below 1e-5.
    rules : tuple
        `CHEAP`, with hundreds of points or more, or `DEAR`, with 4,000 to 16,000 points or more.
    """
    probabilities, errors = np.full(mean.shape, np.nan), np.full(len(mean), np.nan)
    left = np.arange(len(mean) if tolerance >= _FINEST else 0)
    for each in rules:
        hopeful = left[~(errors[left] > each.hopeless * tolerance)]
        p, error = _by_rules(mean[hopeful], cov[hopeful], noise, tolerance, each)
        better = ~(error > errors[hopeful])
        probabilities[hopeful[better]], errors[hopeful[better]] = p[better], error[better]
        left = left[errors[left] > tolerance]
    return probabilities, errors


def _by_rules(mean: Array, cov: Array, noise: UtilityNoise, tolerance: float, rules: _Rules) -> tuple[Array, Array]:
    normals, weights = _points(rules, mean.shape[1] - 1)
    degrees_of_freedom = np.maximum(np.arange(len(weights) + 1) - 1, 1)
    deviations = t.ppf(0.5 + 0.5 * _CONFIDENCE, degrees_of_freedom)
    probabilities, errors = np.empty(mean.shape), np.empty(len(mean))

    def average(low: int) -> None:
        piece = slice(low, low + _PIECE)
        average_over_factors(
            mean[piece], cov[piece], normals, weights, *noise[:-1], tolerance, deviations,
            probabilities[piece], errors[piece],
        )  # fmt: skip

    with one_blas_thread(), gather_for_pieces() as team:
        team.each(average, range(0, len(mean), _PIECE))
    return probabilities, errors + noise.error


@lru_cache(maxsize=12)
def _points(rules: _Rules, dimension: int) -> tuple[Array, Array]:
    """Return points and weights for averages over standard normal factors, from a fixed seed."""
    return rules.make(dimension, np.random.default_rng(_SEED))


def third_degree(dimension: int, rules: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return rules of degree 3: points (rules, 2 dimension + 1, dimension) and their weights (rules, 2 dimension + 1).

    The radii are stratified, so the average of the rules is more accurate than their spread suggests. The rules have a
    random order.
    """
    points, weights = [], []
    for squared in chi2.ppf((np.arange(rules) + rng.random(rules)) / rules, dimension + 2):
        axes = _rotation(dimension, rng) * np.sqrt(squared)
        points.append(np.concatenate([np.zeros((1, dimension)), axes, -axes]))
        weights.append(np.r_[1.0 - dimension / squared, np.full(2 * dimension, 0.5 / squared)])
    order = rng.permutation(rules)
    return np.array(points)[order], np.array(weights)[order]


def fifth_degree(dimension: int, rules: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return points and weights of rules of degree 5, with 2 (dimension + 1) (dimension + 2) + 1 points each.

    Points on the sphere are the vertices of a regular simplex, the midpoints of its edges, and the negatives of both.
    """
    d = dimension
    vertices = np.linalg.svd(np.ones((1, d + 1)))[2][1:].T
    middles = np.array([vertices[i] + vertices[j] for i, j in combinations(range(d + 1), 2)])
    sphere = np.concatenate([vertices, -vertices, middles, -middles])
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    on_sphere = np.concatenate(
        [
            np.full(2 * len(vertices), d * (7 - d) / (2 * (d + 1) ** 2 * (d + 2))),
            np.full(2 * len(middles), 2 * (d - 1) ** 2 / (d * (d + 1) ** 2 * (d + 2))),
        ]
    )
    points, weights = [], []
    for _ in range(rules):
        # Squared radii a and b have a density in proportion to (a b)^(d/2) (a − b)² exp(−(a + b)/2).
        total, difference = rng.chisquare(2 * d + 8), np.sqrt(rng.beta(1.5, 0.5 * d + 1.0))
        inner, outer = 0.5 * total * (1.0 - difference), 0.5 * total * (1.0 + difference)
        of_inner = d * (d + 2 - outer) / (inner * (inner - outer))
        of_outer = d * (d + 2 - inner) / (outer * (outer - inner))
        turned = sphere @ _rotation(d, rng)
        points.append(np.concatenate([np.zeros((1, d)), turned * np.sqrt(inner), turned * np.sqrt(outer)]))
        weights.append(np.r_[1.0 - of_inner - of_outer, on_sphere * of_inner, on_sphere * of_outer])
    return np.array(points), np.array(weights)


def _rotation(dimension: int, rng: np.random.Generator) -> Array:
    rotation: Array = special_ortho_group.rvs(dimension, random_state=rng)
    return rotation
