"""Degenerate problems for every approximation with inducing inputs: results are finite."""

import numpy as np
import pytest

from pymc_gpep.approximations import SparseEP, SparseVI
from pymc_gpep.approximations.sparse_ep import InducedArrays
from pymc_gpep.likelihoods.bernoulli import ProbitLikelihood
from pymc_gpep.likelihoods.label_noise import NoisyMultinomialProbitLikelihood, RobustMaxLikelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.rivals.gfitc import GFITC
from tests.approximations.sparse import random_sparse, solved

N = 30
PROBIT, ONE = MultinomialProbitLikelihood(), ProbitLikelihood()


def noisy(kind, epsilon=0.01):
    return kind().given(np.full((1, N), epsilon))


WAYS = {
    "gfitc of the probit": (GFITC(), PROBIT),
    "gfitc of the step": (GFITC(), noisy(RobustMaxLikelihood)),
    "ep of the noisy probit": (SparseEP(), noisy(NoisyMultinomialProbitLikelihood)),
    "ep of the step": (SparseEP(), noisy(RobustMaxLikelihood)),
    "ep of the step with half the labels noise": (SparseEP(), noisy(RobustMaxLikelihood, 0.5)),
    "ep of the step without label noise": (SparseEP(), noisy(RobustMaxLikelihood, 0.0)),
    "ep of pairs of the step": (SparseEP(sites="pairwise"), noisy(RobustMaxLikelihood)),
    "vi of the probit": (SparseVI(), PROBIT),
    "vi of the noisy probit": (SparseVI(), noisy(NoisyMultinomialProbitLikelihood)),
    "vi of the step": (SparseVI(), noisy(RobustMaxLikelihood)),
    "vi of one function": (SparseVI(), ONE),
}
CHANGES = {
    "inducing inputs that coincide": lambda p: p._replace(z=np.repeat(p.z[:, :1], 6, axis=1)),
    "some that coincide": lambda p: p._replace(z=p.z[:, [0, 0, 1, 1, 2, 3]]),
    "inducing inputs far away": lambda p: p._replace(z=p.z + 1e3),
    "one inducing input": lambda p: p._replace(z=p.z[:, :1]),
    "more inducing inputs than points": lambda p: p._replace(z=np.random.default_rng(0).normal(size=(1, 50, 2))),
    "an absent class": lambda p: p._replace(y=np.minimum(p.y, max(len(p.mean) - 2, 0))),
    "two classes": lambda p: p._replace(mean=p.mean[:2], y=np.minimum(p.y, 1)),
    "a constant column": lambda p: p._replace(x=p.x * [1.0, 0.0], z=p.z * [1.0, 0.0]),
    "a long scale": lambda p: p._replace(log_scales=np.log([[3.0, 1e6]])),
    "a short scale": lambda p: p._replace(log_scales=np.log([[3.0, 1e-3]])),
    "no noise": lambda p: p._replace(noise=0.0),
    "much noise": lambda p: p._replace(noise=1e4),
    "a tiny magnitude": lambda p: p._replace(log_scales=np.log([[1e-8, 1.0]])),
}


@pytest.mark.parametrize(
    ("way", "change"),
    [(way, change) for i, way in enumerate(WAYS) for j, change in enumerate(CHANGES) if (i + j) % 4 == 0],
)
def test_degenerate_problems_are_solved(way, change):
    """Each approximation gets a quarter of the problems, and each problem about three approximations."""
    (approximation, likelihood), change = WAYS[way], CHANGES[change]
    c = 3 if likelihood.function_axis else 1
    problem = change(random_sparse(9, N, c, 6, classes=max(c, 2)))
    solution, slope, bars = solved(approximation, problem.prior, problem.y, likelihood)
    assert all(np.isfinite(each).all() for each in (solution.evidence, slope, *bars))
    mean, cov = solution.posterior.predict(problem.prior.block(slice(None)))
    assert np.isfinite(mean).all()
    assert (np.diagonal(cov, axis1=-2, axis2=-1) > 0.0).all()


@pytest.mark.parametrize(("approximation", "likelihood"), WAYS.values(), ids=WAYS)
def test_latent_values_without_residual_variance_have_finite_evidence_or_do_not_converge(approximation, likelihood):
    """Rows coincide with inducing inputs and have no noise: the residual variance is 0."""
    c = 3 if likelihood.function_axis else 1
    problem = random_sparse(9, N, c, 6, classes=max(c, 2))
    inducing, cross, variance, mean = problem._replace(z=problem.x[None, :8], noise=0.0).moments
    prior = InducedArrays(inducing, cross, variance, mean if c > 1 else mean[0])
    solution = approximation.solve(prior, problem.y, likelihood=likelihood)
    assert np.isfinite(solution.evidence) or not solution.convergence.converged
    assert not np.isnan(solution.convergence.evidence[0])


@pytest.mark.parametrize("way", ["ep of the noisy probit", "ep of the step", "vi of the step"])
def test_pure_noise_gives_equal_class_probabilities(way):
    """Labels are not informative: the posterior is the prior, and the evidence is the evidence of random guesses."""
    approximation, likelihood = WAYS[way]
    problem = random_sparse(9, N, 3, 6)._replace(noise=1e6)
    prior = problem.prior
    solution = approximation.solve(prior, problem.y, likelihood=likelihood)
    chances = np.full(N, 1.0 / 3)
    if isinstance(approximation, SparseVI):  # for VI the expected log, not the log of the expectation
        expected = (chances * np.log(0.99 + 0.01 / 3) + (1 - chances) * np.log(0.01 / 3)).sum()
    else:
        expected = np.log(chances).sum()
    assert solution.evidence == pytest.approx(expected, rel=1e-2)
    mean, _ = solution.posterior.predict(prior.block(slice(None)))
    assert np.abs(mean - problem.mean).max() < 0.05
