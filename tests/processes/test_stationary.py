"""Covariance functions recognised as a variance times a function of scaled distances."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import read_classifier
from pymc_gpep.streaming.features import model_blocks

X = np.random.default_rng(0).normal(size=(9, 3))
cov = pm.gp.cov
FOUND = {
    "one length scale": (lambda ls, eta: eta**2 * cov.ExpQuad(3, ls=ls[0]), "squared exponential", [0, 0, 0]),
    "each column's own": (lambda ls, eta: eta**2 * cov.Matern52(3, ls=ls), "Matérn 5/2", [0, 1, 2]),
    "inverse": (lambda ls, eta: cov.Matern32(3, ls_inv=1.0 / ls) * 2.0 * eta, "Matérn 3/2", [0, 1, 2]),
    "some columns": (
        lambda ls, eta: eta * cov.Exponential(3, ls=ls[:2], active_dims=[2, 0]), "exponential", [1, None, 0]
    ),
    "roughest": (lambda ls, eta: cov.Matern12(3, ls=ls[1]), "Matérn 1/2", [1, 1, 1]),
    "noise": (
        lambda ls, eta: eta * cov.Matern32(3, ls=ls[0]) + cov.WhiteNoise(1.0 / ls[1]), "Matérn 3/2", [0, 0, 0]
    ),
}  # fmt: skip
OTHERS = {
    "a sum": lambda ls, eta: eta * cov.ExpQuad(3, ls=ls[0]) + cov.ExpQuad(3, ls=ls[1]),
    "a constant beside": lambda ls, eta: eta * cov.ExpQuad(3, ls=ls[0]) + cov.Constant(0.5),
    "another profile": lambda ls, eta: eta * cov.RatQuad(3, ls=ls[0], alpha=1.5),
    "a line": lambda ls, eta: eta * cov.Linear(3, c=ls),
    "warped inputs": lambda ls, eta: cov.WarpedInput(3, cov.ExpQuad(3, ls=ls[0]), lambda x, a: x**3 + a, (1.0,)),
}


def blocks_of(covariance, given, mean=0.0):
    with pm.Model() as model:
        ls = pm.InverseGamma("ls", 3, 3, shape=3)
        eta = pm.HalfNormal("eta", 3)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(mean), cov_func=covariance(ls, eta))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=np.arange(9) % 3)
    classifier = read_classifier(model)
    space = Hyperparameters(classifier)
    return space, model_blocks(space, InducingBlocks(classifier, [gp] if given else None, space.data))


@pytest.mark.parametrize("given", [True, False], ids=["gp", "graph"])
@pytest.mark.parametrize(("covariance", "name", "columns"), FOUND.values(), ids=FOUND)
def test_stationary_covariance_is_recognised(covariance, name, columns, given):
    space, blocks = blocks_of(covariance, given)
    assert [each.name for each in blocks.profiles] == [name]
    theta = space.initial_point() + np.array([0.1, 0.2, 0.3, 0.4])
    (scales,), _, (noise,) = blocks.scale_functions()(theta)
    inverse = np.exp(-space.point(theta)["ls_log__"])
    assert_allclose(scales, [0.0 if k is None else inverse[k] for k in columns])
    assert_allclose(noise, inverse[1] ** 2 if covariance is FOUND["noise"][0] else 0.0, rtol=1e-9)


@pytest.mark.parametrize("given", [True, False], ids=["gp", "graph"])
@pytest.mark.parametrize("covariance", OTHERS.values(), ids=OTHERS)
def test_covariances_of_unsupported_forms_have_no_scale_functions(covariance, given):
    _, blocks = blocks_of(covariance, given)
    assert blocks.scale_functions() is None


def test_process_with_a_mean_has_no_scale_functions():
    _, blocks = blocks_of(FOUND["one length scale"][0], True, mean=0.5)
    assert blocks.scale_functions() is None
