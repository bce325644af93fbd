"""Transformations of the problem that do not change the result of any approximation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests.approximations.every import approximations, of_functions_per_class, of_symmetric_links
from tests.reference.data import random_problem

examples = settings(max_examples=3, deadline=None, derandomize=True)
problems = st.tuples(
    st.integers(0, 10_000), st.integers(2, 9), st.integers(2, 5), st.sampled_from([0.3, 3.0, 100.0]), st.booleans()
)


def solve(approximation, k, mean, y):
    solution = approximation(tolerance=1e-10).solve(k, mean, y)
    assert solution.convergence.converged
    return solution


def build(approximation, seed, n, c, variance, each):
    """Prior covariance, mean and labels of c classes (or of two classes by the first function), and a generator."""
    problem = random_problem(seed, n, c, variance=variance, per_class=each, with_mean=True)
    rng = np.random.default_rng(seed)
    if approximation.likelihood.function_axis:
        return problem.K, problem.m, problem.y, rng
    k = problem.K[0] if each else problem.K
    return k + 1e-6 * variance * np.eye(n), problem.m[:1], np.minimum(problem.y, 1), rng


@approximations
@examples
@given(problems)
def test_permuted_points_have_permuted_results(approximation, arguments):
    k, mean, y, rng = build(approximation, *arguments)
    order = rng.permutation(y.size)
    first = solve(approximation, k, mean, y)
    second = solve(approximation, k[..., order[:, None], order], mean[:, order], y[order])
    assert second.evidence == pytest.approx(first.evidence, abs=1e-8)
    assert_allclose(second.mean, first.mean[:, order], atol=1e-6)
    assert_allclose(second.cov, first.cov[order], atol=1e-6, rtol=1e-6)


@of_symmetric_links
@examples
@given(problems)
def test_swapped_classes_of_one_function_change_only_the_sign_of_the_mean(approximation, arguments):
    k, mean, y, _ = build(approximation, *arguments)
    first = solve(approximation, k, mean, y)
    second = solve(approximation, k, -mean, 1 - y)
    assert second.evidence == pytest.approx(first.evidence, abs=1e-8)
    assert_allclose(second.mean, -first.mean, atol=1e-6)
    assert_allclose(second.cov, first.cov, atol=1e-6, rtol=1e-6)


@of_functions_per_class
@examples
@given(problems)
def test_permuted_classes_have_permuted_results(approximation, arguments):
    k, mean, y, rng = build(approximation, *arguments)
    order = rng.permutation(mean.shape[0])
    first = solve(approximation, k, mean, y)
    second = solve(approximation, k[order] if k.ndim == 3 else k, mean[order], np.argsort(order)[y])
    assert second.evidence == pytest.approx(first.evidence, abs=1e-8)
    assert_allclose(second.mean, first.mean[order], atol=1e-6)
    assert_allclose(second.cov, first.cov[:, order][:, :, order], atol=1e-6, rtol=1e-6)


@of_functions_per_class
@examples
@given(problems)
def test_prior_mean_common_to_all_classes_shifts_only_the_posterior_mean(approximation, arguments):
    k, mean, y, rng = build(approximation, *arguments)
    common = rng.normal(size=y.size)
    first = solve(approximation, k, mean, y)
    second = solve(approximation, k, mean + common, y)
    assert second.evidence == pytest.approx(first.evidence, abs=1e-8)
    assert_allclose(second.mean - common, first.mean, atol=1e-6)
    assert_allclose(second.cov, first.cov, atol=1e-6, rtol=1e-6)


@of_functions_per_class
@examples
@given(problems)
def test_shared_covariance_equals_repeated_covariance(approximation, arguments):
    seed, n, c, variance, _ = arguments
    k, mean, y, _ = build(approximation, seed, n, c, variance, False)
    shared = solve(approximation, k, mean, y)
    each = solve(approximation, np.stack([k] * c), mean, y)
    assert each.evidence == pytest.approx(shared.evidence, abs=1e-9)
    assert_allclose(each.cov, shared.cov, atol=1e-9, rtol=1e-9)
