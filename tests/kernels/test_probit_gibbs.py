"""Compiled Gibbs sampler at fixed hyperparameters: exact distribution of a draw, and exact posteriors."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.kernels.sampling import draw_in_cone, draw_latent_values, utility_precisions
from tests.reference.exact import quadrature_posterior
from tests.reference.gibbs import gibbs

shared_or_not = pytest.mark.parametrize("per_class", [False, True], ids=["shared", "per class"])


def problem(n, c, per_class, seed=1):
    """Covariances (1 or c, n, n), a prior mean and labels."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, n)
    scales = np.arange(1.0, c + 1.0 if per_class else 2.0)[:, None, None]
    k = (2.0 + 2.0 * scales) * np.exp(-0.5 * scales * (x[:, None] - x) ** 2) + 1e-6 * np.eye(n)
    return k, 0.5 * rng.standard_normal((c, n)), rng.integers(0, c, n)


def prepared(k):
    precisions, total = np.empty_like(k), np.full(k.shape[1:], np.nan)
    for matrix in precisions:
        matrix[:] = np.nan
    assert utility_precisions(k, precisions, total)
    return np.linalg.cholesky(k), precisions, total


def chain(k, mean, labels, draws, seed=2, burn=200):
    """Latent values after each sweep, (draws, c, n)."""
    rng = np.random.default_rng(seed)
    roots, precisions, total = prepared(k)
    f, v = mean.copy(), np.empty_like(mean)
    kept = np.empty((burn + draws, *f.shape))
    for i in range(burn + draws):
        draw_in_cone(rng, f, labels, v)
        draw_latent_values(rng, mean, roots, precisions, total, True, f, v)
        kept[i] = f
    return kept[burn:]


def batch_error(values, batches=25):
    """Monte Carlo standard error of the average over the first axis."""
    means = values.reshape(batches, -1, *values.shape[1:]).mean(axis=1)
    return means.std(axis=0, ddof=1) / np.sqrt(batches)


@shared_or_not
def test_precisions_equal_dense_inverses(per_class):
    k, _, _ = problem(20, 3, per_class)
    _, precisions, total = prepared(k)
    exact = np.linalg.inv(k + np.eye(20))
    assert_allclose(np.tril(precisions), np.tril(exact), rtol=1e-10, atol=1e-13)
    if per_class:
        assert_allclose(np.tril(total), np.linalg.cholesky(exact.sum(axis=0)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
def test_precisions_of_an_indefinite_covariance_return_false(count):
    k = np.stack([np.eye(2)] * count)
    k[-1] = [[-3.0, 0.0], [0.0, 1.0]]
    assert not utility_precisions(k, np.empty_like(k), np.empty((2, 2)))


@pytest.mark.variation(but=["per class-True"])
@pytest.mark.parametrize("shifted", [False, True])
@shared_or_not
def test_draws_of_latent_values_have_their_conditional_moments(per_class, shifted):
    n, c, draws = 3, 2, 20_000
    k, mean, _ = problem(n, c, per_class)
    roots, precisions, total = prepared(k)
    rng = np.random.default_rng(3)
    given = mean + 2.0 * rng.standard_normal((c, n))
    f, sampled = np.empty((c, n)), np.empty((draws, 2 * c * n))
    for i in range(draws):
        v = given.copy()
        draw_latent_values(rng, mean, roots, precisions, total, shifted, f, v)
        sampled[i] = np.concatenate([f.ravel(), v.ravel()])

    s = np.broadcast_to(np.linalg.inv(k + np.eye(n)), (c, n, n))
    gain = np.eye(n) - s
    spread = shifted * np.linalg.inv(s.sum(axis=0))
    shift = -spread @ np.einsum("kij,kj->i", s, given - mean)
    expected = np.concatenate(
        [(mean + np.einsum("kij,kj->ki", gain, given + shift - mean)).ravel(), (given + shift).ravel()]
    )
    loading = np.concatenate([*gain, *([np.eye(n)] * c)])  # coefficients of latent values and utilities in the shift
    covariance = loading @ spread @ loading.T
    for a in range(c):
        covariance[a * n : (a + 1) * n, a * n : (a + 1) * n] += gain[a]

    sd = np.sqrt(np.diag(covariance))
    deviations = sampled - expected  # deviations of utilities are zero without a shift
    assert (abs(deviations.mean(axis=0)) <= 4.5 * sd / np.sqrt(draws)).all()
    error = np.sqrt((np.outer(sd, sd) ** 2 + covariance**2) / draws)
    assert (abs(np.cov(deviations.T) - covariance) <= 4.5 * error).all()


@shared_or_not
def test_chain_of_few_points_matches_quadrature(per_class):
    k, mean, labels = problem(3, 2, per_class, seed=4)
    f = chain(k, mean, labels, 15_000)
    exact = quadrature_posterior(k if per_class else k[0], labels, mean, c=2)
    assert (abs(f.mean(axis=0) - exact.mean) < 4.5 * batch_error(f)).all()
    deviations = (f - exact.mean).reshape(len(f), -1)
    products = deviations[:, :, None] * deviations[:, None, :]
    assert (abs(products.mean(axis=0) - exact.covariance) < 4.5 * batch_error(products)).all()


@shared_or_not
def test_moments_of_the_chain_match_the_reference_sampler(per_class):
    k, mean, labels = problem(20, 3, per_class, seed=5)
    f = chain(k, mean, labels, 8_000)
    reference = gibbs(k if per_class else k[0], labels, mean, sweeps=700, burn=100)
    error = np.hypot(batch_error(f), reference.mean_error)
    assert (abs(f.mean(axis=0) - reference.mean) < 4.5 * error).all()
    squares = (f - f.mean(axis=0)) ** 2
    error = np.hypot(batch_error(squares), reference.variance_error)
    assert (abs(squares.mean(axis=0) - reference.variance) < 4.5 * error).all()


def test_successive_draws_of_the_common_part_of_classes_are_independent():
    # Labels do not depend on the common part. It is drawn from its prior, for any prior variance.
    k, mean, labels = problem(10, 3, False)
    common = chain(1e4 * k, mean, labels, 2000).mean(axis=1) - mean.mean(axis=0)
    first, last = common[:-1], common[1:]
    correlation = (first * last).sum(axis=0) / (common**2).sum(axis=0)
    assert abs(correlation).max() < 4.5 / np.sqrt(len(common))
    assert_allclose(common.var(axis=0), 1e4 * np.diag(k[0]) / 3, rtol=4.5 * np.sqrt(2 / len(common)))
