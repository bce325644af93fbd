"""Priors of one function by rows of coefficients J, against priors by the covariance J Jᵀ."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import APPROXIMATIONS
from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.solvers.coefficients import coefficients as coefficients_of
from tests.approximations.every import in_turn
from tests.likelihoods.with_parameters import EVERY as WITH

N = 20
RNG = np.random.default_rng(1)
AGAIN = np.arange(N) % 12
CASES = [
    pytest.param(replace(method(), tolerance=1e-10), likelihood, id=f"{method.name}-{likelihood.name}")
    for likelihood in LIKELIHOODS
    for method in APPROXIMATIONS
    if method.takes(RowPrior) and method.approximates(likelihood) and likelihood.sees_common
]
SHAPES = {"tall": (5, 5), "wide": (30, 30), "of low rank": (6, 3), "with few entries": (13, 0), "partly": (12, -1)}


def coefficients(q, rank, rng=RNG):
    if rank > 0:
        return rng.normal(size=(1, N, rank)) @ rng.normal(size=(rank, q)) / np.sqrt(q)
    if rank < 0:  # rows alternate between all columns and at most one column
        return np.where(np.arange(N)[:, None] % 2, rng.normal(size=(N, q)), np.eye(N, q, k=-3))[None] / np.sqrt(q)
    j = np.zeros((1, N, q))  # columns for a level, groups and persons; one row is zero
    j[0, :, 0] = 0.5
    j[0, np.arange(N), 1 + rng.integers(0, 4, size=N)] = rng.normal(size=N)
    j[0, np.arange(N), 5 + rng.integers(0, 8, size=N)] = 0.7
    j[0, 3] = 0.0
    return j


@pytest.mark.parametrize("shape", SHAPES)
def test_overwriting_a_gram_matrix_does_not_change_later_gram_matrices(shape):
    """Callers add the identity to the Gram matrix, and factorise it in place."""
    rows, weights = coefficients_of(coefficients(*SHAPES[shape], np.random.default_rng(2))[0]), np.linspace(0.1, 2.0, N)
    first = rows.gram(weights)
    expected = first.copy()
    first[:] = np.nan
    assert_allclose(rows.gram(weights), expected, rtol=0.0, atol=0.0)


def bound(likelihood):
    return likelihood.given(WITH[likelihood.name].parameters[:, AGAIN]) if likelihood.has_parameters else likelihood


@pytest.mark.parametrize(
    ("method", "likelihood", "q", "rank"),
    [
        pytest.param(*CASES[case].values, *SHAPES[shape], id=f"{CASES[case].id}-{shape}")
        for case, shape in ((case, list(SHAPES)[i]) for case, i in in_turn(len(CASES), len(SHAPES)))
    ],
)
def test_solution_by_rows_equals_solution_by_covariance(method, likelihood, q, rank):
    j, mean = coefficients(q, rank), 0.3 * RNG.normal(size=(1, N))
    y = WITH[likelihood.name].y[AGAIN] if likelihood.has_parameters else RNG.integers(0, 2, size=N)
    likelihood, cold = bound(likelihood), np.zeros(method.start_size(1, N))
    rows = method.run(j, mean, y, cold, True, likelihood=likelihood, form=RowPrior)
    dense = method.run(j @ j.swapaxes(1, 2), mean, y, cold, True, likelihood=likelihood)
    assert rows.status == dense.status == 0
    assert rows.evidence == pytest.approx(dense.evidence, abs=1e-9)
    for name in ("mean", "cov", "weights", "precision", "gradient_mean", "gradient_parameters"):
        assert_allclose(getattr(rows, name), getattr(dense, name), rtol=1e-7, atol=1e-7, err_msg=name)
    assert_allclose(rows.gradient, 2.0 * dense.gradient @ j, atol=1e-7)
    again = method.solve(j, mean, y, rows.start, likelihood=likelihood, prior_type=RowPrior)
    assert again.evidence == pytest.approx(dense.evidence, abs=1e-9)
    assert_allclose(again.posterior.marginals()[1], dense.cov, rtol=1e-7)


@pytest.mark.parametrize(("q", "rank"), SHAPES.values(), ids=SHAPES)
def test_posterior_by_rows_equals_posterior_by_covariance(q, rank):
    rng = np.random.default_rng(2)
    j, mean, there = coefficients(q, rank, rng), rng.normal(size=(1, N)), rng.normal(size=(1, 4, q))
    prior = RowPrior(j, mean)
    sites = IndependentSites(rng.gamma(1.0, size=(1, N)), rng.normal(size=(1, N)))
    rows, dense = posterior_of(prior, sites), posterior_of(DensePrior(prior.k, mean).rooted(j), sites)
    for name in ("mean", "weights", "log_determinant", "divergence", "log_normaliser"):
        assert_allclose(getattr(rows, name), getattr(dense, name), atol=1e-9, err_msg=name)
    cross, own = there @ j.swapaxes(1, 2), (there**2).sum(axis=2)
    unit = np.eye(q)
    for found, expected in (
        (rows.marginals(), dense.marginals()),
        (rows.cavities(*rows.marginals()), dense.cavities(*dense.marginals())),
        (
            rows.predict(coefficients_of(there[0]), np.zeros((4, 1, 1)), mean[:, :4]),
            dense.predict(cross, own, mean[:, :4]),
        ),
        ([rows.joint_covariance(j, unit)], [dense.joint_covariance(j, unit)]),
        ([rows.joint_covariance(prior.k, prior.k)], [dense.joint_covariance(prior.k, prior.k)]),
        ([rows.marginal_variance(j, unit)], [dense.marginal_variance(j, unit)]),
        (rows.derivatives(), (2.0 * dense.derivatives()[0] @ j, dense.derivatives()[1])),
    ):
        for one, other in zip(found, expected, strict=True):
            assert_allclose(one, other, atol=1e-9)
    z = rows.draw_whitened(np.random.default_rng(3), 40_000)
    assert_allclose(np.cov(z[:, 0].T), dense.joint_covariance(j, unit)[0, :, 0], atol=0.05)
    assert_allclose(z.mean(axis=0), prior.whitened_slope(dense.weights), atol=0.04)


def test_predictive_variance_under_a_wide_prior_keeps_digits():
    j = np.column_stack([np.full(N, 1e5), np.linspace(-1.0, 1.0, N)])[None]
    sites = IndependentSites(np.ones((1, N)), np.zeros((1, N)))
    found = posterior_of(RowPrior(j, np.zeros((1, N))), sites)
    ahead = np.array([[[1e5, 0.5]]])
    slope = (j[0, :, 1] ** 2).sum()
    expected = 1.0 / (N + 1e-10) + 0.25 / (1.0 + slope)
    _, variance = found.predict(coefficients_of(ahead[0]), np.zeros((1, 1, 1)), np.zeros((1, 1)))
    assert variance.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("wrong", ["two functions", "another length", "not finite"])
def test_arrays_of_wrong_shape_raise_value_error(wrong):
    j, mean = np.ones((1, N, 2)), np.zeros((1, N))
    if wrong == "two functions":
        mean = np.zeros((2, N))
    elif wrong == "another length":
        j = j[:, 1:]
    else:
        j[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="coefficients"):
        RowPrior.checked(j, mean)
