"""Binary approximations at extreme hyperparameters: the result is right, or its status reports the failure."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.approximations.binary import KINDS, METHODS, BinaryProblem
from tests.reference.data import squared_exponential

every = pytest.mark.parametrize(
    ("method", "kind"), [(method, kind) for kind in KINDS for method in METHODS], ids=lambda value: str(value)
)
N = 16
X = np.random.default_rng(0).normal(size=(N, 2))
X[1] = X[0]
LABELS = {
    "none": np.zeros(N, np.int64),
    "half": np.where(np.arange(N) < 2, [0, 1] * (N // 2), X[:, 0] > 0).astype(np.int64),
    "all": np.ones(N, np.int64),
}
"""Labels by name. In `"half"`, the two labels of one input contradict each other."""
LABELLED = (("none", 0.0), ("half", 0.0), ("all", -50.0), ("half", 50.0))
"""Pairs of labels and prior mean. Each pair of hyperparameters gets one of them."""
ORDER = np.random.default_rng(1).permutation(N)


def problem(method, log_magnitude, log_lengthscale, labels="half", mean=0.0):
    variance = np.exp(2.0 * log_magnitude)
    k = squared_exponential(X, variance=variance, lengthscale=np.exp(log_lengthscale))
    if method == "fv":
        k += 1e-6 * variance * np.eye(N)  # FV needs the inverse
    return BinaryProblem(k, np.full((1, N), mean), LABELS[labels])


def solve(method, kind, given, start=None, **options):
    return METHODS[method](**options).solve(*given, start=start, likelihood=kind.likelihood)


@every
def test_extreme_problems_give_finite_results_or_a_status(method, kind):
    for i, log_magnitude in enumerate((-8.0, 0.0, 4.25, 8.0, 12.0)):
        for j, log_lengthscale in enumerate((-8.0, 0.0, 8.0)):
            given = problem(method, log_magnitude, log_lengthscale, *LABELLED[i + j & 3])
            solution = solve(method, kind, given, max_iterations=200)
            if solution.convergence.converged:
                assert solution.evidence < 1e-9
                assert np.isfinite(solution.mean).all()
                assert (solution.cov >= 0.0).all()
                if method in ("kl", "vb", "fv", "lr"):
                    assert solution.evidence <= solution.lower_bound + 1e-9 * (1 + abs(solution.evidence)) or (
                        method == "fv"  # the factorial distribution of FV is not Gaussian
                    )
            else:
                assert log_magnitude > 4.25
                assert np.isnan(solution.evidence) or solution.convergence.residual[-1] > 0.0


@every
@pytest.mark.parametrize("log_magnitude", [0.0, 4.25])
def test_start_order_of_points_and_sign_of_labels_do_not_change_the_result(method, kind, log_magnitude):
    given = problem(method, log_magnitude, 0.5)
    cold = solve(method, kind, given, tolerance=1e-9)
    near = solve(method, kind, problem(method, log_magnitude + 0.3, 0.7))
    warm = solve(method, kind, given, near.start, tolerance=1e-9)
    k, mean, y = given
    permuted = solve(method, kind, BinaryProblem(k[ORDER][:, ORDER], mean[:, ORDER], y[ORDER]), tolerance=1e-9)
    flipped = solve(method, kind, BinaryProblem(k, -mean, 1 - y), tolerance=1e-9)
    for other, to_mean in ((warm, cold.mean), (permuted, cold.mean[:, ORDER]), (flipped, -cold.mean)):
        assert other.convergence.converged
        assert other.evidence == pytest.approx(cold.evidence, abs=1e-8)
        assert_allclose(other.mean, to_mean, atol=1e-6 * np.exp(log_magnitude))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("labels", "mean"), [("half", 0.0), ("all", -50.0), ("half", 50.0)])
def test_kl_starts_near_its_optimum_for_any_magnitude(kind, labels, mean):
    """The start matters: from narrow sites at the prior mean, KL took 400 sweeps or stopped far below the maximum."""
    given = problem("kl", 8.0, 0.0, labels, mean)
    cold = solve("kl", kind, given)
    assert cold.convergence.converged
    assert cold.convergence.iterations < 120
    ep = solve("ep", kind, given)
    sites = np.concatenate([ep.posterior.precision[0], ep.posterior.sites.location[0]])
    warm = solve("kl", kind, given, sites)
    assert warm.evidence == pytest.approx(cold.evidence, abs=1e-6)
    assert cold.evidence <= ep.evidence


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("method", [method for method in METHODS if method not in ("vb", "lr", "fv")])
def test_zero_magnitude_returns_the_prior(method, kind):
    solution = solve(method, kind, problem(method, -8.0, -8.0, "all"))
    assert solution.evidence == pytest.approx(-N * np.log(2.0), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_evidence_of_ep_is_constant_for_large_magnitudes(kind):
    separable = LABELS["half"].copy()
    separable[:2] = X[0, 0] > 0
    k = squared_exponential(X, variance=1.0, lengthscale=1.0)
    at = {
        method: [
            solve(method, kind, BinaryProblem(np.exp(2.0 * log_magnitude) * k, np.zeros((1, N)), separable)).evidence
            for log_magnitude in (8.0, 10.0)
        ]
        for method in ("ep", "laplace", "kl")
    }
    assert at["ep"][1] == pytest.approx(at["ep"][0], abs=1e-3 * N)
    assert at["laplace"][1] < at["laplace"][0] - 0.5
    assert at["kl"][1] < at["kl"][0] - 0.5
