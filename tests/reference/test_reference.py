"""The reference computations against each other. They share no code, so that agreement supports each of them."""

import numpy as np
import pytest

from tests.reference.binary_ep import binary_ep, binary_predict
from tests.reference.data import iris, random_problem, squared_exponential, wine
from tests.reference.dense_nested_ep import block_diagonal, inner_ep, nested_ep, predict, site
from tests.reference.double_loop import double_loop
from tests.reference.energy_descent import energy_descent, parallel_ep_trace
from tests.reference.exact import (
    class_probabilities,
    importance_evidence,
    log_likelihood,
    orthant_evidence,
    quadrature_posterior,
)
from tests.reference.flat_energy import energy, factors, matching_cavity, tilted
from tests.reference.flat_ep import flat_ep
from tests.reference.gibbs import draw_utilities, gibbs
from tests.reference.multinomial_probit import log_probability

# These tests compare references with references: no change of the package breaks them.
pytestmark = pytest.mark.slow

PROBLEMS = {
    "shared": random_problem(0, 6, 3),
    "per class, mean": random_problem(1, 6, 4, per_class=True, with_mean=True),
    "large magnitude": random_problem(3, 8, 3, variance=50.0, with_mean=True),
    "two classes": random_problem(2, 8, 2, per_class=True, with_mean=True),
}


@pytest.fixture(params=PROBLEMS.values(), ids=PROBLEMS.keys())
def problem(request):
    return request.param


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_nested_and_flat_ep_have_one_fixed_point(problem, schedule):
    nested = nested_ep(problem.K, problem.y, problem.m, schedule=schedule)
    flat = flat_ep(problem.K, problem.y, problem.m)
    assert nested.evidence == pytest.approx(flat.evidence, abs=1e-11)
    for name in ("alpha", "beta", "mean", "covariance"):
        np.testing.assert_allclose(getattr(nested, name), getattr(flat, name), rtol=1e-8, atol=1e-9, err_msg=name)


def test_two_classes_equal_a_binary_probit_of_the_scaled_difference():
    p = PROBLEMS["two classes"]
    nested = nested_ep(p.K, p.y, p.m)
    binary = binary_ep((p.K[0] + p.K[1]) / 2, 2 * p.y - 1, (p.m[1] - p.m[0]) / np.sqrt(2))
    n = p.y.size
    to_difference = np.hstack([-np.eye(n), np.eye(n)]) / np.sqrt(2)
    assert nested.evidence == pytest.approx(binary.evidence, abs=1e-11)
    np.testing.assert_allclose(to_difference @ nested.mean.ravel(), binary.mean, atol=1e-10)
    np.testing.assert_allclose(to_difference @ nested.covariance @ to_difference.T, binary.covariance, atol=1e-10)


def test_predictions_of_nested_and_binary_ep_agree():
    p = random_problem(4, 9, 2)
    new = np.random.default_rng(5).normal(size=(4, 2))
    cross = squared_exponential(new, p.X, variance=2.0, lengthscale=1.2)
    prior = squared_exponential(new, variance=2.0, lengthscale=1.2)
    mean, covariance = predict(nested_ep(p.K, p.y), cross, prior)
    binary_mean, binary_variance, probability = binary_predict(binary_ep(p.K, 2 * p.y - 1), p.K, cross, np.diag(prior))
    np.testing.assert_allclose((mean[1] - mean[0]) / np.sqrt(2), binary_mean, atol=1e-10)
    blocks = covariance.reshape(2, 4, 2, 4)
    for i in range(4):
        block = blocks[:, i, :, i]
        variance = (block[0, 0] + block[1, 1] - 2 * block[0, 1]) / 2
        assert variance == pytest.approx(binary_variance[i], abs=1e-10)
        assert class_probabilities(mean[:, i], block)[1] == pytest.approx(probability[i], abs=1e-9)


def test_prediction_at_the_training_points_is_the_posterior(problem):
    solution = nested_ep(problem.K, problem.y, problem.m)
    mean, covariance = predict(solution, problem.K, problem.K, problem.m)
    np.testing.assert_allclose(mean, solution.mean, atol=1e-10)
    np.testing.assert_allclose(covariance, solution.covariance, atol=1e-9)


