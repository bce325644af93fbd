"""Nested EP with label noise beside quadrature, nested EP without noise, and differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep import NestedEP, NoisyNestedEP, NoisyQIEP, SparseEP
from pymc_gpep.approximations import InducedArrays
from pymc_gpep.hyper.dense_functions import leave_one_out_moments
from pymc_gpep.likelihoods.multinomial_probit.noisy_likelihood import NoisyMultinomialProbitLikelihood
from tests.reference.data import squared_exponential

METHOD, INDEPENDENT = NoisyNestedEP(tolerance=1e-10), NoisyQIEP(tolerance=1e-10)


def noisy(n, epsilon):
    return NoisyMultinomialProbitLikelihood().given(np.full((1, n), epsilon))


def line(n, c, variance):
    """Inputs in a row with classes in turns, every twelfth label the next class; prior covariance and mean."""
    x = np.linspace(-2.0, 2.0, n)[:, None]
    k = squared_exponential(x, x, variance=variance, lengthscale=0.7) + 1e-2 * np.eye(n)
    y = np.arange(n) * c // n
    y[n // 4 :: 12] = (y[n // 4 :: 12] + 1) % c
    return k, 0.3 * np.random.default_rng(1).normal(size=(c, n)), y


def integrated(k, mean, y, likelihood, order):
    """Exact evidence, and posterior means (c, n) less their common level, by quadrature."""
    c, n = mean.shape
    contrast = np.linalg.svd(np.ones((1, c)))[2][1:]  # (c − 1, c), orthonormal; the common level is not seen
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    z = np.stack(np.meshgrid(*[nodes] * (n * (c - 1)), indexing="ij")).reshape(c - 1, n, -1)
    weight = np.prod(np.meshgrid(*[weights / weights.sum()] * (n * (c - 1)), indexing="ij"), axis=0).ravel()
    x = np.einsum("ij,ajs->ais", np.linalg.cholesky(k), z)
    f = mean[:, :, None] + np.einsum("ak,ais->kis", contrast, x)
    weight = weight * np.exp(likelihood.log_density(np.ascontiguousarray(f.transpose(2, 0, 1)), y))
    return np.log(weight.sum()), (f @ weight) / weight.sum()


@pytest.mark.parametrize(("n", "c", "epsilon", "order"), [(3, 2, 0.1, 40), (2, 3, 0.3, 14)])
def test_few_points_are_those_of_quadrature(n, c, epsilon, order):
    k, mean, y = line(n, c, 4.0)
    found = METHOD.solve(k, mean, y, likelihood=noisy(n, epsilon))
    evidence, first = integrated(k, mean, y, noisy(n, epsilon), order)
    assert found.convergence.converged
    assert found.evidence == pytest.approx(evidence, abs=0.01)
    apart = found.mean - found.mean.mean(axis=0)
    assert_allclose(apart, first - first.mean(axis=0), atol=0.05)


def test_without_noise_it_is_nested_ep():
    k, mean, y = line(30, 3, 9.0)
    found = METHOD.solve(k, mean, y, likelihood=noisy(30, 0.0))
    expected = NestedEP(tolerance=1e-10).solve(k, mean, y)
    assert found.evidence == pytest.approx(expected.evidence, abs=1e-8)
    assert_allclose(found.mean, expected.mean, atol=1e-6)
    assert_allclose(found.cov, expected.cov, atol=1e-6)


@pytest.mark.parametrize("method", [METHOD, INDEPENDENT], ids=["nested", "independent"])
def test_derivatives_are_differences_with_negative_precisions(method):
    k, mean, y = line(40, 3, 9.0)

    def run(k, mean, epsilon, gradient=False):
        cold = method.cold(3, 40)
        return method.run(k[None], mean, y, cold, gradient, likelihood=noisy(40, epsilon))

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


def test_independent_functions_are_those_of_inducing_inputs_at_all_points():
    k, mean, y = line(40, 3, 4.0)
    found = INDEPENDENT.solve(k, mean, y, likelihood=noisy(40, 0.1))
    prior = InducedArrays(k, k, k.diagonal(), mean)
    sparse = SparseEP(sites="quadrature", tolerance=1e-9).solve(prior, y, likelihood=noisy(40, 0.1))
    assert found.posterior.precision.min() < -0.1
    assert found.evidence == pytest.approx(sparse.evidence, abs=1e-7)
    assert_allclose(found.mean - mean, sparse.posterior.inducing_mean, atol=1e-6)
    assert_allclose(found.posterior.marginals()[1], found.cov, atol=1e-9)
    # Nested EP, which couples the functions, has more evidence and about the same means.
    nested = METHOD.solve(k, mean, y, likelihood=noisy(40, 0.1))
    assert 0.0 < nested.evidence - found.evidence < 2.5
    apart, expected = (each.mean - each.mean.mean(axis=0) for each in (nested, found))
    assert_allclose(apart, expected, atol=0.1 * np.abs(expected).max())


@pytest.mark.parametrize("method", [METHOD, INDEPENDENT], ids=["nested", "independent"])
def test_a_row_left_out_is_that_of_a_fit_without_it(method):
    k, mean, y = line(40, 3, 9.0)
    mean_without, _ = leave_one_out_moments(method, method.solve(k, mean, y, likelihood=noisy(40, 0.05)))
    for i in (3, 10):  # the label of the latter is wrong
        others = np.delete(np.arange(40), i)
        again = method.solve(k[np.ix_(others, others)], mean[:, others], y[others], likelihood=noisy(39, 0.05))
        expected, _ = again.posterior.predict(k[None, [i]][:, :, others], k[None, [i], [i]], mean[:, [i]])
        assert_allclose(mean_without[i], expected[:, 0], atol=0.3)  # a tenth of the prior deviation


def test_labels_that_contradict_each_other_leave_the_negative_sites_out():
    """Wide functions and little noise: sites of negative precision do not settle, and the last scheme says so."""
    k, mean, y = line(60, 3, 400.0)
    found = NoisyNestedEP().solve(k, 0.0 * mean, y, likelihood=noisy(60, 0.01))
    assert found.convergence.converged
    if "negative" in found.convergence.scheme:
        assert np.linalg.eigvalsh(found.posterior.precision).min() > -1e-9


def test_what_is_refused():
    k, mean, y = line(12, 3, 4.0)
    with pytest.raises(ValueError, match=r'36 latent values. Use method="sparse_ep", .* max_size=36 \(now 35\)'):
        NoisyNestedEP(max_size=35).solve(k, mean, y, likelihood=noisy(12, 0.1))
    solution = NoisyNestedEP().solve(k, mean, y, likelihood=noisy(12, 0.1))
    with pytest.raises(TypeError, match="nested_ep with label noise has no correction"):
        NoisyNestedEP().tilted_factors(solution)
