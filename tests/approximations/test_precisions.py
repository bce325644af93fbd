"""Priors by a sparse precision matrix, against priors by its covariance matrix."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.approximations import APPROXIMATIONS, EPPredictors, KLPredictors, Laplace, NestedEP
from pymc_gpep.gaussians.posterior import posterior_of
from pymc_gpep.gaussians.precision_prior import PrecisionAlgebra, PrecisionPrior, PrecisionStructure
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.prior_form import BoundForm
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.gaussians.sites import IndependentSites
from pymc_gpep.kernels.status import NOT_POSITIVE_DEFINITE
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.solvers.coefficients import coefficients as coefficients_of
from pymc_gpep.solvers.problem import Algebra
from pymc_gpep.solvers.site_algebra import NotPositiveDefiniteError
from pymc_gpep.univariate.predictors import SEVERAL_PREDICTORS
from tests.likelihoods.with_parameters import EVERY as WITH

N, GROUPS, WALK = 20, 5, 9
Q = 1 + GROUPS + WALK
AGAIN = np.arange(N) % 12
PAIRS = [
    (method, likelihood)
    for likelihood in LIKELIHOODS
    for method in APPROXIMATIONS
    if method.algebra is Algebra.FUNCTION and method.takes(PrecisionPrior) and method.approximates(likelihood)
]
HELD = {"free": (), "sums to zero": (0.0,), "one taken away": (0.3, -0.05)}
CASES = [
    pytest.param(
        replace(method(), tolerance=1e-10), likelihood, HELD[held], id=f"{method.name}-{likelihood.name}-{held}"
    )
    for (method, likelihood), held in zip(PAIRS, cycle(HELD), strict=False)
]


class Case:
    """A level, groups and a random walk. Rows use one value of the walk, or the difference of two distant values."""

    def __init__(self, widths, seed=1):
        rng = np.random.default_rng(seed)
        walk = 1 + GROUPS + rng.integers(0, WALK, size=(N, 2))
        walk[::2, 1] = walk[::2, 0]  # rows with a single value of the walk have two equal columns
        self.cells = np.column_stack([np.zeros(N, int), 1 + rng.integers(0, GROUPS, size=N), walk])
        self.values = np.column_stack([np.full(N, 0.5), rng.normal(size=N), np.ones(N), -np.ones(N)])
        self.values[walk[:, 0] == walk[:, 1], 3] = 0.0
        self.values[3] = 0.0
        step = 1 + GROUPS + np.arange(1, WALK)
        self.first, self.second = np.r_[np.arange(Q), step, step[3]], np.r_[np.arange(Q), step - 1, step[3] - 1]
        self.entries = np.r_[np.ones(1 + GROUPS), 2.2 + rng.random(WALK), -np.ones(WALK)]
        columns = np.zeros((len(widths), Q))
        columns[:1, 1 + GROUPS :] = 1.0
        columns[1:, 8] = 1.0
        self.entries[8] += 20.0 * (len(widths) > 1)
        self.widths = np.array(widths)
        together = [(np.array([0]), np.array([Q - 1]))]
        self.structure = PrecisionStructure(self.cells, self.first, self.second, columns, self.widths, together)

    def array(self):
        return np.concatenate([self.values.ravel(), self.entries])[None, None]

    def a(self, array=None):
        values, _ = self.structure.split(self.array() if array is None else array)
        a = np.zeros((N, Q))
        np.add.at(a, (np.arange(N)[:, None], self.cells), values[0])
        return a

    def covariance(self, array=None):
        """Covariance Q⁻¹, (q, q), from the array of the prior."""
        _, entries = self.structure.split(self.array() if array is None else array)
        precision = np.zeros((Q, Q))
        np.add.at(precision, (self.first, self.second), entries)
        inverse = np.linalg.inv(precision + np.tril(precision, -1).T)
        columns = self.structure.columns
        middle = np.diag(self.widths) + columns @ inverse @ columns.T
        return inverse - inverse @ columns.T @ np.linalg.solve(middle, columns @ inverse)

    def k(self, array=None):
        return self.a(array) @ self.covariance(array) @ self.a(array).T

    def slopes(self, gradient, at=1e-5):
        """Derivative of Σ `gradient` K with respect to the array of the prior, by differences."""
        found = np.empty(self.array().size)
        for i in range(found.size):
            ahead, behind = self.array(), self.array()
            ahead[0, 0, i] += at
            behind[0, 0, i] -= at
            found[i] = (gradient * (self.k(ahead) - self.k(behind))).sum() / (2 * at)
        return found[None, None]


def bound(likelihood):
    return likelihood.given(WITH[likelihood.name].parameters[:, AGAIN]) if likelihood.has_parameters else likelihood


@pytest.mark.parametrize(("method", "likelihood", "widths"), CASES)
def test_solution_by_precision_equals_solution_by_covariance(method, likelihood, widths):
    case, rng = Case(widths), np.random.default_rng(2)
    mean = 0.3 * rng.normal(size=(1, N))
    y = WITH[likelihood.name].y[AGAIN] if likelihood.has_parameters else rng.integers(0, 2, size=N)
    likelihood, cold = bound(likelihood), np.zeros(method.start_size(1, N))
    make = BoundForm(PrecisionPrior, case.structure)
    found = method.run(case.array(), mean, y, cold, True, likelihood=likelihood, form=make)
    dense = method.run(case.k()[None], mean, y, cold, True, likelihood=likelihood)
    assert found.status == dense.status == 0
    assert found.evidence == pytest.approx(dense.evidence, abs=1e-9)
    for name in ("mean", "cov", "weights", "precision", "gradient_mean", "gradient_parameters"):
        assert_allclose(getattr(found, name), getattr(dense, name), rtol=1e-7, atol=1e-7, err_msg=name)
    real = np.ones(case.array().size, bool)
    real[: N * 4] = np.column_stack([np.ones((N, 3), bool), case.cells[:, 2] != case.cells[:, 3]]).ravel()
    assert_allclose(found.gradient[0, 0][real], case.slopes(dense.gradient[0])[0, 0][real], rtol=1e-6, atol=1e-6)
    again = method.solve(case.array(), mean, y, found.start, likelihood=likelihood, prior_type=make)
    assert again.evidence == pytest.approx(dense.evidence, abs=1e-9)
    assert_allclose(again.posterior.marginals()[1], dense.cov, rtol=1e-7)


@pytest.mark.parametrize("name", ["laplace of a softmax", "nested EP", "EP of predictors", "KL of predictors"])
def test_solution_of_functions_with_shared_variables_equals_solution_by_rows(name):
    case, rng, c = Case((0.3,)), np.random.default_rng(4), 2 if name.endswith("predictors") else 3
    structure = replace(case.structure, functions=c)
    values = rng.uniform(-0.5, 0.5, (c, N, 4)) * case.values
    array = np.concatenate([values.ravel(), case.entries])[None, None]
    rows = np.zeros((c, N, Q))
    for own, out in zip(values, rows, strict=True):
        np.add.at(out, (np.arange(N)[:, None], case.cells), own)
    rows = np.ascontiguousarray(rows @ np.linalg.cholesky(case.covariance()))
    if name.endswith("predictors"):
        with pm.Model() as model:
            f, g = pm.Normal("f", shape=N), pm.Normal("g", shape=N)
            pm.Normal("y", f, pm.math.exp(g), observed=np.zeros(N))
        reading = SEVERAL_PREDICTORS.read(model["y"], {f, g})
        y, likelihood = rng.normal(size=N), reading.likelihood.given(np.zeros((1, N)))
        method = EPPredictors(tolerance=1e-8) if name.startswith("EP") else KLPredictors(tolerance=1e-8)
    else:
        y = rng.integers(0, c, size=N)
        method = Laplace() if "softmax" in name else NestedEP()
        likelihood = method.first_likelihood()
    mean, make = 0.1 * rng.normal(size=(c, N)), BoundForm(PrecisionPrior, structure)
    found = method.solve(array, mean, y, likelihood=likelihood, prior_type=make)
    expected = method.solve(rows, mean, y, likelihood=likelihood, prior_type=RowPrior)
    assert found.convergence.converged
    assert found.evidence == pytest.approx(expected.evidence, abs=1e-7)
    for moments in ("mean", "cov"):
        assert_allclose(getattr(found, moments), getattr(expected, moments), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("widths", HELD.values(), ids=HELD)
def test_posterior_by_precision_equals_posterior_by_covariance(widths):
    case, rng = Case(widths), np.random.default_rng(3)
    prior = BoundForm(PrecisionPrior, case.structure).checked(case.array(), rng.normal(size=N))
    sites = IndependentSites(rng.gamma(1.0, size=(1, N)), rng.normal(size=(1, N)))
    k, root = case.k(), prior.precision.spread(np.eye(Q)).T
    assert_allclose(prior.k[0], k, atol=1e-11)
    assert_allclose(prior.variances[0], k.diagonal(), atol=1e-11)
    found, dense = posterior_of(prior, sites), posterior_of(DensePrior(k[None], prior.mean), sites)
    for name in ("mean", "weights", "log_determinant", "divergence", "log_normaliser"):
        assert_allclose(getattr(found, name), getattr(dense, name), atol=1e-9, err_msg=name)
    there = rng.normal(size=(4, Q))
    cells = np.array([[0, 3, 9], [1, 2, 7], [0, 6, 14], [5, 5, 12]])  # pairs of variables that no row combines
    few = np.take_along_axis(there, cells, 1)
    few[3, 0] = 0.0
    sparse = np.zeros((4, Q))
    np.add.at(sparse, (np.arange(4)[:, None], cells), few)
    for rows, full in ((coefficients_of(there), there), (Entries(cells, few, Q), sparse)):
        cross, own = full @ case.covariance() @ case.a().T, (full @ root) ** 2
        mean = rng.normal(size=(1, 4))
        for one, other in zip(
            found.predict(rows, np.zeros((4, 1, 1)), mean),
            dense.predict(cross[None], own.sum(axis=1)[None], mean),
            strict=True,
        ):
            assert_allclose(one, other, atol=1e-9)
    for one, other in (
        (found.marginals()[1], dense.marginals()[1]),
        (found.cavities(*found.marginals())[1], dense.cavities(*dense.marginals())[1]),
        (found.joint_covariance(k[None], k[None]), dense.joint_covariance(k[None], k[None])),
        (found.derivatives()[1], dense.derivatives()[1]),
    ):
        assert_allclose(one, other, atol=1e-9)
    x = found.draw_whitened(np.random.default_rng(4), 40_000)[:, 0]
    inverse = np.linalg.inv(
        np.linalg.inv(case.covariance() + 1e-12 * np.eye(Q)) + (case.a().T * sites.precision) @ case.a()
    )
    assert_allclose(np.cov(x.T), inverse, atol=0.05)
    assert_allclose(x.mean(axis=0), found.coordinates[0], atol=0.04)
    assert_allclose(prior.latent(x[:2, None]), (prior.mean + x[:2] @ case.a().T)[:, None], atol=1e-12)
    some = prior.some(np.array([4, 1]))
    assert_allclose(some.k[0], k[np.ix_([4, 1], [4, 1])], atol=1e-11)


def test_sites_may_have_negative_precisions():
    case, rng = Case(()), np.random.default_rng(5)
    prior = BoundForm(PrecisionPrior, case.structure).checked(case.array(), rng.normal(size=N))
    sites = IndependentSites(rng.gamma(1.0, size=(1, N)) - 0.02, rng.normal(size=(1, N)))
    assert (sites.precision < 0).any()
    found, k = posterior_of(prior, sites), case.k()
    assert isinstance(found.algebra, PrecisionAlgebra)
    smoothed = np.linalg.inv(np.eye(N) + k * sites.precision)
    assert_allclose(found.mean[0], smoothed @ (prior.mean[0] + k @ sites.location[0]), atol=1e-9)
    assert_allclose(found.covariance_among(np.arange(N))[0, :, 0], smoothed @ k, atol=1e-9)
    assert_allclose(prior.among(np.array([3, 1]), np.arange(N))[0], k[[3, 1]], atol=1e-9)


def test_indefinite_precision_is_refused():
    case = Case(())
    case.entries[8] = -1.0
    make = BoundForm(PrecisionPrior, case.structure)
    prior = make.checked(case.array(), np.zeros(N))
    with pytest.raises(NotPositiveDefiniteError):
        prior.check()
    method = next(each for each in APPROXIMATIONS if each.name == "ep")()
    y, cold = np.zeros(N, int), np.zeros(2 * N)
    for trusted in (False, True):
        found = method.run(case.array(), np.zeros((1, N)), y, cold.copy(), form=make, trusted=trusted)
        assert found.status == NOT_POSITIVE_DEFINITE
    with pytest.raises(ValueError, match="coefficients with a precision"):
        make.checked(case.array()[:, :, 1:], np.zeros(N))
