"""`effects()` without names returns the variables of the model."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.reading import read_classifier
from pymc_gpep.reading.classifier import names_of_effects
from tests.sum_models import BINARY, GROUP, PLACES, J, N, X, made


def non_centred():
    """A level and a slope for groups, non-centred. The slope has a mean, and derived quantities are reported."""
    s, t = pm.HalfNormal("s", 1), pm.HalfNormal("t", 1)
    level, mean = pm.Normal("level", 0, 1), pm.Normal("mean", 0, 1)
    z, w = pm.Normal("z", 0, 1, dims="group"), pm.Normal("w", 0, 1, dims="group")
    u = pm.Deterministic("u", z * s, dims="group")
    slope = pm.Deterministic("slope", mean + t * w)
    pm.Deterministic("first", u[:2])
    pm.Deterministic("odds", pt.exp(u))
    pm.Deterministic("eta", level + u[GROUP] + slope[GROUP] * X)
    pm.Bernoulli("y", logit_p=level + u[GROUP] + slope[GROUP] * X, observed=BINARY)


def used_beside():
    s, z = pm.HalfNormal("s", 1), pm.Normal("z", 0, 1, shape=J)
    pm.Deterministic("u", z * s)
    pm.Bernoulli("y", logit_p=z[GROUP] * s, observed=BINARY)


def two_in_one():
    s, z, w = pm.HalfNormal("s", 1), pm.Normal("z", 0, 1, shape=J), pm.Normal("w", 0, 1, shape=J)
    pm.Bernoulli("y", logit_p=pm.Deterministic("u", s * (z + w))[GROUP], observed=BINARY)


def process_and_sum():
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=PLACES)
    u = pm.Deterministic("u", 2.0 * pm.Normal("z", 0, 1))
    pm.Bernoulli("y", logit_p=f[GROUP] + u * X, observed=BINARY)


def alone():
    f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=np.arange(N)[:, None])
    pm.Bernoulli("y", logit_p=f, observed=BINARY)


@pytest.mark.parametrize(
    ("declare", "names"),
    [
        (non_centred, ["level", "mean", "u", "w", "slope"]),
        (used_beside, ["z", "u"]),
        (two_in_one, ["z", "w", "u"]),
        (process_and_sum, ["f", "u"]),
        (alone, ["f"]),
    ],
)
def test_names_of_effects_are_the_names_in_the_model(declare, names):
    assert names_of_effects(read_classifier(made(declare))) == names


def test_effects_without_names_have_the_moments_of_named_effects():
    """There is no warning that a variable and a transformed variable are not identified separately."""
    with made(non_centred):
        fit = pm.fit(method="ep", hyper="map", progressbar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, z = fit.effects(), fit.effects(["z", "u"])["z"]
    assert_allclose(found["u"], fit.hyperparameters["s"].item() * z, atol=1e-12)
    assert list(found["u"].dims) == ["moment", "group"]