def test_evidence_gradients_match_central_differences(problem):
    solution = nested_ep(problem.K, problem.y, problem.m)
    c, n = solution.mean.shape
    rng = np.random.default_rng(6)
    root = rng.normal(size=(c, n, n)) / n
    direction_K = root + root.transpose(0, 2, 1)
    direction_m = rng.normal(size=(c, n))
    K = np.broadcast_to(problem.K, (c, n, n))
    # with this relative jitter K + step * direction is positive definite
    K = K + 0.05 * np.eye(n)
    solution = nested_ep(K, problem.y, problem.m)
    step = 1e-4

    def evidence(t_K, t_m):
        return nested_ep(K + t_K * direction_K, problem.y, problem.m + t_m * direction_m).evidence

    slope_K = (evidence(step, 0.0) - evidence(-step, 0.0)) / (2 * step)
    slope_m = (evidence(0.0, step) - evidence(0.0, -step)) / (2 * step)
    assert np.sum(solution.gradient_covariance * direction_K) == pytest.approx(slope_K, rel=1e-6, abs=1e-7)
    assert np.sum(solution.gradient_mean * direction_m) == pytest.approx(slope_m, rel=1e-6, abs=1e-7)


def test_reference_site_has_the_precision_and_location_of_the_tilted_moments():
    rng = np.random.default_rng(7)
    root = rng.normal(size=(4, 4))
    cavity_mean, cavity_covariance = rng.normal(size=4), root @ root.T + 0.5 * np.eye(4)
    inner = inner_ep(cavity_mean, cavity_covariance, 2)
    precision, location = site(inner.alpha, inner.beta, 2)
    tilted_precision = np.linalg.inv(inner.covariance[:4, :4])
    np.testing.assert_allclose(precision, tilted_precision - np.linalg.inv(cavity_covariance), atol=1e-10)
    np.testing.assert_allclose(
        location, tilted_precision @ inner.mean[:4] - np.linalg.solve(cavity_covariance, cavity_mean), atol=1e-10
    )
    np.testing.assert_allclose(precision.sum(axis=0), 0.0, atol=1e-12)
    assert location.sum() == pytest.approx(0.0, abs=1e-12)


def test_zero_site_precisions_are_handled():
    precision, location = site(np.zeros(2), np.zeros(2), 0)
    assert not precision.any()
    assert not location.any()
    some, _ = site(np.array([0.0, 1.3]), np.zeros(2), 0)
    limit, _ = site(np.array([1e-14, 1.3]), np.zeros(2), 0)
    np.testing.assert_allclose(some, limit, atol=1e-13)


def test_inner_normaliser_with_two_classes_is_exact():
    cavity_mean, cavity_covariance = np.array([0.3, -1.1]), np.array([[2.0, 0.4], [0.4, 1.5]])
    expected = np.log(class_probabilities(cavity_mean, cavity_covariance))
    for y in (0, 1):
        assert inner_ep(cavity_mean, cavity_covariance, y).log_normaliser == pytest.approx(expected[y], abs=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 12.0])
def test_log_likelihood_matches_values_of_many_digits(scale):
    f = scale * np.random.default_rng(8).normal(size=(2, 4))
    expected = [float(log_probability(row, 1)) for row in f]
    np.testing.assert_allclose(log_likelihood(f, 1), expected, rtol=1e-12, atol=1e-14)


def test_likelihood_sums_to_one():
    f = 3.0 * np.random.default_rng(9).normal(size=(20, 5))
    total = sum(np.exp(log_likelihood(f, k)) for k in range(5))
    np.testing.assert_allclose(total, 1.0, atol=1e-12)


