"""Values that samplers move for sums of effects: standard normals, and the corresponding variables of the model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_gpep.evidence.latent_model import LatentModel
from pymc_gpep.reading import read_classifier
from tests.sum_models import MODELS

FEW = {"centred_slopes", "persons_and_items", "random_walk", "two_processes", "plain_classes"}
"""The remaining models test the reading of other distributions."""
# In these models a recipe has fewer dimensions than normals.
SINGULAR = {"persons_and_items"}


@pytest.fixture(scope="module")
def read():
    made = {}

    def get(name):
        if name not in made:
            latent_model = LatentModel(read_classifier(MODELS[name]()))
            model = latent_model.processes.model
            rng = np.random.default_rng(len(name))
            point = {
                v: np.asarray(x) + 0.3 * rng.standard_normal(np.shape(x)) for v, x in model.initial_point().items()
            }
            prior = latent_model.prior_function()(point)
            made[name] = latent_model, point, prior, rng.standard_normal(prior.shape)
        return made[name]

    return get


EACH = [name if name in FEW else pytest.param(name, marks=pytest.mark.variation) for name in MODELS]


@pytest.mark.variation(but=["random_walk"])
@pytest.mark.parametrize("name", EACH)
def test_maps_between_standard_normals_and_variables_are_inverse(name, read):
    latent_model, point, prior, x = read(name)
    there = point | latent_model.values.to_point(point, x, prior)
    rng = np.random.default_rng(1)
    again = latent_model.values.from_point(there, prior, rng)
    if name in SINGULAR:
        assert np.abs(again - x).max() > 0.1
        back = point | latent_model.values.to_point(point, again, prior)
        for variable, value in there.items():
            assert_allclose(back[variable], value, atol=1e-8)
        assert_allclose(prior.functions(again), prior.functions(x), atol=1e-8)
    else:
        assert_allclose(again, x, atol=1e-7)


@pytest.mark.parametrize("name", EACH)
def test_likelihood_as_a_function_of_standard_normals_equals_the_likelihood_of_the_model(name, read):
    latent_model, point, prior, x = read(name)
    model = latent_model.processes.model
    there = point | latent_model.values.to_point(point, x, prior)
    expected = model.compile_logp(vars=model.observed_RVs)(there)
    likelihood = latent_model.likelihood()
    value, slope = likelihood(point, x, prior)
    # PyMC subtracts probabilities for ordered probits, and loses digits.
    assert value == pytest.approx(float(expected), rel=1e-8)
    for direction in (np.ones_like(x), np.cos(np.arange(x.size))[None]):
        differences = [likelihood(point, x + h * direction, prior)[0] for h in (1e-5, -1e-5)]
        assert np.vdot(slope, direction) == pytest.approx(np.subtract(*differences) / 2e-5, rel=1e-5, abs=1e-5)
