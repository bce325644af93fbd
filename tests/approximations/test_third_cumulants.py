"""Third cumulants of tilted distributions of several functions, against quadrature under cavities by dense algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr, softmax

from pymc_gpep.approximations import NestedEP, NoisyNestedEP, QEPSoftmax, cumulants
from pymc_gpep.approximations.cumulants import TiltedFactors, third_cumulants
from pymc_gpep.likelihoods.label_noise import NoisyMultinomialProbitLikelihood
from pymc_gpep.likelihoods.softmax import SoftmaxLikelihood
from tests.reference.data import random_problem

U, U_WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
Z = np.stack(np.meshgrid(*[np.polynomial.hermite_e.hermegauss(24)[0]] * 3, indexing="ij")).reshape(3, -1).T
Z_WEIGHTS = np.prod(np.meshgrid(*[np.polynomial.hermite_e.hermegauss(24)[1]] * 3, indexing="ij"), axis=0).ravel()
EPSILON = 0.3


def probit(f, y):
    others = np.delete(f, y, axis=1)
    return ndtr(U[:, None, None] + f[:, y, None] - others).prod(axis=2).T @ U_WEIGHTS / U_WEIGHTS.sum()


CASES = {
    "softmax": (QEPSoftmax(), SoftmaxLikelihood(), lambda f, y: softmax(f, axis=1)[:, y]),
    "probit": (NestedEP(), None, probit),
    "label noise": (
        NoisyNestedEP(), NoisyMultinomialProbitLikelihood().given(np.full((1, 5), EPSILON)),
        lambda f, y: (1.0 - EPSILON) * probit(f, y) + EPSILON / 3.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cumulants_match_quadrature(name):
    approximator, likelihood, density = CASES[name]
    problem = random_problem(3, n=5, c=3)
    solution = approximator.solve(problem.K, problem.m, problem.y, likelihood=likelihood)
    found = third_cumulants(solution)
    sites, size = solution.posterior.sites, 0.0
    for i, label in enumerate(problem.y):
        own = np.zeros((3, 3, 5))
        own[:, :, i] = np.eye(3)
        precision, cov = sites.product(own)[:, :, i], solution.cov[i]
        cavity = np.linalg.inv(np.linalg.inv(cov) - precision)
        centre = solution.mean[:, i] - cavity @ solution.posterior.weights[:, i]
        f = centre + Z @ np.linalg.cholesky(cavity).T
        weights = Z_WEIGHTS * density(f, label)
        weights /= weights.sum()
        away = (f - weights @ f) @ np.linalg.inv(np.linalg.cholesky(cov)).T
        expected = np.einsum("s,sa,sb,sd->abd", weights, away, away, away, optimize=True)
        lower = np.linalg.cholesky(cov)
        assert_allclose(np.einsum("ijk,ia,jb,kd->abd", found[i], lower, lower, lower), expected, atol=0.01)
        size = max(size, np.abs(expected).max())
    assert size > 0.05


@pytest.mark.parametrize("block", [1, 30, 10_000])
def test_corrections_from_powers_of_correlations_match_dense_matrices(block, monkeypatch):
    monkeypatch.setattr(cumulants, "_BLOCK", block)
    rng = np.random.default_rng(2)
    root = rng.normal(size=(11, 5))
    covariance = root @ root.T + np.eye(11)
    scale = 1.0 / np.sqrt(covariance.diagonal())
    third, fourth = rng.normal(size=(2, 11))
    factors = TiltedFactors(0.0, True, covariance * scale[:, None] * scale, third, fourth)
    between = factors.correlation * (1.0 - np.eye(11))
    assert_allclose(factors.two_loops, third * (between**3 @ third) / 12.0, rtol=1e-12)
    assert_allclose(factors.by_fourth_powers(fourth), between**4 @ fourth, rtol=1e-12)
