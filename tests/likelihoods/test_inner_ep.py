"""Inner EP as a PyTensor operation, against the dense algorithm, orthant probabilities and differences."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import get_mode
from pytensor.gradient import NullTypeGradError
from scipy.special import log_ndtr

import pymc_gpep as gpep
from pymc_gpep.likelihoods.multinomial_probit import class_probabilities, inner_ep_moments
from pymc_gpep.likelihoods.multinomial_probit_distribution import log_probabilities_and_gradients
from tests.reference.dense_nested_ep import inner_ep as dense_inner_ep

Y, MEAN, COV = pt.lvector("y"), pt.dmatrix("mean"), pt.dtensor3("cov")


def points(n, c, scale=1.0, seed=0):
    rng = np.random.default_rng([c, seed])
    root = rng.standard_normal((n, c, c))
    cov = scale**2 * (root @ root.swapaxes(1, 2) / c + 0.1 * np.eye(c))
    return rng.integers(c, size=n), scale * rng.standard_normal((n, c)), cov


def compiled(mode):
    outputs = gpep.inner_ep(Y, MEAN, COV)
    return pytensor.function([Y, MEAN, COV], [*outputs, *pytensor.grad(outputs[0].sum(), [MEAN, COV])], mode=mode)


@pytest.fixture(scope="module")
def function():
    return compiled("FAST_COMPILE")


@pytest.mark.parametrize("c", [2, 3, 7])
@pytest.mark.parametrize("scale", [0.1, 2.0, 50.0])
def test_moments_match_dense_inner_ep(function, c, scale):
    y, mean, cov = points(4, c, scale)
    log_z, new_mean, new_cov, *_ = function(y, mean, cov)
    for i in range(4):
        expected = dense_inner_ep(mean[i], cov[i], int(y[i]))
        assert_allclose(log_z[i], expected.log_normaliser, rtol=1e-9, atol=1e-11)
        assert_allclose(new_mean[i], expected.mean[:c], atol=1e-8 * scale)
        assert_allclose(new_cov[i], expected.covariance[:c, :c], atol=1e-8 * scale**2)


@pytest.mark.parametrize("c", [2, 4])
@pytest.mark.parametrize("scale", [0.3, 1e4])
def test_derivatives_match_differences(function, c, scale):
    y, mean, cov = points(5, c, scale)
    rng = np.random.default_rng(5)
    d_mean = scale * rng.standard_normal(mean.shape)
    root = scale * rng.standard_normal(cov.shape)
    d_cov = 0.1 * root @ root.swapaxes(1, 2)

    def at(t):
        return function(y, mean + t * d_mean, cov + t * d_cov)[0].sum()

    step = 1e-3
    expected = (8 * (at(step) - at(-step)) - at(2 * step) + at(-2 * step)) / (12 * step)
    *_, of_mean, of_cov = function(y, mean, cov)
    assert_allclose((of_mean * d_mean).sum() + (of_cov * d_cov).sum(), expected, rtol=1e-8)
    assert_allclose(of_cov, of_cov.swapaxes(1, 2), rtol=1e-12, atol=1e-14 / scale**2)


def test_log_normaliser_of_two_classes_is_exact():
    _, mean, cov = points(6, 2, 3.0)
    variance = 2.0 + cov[:, 0, 0] + cov[:, 1, 1] - 2.0 * cov[:, 0, 1]
    expected = log_ndtr((mean[:, 0] - mean[:, 1]) / np.sqrt(variance))
    assert_allclose(inner_ep_moments(np.zeros(6, int), mean, cov)[0], expected, rtol=1e-11)


def test_error_against_orthant_probabilities_is_small():
    _, mean, cov = points(20, 3)
    exact, _ = class_probabilities(mean, cov)
    found = np.exp(inner_ep_moments(np.arange(3), mean[:, None], cov[:, None])[0])
    assert np.abs(found - exact).max() < 1e-2
    assert np.abs(found - exact).max() > 1e-8


def test_normaliser_for_zero_variance_is_the_likelihood():
    y, mean, _ = points(10, 3)
    log_z, new_mean, new_cov, of_mean, _ = inner_ep_moments(y, mean, np.zeros((3, 3)))
    assert_allclose(new_mean, mean, rtol=1e-15)
    assert not new_cov.any()
    # Inner EP also approximates the integral over u.
    exact, gradient = log_probabilities_and_gradients(y, mean)
    assert_allclose(log_z, exact, atol=5e-3)
    assert_allclose(of_mean, gradient, atol=2e-2)


def test_labels_outside_the_classes_have_probability_zero():
    _, mean, cov = points(2, 3)
    log_z, new_mean, _, of_mean, of_cov = inner_ep_moments(np.array([-1, 3]), mean, cov)
    assert (log_z == -np.inf).all()
    assert np.isnan(new_mean).all()
    assert not of_mean.any()
    assert not of_cov.any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_moments_that_are_not_finite_return_nan(wrong):
    y, mean, cov = points(2, 3)
    mean[1, 0] = wrong
    found = inner_ep_moments(y, mean, cov)
    for each in found:
        assert np.isfinite(each[0]).all()
    assert np.isnan(found[0][1])
    assert np.isnan(found[3][1]).all()


def test_batch_dimensions_broadcast():
    y, mean, cov = points(5, 3)
    log_z, new_mean, new_cov = gpep.inner_ep(y[:, None], mean[None], cov[0])
    assert log_z.eval(mode="FAST_COMPILE").shape == (5, 5)
    assert new_mean.type.shape == (5, 5, 3)
    assert new_cov.type.shape == (5, 5, 3, 3)
    row = np.vstack([inner_ep_moments(each, mean, cov[0])[1] for each in y]).reshape(5, 5, 3)
    assert_allclose(new_mean.eval(mode="FAST_COMPILE"), row, rtol=1e-15)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", pytest.param("NUMBA", marks=pytest.mark.slow)])
def test_wrong_shapes_raise_errors_at_evaluation(mode):
    """Kernels read memory without checks, so the operation checks shapes."""
    y, mean, cov = points(4, 3)
    wrong = {"batch": (y[:3], mean, cov), "classes": (y, mean, cov[:, :2, :2]), "points": (y, mean, cov[:2])}
    function = pytensor.function([Y, MEAN, COV], gpep.inner_ep(Y, MEAN, COV)[0], mode=mode)
    for given in wrong.values():
        with pytest.raises((ValueError, AssertionError)):
            function(*given)


def test_outputs_of_inner_ep_can_be_indexed_in_a_graph():
    y, mean, cov = points(4, 3)
    *_, new_cov = gpep.inner_ep(y, mean, cov)
    with pytensor.config.change_flags(on_opt_error="raise"):
        found = new_cov[1, 0].eval(mode=get_mode("FAST_RUN").excluding("numba"))
    assert_allclose(found, inner_ep_moments(y, mean, cov)[2][1, 0], rtol=1e-14)


def test_invalid_arguments_are_refused():
    with pytest.raises(TypeError, match=r"y must be integers, but its dtype is float64. Write y.astype\(int\)"):
        gpep.inner_ep(np.zeros(3), np.zeros((3, 2)), np.eye(2))
    with pytest.raises(ValueError, match="class axis and cov 2 class axes, but they have 1 and 1 axes"):
        gpep.inner_ep(np.zeros(3, int), np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match=r"do not broadcast: y \(3,\), mean \(4,\), cov \(\)"):
        gpep.inner_ep(np.zeros(3, int), np.zeros((4, 2)), np.eye(2))
    for c in ((2, 3), (1, 1)):
        with pytest.raises(ValueError, match="one entry for each of 2 or more classes"):
            gpep.inner_ep(np.zeros(3, int), np.zeros((3, c[0])), np.eye(c[1]))


def test_derivatives_of_moments_and_second_derivatives_are_refused():
    log_z, new_mean, _ = gpep.inner_ep(Y, MEAN, COV)
    for value in (new_mean.sum(), pt.grad(log_z.sum(), MEAN).sum()):
        with pytest.raises(NullTypeGradError, match="are not available"):
            pt.grad(value, MEAN)


def test_log_tail_of_a_likelihood_is_the_log_normaliser_of_inner_ep(shared):
    """The likelihood computes the tail of one class probability, without the other classes, by inner EP."""
    y, mean, cov = points(6, 3)
    found = shared.fit.classifier.likelihood_model.log_tail(mean, cov, y)
    assert_allclose(found, inner_ep_moments(y, mean, cov)[0], rtol=1e-15)


@pytest.mark.slow
def test_numba_gives_equal_results(function):
    y, mean, cov = points(4, 3)
    for found, expected in zip(compiled("NUMBA")(y, mean, cov), function(y, mean, cov), strict=True):
        assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.slow
def test_jax_gives_equal_results_and_derivatives(function):
    jax = pytest.importorskip("jax")
    from pymc.sampling.jax import get_jaxified_logp  # needs JAX

    y, mean, cov = points(4, 3)
    for found, expected in zip(compiled("JAX")(y, mean, cov), function(y, mean, cov), strict=True):
        assert_allclose(found, expected, rtol=1e-13)
    with pm.Model() as model:
        shift = pm.Normal("shift", 0, 1, shape=3)
        pm.Potential("y", gpep.inner_ep(y, mean + shift, cov * pm.HalfNormal("scale", 1))[0].sum())
    point = model.initial_point()
    values = [point[each.name] for each in model.value_vars]
    value, slopes = jax.value_and_grad(get_jaxified_logp(model))(values)
    assert_allclose(value, model.compile_logp(mode="FAST_COMPILE")(point), rtol=1e-12)
    expected = model.compile_dlogp(mode="FAST_COMPILE")(point)
    assert_allclose(np.concatenate([np.ravel(each) for each in slopes]), expected, rtol=1e-10)
