"""Nested EP with label noise, against quadrature, nested EP without noise, and differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pymc_gpep.approximations import InducedArrays, NestedEP, NoisyNestedEP, SparseEP
from pymc_gpep.likelihoods.label_noise import NoisyMultinomialProbitLikelihood, RobustMaxLikelihood
from pymc_gpep.log_posteriors.latent_functions import leave_one_out_moments
from pymc_gpep.rivals.class_independent_ep import NoisyQIEP
from tests.reference.data import squared_exponential

METHOD, INDEPENDENT = NoisyNestedEP(tolerance=1e-10), NoisyQIEP(tolerance=1e-10)
PROBIT, STEP = NoisyMultinomialProbitLikelihood, RobustMaxLikelihood
both = pytest.mark.parametrize("kind", [PROBIT, STEP], ids=["probit", "step"])


def noisy(n, epsilon, kind=PROBIT):
    return kind().given(np.full((1, n), epsilon))


def line(n, c, variance):
    """Prior covariance, mean and labels on a line. Classes are intervals, and every twelfth label is wrong."""
    x = np.linspace(-2.0, 2.0, n)[:, None]
    k = squared_exponential(x, x, variance=variance, lengthscale=0.7) + 1e-2 * np.eye(n)
    y = np.arange(n) * c // n
    y[n // 4 :: 12] = (y[n // 4 :: 12] + 1) % c
    return k, 0.3 * np.random.default_rng(1).normal(size=(c, n)), y


def integrated(k, mean, y, likelihood, order):
    """Exact evidence, and posterior means (c, n) minus their average over classes, by quadrature."""
    c, n = mean.shape
    # orthonormal, (c − 1, c): the average over classes does not enter the likelihood
    contrast = np.linalg.svd(np.ones((1, c)))[2][1:]
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    z = np.stack(np.meshgrid(*[nodes] * (n * (c - 1)), indexing="ij")).reshape(c - 1, n, -1)
    weight = np.prod(np.meshgrid(*[weights / weights.sum()] * (n * (c - 1)), indexing="ij"), axis=0).ravel()
    x = np.einsum("ij,ajs->ais", np.linalg.cholesky(k), z)
    f = mean[:, :, None] + np.einsum("ak,ais->kis", contrast, x)
    weight = weight * np.exp(likelihood.log_density(np.ascontiguousarray(f.transpose(2, 0, 1)), y))
    return np.log(weight.sum()), (f @ weight) / weight.sum()


@pytest.mark.parametrize(("n", "c", "epsilon", "order"), [(3, 2, 0.1, 40), (2, 3, 0.3, 14)])
def test_evidence_and_means_of_few_points_equal_quadrature(n, c, epsilon, order):
    k, mean, y = line(n, c, 4.0)
    found = METHOD.solve(k, mean, y, likelihood=noisy(n, epsilon))
    evidence, first = integrated(k, mean, y, noisy(n, epsilon), order)
    assert found.convergence.converged
    assert found.evidence == pytest.approx(evidence, abs=0.01)
    apart = found.mean - found.mean.mean(axis=0)
    assert_allclose(apart, first - first.mean(axis=0), atol=0.05)


def test_step_likelihood_of_few_points_equals_weighted_draws():
    k, mean, y = line(4, 3, 4.0)
    found = METHOD.solve(k, mean, y, likelihood=noisy(4, 0.1, STEP))
    z = stats.norm.ppf(stats.qmc.Sobol(12, rng=1).random_base2(16)).reshape(-1, 3, 4)
    f = mean + z @ np.linalg.cholesky(k).T
    weight = np.where(f.argmax(axis=1) == y, 0.9 + 0.1 / 3.0, 0.1 / 3.0).prod(axis=1)
    assert found.evidence == pytest.approx(np.log(weight.mean()), abs=0.05)
    first = np.einsum("s,sai->ai", weight, f) / weight.sum()
    assert_allclose(found.mean - found.mean.mean(axis=0), first - first.mean(axis=0), atol=0.1)


@pytest.mark.parametrize("epsilon", [0.0, 0.05])
def test_step_likelihood_of_utilities_with_unit_noise_equals_the_probit(epsilon):
    """Unit noise of the utilities can be part of the likelihood or of the prior."""
    k, mean, y = line(30, 3, 9.0)
    found = METHOD.solve(k + np.eye(30), mean, y, likelihood=noisy(30, epsilon, STEP))
    expected = METHOD.solve(k, mean, y, likelihood=noisy(30, epsilon))
    assert found.convergence.converged
    assert found.evidence == pytest.approx(expected.evidence, abs=1e-7)


def test_solution_for_small_noise_is_reached_from_larger_noise():
    """EP with negative precisions does not converge from zero sites. EP from larger noise reaches a fixed point."""
    k, mean, y = line(40, 3, 4.0)
    found = NoisyNestedEP().solve(k, mean, y, likelihood=noisy(40, 1e-3, STEP))
    assert "continued from larger" in found.convergence.scheme
    assert found.convergence.converged
    again = NoisyNestedEP().solve(k, mean, y, found.start, likelihood=noisy(40, 1e-3, STEP))
    assert again.convergence.iterations < 5
    assert again.evidence == pytest.approx(found.evidence, abs=1e-6)
    assert np.linalg.eigvalsh(found.posterior.precision).min() < -1.0
    # Independent functions have a lower evidence, up to the error of their fixed point.
    assert NoisyQIEP().solve(k, mean, y, likelihood=noisy(40, 1e-3, STEP)).evidence < found.evidence


def test_solution_for_zero_noise_equals_nested_ep():
    k, mean, y = line(30, 3, 9.0)
    found = METHOD.solve(k, mean, y, likelihood=noisy(30, 0.0))
    expected = NestedEP(tolerance=1e-10).solve(k, mean, y)
    assert found.evidence == pytest.approx(expected.evidence, abs=1e-8)
    assert_allclose(found.mean, expected.mean, atol=1e-6)
    assert_allclose(found.cov, expected.cov, atol=1e-6)


@both
@pytest.mark.parametrize("method", [METHOD, INDEPENDENT], ids=["nested", "independent"])
def test_derivatives_match_differences_with_negative_precisions(method, kind):
    k, mean, y = line(40, 3, 9.0)

    def run(k, mean, epsilon, gradient=False):
        cold = method.cold(3, 40)
        return method.run(k[None], mean, y, cold, gradient, likelihood=noisy(40, epsilon, kind))

    found, step = run(k, mean, 0.05, True), 1e-4
    assert np.linalg.eigvalsh(found.precision).min() < -0.05
    assert found.rung == 0
    rng = np.random.default_rng(2)
    of_k, of_mean = np.outer(*2 * [rng.normal(size=40)]), rng.normal(size=mean.shape)
    for slope, moved in (
        ((found.gradient[0] * of_k).sum(), lambda h: run(k + h * of_k, mean, 0.05)),
        ((found.gradient_mean * of_mean).sum(), lambda h: run(k, mean + h * of_mean, 0.05)),
        (found.gradient_parameters.sum(), lambda h: run(k, mean, 0.05 + h)),
    ):
        assert slope == pytest.approx((moved(step).evidence - moved(-step).evidence) / (2.0 * step), rel=1e-4)


@both
def test_solution_of_independent_functions_equals_sparse_ep_with_all_points_as_inducing_inputs(kind):
    k, mean, y = line(40, 3, 4.0)
    found = INDEPENDENT.solve(k, mean, y, likelihood=noisy(40, 0.1, kind))
    prior = InducedArrays(k, k, k.diagonal(), mean)
    sparse = SparseEP(sites="quadrature", tolerance=1e-9).solve(prior, y, likelihood=noisy(40, 0.1, kind))
    assert found.posterior.precision.min() < -0.1
    assert found.evidence == pytest.approx(sparse.evidence, abs=1e-7)
    assert_allclose(found.mean - mean, sparse.posterior.inducing_mean, atol=1e-6)
    assert_allclose(found.posterior.marginals()[1], found.cov, atol=1e-9)
    # Nested EP couples the functions: its evidence is higher, and its means are similar.
    nested = METHOD.solve(k, mean, y, likelihood=noisy(40, 0.1, kind))
    assert 0.0 < nested.evidence - found.evidence < 2.5
    apart, expected = (each.mean - each.mean.mean(axis=0) for each in (nested, found))
    assert_allclose(apart, expected, atol=0.1 * np.abs(expected).max())


@pytest.mark.parametrize(("method", "kind"), [(METHOD, PROBIT), (INDEPENDENT, STEP)], ids=["nested", "independent"])
def test_left_out_mean_of_a_row_is_close_to_a_solve_without_the_row(method, kind):
    k, mean, y = line(40, 3, 9.0)
    mean_without, _ = leave_one_out_moments(method, method.solve(k, mean, y, likelihood=noisy(40, 0.05, kind)))
    for i in (3, 10):  # row 10 has a wrong label
        others = np.delete(np.arange(40), i)
        again = method.solve(k[np.ix_(others, others)], mean[:, others], y[others], likelihood=noisy(39, 0.05, kind))
        expected, _ = again.posterior.predict(k[None, [i]][:, :, others], k[None, [i], [i]], mean[:, [i]])
        assert_allclose(mean_without[i], expected[:, 0], atol=0.3)  # a tenth of the prior standard deviation


def test_ep_of_contradicting_labels_converges():
    """With a wide prior and little noise, EP with negative precisions does not converge. The next scheme does."""
    k, mean, y = line(60, 3, 400.0)
    found = NoisyNestedEP().solve(k, 0.0 * mean, y, likelihood=noisy(60, 0.01))
    assert found.convergence.converged
    if "negative" in found.convergence.scheme:
        assert np.linalg.eigvalsh(found.posterior.precision).min() > -1e-9


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12])
def test_step_likelihood_with_tiny_or_huge_prior_variance_is_solved(scale):
    """Step likelihoods do not depend on the scale of functions. Without variance, each label is right or noise."""
    k, mean, y = line(20, 3, 1.0)
    known = METHOD.solve(scale * k, mean, y, likelihood=noisy(20, 0.3, STEP))
    free = METHOD.solve(scale * k, 0.0 * mean, y, likelihood=noisy(20, 0.3, STEP))
    assert known.convergence.converged
    assert free.convergence.converged
    if scale < 1.0:
        right = (mean.argmax(axis=0) == y).sum()
        assert known.evidence == pytest.approx(right * np.log(0.8) + (20 - right) * np.log(0.1), abs=1e-6)
    if scale > 0.0:
        expected = METHOD.solve(k, 0.0 * mean, y, likelihood=noisy(20, 0.3, STEP)).evidence
        assert free.evidence == pytest.approx(expected, abs=1e-5)


def test_too_many_latent_values_and_corrections_with_label_noise_raise_errors():
    k, mean, y = line(12, 3, 4.0)
    with pytest.raises(ValueError, match=r'36 rows. Use method="sparse_ep" with .* max_size=36 \(now 35\)'):
        NoisyNestedEP(max_size=35).solve(k, mean, y, likelihood=noisy(12, 0.1))
    solution = NoisyNestedEP().solve(k, mean, y, likelihood=noisy(12, 0.1))
    with pytest.raises(TypeError, match="nested_ep with label noise has no correction"):
        NoisyNestedEP().tilted_factors(solution)
