"""The paper's variational bound of all parameters: derivatives, and its maximum against `SparseVI`."""

import numpy as np
import pymc as pm
import pytest
from scipy.optimize import check_grad, minimize

from benchmarks.scalable_paper.joint_bound import GPFLOW, JointBound, joint_fit
from benchmarks.scalable_paper.models import AMPLITUDE, NOISE, typical_distance
from benchmarks.scalable_paper.scoring import EPSILON
from pymc_gpep.likelihoods.multinomial_probit_distribution import RobustMax

RNG = np.random.default_rng(3)
X = RNG.normal(size=(15, 2))
Y = np.arange(15) % 3
INDUCING = np.stack([X[RNG.choice(15, 4, replace=False)] for _ in range(3)])


@pytest.fixture(scope="module", params=[False, True], ids=["own coordinates", "whitened"])
def bound(request: pytest.FixtureRequest) -> JointBound:
    return JointBound(X, Y, INDUCING, request.param)


def test_derivatives_match_differences_of_the_bound(bound: JointBound) -> None:
    rng = np.random.default_rng(0)
    at = bound.first + 0.2 * rng.normal(size=bound.first.size)
    along = rng.normal(size=at.size)
    off = check_grad(lambda t: bound(at + t[0] * along)[0], lambda t: bound(at + t[0] * along)[1] @ along, [0.0])
    assert off < 1e-4 * abs(bound(at)[1] @ along)


def test_initial_bound_equals_the_bound_at_the_prior(bound: JointBound) -> None:
    """At the prior the class probabilities are equal, and the divergence is zero."""
    right = 1.0 / 3.0
    expected = right * np.log(1.0 - EPSILON + EPSILON / 3) + (1.0 - right) * np.log(EPSILON / 3)
    assert bound(bound.first)[0] == pytest.approx(15 * expected, rel=1e-6)


def test_best_q_equals_sparse_vi(bound: JointBound) -> None:
    # hyperparameters and inducing inputs
    held = sum(np.prod(shape, dtype=int) for shape in list(bound.shapes.values())[:4])

    def loss(q: np.ndarray) -> tuple[float, np.ndarray]:
        value, slopes = bound(np.concatenate([bound.first[:held], q]))
        return -value, -slopes[held:]

    best = -minimize(loss, bound.first[held:], jac=True, method="L-BFGS-B", options={"maxiter": 2000}).fun
    with pm.Model():
        cov = AMPLITUDE * pm.gp.cov.ExpQuad(2, ls=typical_distance(X)) + pm.gp.cov.WhiteNoise(np.sqrt(NOISE))
        RobustMax("y", pm.gp.Latent(cov_func=cov).prior("f", X=X, n_outputs=3).T, epsilon=EPSILON, observed=Y)
        fit = pm.fit(method="sparse_vi", inducing=INDUCING, progressbar=False)
    assert best == pytest.approx(fit.objective, abs=1e-3)


def test_search_over_all_parameters_raises_the_bound_and_predicts() -> None:
    called: list[int] = []
    fit = joint_fit((X, Y), 30, inducing=INDUCING, callbacks=[lambda fit, losses, i: called.append(i)])
    assert called == list(range(1, 31))
    assert (np.diff(fit.hist) < 0.0).all()
    p = fit.predict(X)["p"].values
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert (p.argmax(axis=1) == Y).mean() > 0.5


def test_bound_of_a_matrix_without_cholesky_factor_is_very_low_with_zero_gradient(bound: JointBound) -> None:
    at = bound.first.copy()
    at[:6] = 800.0
    value, slopes = bound(at)
    assert value == -1e10
    assert not slopes.any()


def test_fit_starts_at_the_given_initial_values() -> None:
    shapes = JointBound(X, Y, INDUCING).shapes
    given = JointBound(X, Y, INDUCING, begin=GPFLOW).first
    held = sum(np.prod(shapes[name], dtype=int) for name in GPFLOW)
    np.testing.assert_array_equal(given[:held], 0.0)  # logarithms of ones
    fit = joint_fit((X, Y), 1, inducing=INDUCING, begin=GPFLOW)
    assert fit.bound.first == pytest.approx(given)
