"""Large counts with exposures of any size, against dense algebra, and against quadrature for one row."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, optimize, stats

from pymc_gpep.approximations import EP, approximator
from pymc_gpep.approximations.laplace import ScalarLaplace
from pymc_gpep.fits.mixture import Prediction
from pymc_gpep.gaussians.prior import DensePrior
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.likelihoods.counts import PoissonLikelihood
from tests.reference.laplace_of_counts import laplace_of_counts

X = np.linspace(-2.0, 2.0, 8)
K = 2.0 + np.exp(-0.5 * (X[:, None] - X) ** 2) + 1e-6 * np.eye(8)
LARGEST = (70, 10_000, 1_000_000)


def solve(method, k, offset, y):
    likelihood = PoissonLikelihood().given(offset[None])
    solution = approximator(method, likelihood, {}).solve(k[None], np.zeros((1, len(y))), y, likelihood=likelihood)
    assert solution.convergence.converged, solution.convergence
    return solution


@pytest.mark.parametrize("exposure", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize("largest", LARGEST)
@pytest.mark.parametrize("like", ["all of them large", "one of them large"])
def test_laplace_agrees_with_dense_algebra(largest, exposure, like):
    rng = np.random.default_rng(1)
    y = rng.poisson(largest * np.exp(np.sin(X))) if like == "all of them large" else np.r_[rng.poisson(3, 7), largest]
    offset = np.full(8, np.log(exposure))
    mode, evidence = laplace_of_counts(K, offset, y)
    solution = solve("laplace", K, offset, y)
    assert_allclose(solution.mean[0], mode, atol=1e-6)
    assert_allclose(solution.evidence, evidence, rtol=1e-6)


def log_average(y, offset, mean, variance):
    """log ∫ Poisson(y; exp(f + offset)) N(f | mean, variance) df, by quadrature about the mode."""

    def log_joint(f):
        return stats.poisson.logpmf(y, np.exp(f + offset)) + stats.norm.logpdf(f, mean, np.sqrt(variance))

    mode = optimize.minimize_scalar(lambda f: -log_joint(f), bracket=(np.log(y + 1.0) - offset - 1.0, mean)).x
    top, width = log_joint(mode), 1.0 / np.sqrt(np.exp(mode + offset) + 1.0 / variance)
    area, _ = integrate.quad(lambda z: np.exp(log_joint(mode + width * z) - top), -15, 15, epsabs=0, epsrel=1e-10)
    return top + np.log(width * area)


@pytest.mark.parametrize("exposure", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize("largest", LARGEST)
@pytest.mark.parametrize("method", ["ep", "fv"])  # both methods are exact for one row
def test_evidence_of_one_row_matches_quadrature(method, largest, exposure):
    offset = np.log([exposure])
    solution = solve(method, np.array([[2.0]]), offset, np.array([largest]))
    assert_allclose(solution.evidence, log_average(largest, offset[0], 0.0, 2.0), rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("exposure", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize("largest", LARGEST)
def test_kl_finds_the_largest_bound(largest, exposure):
    # The bound under N(m, v) is y (m + o) − exp(m + o + v/2) − log y! − KL(N(m, v) ‖ N(0, 2)). It is stationary where m
    # = 2 (y − r) and 1/v = r + ½, with the rate r = exp(m + o + v/2). This is one equation for log r.
    offset = np.log(exposure)

    def excess(log_rate):
        rate = np.exp(log_rate)
        return 2.0 * (largest - rate) + offset + 0.5 / (rate + 0.5) - log_rate

    rate = np.exp(optimize.brentq(excess, 0.0, 40.0, xtol=1e-14))
    solution = solve("kl", np.array([[2.0]]), np.array([offset]), np.array([largest]))
    assert_allclose(solution.mean[0], 2.0 * (largest - rate), atol=1e-6, rtol=1e-5)
    assert_allclose(solution.cov.ravel(), 1.0 / (rate + 0.5), rtol=1e-6)


@pytest.mark.parametrize("method", ["ep", "kl", "fv"])
def test_methods_converge_to_the_mode_of_laplace_for_large_counts(method):
    # The posterior of counts of a million is normal to four digits. FV ignores correlations, and its mean is right.
    y = np.random.default_rng(1).poisson(1e6 * np.exp(np.sin(X)))
    mode, _ = laplace_of_counts(K, np.zeros(8), y)
    assert_allclose(solve(method, K, np.zeros(8), y).mean[0], mode, atol=1e-5)


def test_variance_is_infinite_if_the_squared_mean_overflows():
    """For log rates N(0, v) the mean is exp(v / 2), and the variance is exp(v / 2) + exp(2 v) − exp(v)."""
    likelihood, v = PoissonLikelihood().given(np.zeros((1, 2))), np.array([2.0, 1300.0])
    outcome = likelihood.outcome_moments(np.zeros((2, 1)), v[:, None, None]).T
    mean, variance = Prediction(np.empty((2, 0)), np.zeros(2), np.zeros((2, 1)), outcome=outcome).moments
    assert_allclose(mean, np.exp(v / 2))
    assert_allclose(variance, [np.exp(1.0) + np.exp(4.0) - np.exp(2.0), np.inf])


@pytest.mark.parametrize("variance", [1e2, 1e4, 1e6])
def test_ep_of_large_counts_under_a_wide_prior_converges_or_reports_rounding(variance):
    """The trace of A = I + π^½ K π^½ is up to 1e14. The means have rounding errors only."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=20)
    y = rng.poisson(1e6 * np.exp(np.sin(x)))
    k = variance * (np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-6 * np.eye(20))
    likelihood = PoissonLikelihood().given(np.zeros((1, 20)))
    solution = approximator("ep", likelihood, {}).solve(k[None], np.zeros((1, 20)), y, likelihood=likelihood)
    mode, _ = laplace_of_counts(k, np.zeros(20), y)
    assert_allclose(solution.mean[0], mode, atol=1e-5)
    assert solution.convergence.converged or "limit of rounding" in str(solution.convergence)


