"""Tilted moments of a softmax, against brute force, and their properties for any cavity."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.moments.softmax_quadrature import softmax_moments
from pymc_gpep.likelihoods.softmax import class_nodes
from pymc_gpep.rivals.computations import edge_nodes, rough_information
from tests.reference.softmax_ep import cavity, softmax_tilted


def moments(mean, covariance, most=2000):
    """Log normaliser, F, ∇ log Z and Ω."""
    d = mean.size
    factor, gradient, loss = np.empty((d, d + 1)), np.empty(d), np.empty((d + 1, d + 1))
    log_z = softmax_moments(mean, covariance, *class_nodes(d, most), factor, gradient, loss)
    return log_z, factor, gradient, loss


@pytest.mark.parametrize(
    ("c", "variance", "error"),
    [(2, 1e-6, 1e-9), (2, 1.0, 1e-9), (2, 1000.0, 1e-9), (3, 1e-6, 1e-9), (3, 1.0, 1e-9), (3, 10.0, 1e-8),
     (3, 100.0, 1e-4), (3, 1000.0, 3e-3), (4, 1.0, 1e-8), (4, 10.0, 1e-6)],
)  # fmt: skip
def test_moments_match_brute_force(c, variance, error):
    mean, covariance = cavity(int(variance) % 2, c, variance)
    expected = softmax_tilted(mean, covariance, points={2: 4001, 3: 401, 4: 61}[c])
    log_z, factor, gradient, loss = moments(mean, covariance)
    sd = np.sqrt(covariance.diagonal())
    assert log_z == pytest.approx(expected.log_normaliser, abs=error)
    assert_allclose(factor @ factor.T, covariance, atol=1e-13 * variance)
    assert_allclose((covariance @ gradient + mean) / sd, expected.mean / sd, atol=error)
    tilted = factor @ (np.eye(c) - loss) @ factor.T
    assert_allclose(tilted / np.outer(sd, sd), expected.covariance / np.outer(sd, sd), atol=error)


@pytest.mark.variation(but=["12-0.02", "8-0.005", "5-1e-05"])
@pytest.mark.parametrize(("c", "error"), [(5, 1e-5), (6, 3e-4), (8, 5e-3), (12, 2e-2)])
def test_moments_by_default_nodes_match_moments_by_many_nodes(c, error):
    mean, covariance = cavity(3, c, 2.0)
    log_z, _, gradient, loss = moments(mean, covariance)
    more = moments(mean, covariance, 200_000 if c > 6 else 20_000)
    assert log_z == pytest.approx(more[0], abs=error)
    assert_allclose(gradient, more[2], atol=error)
    assert_allclose(loss, more[3], atol=5 * error)


@pytest.mark.parametrize("c", [2, 3, 5])
@pytest.mark.parametrize("label_is", ["likely", "unlikely"])
def test_moments_without_variance_equal_the_softmax(c, label_is):
    mean = np.linspace(20.0, 25.0, c - 1) * (1 if label_is == "likely" else -1)
    log_z, factor, gradient, loss = moments(mean, np.zeros((c - 1, c - 1)))
    weights = np.exp(-mean - np.logaddexp.reduce([0.0, *-mean]))
    assert log_z == pytest.approx(-np.logaddexp.reduce([0.0, *-mean]), rel=1e-9)
    assert not factor.any()
    assert_allclose(gradient, weights, rtol=1e-9)
    assert_allclose(loss, 0.0, atol=1e-12)


@pytest.mark.parametrize("c", [3, 4, 6])
def test_moments_for_a_covariance_of_rank_one_are_the_limit_of_full_rank(c):
    direction = np.random.default_rng(c).normal(size=c - 1)
    mean, covariance = np.linspace(-1.0, 1.0, c - 1), 4.0 * np.outer(direction, direction)
    found, near = moments(mean, covariance), moments(mean, covariance + 1e-9 * np.eye(c - 1))
    assert found[0] == pytest.approx(near[0], abs=1e-7)
    assert_allclose(found[2], near[2], atol=1e-7)


@pytest.mark.parametrize("c", [3, 4, 5, 6])
def test_moments_do_not_depend_on_the_order_of_classes(c):
    mean, covariance = cavity(5, c, 100.0)
    order = np.random.default_rng(0).permutation(c - 1)
    first, second = moments(mean, covariance, 300), moments(mean[order], covariance[np.ix_(order, order)], 300)
    assert second[0] == pytest.approx(first[0], abs=1e-12)
    assert_allclose(second[2], first[2][order], atol=1e-12)


@pytest.mark.parametrize(
    ("c", "nodes"), [(c, class_nodes(c - 1, 2000)) for c in (2, 3, 4, 6, 9, 20)] + [(9, edge_nodes(8))]
)
def test_nodes_have_the_moments_of_normals(c, nodes):
    points, log_weights = nodes
    weights = np.exp(log_weights)
    assert len(points) <= 2200
    assert weights.sum() == pytest.approx(1.0)
    assert_allclose(points.sum(axis=1), 0.0, atol=1e-12)
    assert_allclose(weights @ points, 0.0, atol=1e-12)
    expected = np.eye(c - 1) - 1 / (c - 1)
    assert_allclose((weights * points.T) @ points, expected, atol=1e-6)


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("d", range(2, 8))
def test_few_nodes_give_finite_moments(d, most):
    points, log_weights = class_nodes(d, most)
    assert np.isfinite(points).all()
    assert np.exp(log_weights).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("c", [7, 10, 14])
@pytest.mark.parametrize("variance", [0.3, 3.0])
def test_information_of_labels_of_many_classes_is_right_to_a_few_per_cent(c, variance):
    rng = np.random.default_rng(c)
    mean = rng.normal(size=c)
    root = np.sqrt(variance / c) * rng.normal(size=(c, c))
    cov = root @ root.T
    f = mean + rng.normal(size=(100_000, c)) @ root.T
    labels = np.array([np.argmax(mean), np.argmin(mean)])
    log_z, information = np.empty((2, 2))
    rough_information(np.repeat(mean[:, None], 2, axis=1), np.stack([cov, cov]), labels, log_z, information)
    for label, own_log_z, own in zip(labels, log_z, information, strict=True):
        weight = np.exp(f[:, label] - np.logaddexp.reduce(f, axis=1))
        assert own_log_z == pytest.approx(np.log(weight.mean()), abs=0.03)
        away = np.delete(f[:, [label]] - f, label, axis=1)
        weight /= weight.sum()
        shift = weight @ away
        tilted = (weight[:, None] * (away - shift)).T @ (away - shift)
        before = np.cov(away.T)
        ratio, moved = np.linalg.solve(before, tilted), shift - away.mean(axis=0)
        twice = np.trace(ratio) - c + 1 - np.linalg.slogdet(ratio)[1] + moved @ np.linalg.solve(before, moved)
        assert own == pytest.approx(0.5 * twice, rel=0.1, abs=2e-3)
