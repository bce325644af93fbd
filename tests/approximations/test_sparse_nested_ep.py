"""Nested EP with inducing inputs, on arrays: against dense forms, dense nested EP, and exact limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import NestedEP, SparseEP
from pymc_gpep.approximations.sparse_ep import InducedArrays
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from tests.approximations.sparse import random_sparse, solved
from tests.reference.data import iris, random_problem, squared_exponential
from tests.reference.gibbs import gibbs
from tests.reference.sparse_nested_ep import sparse_nested_ep

EXACT = {"sites": "nested", "tolerance": 1e-11, "jitter": 1e-14}
whose = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])


@whose
def test_sparse_nested_ep_equals_ep_with_a_dense_gaussian(own):
    problem = random_sparse(1, 6, 3, 3, own=own)
    solution = SparseEP(**EXACT).solve(problem.prior, problem.y)
    moments = [np.broadcast_to(each, (3, *each.shape[1:])) for each in problem.moments[:3]]
    expected = sparse_nested_ep(*moments, problem.mean, problem.y)
    assert expected.change < 1e-10
    assert_allclose(solution.evidence, expected.evidence, rtol=1e-10)
    assert_allclose(solution.posterior.inducing_mean, expected.mean, atol=1e-8)
    factor, size = solution.posterior.whitening.factor, 3
    half = solution.posterior.whitened.root.copy()
    for k in range(3):
        half[:, k * size : (k + 1) * size] @= factor[k if own else 0].T
    assert_allclose(half.T @ half, expected.cov, atol=1e-8)


@pytest.mark.parametrize("c", [2, 3, 5])
@whose
def test_sparse_nested_ep_equals_nested_ep_of_the_sparse_prior(c, own):
    """In the reference the noise is part of the prior, and sites are on the noisy latent values."""
    problem = random_sparse(2, 20, c, 5, own=own)
    solution = SparseEP(**EXACT).solve(problem.prior, problem.y)
    expected = NestedEP(tolerance=1e-11).solve(problem.fitc(), problem.mean, problem.y)
    assert_allclose(solution.evidence, expected.evidence, rtol=1e-10)
    new = np.random.default_rng(3).normal(size=(4, 2))
    own_moments = problem._replace(x=new, mean=np.zeros((c, 4)))
    mean, cov = solution.posterior.predict(own_moments.prior.block(slice(None)))
    dense_mean, dense_cov = expected.posterior.predict(
        np.ascontiguousarray(problem.fitc(new)), own_moments.moments[2], np.zeros((c, 4))
    )
    assert_allclose(mean, dense_mean, atol=1e-8)
    assert_allclose(cov, dense_cov, atol=1e-8)
    assert np.abs(cov[:, 0, 1]).max() > 1e-2
    if c == 3:
        p, _ = MultinomialProbitLikelihood().probabilities(mean.T, cov)
        assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)


def flowers(per_class):
    """Every fourth flower of the data set."""
    x, y = (each[::4] for each in iris())
    scales = (1.5, 2.0, 3.0) if per_class else (2.0,)
    k = [squared_exponential(x, variance=4.0 * s, lengthscale=s) + 1e-8 * np.eye(len(x)) for s in scales]
    return np.array(k), np.zeros((3, len(x))), y


def drawn(per_class):
    problem = random_problem(4, 20, 3, per_class=per_class, with_mean=True)
    return DensePrior.checked(problem.K, problem.m).k, problem.m, problem.y


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("make", [drawn, flowers])
def test_sparse_nested_ep_with_all_points_as_inducing_inputs_equals_nested_ep(make, per_class):
    k, mean, y = make(per_class)
    n = len(y)
    prior = InducedArrays(k, k, k.diagonal(axis1=1, axis2=2), mean)
    solution, slope, bars = solved(SparseEP(**EXACT), prior, y)
    nested = NestedEP(tolerance=1e-11)
    dense = nested.run(k, mean, y, np.zeros(nested.start_size(3, n)), True)
    every = np.arange(n)
    total = slope + 0.5 * (bars.cross + bars.cross.swapaxes(1, 2))
    total[:, every, every] += bars.variance
    assert_allclose(solution.evidence, dense.evidence, rtol=1e-9)
    assert_allclose(solution.posterior.predict(prior.block(slice(None)))[0], dense.mean, atol=1e-6)
    assert_allclose(total, dense.gradient, atol=1e-5 * np.abs(dense.gradient).max())
    assert_allclose(bars.mean, dense.weights, atol=1e-7)


def test_start_extrapolated_from_two_problems_saves_iterations():
    problem = random_sparse(8, 40, 3, 6)
    ends = [problem._replace(log_scales=problem.log_scales + step) for step in (-0.01, 0.01)]
    method = SparseEP(sites="nested")
    starts = np.array([method.solve(end.prior, end.y).start for end in ends])
    cold = method.solve(problem.prior, problem.y)
    warm = method.solve(problem.prior, problem.y, method.between(starts, np.array([0.5, 0.5]), 0))
    assert warm.convergence.iterations < cold.convergence.iterations - 2
    assert_allclose(warm.evidence, cold.evidence, rtol=1e-8)
    with pytest.raises(ValueError, match="start must be 160 finite numbers"):
        method.solve(problem.prior, problem.y, starts[0, 1:])


def test_points_far_on_the_wrong_side_are_solved():
    problem = random_sparse(3, 200, 4, 10)
    far = problem._replace(mean=30.0 * problem.mean)
    solution = SparseEP(sites="nested").solve(far.prior, far.y)
    assert solution.convergence.converged
    assert np.isfinite(solution.evidence)


@pytest.mark.slow
@whose
def test_means_match_the_exact_posterior_under_the_sparse_prior(own):
    problem = random_sparse(5, 60, 3, 10, own=own)
    solution = SparseEP(sites="nested").solve(problem.prior, problem.y)
    assert solution.convergence.converged
    exact = gibbs(problem.fitc(), problem.y, problem.mean, sweeps=2000, seed=1)
    new = np.random.default_rng(6).normal(size=(30, 2))
    mean, cov = solution.posterior.predict(problem._replace(x=new, mean=np.zeros((3, 30))).prior.block(slice(None)))
    shares = np.broadcast_to(problem.fitc(new) @ np.linalg.inv(problem.fitc()), (3, 30, 60))
    sd = np.sqrt(cov[:, range(3), range(3)]).T
    error = np.sqrt(np.einsum("kmn,kn->km", shares**2, exact.mean_error**2))
    assert (error < 0.05 * sd).all()
    expected = np.einsum("kmn,kn->km", shares, exact.mean - problem.mean)
    assert (np.abs(mean - expected) < 0.1 * sd).all()
