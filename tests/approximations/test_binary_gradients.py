"""Gradients of every evidence of a binary classifier, against differences of evidences solved again."""

import numpy as np
import pytest

from pymc_gpep.kernels.status import CONVERGED
from tests.approximations.binary import KINDS, METHODS, random_binary
from tests.reference.data import squared_exponential

every = pytest.mark.parametrize(
    ("method", "kind"), [(method, kind) for kind in KINDS for method in METHODS], ids=lambda value: str(value)
)
TOLERANCE = 1e-11


def slope(function, step):
    """Derivative of a function at 0, by differences of fourth order."""
    return (8 * (function(step) - function(-step)) - function(2 * step) + function(-2 * step)) / (12 * step)


@every
@pytest.mark.parametrize("log_magnitude", [0.0, 1.5, 4.25])
def test_gradient_matches_differences_of_the_evidence(method, kind, log_magnitude):
    variance = float(np.exp(2 * log_magnitude))
    problem = random_binary(7, 9, variance=variance, jitter=0.02)
    solver = METHODS[method](tolerance=TOLERANCE)
    rng = np.random.default_rng(3)
    to_k = rng.normal(size=problem.k.shape)
    to_k = 0.01 * variance * (to_k + to_k.T)
    to_mean = rng.normal(size=problem.mean.shape)
    start = np.zeros(solver.start_size(1, problem.y.size))

    def run(of_k, of_mean):
        outcome = solver.run(
            problem.k[None] + of_k * to_k,
            problem.mean + of_mean * to_mean,
            problem.y,
            start,
            gradient=True,
            likelihood=kind.likelihood,
        )
        assert outcome.status == CONVERGED
        return outcome

    outcome = run(0.0, 0.0)
    start = outcome.start
    assert (outcome.gradient == outcome.gradient.swapaxes(1, 2)).all()
    along_k, along_mean = (outcome.gradient * to_k).sum(), (outcome.gradient_mean * to_mean).sum()
    assert slope(lambda t: run(t, 0.0).evidence, 2e-3) == pytest.approx(along_k, rel=1e-6, abs=1e-8)
    assert slope(lambda t: run(0.0, t).evidence, 2e-3) == pytest.approx(along_mean, rel=1e-6, abs=1e-8)


@every
def test_gradient_in_hyperparameters_matches_differences(method, kind):
    X = np.random.default_rng(5).normal(size=(10, 2))
    y = (X[:, 0] + 0.5 * X[:, 1] > 0.2).astype(np.int64)
    solver = METHODS[method](tolerance=TOLERANCE)

    def covariance(log_magnitude, log_lengthscale):
        k = squared_exponential(X, variance=np.exp(2 * log_magnitude), lengthscale=np.exp(log_lengthscale))
        return (k + 1e-3 * np.exp(2 * log_magnitude) * np.eye(10))[None]

    def run(k):
        start = np.zeros(solver.start_size(1, 10))
        return solver.run(k, np.full((1, 10), 0.3), y, start, gradient=True, likelihood=kind.likelihood)

    at = np.array([1.0, 0.4])
    gradient = run(covariance(*at)).gradient
    for direction in np.eye(2):
        to_k = slope(lambda t, d=direction: covariance(*(at + t * d)), 1e-3)
        difference = slope(lambda t, d=direction: run(covariance(*(at + t * d))).evidence, 2e-3)
        assert difference == pytest.approx((gradient * to_k).sum(), rel=1e-6, abs=1e-8)
