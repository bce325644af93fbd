"""Posterior of latent values without the site of their own point, with inducing inputs, against dense EP and refits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import EP, NestedEP, SparseEP, SparseVI
from pymc_gpep.likelihoods.bernoulli import LogitLikelihood, ProbitLikelihood
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.rivals.class_independent_ep import QIEP
from pymc_gpep.rivals.gfitc import GFITC
from pymc_gpep.solvers import inducing as inducing_module
from pymc_gpep.solvers.inducing import RowFeatures
from pymc_gpep.solvers.team import ALONE
from tests.approximations.sparse import random_sparse

PROBIT = MultinomialProbitLikelihood()
whose = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])


def left_out(approximation, prior, solution):
    """Latent moments of all points, each without its own site."""
    parts = list(approximation.left_out(prior, solution))
    assert [part.rows.start for part in parts[1:]] == [part.rows.stop for part in parts[:-1]]
    return np.concatenate([part.mean for part in parts]), np.concatenate([part.cov for part in parts])


@pytest.mark.parametrize(
    ("likelihood", "c", "sites", "dense"),
    [
        (PROBIT, 3, "quadrature", QIEP),
        (PROBIT, 3, "nested", NestedEP),
        (ProbitLikelihood(), 1, "quadrature", EP),
        (LogitLikelihood(), 1, "quadrature", EP),
    ],
    ids=["qiep", "nested_ep", "probit", "logit"],
)
@whose
def test_left_out_moments_equal_cavities_of_dense_ep(likelihood, c, sites, dense, own, monkeypatch):
    monkeypatch.setattr(inducing_module, "_ENTRIES", 40 * c)  # forces several blocks
    problem = random_sparse(2, 20, c, 5, own=own, classes=max(c, 2))
    approximation = SparseEP(sites=sites, tolerance=1e-11, jitter=1e-14)
    solution = approximation.solve(problem.prior, problem.y, likelihood=likelihood)
    mean, cov = left_out(approximation, problem.prior, solution)
    expected = dense(tolerance=1e-11).solve(problem.fitc(), problem.mean, problem.y, likelihood=likelihood)
    wanted_mean, wanted_cov = expected.posterior.cavities(expected.mean, expected.cov)
    assert_allclose(mean, wanted_mean, atol=1e-7)
    assert_allclose(cov, wanted_cov, atol=1e-7)


@pytest.mark.parametrize(
    "approximation",
    [SparseEP(sites="pairwise"), SparseEP(sites="quadrature"), SparseEP(sites="nested"), GFITC(), SparseVI()],
    ids=lambda each: getattr(each, "sites", None) or each.name,
)
@whose
def test_cavity_moments_equal_predictions_from_the_remaining_sites(approximation, own):
    problem = random_sparse(5, 12, 3, 4, own=own)
    solution = approximation.solve(problem.prior, problem.y)
    mean, cov = left_out(approximation, problem.prior, solution)
    points = approximation.point_sites(PROBIT, problem.y, 3, 4)
    features = RowFeatures(problem.prior, solution.posterior.whitening)
    for i in (0, 7):
        others = solution.start.reshape(2, *points.shape).copy()
        others[:, i] = 0.0
        with np.errstate(all="ignore"):
            whitened = points.sweeps(features, ALONE).posterior(others)
        posterior = type(solution.posterior)(solution.posterior.whitening, whitened)
        wanted_mean, wanted_cov = posterior.predict(problem.prior.block(slice(i, i + 1)))
        assert_allclose(mean[i], wanted_mean[:, 0], atol=1e-9)
        assert_allclose(cov[i], wanted_cov[0], atol=1e-9)
