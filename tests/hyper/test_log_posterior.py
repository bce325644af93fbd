"""The log posterior of hyperparameters: terms, gradient and maximum."""

from typing import ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP, ScalarLaplace
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.log_posteriors import dense_log_posterior
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.reading import read_classifier
from tests import models
from tests.reference.data import squared_exponential
from tests.reference.dense_nested_ep import nested_ep as dense_nested_ep


@pytest.fixture(scope="module", params=[models.shared, models.per_class], ids=["shared", "per class"])
def log_posterior(request):
    model, _ = request.param()
    return DenseLogPosterior(read_classifier(model), NestedEP(tolerance=1e-11))


@pytest.mark.variation(but=["shared"])
def test_gradient_matches_finite_differences(log_posterior):
    theta = log_posterior.space.initial_point() + 0.3
    step = 1e-4 * np.random.default_rng(2).normal(size=theta.size)
    ahead, behind = (log_posterior(theta + s * step).log_posterior for s in (1, -1))
    assert log_posterior(theta).gradient @ step == pytest.approx((ahead - behind) / 2, rel=1e-5, abs=1e-9)


def test_log_posterior_is_the_sum_of_evidence_prior_and_jacobian():
    model, _ = models.shared()
    X, y = models.data()
    posterior = DenseLogPosterior(read_classifier(model), NestedEP(tolerance=1e-11))
    ls, eta = np.array([0.7, 1.4]), 2.0
    evaluation = posterior(np.log([*ls, eta]))
    k = squared_exponential(X / ls, variance=eta**2, lengthscale=1.0) + 1e-6 * np.eye(y.size)
    evidence = dense_nested_ep(k, y, c=3).evidence
    prior = pm.logp(pm.InverseGamma.dist(3, 3), ls).sum().eval() + pm.logp(pm.HalfNormal.dist(3), eta).eval()
    assert evaluation.evidence == pytest.approx(evidence, abs=1e-8)
    assert evaluation.log_posterior == pytest.approx(evidence + prior + np.log([*ls, eta]).sum(), abs=1e-8)


def test_potentials_of_the_model_are_added():
    def build(with_terms):
        X, y = models.data()
        with pm.Model() as model:
            eta = pm.HalfNormal("eta", 3)
            if with_terms:
                pm.Normal("measured", eta, 0.1, observed=1.5)
                pm.Potential("penalty", -2 * eta)
            f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X, n_outputs=3)
            gpep.MultinomialProbit("y", f.T, observed=y)
        return DenseLogPosterior(read_classifier(model), NestedEP())

    theta = np.log([1.2])
    difference = build(True)(theta).log_posterior - build(False)(theta).log_posterior
    assert difference == pytest.approx(pm.logp(pm.Normal.dist(1.2, 0.1), 1.5).eval() - 2.4, abs=1e-7)


def test_log_posterior_does_not_depend_on_earlier_evaluations():
    model, _ = models.shared()
    posterior = DenseLogPosterior(read_classifier(model), NestedEP(tolerance=1e-8))
    theta = posterior.space.initial_point()
    first = posterior(theta)
    far = posterior(theta + 1.5)
    again = posterior(theta, posterior(theta - 0.5, far.start).start)
    assert again.log_posterior == pytest.approx(first.log_posterior, abs=1e-8)
    assert_allclose(again.gradient, first.gradient, atol=1e-6)


def test_search_ends_at_a_maximum():
    model, _ = models.shared()
    posterior = DenseLogPosterior(read_classifier(model), NestedEP())
    optimum = maximise(posterior, posterior.space.initial_point(), 100)
    assert optimum.converged
    assert np.abs(optimum.best.gradient).max() < 1e-3
    rng = np.random.default_rng(0)
    for _ in range(10):
        nearby = posterior(optimum.best.theta + 0.1 * rng.normal(size=3))
        assert nearby.log_posterior < optimum.best.log_posterior


