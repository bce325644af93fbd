"""Centres of classes, and selection of rows that are far from each other."""

import numpy as np
from numpy.testing import assert_allclose

from pymc_gpep.hyper.inducing_inputs import centres_of_classes, in_turn, spread_rows
from pymc_gpep.rows.in_memory import InMemory

RNG = np.random.default_rng(1)
PLACES = np.array([[0.0, 0.0], [0.0, 50.0], [50.0, 0.0], [50.0, 50.0], [100.0, 100.0]])
X = np.repeat(PLACES, 20, axis=0) + 0.1 * RNG.normal(size=(100, 2))
Y = np.repeat([3, 3, 3, 7, 7], 20)


def test_centres_are_means_of_clusters():
    found = centres_of_classes(InMemory(X, Y), 5, np.ones(2), np.random.default_rng(0))
    means = np.array([X[k * 20 : k * 20 + 20].mean(axis=0) for k in range(5)])
    assert_allclose(found[np.lexsort(found.round().T)], means[np.lexsort(means.round().T)])


def test_clusters_divide_columns_by_their_scales():
    """A first column of scale 0 does not change distances. The centres differ in the second column alone."""
    found = centres_of_classes(InMemory(X[:80], np.zeros(80, int)), 2, np.array([0.0, 1.0]), np.random.default_rng(0))
    assert_allclose(np.sort(found[:, 1]), [0.0, 50.0], atol=0.2)
    assert_allclose(found[:, 0], 25.0, atol=0.2)


def test_number_of_centres_of_a_class_is_limited_by_its_rows():
    labels = np.r_[np.zeros(98, int), 1, 1]
    found = centres_of_classes(InMemory(X, labels), 10, np.ones(2), np.random.default_rng(0))
    assert found.shape == (10, 2)
    assert np.isfinite(found).all()
    assert_allclose(in_turn(np.array([98, 2, 0]), 10), [8, 2, 0])


def test_distances_of_inputs_with_a_large_offset_keep_their_digits():
    found = spread_rows(InMemory(X + 1e9, Y), 5, np.random.default_rng(0))
    assert len(np.unique((found - 1e9).round(-1), axis=0)) == 5