@pytest.mark.parametrize("setting", [(0, 2, 2), (1, 3, 2), (5, 1, 4), (0, 2, 3)], ids=lambda s: f"n={s[1]}, c={s[2]}")
def test_quadrature_and_orthant_evidence_agree_and_nested_ep_is_near(setting):
    seed, n, c = setting
    p = random_problem(seed, n, c, variance=1.0, with_mean=True)
    exact = quadrature_posterior(p.K, p.y, p.m, tolerance=1e-7)
    assert orthant_evidence(p.K, p.y, p.m) == pytest.approx(exact.evidence, abs=2e-6)
    nested = nested_ep(p.K, p.y, p.m)
    assert nested.evidence == pytest.approx(exact.evidence, abs=0.01)
    np.testing.assert_allclose(nested.mean, exact.mean, atol=0.01)
    np.testing.assert_allclose(nested.covariance, exact.covariance, atol=0.03)


def test_importance_sampling_is_within_its_error():
    p = random_problem(7, 3, 3, with_mean=True)
    nested = nested_ep(p.K, p.y, p.m)
    estimate = importance_evidence(p.K, p.y, nested.mean, 1.1 * nested.covariance, p.m, draws=20_000, seed=1)
    assert estimate.error < 0.005
    assert estimate.evidence == pytest.approx(orthant_evidence(p.K, p.y, p.m), abs=4 * estimate.error)


@pytest.mark.parametrize(("seed", "n", "c"), [(1, 3, 2), (10, 1, 3)])
def test_reference_gibbs_sampler_matches_quadrature(seed, n, c):
    p = random_problem(seed, n, c, per_class=True, with_mean=True)
    exact = quadrature_posterior(p.K, p.y, p.m, tolerance=1e-8)
    average = gibbs(p.K, p.y, p.m, sweeps=1000, burn=50, chains=64, seed=2)
    variance = np.diag(exact.covariance).reshape(c, n)
    assert np.all(np.abs(average.mean - exact.mean) < 4 * average.mean_error)
    assert np.all(np.abs(average.variance - variance) < 4 * average.variance_error)
    assert average.mean_error.max() < 0.02
    blocks = exact.covariance.reshape(c, n, c, n)[:, np.arange(n), :, np.arange(n)]
    np.testing.assert_allclose(average.covariance, blocks, atol=0.05)


def test_drawn_utility_of_the_label_is_the_largest_at_extreme_latent_values():
    rng = np.random.default_rng(11)
    f = 20.0 * rng.normal(size=(50, 4, 6))
    y = np.array([0, 1, 2, 3, 0, 1])
    v = draw_utilities(rng, f, y)
    assert np.isfinite(v).all()
    assert np.array_equal(v.argmax(axis=1), np.broadcast_to(y, (50, 6)))


def test_ep_is_close_to_gibbs_on_a_problem_of_medium_size():
    p = random_problem(12, 20, 3, variance=4.0)
    nested = nested_ep(p.K, p.y, p.m)
    average = gibbs(p.K, p.y, p.m, sweeps=1500, burn=100, chains=16, seed=3)
    assert np.max(np.abs(nested.mean - average.mean)) < 0.05 + 4 * average.mean_error.max()
    ratio = np.diag(nested.covariance).reshape(3, 20) / average.variance
    assert np.all(np.abs(ratio - 1.0) < 0.15)


@pytest.mark.parametrize(("data", "log_variance", "log_lengthscale"), [(wine, 4.0, 2.0), (iris, 8.0, 2.5)])
def test_nested_and_flat_ep_agree_on_rows_of_real_data(data, log_variance, log_lengthscale):
    """Every sixth row: one class is far from the other classes, and the magnitude is large."""
    X, y = (each[::6] for each in data())
    K = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    K += 1e-8 * np.eye(y.size)
    nested, flat = nested_ep(K, y), flat_ep(K, y)
    assert nested.evidence == pytest.approx(flat.evidence, abs=1e-7)
    np.testing.assert_allclose(nested.mean, flat.mean, rtol=1e-6, atol=1e-6)


def test_evidence_of_all_wine_rows_equals_the_stored_value():
    X, y = wine()
    K = squared_exponential(X, variance=np.e, lengthscale=np.e) + 1e-8 * np.eye(y.size)
    assert nested_ep(K, y).evidence == pytest.approx(-51.02102765, abs=1e-7)


def test_block_diagonal_matrix_has_the_covariance_of_each_class_at_its_place():
    K = np.random.default_rng(13).normal(size=(3, 2, 2))
    full = block_diagonal(K, 3).reshape(3, 2, 3, 2)
    for k in range(3):
        np.testing.assert_array_equal(full[k, :, k], K[k])
    assert np.count_nonzero(full) == K.size


