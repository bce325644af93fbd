"""The probit of one latent value as a PyMC distribution."""

import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.testing import assert_support_point_is_expected
from scipy import stats
from scipy.special import log_ndtr

from pymc_gpep import Probit

FAR = np.array([-1e4, -300.0, -38.0, -8.3, -3.0, -1.0, -0.5, 0.0, 0.7, 3.0, 8.3, 20.0, 37.0])


def exact(x: float) -> list[float]:
    """log Φ and its first two derivatives, with SciPy."""
    with mpmath.workdps(400):
        x = mpmath.mpf(x)
        log_p = mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2)
        hazard = mpmath.exp(-x * x / 2 - log_p) / mpmath.sqrt(2 * mpmath.pi)
        return [float(log_p), float(hazard), float(-hazard * (hazard + x))]


@pytest.mark.variation(but=["1"])
@pytest.mark.parametrize("label", [0, 1])
def test_log_probability_and_derivatives_are_exact_in_both_tails(label):
    sign = 2 * label - 1
    f = pt.vector("f")
    logp = pm.logp(Probit.dist(f), label)
    slope = pytensor.grad(logp.sum(), f)
    found = np.array(pytensor.function([f], [logp, slope, pytensor.grad(slope.sum(), f)])(sign * FAR))
    expected = np.transpose([exact(x) for x in FAR]) * [[1], [sign], [1]]
    assert_allclose(found[:2], expected[:2], rtol=1e-13, atol=1e-300)
    assert_allclose(found[2], expected[2], rtol=1e-7, atol=1e-300)


def test_labels_other_than_0_and_1_have_probability_zero():
    assert_array_equal(pm.logp(Probit.dist(0.3), np.array([-1, 2])).eval(), -np.inf)


def test_latent_values_broadcast_and_keep_dims():
    with pm.Model(coords={"point": [10, 20, 30]}) as model:
        f = pm.Normal("f", dims="point")
        Probit("y", f, observed=[True, False, True], dims="point")
    assert model.named_vars_to_dims["y"] == ("point",)
    expected = log_ndtr([0.5, 1.0, 2.0]).sum() + stats.norm.logpdf([0.5, -1.0, 2.0]).sum()
    assert model.compile_logp(mode="FAST_COMPILE")({"f": np.array([0.5, -1.0, 2.0])}) == pytest.approx(expected)


@pytest.mark.parametrize("mode", ["NUMBA", "CVM"])
def test_draws_have_the_probabilities(mode):
    f = np.array([-1.0, 0.0, 2.5])
    draws = pm.draw(Probit.dist(f, size=(20_000, 3)), random_seed=1, mode=mode)
    assert (draws.dtype, draws.shape) == (np.int64, (20_000, 3))
    p = stats.norm.cdf(f)
    assert_array_equal(np.abs(draws.mean(0) - p) < 4 * np.sqrt(p * (1 - p) / 20_000), True)
    assert pm.draw(Probit.dist(f), mode=mode).shape == (3,)


def test_support_point_is_a_valid_label():
    with pm.Model() as model:
        Probit("x", [-1.0, 2.0])
    assert_support_point_is_expected(model, np.array([0, 1]))


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ([0, 1, 2], "1 of 3 observed labels are out of range.*2: 2.*0 and 1; more than two need"),
        ([-1, 1, 1], r"out of range.*0 and 1: \(labels == 1\) does so"),
        ([2, 4, 4], r"out of range.*0 and 1: \(labels == 4\) does so"),
        ([np.nan] * 3, "missing at 3 of 3"),
        ([0, 1, 0.5], "not whole numbers"),
        (["a", "b", "a"], "must be whole numbers"),
        ([[0], [1], [1]], r"shape \(3, 1\), but the points of f have shape \(3,\), with one latent value each.*ravel"),
    ],
)
def test_invalid_labels_are_refused(observed, message):
    with pm.Model() as model:
        with pytest.raises(ValueError, match=message):
            Probit("y", np.zeros(3), observed=observed)
        assert not model.basic_RVs