def test_search_avoids_a_failing_region():
    class Walled(DenseLogPosterior):
        def __call__(self, theta, start=None):
            result = super().__call__(theta, start)
            if theta[-1] > 1.0:
                return result._replace(log_posterior=np.nan, gradient=np.full_like(theta, np.nan), status=1)
            return result

    model, _ = models.shared()
    posterior = Walled(read_classifier(model), NestedEP())
    start = posterior.space.initial_point()
    start[-1] = 0.0
    optimum = maximise(posterior, start, 100)
    assert optimum.best.log_posterior > optimum.history[0].log_posterior + 1
    assert optimum.best.theta[-1] <= 1.0
    with pytest.raises(ValueError, match=r"nested_ep cannot start.*eta_log__"):
        maximise(posterior, start + 2.0, 100)


class OnDiagonal(pm.gp.cov.Covariance):
    """Covariance function that adds a constant to the diagonal. The constant may be negative."""

    def __init__(self, value):
        super().__init__(1, None)
        self.value = value

    def diag(self, X):
        return self.value * pt.ones(X.shape[0])

    def full(self, X, Xs=None):
        return self.value * pt.eye(X.shape[0])


def less_noise(taken):
    """Model whose covariance is indefinite if more than 0.5 is subtracted from its diagonal."""
    x = np.linspace(-2.0, 2.0, 12)[:, None]
    with pm.Model() as model:
        taken = pm.Normal("taken", taken)
        covariance = 4.0 * pm.gp.cov.ExpQuad(1, ls=1.0) + OnDiagonal(0.5 - taken)
        f = pm.gp.Latent(cov_func=covariance).prior("f", X=x)
        pm.Bernoulli("y", logit_p=f, observed=(x[:, 0] > 0.1).astype(int))
    return DenseLogPosterior(read_classifier(model), ScalarLaplace())


@pytest.mark.variation
def test_search_ends_at_a_positive_semidefinite_covariance():
    posterior = less_noise(0.6)  # at the prior mean the covariance is indefinite
    optimum = maximise(posterior, np.array([0.0]), 100)
    assert posterior.loosely()(np.array([0.6])).usable
    assert not posterior(np.array([0.6])).usable
    assert optimum.best.usable
    assert optimum.best.theta[0] <= 0.5 + 1e-5
    with pytest.raises(ValueError, match=r"cannot start.*not positive semi-definite.*jitter does not repair it"):
        maximise(posterior, np.array([0.6]), 100)


def test_start_must_name_hyperparameters():
    model, _ = models.shared()
    posterior = DenseLogPosterior(read_classifier(model), NestedEP())
    with pytest.raises(ValueError, match="start names lengthscale, but the hyperparameters of the model are: ls, eta"):
        posterior.space.initial_point({"lengthscale": 2.0})
    with pytest.raises(TypeError, match=r"by name, but is 'run\.zarr'.*have a batch_size"):
        posterior.space.initial_point("run.zarr")
    assert_allclose(posterior.space.initial_point({"eta": 2.0})[-1], np.log(2.0))
    with pytest.raises(ValueError, match=r"initial value of eta is outside the support.*start is {'eta': -1.0}"):
        posterior.space.initial_point({"eta": -1.0})


def test_evaluation_from_the_stored_start_of_the_same_point_takes_few_sweeps(log_posterior):
    theta = log_posterior.space.initial_point()
    here = log_posterior(theta)
    log_posterior(theta + 1.0, here.start)
    again = log_posterior(theta, here.start)
    assert again.iterations <= 2 < here.iterations
    assert again.log_posterior == pytest.approx(here.log_posterior, abs=1e-8)