@pytest.fixture(scope="module")
def oscillating():
    """Forty flowers and a large magnitude: undamped parallel EP oscillates."""
    X, y = iris()
    chosen = np.sort(np.random.default_rng(0).permutation(y.size)[:40])
    K = squared_exponential(X[chosen], variance=np.exp(8.0), lengthscale=np.exp(2.5)) + 1e-8 * np.eye(40)
    return K, y[chosen], flat_ep(K, y[chosen])


def test_parallel_ep_oscillates(oscillating):
    K, y, _ = oscillating
    assert parallel_ep_trace(K, y, damping=1.0, sweeps=100)[-20:].min() > 0.01


@pytest.mark.parametrize("damping", [0.5, 0.8, 1.0])
def test_energy_descent_reaches_the_fixed_point(oscillating, damping):
    K, y, flat = oscillating
    descent = energy_descent(K, y, damping=damping)
    assert descent.evidence == pytest.approx(flat.evidence, abs=1e-9)
    np.testing.assert_allclose(descent.alpha, flat.alpha, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(descent.beta, flat.beta, rtol=1e-6, atol=1e-8)


def test_safe_steps_alone_lower_the_energy_to_the_fixed_point():
    p = PROBLEMS["large magnitude"]
    descent = energy_descent(p.K, p.y, p.m, ep_steps=False)
    flat = flat_ep(p.K, p.y, p.m)
    assert descent.safe_steps > 0
    assert np.diff(descent.energies).max() <= 1e-9
    assert descent.evidence == pytest.approx(flat.evidence, abs=1e-10)
    np.testing.assert_allclose(descent.alpha, flat.alpha, rtol=1e-6, atol=1e-8)


def test_double_loop_lowers_its_bound_to_the_fixed_point(oscillating):
    K, y, flat = oscillating
    warm = energy_descent(K, y, tolerance=0.3)
    double = double_loop(K, y, start=(warm.alpha, warm.beta), tolerance=1e-5)
    assert np.diff(double.energies).max() <= 1e-9
    assert double.evidence == pytest.approx(flat.evidence, abs=1e-6)
    np.testing.assert_allclose(double.alpha, flat.alpha, rtol=1e-3, atol=1e-5)


def test_energy_is_stationary_at_the_fixed_point_of_ep(problem):
    prior = factors(problem.K, problem.y, problem.m)
    flat = flat_ep(problem.K, problem.y, problem.m)
    alpha, beta = flat.alpha.ravel(), flat.beta.ravel()
    assert energy(prior, alpha, beta).value == pytest.approx(-flat.evidence, abs=1e-10)
    rng = np.random.default_rng(14)
    for _ in range(3):
        d_alpha, d_beta = 0.1 * alpha * rng.normal(size=alpha.size), 0.1 * rng.normal(size=beta.size)
        ahead, behind = (energy(prior, alpha + t * d_alpha, beta + t * d_beta).value for t in (1e-4, -1e-4))
        assert (ahead - behind) / 2e-4 == pytest.approx(0.0, abs=1e-5)
        assert ahead + behind + 2 * flat.evidence > 0.0


def test_matching_cavity_inverts_the_tilted_moments():
    rng = np.random.default_rng(15)
    a = 10.0 ** rng.uniform(-4, 2, 2000)
    b = 4.0 * np.sqrt(a) * rng.normal(size=a.size)
    mean, variance, _ = tilted(a, b)
    a_back, b_back = matching_cavity(mean, variance)
    np.testing.assert_allclose((a_back - a) * variance, 0.0, atol=1e-9)
    np.testing.assert_allclose((b_back - b) * np.sqrt(variance), 0.0, atol=1e-9)


def test_matching_cavity_is_flat_if_the_variance_is_too_large():
    a, b = matching_cavity(np.array([0.0, 0.0, -3.0]), np.array([1.9, 2.1, 5.0]))
    assert a[0] > 0.0
    assert not a[1:].any()
    assert np.all(b[1:] < 0.0)
