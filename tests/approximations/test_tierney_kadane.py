"""Corrected class probabilities against quadrature, without a Gaussian assumption."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax, softmax
from scipy.stats import norm, qmc

from pymc_gpep.approximations.laplace import Laplace, tierney_kadane_probabilities
from pymc_gpep.likelihoods.softmax import softmax_probabilities
from tests.reference.data import squared_exponential
from tests.reference.laplace import laplace as dense_laplace

M = 4


def problem(seed, n, c, variance, per_class=False):
    """Prior of n points with labels and of M new points, with nonzero means."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + M, 2))
    scales = np.linspace(0.7, 1.5, c) if per_class else [1.0]
    k = np.stack([squared_exponential(X, variance=variance * s, lengthscale=s) for s in scales])
    return k, 0.5 * rng.normal(size=(c, n + M)), rng.integers(0, c, n)


def corrected(k, mean, y):
    n = y.size
    solution = Laplace().solve(k[:, :n, :n], mean[:, :n], y)
    new = k[:, n:, :n], k[:, range(n, n + M), range(n, n + M)], mean[:, n:]
    predicted, cov = solution.posterior.predict(*new)
    plain, _ = softmax_probabilities(predicted.T, cov)
    return tierney_kadane_probabilities(solution, *new), plain


def by_importance(k, mean, y, points=2**14):
    """Posterior averages of the softmax at the new points, by importance sampling from a wide Gaussian."""
    c, total = mean.shape
    n = y.size
    joint = np.zeros((c, total, c, total))
    for a, block in enumerate(np.broadcast_to(k, (c, total, total))):
        joint[a, :, a] = block + 1e-10 * np.eye(total)
    seen = (slice(None), slice(0, n))
    prior = joint[:, :n, :, :n].reshape(c * n, c * n)
    dense = dense_laplace(k[:, :n, :n], y, mean[:, :n])
    cov = 1.3 * dense.covariance.reshape(c * n, c * n) + 1e-8 * np.eye(c * n)
    root = np.linalg.cholesky(cov)
    z = norm.ppf(qmc.Sobol(c * total, rng=1).random(points))
    z, rest = z[:, : c * n], z[:, c * n :]
    f = dense.mean.ravel() + z @ root.T
    centred = f - mean[seen].ravel()
    log_weight = -0.5 * np.einsum("di,di->d", centred, np.linalg.solve(prior, centred.T).T) + 0.5 * (z**2).sum(1)
    log_weight += log_softmax(f.reshape(-1, c, n), axis=1)[:, y, range(n)].sum(1)
    weight = np.exp(log_weight - log_weight.max())
    cross = joint[:, n:, :, :n].reshape(c * M, c * n)
    given = np.linalg.solve(prior, cross.T)
    left = joint[:, n:, :, n:].reshape(c * M, c * M) - cross @ given
    new = mean[:, n:].ravel() + centred @ given + rest @ np.linalg.cholesky(left + 1e-8 * np.eye(c * M)).T
    p = softmax(new.reshape(-1, c, M), axis=1)
    return (np.einsum("d,dcm->mc", weight, p)) / weight.sum()


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("c", [2, 4])
def test_corrected_probabilities_are_ratios_of_dense_evidences(c, per_class):
    k, mean, y = problem(c, 6, c, 20.0, per_class)
    p, _ = corrected(k, mean, y)
    for new in range(M):
        chosen = np.r_[:6, 6 + new]
        extended = k[:, chosen[:, None], chosen]
        evidence = [dense_laplace(extended, np.r_[y, label], mean[:, chosen]).evidence for label in range(c)]
        assert_allclose(p[new], softmax(evidence), atol=1e-6)


@pytest.mark.parametrize(("c", "variance"), [(2, 10.0), (3, 3.0), (3, 30.0)])
def test_corrected_probabilities_are_more_accurate_than_uncorrected_probabilities(c, variance):
    error_corrected, error_plain = [], []
    for seed in range(3):
        k, mean, y = problem(seed, 4, c, variance)
        truth = by_importance(k, mean, y)
        improved, plain = corrected(k, mean, y)
        error_corrected.append(np.abs(improved - truth).mean())
        error_plain.append(np.abs(plain - truth).mean())
    assert np.mean(error_corrected) < 0.6 * np.mean(error_plain)


def test_prediction_far_from_data_equals_the_prior():
    k = np.stack([np.eye(3)])
    solution = Laplace().solve(k, np.zeros((3, 3)), np.array([0, 1, 2]))
    p = tierney_kadane_probabilities(solution, np.zeros((1, 1, 3)), np.ones((1, 1)), np.zeros((3, 1)))
    assert_allclose(p, 1 / 3, atol=1e-12)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("k_cross", np.zeros((2, 1, 3))),
        ("k_new", np.ones(1)),
        ("prior_mean", np.zeros((2, 1))),
    ],
)
def test_invalid_arguments_raise_value_error(argument, value):
    solution = Laplace().solve(np.eye(3), np.zeros((3, 3)), np.array([0, 1, 2]))
    arguments = {
        "k_cross": np.zeros((1, 1, 3)),
        "k_new": np.ones((1, 1)),
        "prior_mean": np.zeros((3, 1)),
    } | {argument: value}
    with pytest.raises(ValueError, match=argument):
        tierney_kadane_probabilities(solution, **arguments)
