"""Evidence from a posterior q(v) alone: equal to EP's evidence at EP's fixed point, and stationary there."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations.site_rules import OneFunctionSite, WholePoint
from pymc_gpep.approximations.sparse_ep import InducedArrays, SparseEP
from pymc_gpep.approximations.sparse_vi import SparseVI
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.streaming import batch_log_posterior as recovered_sites

METHOD = SparseEP(sites="quadrature", tolerance=1e-10, max_iterations=500)
NAMED = {likelihood.name: likelihood for likelihood in LIKELIHOODS}


@pytest.fixture(scope="module", params=["multinomial_probit", "probit", "logit"])
def solved(request):
    likelihood = NAMED[request.param]
    c = 3 if likelihood.function_axis else 1
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, size=(40, 2))
    labels = (X[:, 0] > 0).astype(np.int64) + (c > 1) * (X[:, 1] > 0.5)

    def covariance(a, b):
        return 3.0 * np.exp(-0.5 * ((a[:, None] - b) ** 2).sum(axis=-1))

    mean = rng.normal(size=(c, 40)) / 5
    prior = InducedArrays(covariance(X[:6], X[:6]), covariance(X[:6], X), np.full(40, 3.0), mean)
    return likelihood, labels, prior, METHOD.solve(prior, labels, likelihood=likelihood)


def found_again(solved, whitened):
    likelihood, labels, prior, solution = solved
    rule = WholePoint() if likelihood.function_axis else OneFunctionSite()
    return recovered_sites.recovered(prior, solution.posterior.whitening, whitened, rule, likelihood, labels)


def recovered(solved, whitened):
    return found_again(solved, whitened).log_normaliser()


def test_recovered_sites_of_ep_give_the_evidence_of_ep(solved):
    solution = solved[-1]
    assert solution.convergence.converged
    assert_allclose(recovered(solved, solution.posterior.whitened), solution.evidence, atol=1e-6)


def test_evidence_is_stationary_near_recovered_sites(solved):
    """The change is of second order: a shift of q by 0.1 standard deviations costs less than 0.1 nats."""
    solution = solved[-1]
    own = solution.posterior.whitened
    moved = own._replace(mean=own.mean + 0.1 * np.sqrt((own.root**2).sum(axis=1)))
    change = abs(recovered(solved, moved) - solution.evidence)
    assert 1e-6 < change < 0.1


def test_leave_one_out_by_recovered_sites_equals_ep(solved):
    _, _, prior, solution = solved
    whitened = solution.posterior.whitened
    again = found_again(solved, whitened)
    for ours, theirs in zip(
        again.sweeps.left_out(again.sites, whitened), METHOD.left_out(prior, solution), strict=True
    ):
        assert ours.rows == theirs.rows
        assert_allclose(ours.mean, theirs.mean, atol=1e-6)
        assert_allclose(ours.cov, theirs.cov, atol=1e-6)


def test_sites_of_a_bound_are_recovered(solved):
    likelihood, labels, prior, _ = solved
    solution = SparseVI(tolerance=1e-9).solve(prior, labels, likelihood=likelihood)
    posterior = solution.posterior
    again = recovered_sites.recovered_by_bound(prior, posterior.whitening, posterior.whitened, likelihood, labels)
    assert_allclose(again.sites.ravel(), solution.start, atol=1e-6)
