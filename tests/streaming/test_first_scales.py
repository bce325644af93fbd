"""Initial length scales that the user has not given."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.prior_moments.inducing_blocks import InducingBlocks
from pymc_gpep.reading import read_classifier
from pymc_gpep.rows.in_memory import InMemory
from pymc_gpep.streaming.features import first_scales, model_blocks

RNG = np.random.default_rng(2)
X = RNG.normal(size=(200, 3)) * [1.0, 10.0, 0.1]
ROWS = InMemory(X, np.zeros(200, int))


def begun(ls_of, free=("ls", "eta")):
    with pm.Model() as model:
        ls = ls_of()
        eta = pm.HalfNormal("eta", 3.0)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern52(3, ls=ls)).prior("f", X=X[:9], n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=np.arange(9) % 3)
    classifier = read_classifier(model)
    space = Hyperparameters(classifier)
    theta = space.initial_point()
    functions = model_blocks(space, InducingBlocks(classifier, None, space.data)).scale_functions()
    return space.point(theta), space.point(first_scales(space, functions, theta, free, ROWS, 1))


def test_single_length_scale_starts_at_half_a_typical_distance():
    before, after = begun(lambda: pm.Gamma("ls", 2.0, 0.1))
    a, b = X[:, None], X[None]
    median = np.median(np.sqrt(((a - b) ** 2).sum(axis=2))[np.triu_indices(200, 1)])
    assert_allclose(np.exp(after["ls_log__"]), 0.5 * median, rtol=0.1)
    assert after["eta_log__"] == before["eta_log__"]


@pytest.mark.variation
def test_length_scales_start_at_column_standard_deviations():
    _, after = begun(lambda: pm.LogNormal("ls", 0.0, 3.0, shape=3))
    relative = np.exp(after["ls_log__"]) / X.std(axis=0)
    assert_allclose(relative, relative[0], rtol=1e-3)
    assert_allclose(relative[0], 0.5 * np.sqrt(6.0), rtol=0.15)


def test_fixed_length_scales_do_not_change():
    before, after = begun(lambda: pm.Gamma("ls", 2.0, 0.1), free=("eta",))
    assert after == before


@pytest.mark.parametrize("deviation", [0.01, 0.3])
def test_prior_limits_the_initial_length_scale(deviation):
    """The log prior decreases by at most ten."""
    before, after = begun(lambda: pm.LogNormal("ls", -3.0, deviation))
    moved = float(after["ls_log__"] - before["ls_log__"])
    assert 0.0 <= moved < np.sqrt(20.0) * deviation + 1e-6