def test_wider_tolerance_saves_sweeps_and_keeps_the_needed_digits():
    model, _ = models.shared()
    posterior = DenseLogPosterior(read_classifier(model), NestedEP())
    theta = posterior.space.initial_point()
    exact, searched, weighed = (
        evaluate(theta) for evaluate in (posterior, posterior.loosely(), posterior.loosely(gradients=False))
    )
    assert weighed.iterations < searched.iterations < exact.iterations
    assert searched.log_posterior == pytest.approx(exact.log_posterior, abs=1e-6)
    assert_allclose(searched.gradient, exact.gradient, atol=1e-3)
    assert weighed.log_posterior == pytest.approx(exact.log_posterior, abs=1e-2)
    assert posterior(theta).iterations == exact.iterations  # `loosely` returns a copy: the original keeps its tolerance


def test_search_of_many_rows_has_a_wider_tolerance_while_rising(monkeypatch):
    model, _ = models.shared()
    posterior = DenseLogPosterior(read_classifier(model), NestedEP())
    theta = posterior.space.initial_point()
    search = posterior.loosely()
    assert search.roughly() is search
    monkeypatch.setattr(dense_log_posterior, "_FEW", 1)
    searched, rough = search(theta), search.roughly()(theta)
    assert rough.iterations < searched.iterations
    assert rough.log_posterior == pytest.approx(searched.log_posterior, abs=1e-3)


def test_search_needs_fewer_sweeps_than_accurate_solves_at_its_points():
    class Counting(DenseLogPosterior):
        seen: ClassVar = []  # shared with the copy that searches

        def __call__(self, theta, start=None):
            self.seen.append(super().__call__(theta, start))
            return self.seen[-1]

    model, _ = models.shared()
    posterior = Counting(read_classifier(model), NestedEP())
    optimum = maximise(posterior, posterior.space.initial_point(), 100)
    assert optimum.converged
    assert len(posterior.seen) <= len(optimum.history) + 4  # the first point is not evaluated twice
    plain, last = 0, None
    for theta in [each.theta for each in posterior.seen]:
        here = DenseLogPosterior.__call__(posterior, theta, last)
        last, plain = here.start, plain + here.iterations
    assert sum(each.iterations for each in posterior.seen) < 0.75 * plain
    assert posterior.solve(optimum.best.theta, optimum.best.start).convergence.iterations <= 2


def test_best_point_of_a_search_stores_the_start_of_its_own_solve():
    class Stopping(DenseLogPosterior):
        calls = 0

        def __call__(self, theta, start=None):
            self.calls += 1
            if self.calls == 8:
                raise KeyboardInterrupt
            return super().__call__(theta, start)

    model, _ = models.shared()
    posterior = Stopping(read_classifier(model), NestedEP())
    best = maximise(posterior, posterior.space.initial_point(), 100).best
    assert posterior.solve(best.theta, best.start).convergence.iterations <= 2


def test_evaluation_after_a_failed_start_equals_a_cold_evaluation(log_posterior):
    theta = log_posterior.space.initial_point()
    cold = log_posterior(theta)
    bad = log_posterior(theta, np.full_like(cold.start, np.nan))
    assert bad.log_posterior == pytest.approx(cold.log_posterior, abs=1e-9)


def test_set_data_after_reading_does_not_change_the_log_posterior():
    X, y = models.data()
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        eta = pm.HalfNormal("eta", 3)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0))
        gpep.MultinomialProbit("y", gp.prior("f", X=inputs, n_outputs=3).T, observed=y)
    posterior = DenseLogPosterior(read_classifier(model), NestedEP())
    theta = posterior.space.initial_point()
    before, evidence = posterior(theta), posterior.solve(theta).evidence
    with model:
        pm.set_data({"X": 2 * X})
    assert posterior(theta).log_posterior == before.log_posterior
    assert posterior.solve(theta).evidence == evidence


def test_search_begins_at_hyperparameters_of_another_fit(shared):
    space = Hyperparameters(read_classifier(shared.model))
    assert_allclose(space.initial_point(shared.fit.hyperparameters), shared.fit.trace.best.theta, rtol=1e-12)
