"""Prior moments by blocks and their derivatives. With the data as inducing inputs they equal the model's covariance."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.latent.gp_latent import as_gps
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.reading import read_classifier
from pymc_gpep.solvers.inducing import Block
from tests import models


def blocks_of(build, of_graph=False):
    model, gp = build()
    space = Hyperparameters(read_classifier(model))
    return space, InducingBlocks(space.classifier, None if of_graph else as_gps(gp), space.data)


@pytest.mark.parametrize("of_graph", [False, True])
@pytest.mark.parametrize("build", [models.shared, models.per_class])
def test_blocks_equal_the_covariance_of_the_model(build, of_graph):
    space, blocks = blocks_of(build, of_graph)
    point = space.point(space.initial_point())
    inputs = blocks.rows.inputs(slice(0, 30))
    k, mean, *_ = prior_moments(space.classifier, space.data)(point)
    rows = slice(4, 11)
    found = blocks.block(point, inputs[None, :9], inputs[rows])
    assert_allclose(found.cross, k[:, :9, rows], atol=2e-6)  # the model adds a jitter
    assert_allclose(found.variance, k.diagonal(axis1=1, axis2=2)[:, rows], atol=2e-6)
    assert_allclose(found.mean, mean[:, rows])
    assert_allclose(blocks.inducing(point, inputs[None, :9]), k[:, :9, :9], atol=2e-6)
    each = np.stack([inputs[start : start + 5] for start in range(3)])
    own = blocks.block(point, each, inputs[rows]).cross
    for q in range(3):
        assert_allclose(own[q], k[min(q, len(k) - 1), q : q + 5, rows], atol=2e-6)


def own_covariances(*kinds):
    """Model with a covariance function for each class, of several types, with its own length scale and magnitude."""
    X, y = models.data()
    with pm.Model() as model:
        ls, eta = pm.LogNormal("ls", 0.0, 1.0, shape=3), [pm.HalfNormal(f"eta_{k}", 3.0) for k in range(3)]
        gps = [pm.gp.Latent(cov_func=eta[k] ** 2 * kind(2, ls=ls[k])) for k, kind in enumerate(kinds)]
        f = pt.stack([gp.prior(f"f_{k}", X=X) for k, gp in enumerate(gps)])
        gpep.MultinomialProbit("y", f.T, observed=y)
    return model, gps


@pytest.mark.variation(but=["one type-True"])
@pytest.mark.parametrize("of_graph", [False, True])
@pytest.mark.parametrize(
    ("kinds", "made"),
    [((pm.gp.cov.ExpQuad,) * 3, 1), ((pm.gp.cov.ExpQuad, pm.gp.cov.Matern52, pm.gp.cov.ExpQuad), 3)],
    ids=["one type", "two types"],
)
def test_covariances_of_equal_form_share_one_compiled_function(kinds, made, of_graph):
    space, blocks = blocks_of(lambda: own_covariances(*kinds), of_graph)
    assert len({id(functions) for functions in blocks._moments.functions}) == made
    rng = np.random.default_rng(0)
    theta = rng.normal(size=6) / 3
    X, z, rows = models.data()[0], rng.normal(size=(3, 4, 2)), slice(3, 9)
    k, *_ = prior_moments(space.classifier, space.data)(space.point(theta))
    found = blocks.block(space.point(theta), X[None, :9], X[rows])
    assert_allclose(found.cross, k[:, :9, rows], atol=5e-6)

    bars = Block(rng.normal(size=(3, 4, 6)), rng.normal(size=(3, 6)), rng.normal(size=(3, 6)))
    of_inducing = rng.normal(size=(3, 4, 4))

    def total(theta, z):
        point = space.point(theta)
        of_rows = zip(bars, blocks.block(point, z, X[rows]), strict=True)
        return sum((bar * one).sum() for bar, one in of_rows) + (of_inducing * blocks.inducing(point, z)).sum()

    point = space.point(theta)
    slopes = blocks.block_slopes(point, z, X[rows], bars), blocks.inducing_slopes(point, z, of_inducing)
    of_theta, of_z = (one + other for one, other in zip(*slopes, strict=True))
    for i in range(6):
        h = 1e-5 * (np.arange(6) == i)
        assert_allclose(of_theta[i], (total(theta + h, z) - total(theta - h, z)) / 2e-5, rtol=1e-6, atol=1e-7)
    for place in [(0, 1, 0), (1, 2, 1), (2, 3, 0)]:
        h = np.zeros_like(z)
        h[place] = 1e-5
        assert_allclose(of_z[place], (total(theta, z + h) - total(theta, z - h)) / 2e-5, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("of_graph", [False, True])
def test_white_noise_is_excluded_from_cross_covariances(of_graph):
    X, y = models.data()
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=4 * pm.gp.cov.ExpQuad(2, ls=1.0) + pm.gp.cov.WhiteNoise(0.5))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=y)
    blocks = InducingBlocks(read_classifier(model), None if of_graph else (gp,), {})
    inputs = blocks.rows.inputs(slice(0, 5))
    assert_allclose(blocks.inducing({}, inputs[None])[0].diagonal(), 4.0)
    cross, variance, *_ = blocks.block({}, inputs[None], inputs)
    assert_allclose(cross[0].diagonal(), 4.0)
    assert_allclose(variance, 4.25)


def test_rows_that_are_not_finite_are_named():
    X, y = models.data()
    X = X.copy()
    X[7, 1] = np.nan
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=3).T, observed=y)
    with pytest.raises(ValueError, match=r"1 of 30 rows have values that are not\. The first is row 7"):
        InducingBlocks(read_classifier(model), (gp,), {})
