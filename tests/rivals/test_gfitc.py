"""GFITC against dense EP over latent values with the FITC prior, and its derivatives."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import SparseEP
from pymc_gpep.approximations.sparse_ep import Number
from pymc_gpep.likelihoods.bernoulli import ProbitLikelihood
from pymc_gpep.likelihoods.label_noise import RobustMaxLikelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.rivals.gfitc import GFITC
from tests.approximations.sparse import random_sparse, solved
from tests.reference.gfitc import dense_gfitc

EXACT = {"tolerance": 1e-11, "jitter": 1e-14}
whose = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])


def exact(problem, likelihood=None):
    """The solution, and the derivatives with respect to all moments."""
    solution, slope, bars = solved(GFITC(**EXACT), problem.prior, problem.y, likelihood)
    assert solution.number is Number.OBJECTIVE
    return solution, (slope, *bars[:3])


@pytest.mark.variation(but=["0.0-own"])
@whose
@pytest.mark.parametrize("noise", [2.0, 0.0])
def test_gfitc_equals_dense_ep(own, noise):
    n = 30 if noise else 20
    problem = random_sparse(1, n, 3, 5, own=own)
    likelihood = MultinomialProbitLikelihood() if noise else RobustMaxLikelihood().given(np.full((1, n), 0.1))
    solution, _ = exact(problem, likelihood)
    k = np.broadcast_to(problem.fitc(), (3, n, n))
    expected = dense_gfitc(k, problem.mean, problem.y, noise)
    assert expected.change < 1e-10
    assert_allclose(solution.evidence, expected.evidence, rtol=1e-8)
    # functions at new inputs, where no site acts
    new = np.random.default_rng(3).normal(size=(4, 2))
    there = problem._replace(x=new, mean=np.zeros((3, 4)))
    mean, _ = solution.posterior.predict(there.prior.block(slice(None)))
    cross = np.broadcast_to(problem.fitc(new), (3, 4, n))
    pulled = np.linalg.solve(k, (expected.mean - problem.mean)[:, :, None])
    assert_allclose(mean, (cross @ pulled)[:, :, 0], atol=1e-6)


@whose
def test_derivatives_match_differences_of_the_objective(own):
    problem = random_sparse(5, 15, 3, 4, own=own)
    _, slopes = exact(problem)
    step = 1e-5
    for name in ("z", "log_scales", "mean"):
        values = getattr(problem, name)
        for place in list(np.ndindex(values.shape))[:: max(1, values.size // 3)]:
            ends = []
            for sign in (1, -1):
                moved = values.copy()
                moved[place] += sign * step
                there = problem._replace(**{name: moved})
                ends.append((exact(there)[0].evidence, there.moments))
            (up, moments_up), (down, moments_down) = ends
            expected = sum(
                float((slope * (a - b)).sum()) for slope, a, b in zip(slopes, moments_up, moments_down, strict=True)
            )
            assert_allclose(up - down, expected, rtol=1e-5, atol=1e-9)


@whose
def test_common_shift_of_all_classes_converges_in_few_sweeps(own):
    problem = random_sparse(7, 200, 3, 12, own=own)
    large = problem._replace(log_scales=problem.log_scales * [0.0, 1.0] + [np.log(3e3), 0.0])
    solution = GFITC().solve(large.prior, large.y)
    assert solution.convergence.converged
    assert solution.convergence.iterations < 60


def test_gfitc_without_residual_equals_pairwise_sites():
    """Latent values are functions of the inducing values here: no residual is integrated out."""
    problem = random_sparse(2, 12, 3, 12)._replace(log_scales=np.log([[3.0, 0.7]]))
    prior = problem._replace(z=problem.x[None], noise=0.0).prior
    expected = SparseEP(**EXACT | {"sites": "pairwise", "jitter": 1e-12}).solve(prior, problem.y)
    found = GFITC(**EXACT | {"jitter": 1e-12}).solve(prior, problem.y)
    assert_allclose(found.evidence, expected.evidence, rtol=1e-6)


def test_unsupported_likelihoods_and_sites_raise_value_error():
    problem = random_sparse(3, 6, 1, 2, classes=2)
    assert not GFITC.approximates(ProbitLikelihood())
    with pytest.raises(ValueError, match=r"pairs of classes, and probit does not\. Take method='ep'"):
        GFITC().solve(problem.prior, problem.y, likelihood=ProbitLikelihood())
    with pytest.raises(ValueError, match="sites must be one of 'latent_pairs'"):
        GFITC(sites="quadrature")