def laplace_by_normals(j, y):
    """Log evidence of counts y with log rates J z by Laplace's method. Newton's method finds the mode of z."""
    z = np.linalg.lstsq(j, np.log(y + 0.5))[0]
    for _ in range(50):
        rate = np.exp(j @ z)
        precision = np.eye(j.shape[1]) + j.T @ (rate[:, None] * j)
        z = z + np.linalg.solve(precision, j.T @ (y - rate) - z)
    return stats.poisson.logpmf(y, np.exp(j @ z)).sum() - 0.5 * z @ z - 0.5 * np.linalg.slogdet(precision)[1]


@pytest.mark.parametrize("prior_type", [DensePrior, RowPrior])
@pytest.mark.parametrize("sd", [1e2, 1e3, 1e4])
def test_laplace_of_large_counts_under_wide_priors_is_right_or_reports_failure(prior_type, sd):
    """The row form is accurate for any prior. With a covariance matrix of variance 10⁸ rounding errors dominate."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(40)
    j = sd * np.stack([np.ones(40), x], axis=1)
    y = rng.poisson(np.exp(np.log(1e6) + 0.1 * x))
    prior = j[None] if prior_type is RowPrior else (j @ j.T)[None]
    likelihood = PoissonLikelihood().given(np.zeros((1, 40)))
    found = ScalarLaplace().solve(prior, np.zeros((1, 40)), y, likelihood=likelihood, prior_type=prior_type)
    assert found.convergence.converged or (prior_type is DensePrior and sd == 1e4)
    if found.convergence.converged:
        assert found.log_evidence == pytest.approx(laplace_by_normals(j, y), abs=0.01)
    else:
        assert "limit of rounding" in str(found.convergence)


def test_counts_without_exposures_are_refused():
    with pytest.raises(ValueError, match=r"needs parameters=\.\.\., an array \(p, n\) with these rows: offset"):
        EP().solve(np.eye(3)[None], np.zeros((1, 3)), np.array([0, 1, 2]), likelihood=PoissonLikelihood())
