"""Priors of several functions by rows of coefficients, against priors by covariance matrices."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import APPROXIMATIONS, LaplaceProbit
from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import BlockSites, CoupledSites, IndependentSites, SignedSites
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.rivals.qep import QEP
from pymc_gpep.solvers.coefficients import (
    rows_from_entries,
    rows_of_functions,
)
from tests.approximations.every import in_turn

N, C = 16, 3
METHODS = [
    (method(), likelihood.given(np.full((1, N), 0.1)))
    for likelihood in LIKELIHOODS
    for method in APPROXIMATIONS
    if method.takes(RowPrior) and method.approximates(likelihood) and not likelihood.sees_common
]
METHODS.append((QEP(full=True), next(likelihood for method, likelihood in METHODS if isinstance(method, QEP))))
CASES = [
    pytest.param(replace(method, tolerance=1e-10), likelihood, id=f"{type(method).__name__}-{likelihood.name}-{i}")
    for i, (method, likelihood) in enumerate(METHODS)
]


def full(rng):
    """Four columns for each function."""
    j = np.zeros((C, N, 4 * C))
    for k in range(C):
        j[k, :, 4 * k : 4 * k + 4] = rng.normal(size=(N, 4)) / 2
    return j


def entries(rng):
    """Groups and a level for each function except the second, which is the reference class."""
    j = np.zeros((C, N, 9 * C))
    for k in (0, 2):
        j[k, :, 9 * k] = 0.5
        j[k, np.arange(N), 9 * k + 1 + rng.integers(0, 8, N)] = rng.normal(size=N)
    return j


def mixed(rng):
    """One function by full columns, the other functions by sparse entries."""
    return np.concatenate([full(rng)[:1].repeat(C, 0) * np.eye(C)[0][:, None, None], entries(rng)[:, :, 9:]], axis=2)


def shared(rng):
    """Functions that share standard normal variables."""
    return rng.normal(size=(C, N, 5)) / 2


def observed(rng, likelihood):
    """A class at each point, or votes."""
    return rng.integers(0, C, N) if likelihood.observed_axes == 1 else rng.integers(0, 4, (N, C))


SHAPES = [full, entries, mixed]


@pytest.mark.parametrize(
    ("method", "likelihood", "make"),
    [
        pytest.param(*CASES[case].values, SHAPES[i], id=f"{CASES[case].id}-{SHAPES[i].__name__}")
        for case, i in in_turn(len(CASES), len(SHAPES))
    ],
)
def test_solution_by_rows_equals_solution_by_covariances(method, likelihood, make):
    rng = np.random.default_rng(1)
    j, mean, y = make(rng), 0.3 * rng.normal(size=(C, N)), observed(rng, likelihood)
    cold = np.zeros(method.start_size(C, N))
    rows = method.run(j, mean, y, cold, True, likelihood=likelihood, form=RowPrior)
    dense = method.run(j @ j.swapaxes(1, 2), mean, y, cold, True, likelihood=likelihood)
    assert rows.status == dense.status == 0
    assert rows.evidence == pytest.approx(dense.evidence, abs=1e-10)
    for name in ("mean", "cov", "weights", "precision", "gradient_mean"):
        assert_allclose(getattr(rows, name), getattr(dense, name), atol=1e-8, err_msg=name)
    own = j != 0.0  # other coefficients would correlate functions, which covariance matrices cannot represent
    assert_allclose(rows.gradient[own], (2.0 * dense.gradient @ j)[own], atol=1e-8)
    again = method.solve(j, mean, y, rows.start, likelihood=likelihood, prior_type=RowPrior)
    assert again.evidence == pytest.approx(dense.evidence, abs=1e-10)
    assert again.convergence.iterations <= 3
    assert_allclose(again.posterior.marginals()[1], dense.cov, atol=1e-8)


@pytest.mark.parametrize("method", [LaplaceProbit(max_size=9), QEP(full=True, max_size=9)], ids=["laplace", "qep"])
def test_row_form_accepts_more_latent_values_than_the_limit_of_matrices(method):
    rng = np.random.default_rng(7)
    j, mean, y = full(rng), np.zeros((C, N)), rng.integers(0, C, N)
    assert method.solve(j, mean, y, prior_type=RowPrior).convergence.converged
    with pytest.raises(ValueError, match="max_size"):
        method.solve(j @ j.swapaxes(1, 2), mean, y)


@pytest.mark.parametrize(("method", "likelihood"), [case for case in CASES if "QEP" not in str(case.id)])
def test_derivatives_with_shared_normals_match_differences(method, likelihood):
    rng = np.random.default_rng(7)
    j, mean, y = shared(rng), 0.3 * rng.normal(size=(C, N)), observed(rng, likelihood)
    cold = np.zeros(method.start_size(C, N))

    def run(j):
        return method.run(j, mean, y, cold, True, likelihood=likelihood, form=RowPrior)

    found, step = run(j), 1e-4 * rng.normal(size=j.shape)
    change = run(j + step).evidence - run(j - step).evidence
    assert (found.gradient * step).sum() == pytest.approx(0.5 * change, rel=1e-5)


def sites_of(form, rng):
    pi, location = rng.gamma(1.0, size=(C, N)), rng.normal(size=(C, N))
    location -= location.mean(axis=0)
    if form in (BlockSites, SignedSites):
        half = rng.normal(size=(N, C, C - 1))
        half -= half.mean(axis=1, keepdims=True)
        below = 0.05 * (np.eye(C) - 1.0 / C) if form is SignedSites else 0.0
        return form(half @ half.swapaxes(1, 2) - below, location)
    return form(pi, location)


def whole(sites):
    """Precision matrix (cn, cn), ordered by functions."""
    unit = np.eye(C * N).reshape(-1, C, N)
    return sites.product(unit).reshape(C * N, C * N)


@pytest.mark.parametrize("make", [full, entries, mixed, shared], ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", [CoupledSites, BlockSites, SignedSites, IndependentSites])
def test_posterior_equals_dense_posterior_of_all_latent_values(form, make):
    rng = np.random.default_rng(3)
    j, mean, sites = make(rng), rng.normal(size=(C, N)), sites_of(form, rng)
    found = posterior_of(RowPrior(j, mean), sites)
    stacked, pi = j.reshape(C * N, -1), whole(sites)
    inner = np.linalg.inv(np.eye(stacked.shape[1]) + stacked.T @ pi @ stacked)
    cov = stacked @ inner @ stacked.T
    expected = mean.ravel() + cov @ (sites.location.ravel() - pi @ mean.ravel())
    assert_allclose(found.mean.ravel(), expected, atol=1e-9)
    by_point = cov.reshape(C, N, C, N)
    assert_allclose(found.marginals()[1], np.einsum("aibi->iab", by_point), atol=1e-9)
    k = stacked @ stacked.T
    assert found.log_determinant == pytest.approx(np.linalg.slogdet(np.eye(C * N) + k @ pi)[1], abs=1e-9)
    taken = np.trace(pi @ cov)
    quadratic = found.weights.ravel() @ (found.mean - mean).ravel()
    assert found.divergence == pytest.approx(0.5 * (quadratic + found.log_determinant - taken), abs=1e-9)
    wide, centre = found.cavities(*found.marginals())[::-1]
    for i in (0, 3, 7):
        others = pi.reshape(C, N, C, N).copy()
        own = others[:, i, :, i].copy()
        others[:, i, :, i] = 0.0
        left = np.linalg.inv(np.eye(stacked.shape[1]) + stacked.T @ others.reshape(pi.shape) @ stacked)
        left = (stacked @ left @ stacked.T).reshape(C, N, C, N)[:, i, :, i]
        assert_allclose(wide[i], left, atol=1e-9)
        force = sites.location[:, i] - own @ found.mean[:, i]
        assert_allclose(centre[i], found.mean[:, i] - left @ force, atol=1e-9)
    z = found.draw_whitened(np.random.default_rng(4), 20_000)
    assert z.shape == (20_000, 1, stacked.shape[1])
    assert_allclose(np.cov(z[:, 0].T), inner, atol=0.05)
    assert found.prior.latent(z[:2]).shape == (2, C, N)


def test_draws_at_new_rows_have_predicted_moments():
    rng, new = np.random.default_rng(8), 4
    j = mixed(rng)
    found = posterior_of(RowPrior(j, rng.normal(size=(C, N))), sites_of(CoupledSites, rng))
    there = rows_of_functions(rng.normal(size=(C, new, j.shape[2])) * (j != 0.0).any(axis=1, keepdims=True))
    root, mean = rng.normal(size=(new, C, C)), rng.normal(size=(C, new))
    residual = root @ root.swapaxes(1, 2)
    z = found.draw_whitened(rng, 2000)
    drawn = found.prior.draw_at(rng, None, z, there, residual, mean)
    expected, cov = found.predict(there, residual, mean)
    sd = np.sqrt(cov.diagonal(axis1=1, axis2=2)).T
    assert_allclose((drawn.mean(axis=0) - expected) / sd, 0.0, atol=4.5 / np.sqrt(2000))
    assert_allclose(drawn.std(axis=0) / sd, 1.0, atol=0.1)


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", [CoupledSites, BlockSites, SignedSites])
def test_results_for_independent_functions_equal_separate_results(form, make):
    rng = np.random.default_rng(5)
    j, mean, sites = make(rng), rng.normal(size=(C, N)), sites_of(form, rng)
    there = rng.normal(size=(C, 4, j.shape[2])) * (j != 0.0).any(axis=1, keepdims=True)
    prior = RowPrior(j, mean)
    rows, dense = posterior_of(prior, sites), posterior_of(DensePrior(prior.k, mean), sites)
    cross, own = there @ j.swapaxes(1, 2), (there**2).sum(axis=2)
    left = rng.normal(size=(C, N, 2))
    unit = np.eye(2)
    for found, expected in (
        (
            rows.predict(rows_of_functions(there), np.zeros((4, C, C)), mean[:, :4]),
            dense.predict(cross, own, mean[:, :4]),
        ),
        ([rows.joint_covariance(prior.k, prior.k)], [dense.joint_covariance(prior.k, prior.k)]),
        ([rows.joint_covariance(left, unit)], [dense.joint_covariance(left, unit)]),
        ([rows.marginal_variance(left, unit)], [dense.marginal_variance(left, unit)]),
        (
            [rows.derivatives()[0][j != 0.0]],
            [(2.0 * dense.derivatives()[0] @ j)[j != 0.0]],
        ),
    ):
        for one, other in zip(found, expected, strict=True):
            assert_allclose(one, other, atol=1e-9)


@pytest.mark.parametrize("make", [full, entries, mixed, shared], ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", [CoupledSites, BlockSites, IndependentSites])
def test_sums_over_rows_match_dense_products(form, make):
    rng = np.random.default_rng(6)
    sites, j = sites_of(form, rng), make(rng)
    rows, stacked, pi = rows_of_functions(j), j.reshape(C * N, -1), whole(sites)
    assert_allclose(rows.coupled_gram(sites), stacked.T @ pi @ stacked, atol=1e-12)
    assert_allclose(rows.coupled_weighted(sites, np.eye(stacked.shape[1])), pi @ stacked, atol=1e-12)
    weights = rng.gamma(1.0, size=C * N)
    assert_allclose(np.tril(rows.gram(weights)), np.tril(stacked.T @ (weights[:, None] * stacked)), atol=1e-12)
    assert_allclose(rows.some(np.array([3, N + 1, 2 * N])), stacked[[3, N + 1, 2 * N]])


def test_sparse_entries_of_a_function_match_dense_columns():
    cells = np.array([[0, 3], [2, 3], [0, 2]])
    values = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 0.5]])
    rows = rows_from_entries([(cells, values), (cells + 4, 0.0 * values)], 8)
    expected = np.zeros((6, 8))
    np.add.at(expected, (np.arange(3)[:, None], cells), values)
    assert_allclose(rows.combined(np.eye(8)), expected)
