"""Randomised rules for averages over a standard normal vector, exact for polynomials of a low degree.

A. Genz and J. Monahan (1998). Stochastic integration rules for infinite regions. *SIAM Journal on Scientific
Computing* 19 (2), 426–439. The radius is random and so is the rotation of the points on the sphere, from such densities
that each rule is unbiased. Its error is all in the terms of higher degree.
"""

from itertools import combinations

import numpy as np
from scipy.stats import chi2, special_ortho_group

from pymc_gpep.array_types import Array

__all__ = ["fifth_degree", "third_degree"]


def third_degree(dimension: int, rules: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rules of degree 3: points (rules, 2 dimension + 1, dimension) and their weights (rules, 2 dimension + 1).

    Their radii are stratified, so that their average is better than their spread says; they come in random order.
    """
    points, weights = [], []
    for squared in chi2.ppf((np.arange(rules) + rng.random(rules)) / rules, dimension + 2):
        axes = _rotation(dimension, rng) * np.sqrt(squared)
        points.append(np.concatenate([np.zeros((1, dimension)), axes, -axes]))
        weights.append(np.r_[1.0 - dimension / squared, np.full(2 * dimension, 0.5 / squared)])
    order = rng.permutation(rules)
    return np.array(points)[order], np.array(weights)[order]


def fifth_degree(dimension: int, rules: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rules of degree 5, of 2 (dimension + 1) (dimension + 2) + 1 points: these and their weights.

    On the sphere they are the vertices of a regular simplex, the middles of its edges, and the opposites of both.
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
