"""Models that PyMC transformed have the same results as the original models."""

import copy

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.model.fgraph import clone_model
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_gpep as gpep
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.prior_moments.prior_functions import prior_moments
from pymc_gpep.processes.process_functions import process_functions
from pymc_gpep.reading import read_classifier, read_processes
from tests import models

pytestmark = pytest.mark.filterwarnings("ignore:Detected variables likely created by GP objects:UserWarning")

X, Y = models.data()
WAYS = {
    "copy": lambda model: model.copy(),
    "deepcopy": copy.deepcopy,
    "clone_model": clone_model,
    "do": lambda model: pm.do(model, {}),
    "observe": lambda model: pm.observe(model, {}),
    "pickle": lambda model: cloudpickle.loads(cloudpickle.dumps(model)),
}


def of_one_function(observe):
    """Model whose covariance uses columns in another order, with a Deterministic before the likelihood."""
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 1.0, shape=2)
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=ls, active_dims=[1, 0])).prior("f", X=X)
        observe(f)
    return model, None


MODELS = {
    "shared": models.shared,
    "centred": lambda: models.shared(rotated=False),
    "per_class": models.per_class,
    "softmax": models.softmax,
    "softmax of a Deterministic": lambda: of_softmax(),
    "probit": lambda: of_one_function(
        lambda f: pm.Bernoulli("y", p=pm.Deterministic("p", pm.math.invprobit(f)), observed=Y == 2)
    ),
    "logit": lambda: of_one_function(
        lambda f: pm.Bernoulli("y", p=pm.Deterministic("p", pm.math.sigmoid(f)), observed=Y == 2)
    ),
    "poisson": lambda: of_one_function(
        lambda f: pm.Poisson("y", mu=pm.Deterministic("rate", pm.math.exp(f + 0.5)), observed=Y)
    ),
    "ordered": lambda: of_one_function(
        lambda f: pm.OrderedLogistic("y", eta=f, cutpoints=np.array([-1.0, 1.0]), compute_p=False, observed=Y)
    ),
}


def of_softmax():
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.0, 1.0)
        f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(2, ls=ls)).prior("f", X=X, n_outputs=3)
        p = pm.Deterministic("p", pm.math.softmax(pm.Deterministic("g", f.T), axis=-1))
        pm.Categorical("y", p=p, observed=Y)
    return model, None


# Each model with one transformation, and each transformation of a plain model.
PAIRS = [
    *(("shared", way) for way in WAYS),
    *((name, list(WAYS)[2 * i % len(WAYS)]) for i, name in enumerate(MODELS) if i),
]


@pytest.mark.variation(but=["shared-deepcopy", "probit-observe", "softmax-copy"])
@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_transformed_models_have_the_results_of_the_original(name, way):
    model, _ = MODELS[name]()
    first, second = read_classifier(model), read_classifier(WAYS[way](model))
    assert second.kind == first.kind
    assert second.class_names == first.class_names
    assert second.point_dim == first.point_dim
    point = model.initial_point()
    for found, right in zip(prior_moments(second)(point)[:3], prior_moments(first)(point)[:3], strict=True):
        assert_allclose(found, right, rtol=1e-12)
    inputs = [process_functions(each.prior, None)[0].inputs for each in (second, first)]
    assert_allclose(*evaluate(inputs))
    assert len(read_processes(second.model).latents) == len(first.latents)


def test_constants_from_data_keep_the_order_of_columns():
    covariance = 2 * pm.gp.cov.ExpQuad(2, ls=[1.0, 3.0], active_dims=[1, 0])
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=covariance).prior("f", X=pm.Data("X", X))
        pm.Bernoulli("y", logit_p=f, observed=Y == 2)
    (functions,) = process_functions(read_classifier(freeze_dims_and_data(model)).prior, None)
    a, b = np.random.default_rng(0).normal(size=(2, 3, 2))
    found = evaluate([functions.covariance(pt.constant(a), pt.constant(b)), functions.inputs])
    assert_allclose(found[0], covariance(a, b).eval(), rtol=1e-12)
    assert_allclose(found[1], X)


def test_fixed_hyperparameter_is_a_constant():
    model, _ = models.softmax()
    held = read_classifier(pm.do(model, {"ls": 0.8}))
    assert held.hyperparameters == ()
    squares = ((X[:, None] - X) ** 2).sum(axis=-1)
    right = 9 * np.exp(-squares / (2 * 0.8**2)) + 1e-6 * np.eye(len(X))
    assert_allclose(prior_moments(held)({}).k[0], right, rtol=1e-9)


def test_labels_from_pm_observe_are_used():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T)
    assert_allclose(prior_moments(read_classifier(pm.observe(model, {"y": Y})))({}).labels, Y)


def test_gp_of_the_original_model_is_refused_with_advice_that_works():
    model, gp = models.fixed()
    with model.copy():
        fit = pm.fit(method="laplace", progressbar=False)
    with pytest.raises(ValueError, match=r"If PyMC made the model from another model .* leave gp out"):
        fit.predict(gp, X[:2])
    with model:
        right = pm.fit(method="laplace", progressbar=False).predict(gp, X[:2])["p"]
    assert_allclose(fit.predict(X[:2])["p"], right, rtol=1e-8)
