"""The dense class-independent EP, against brute force, and properties of every EP."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference.data import random_problem
from tests.reference.exact import log_likelihood, quadrature_posterior
from tests.reference.independent_ep import independent_ep, inner_ep_moments, quadrature_moments

# These tests compare a reference with brute force: no change of the package breaks them.
pytestmark = pytest.mark.slow

kinds = pytest.mark.parametrize("moments", ["quadrature", "inner_ep"])
CAVITIES = [
    (np.array([0.3, -0.5]), np.array([2.0, 0.4]), 0),
    (np.array([0.3, -0.5, 1.0]), np.array([2.0, 0.4, 1.0]), 1),
    (np.array([-3.0, 2.0, 0.5]), np.array([4.0, 0.1, 9.0]), 0),
]
EXTREME = [
    (np.array([-300.0, 40.0, 10.0]), np.array([1e4, 1e-3, 5e3]), 0),
    (np.array([10.0, 0.0, -5.0, 3.0]), np.array([1e-6, 1e6, 1e-6, 1.0]), 2),
    (np.array([0.0, 900.0]), np.array([1.0, 1e-8]), 0),
]


@pytest.mark.parametrize(("mean", "variance", "y"), CAVITIES)
def test_tilted_moments_match_a_sum_over_latent_values(mean, variance, y):
    points = 121 if mean.size == 2 else 61
    axes = [m + np.sqrt(v) * np.linspace(-9.0, 9.0, points) for m, v in zip(mean, variance, strict=True)]
    f = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, mean.size)
    weight = np.concatenate([np.exp(log_likelihood(part, y)) for part in np.array_split(f, 20)])
    weight *= np.exp(-0.5 * ((f - mean) ** 2 / variance).sum(1))
    weight *= np.prod([a[1] - a[0] for a in axes]) / np.sqrt(np.prod(2.0 * np.pi * variance))
    total = weight.sum()
    expected = weight @ f / total
    found = quadrature_moments(mean, variance, y)
    assert found.log_normaliser == pytest.approx(np.log(total), abs=1e-9)
    assert_allclose(found.mean, expected, atol=1e-8)
    assert_allclose(found.variance, weight @ (f - expected) ** 2 / total, rtol=1e-7)


@pytest.mark.parametrize(
    ("tilted", "mean", "variance", "y"),
    [(quadrature_moments, *cavity) for cavity in CAVITIES + EXTREME[:2]]
    + [(inner_ep_moments, *cavity) for cavity in CAVITIES],
)
def test_moments_are_derivatives_of_the_normaliser(tilted, mean, variance, y):
    found = tilted(mean, variance, y)
    for k in range(mean.size):
        for array, step in ((mean, 1e-4 * np.sqrt(1.0 + variance[k])), (variance, 1e-4 * variance[k])):
            values = []
            for sign in (-1.0, 1.0):
                moved = array.copy()
                moved[k] += sign * step
                arguments = (moved, variance) if array is mean else (mean, moved)
                values.append(tilted(*arguments, y).log_normaliser)
            slope = (values[1] - values[0]) / (2.0 * step)
            change = found.mean[k] - mean[k]
            if array is mean:
                expected = change / variance[k]
            else:
                expected = 0.5 * ((found.variance[k] + change**2) / variance[k] - 1.0) / variance[k]
            noise = 1e-12 * (1.0 + abs(values[0])) / step
            assert slope == pytest.approx(expected, rel=1e-5, abs=noise)


@pytest.mark.parametrize(("mean", "variance", "y"), EXTREME)
def test_tilted_variances_are_at_most_cavity_variances(mean, variance, y):
    found = quadrature_moments(mean, variance, y)
    assert np.isfinite(found.log_normaliser)
    assert (found.variance <= variance * (1.0 + 1e-9)).all()
    assert (found.variance > 0.0).all()


@pytest.mark.parametrize(("n", "c", "variance"), [(6, 2, 1.0), (5, 3, 30.0)])
def test_two_classes_have_exact_moments_by_inner_ep(n, c, variance):
    problem = random_problem(7, n, c, variance=variance, with_mean=True)
    quadrature, inner = (independent_ep(problem.K, problem.y, problem.m, moments=m) for m in ("quadrature", "inner_ep"))
    difference = abs(quadrature.evidence - inner.evidence)
    assert difference < 1e-10 if c == 2 else 1e-4 < difference < 0.1


@pytest.mark.parametrize("c", [2, 3])
def test_solution_of_one_point_is_exact(c):
    problem = random_problem(3, 1, c, variance=3.0, with_mean=True)
    found = independent_ep(problem.K, problem.y, problem.m)
    exact = quadrature_posterior(problem.K, problem.y, problem.m)
    assert found.evidence == pytest.approx(exact.evidence, abs=1e-9)
    assert_allclose(found.mean, exact.mean, atol=1e-8)
    assert_allclose(found.covariance.ravel(), exact.covariance.diagonal(), atol=1e-7)


@kinds
@pytest.mark.parametrize("per_class", [False, True])
def test_gradients_match_differences(moments, per_class):
    problem = random_problem(1, 3, 3, variance=6.0, per_class=per_class, with_mean=True)
    found = independent_ep(problem.K, problem.y, problem.m, moments=moments)
    rng = np.random.default_rng(2)
    direction = rng.normal(size=problem.K.shape)
    direction = direction + direction.swapaxes(-1, -2)
    shift = rng.normal(size=problem.m.shape)
    step = 1e-4

    def evidence(t, s):
        return independent_ep(problem.K + t * direction, problem.y, problem.m + s * shift, moments=moments).evidence

    slope_k = (evidence(step, 0.0) - evidence(-step, 0.0)) / (2.0 * step)
    slope_m = (evidence(0.0, step) - evidence(0.0, -step)) / (2.0 * step)
    gradient = found.gradient_covariance if per_class else found.gradient_covariance.sum(0)
    assert (gradient * direction).sum() == pytest.approx(slope_k, rel=1e-5)
    assert (found.weights * shift).sum() == pytest.approx(slope_m, rel=1e-6)


@kinds
def test_fixed_point_matches_the_tilted_moments(moments):
    problem = random_problem(4, 5, 4, variance=20.0, with_mean=True)
    found = independent_ep(problem.K, problem.y, problem.m, moments=moments)
    assert found.residual < 1e-9
    tilted = {"quadrature": quadrature_moments, "inner_ep": inner_ep_moments}[moments]
    for i, y in enumerate(problem.y):
        point = tilted(found.cavity_mean[:, i], found.cavity_variance[:, i], y)
        assert_allclose(point.mean, found.mean[:, i], atol=1e-8)
        assert_allclose(point.variance, found.covariance[:, i, i], rtol=1e-8)
    assert (found.pi > 0.0).all()
    # The likelihood does not depend on a shift of all classes. A diagonal site ignores the other classes.
    assert_allclose(found.weights, found.nu - found.pi * found.mean, atol=1e-9)
