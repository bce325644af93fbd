"""Likelihoods of two classes by one latent function: recognised models, and errors for other models."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import expit, ndtr

import pymc_gpep as gpep
from pymc_gpep.approximations import approximator
from pymc_gpep.reading import StructureError, read_classifier

X = np.linspace(0.0, 3.0, 7)[:, None]
Y = np.array([0, 1, 1, 0, 1, 0, 1])


def model_of(observe, y=Y, **prior):
    """Return a model of one latent function, with the observed variable that `observe(f, y)` declares."""
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0)).prior("f", X=X, **prior)
        observe(f, y)
    return model


def bernoulli(link):
    return lambda f, y: pm.Bernoulli("y", p=link(f), observed=y)


SPELLINGS = {
    "logit_p": ("logit", lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y)),
    "invlogit": ("logit", bernoulli(pm.math.invlogit)),
    "1 / (1 + exp(-f))": ("logit", bernoulli(lambda f: 1 / (1 + pt.exp(-f)))),
    "exp(f) / (1 + exp(f))": ("logit", bernoulli(lambda f: pt.exp(f) / (1 + pt.exp(f)))),
    "tanh": ("logit", bernoulli(lambda f: 0.5 * (1 + pt.tanh(f / 2)))),
    "Probit": ("probit", lambda f, y: gpep.Probit("y", f, observed=y)),
    "invprobit": ("probit", bernoulli(pm.math.invprobit)),
    "named": ("probit", bernoulli(lambda f: pm.Deterministic("p", pm.math.invprobit(f)))),
    "erf": ("probit", bernoulli(lambda f: 0.5 * (1 + pt.erf(f / np.sqrt(2))))),
    "logcdf": ("probit", bernoulli(lambda f: pt.exp(pm.logcdf(pm.Normal.dist(0, 1), f)))),
    "of the other sign": ("probit", bernoulli(lambda f: 1 - pm.math.invprobit(-f))),
    "selected": ("probit", bernoulli(lambda f: pm.math.invprobit(f[np.arange(7)]))),
}


@pytest.mark.parametrize("rotated", [True, False], ids=["rotated", "centred"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_link_is_recognised_in_every_spelling(spelling, rotated):
    kind, observe = SPELLINGS[spelling]
    model = model_of(observe, reparameterize=rotated)
    found = read_classifier(model)
    (latent,) = found.latents
    assert (found.kind, found.n_functions, found.n_classes, found.n_points) == (kind, 1, 2, 7)
    assert latent.f is model["f"]
    assert latent.classes == (0,)


def test_prior_with_n_outputs_1_has_one_latent_function():
    assert read_classifier(model_of(SPELLINGS["logit_p"][1], n_outputs=1)).n_functions == 1


@pytest.mark.parametrize("y", [Y, Y.astype(bool), Y.astype(float)], ids=["int", "bool", "float"])
@pytest.mark.parametrize("spelling", ["Probit", "logit_p"])
def test_labels_of_every_type_are_accepted(spelling, y):
    found = read_classifier(model_of(SPELLINGS[spelling][1], y))
    np.testing.assert_array_equal(found.labels.data, Y)


def lapse(f):
    rate = pm.Beta("rate", 1, 20)
    return rate + (1 - 2 * rate) * pm.math.invprobit(f)


OTHER_LINKS = {
    "lapse rate": (lapse, lambda f: 0.1 + 0.8 * ndtr(f)),
    "fixed lapse rate": (lambda f: 0.01 + 0.98 * pm.math.invlogit(f), lambda f: 0.01 + 0.98 * expit(f)),
    "cauchit": (lambda f: 0.5 + pt.arctan(f) / np.pi, lambda f: 0.5 + np.arctan(f) / np.pi),
}


@pytest.mark.parametrize("case", OTHER_LINKS)
def test_bernoulli_with_another_link_uses_its_density(case):
    link, probability = OTHER_LINKS[case]
    found = read_classifier(model_of(bernoulli(link)))
    parameters = found.parameters.eval(dict.fromkeys(found.hyperparameters, 0.1))
    f = np.linspace(-3.0, 3.0, 7)
    p = probability(f)
    density = found.likelihood_model.given(parameters).log_densities(f[None], Y)
    np.testing.assert_allclose(density, np.where(Y == 1, np.log(p), np.log1p(-p)), rtol=1e-7)


def test_scalar_label_is_one_row():
    found = read_classifier(model_of(lambda f, y: pm.Bernoulli("y", logit_p=f[0], observed=y[0])))
    assert (found.n_points, found.axes.shape) == (1, ())


REFUSED = {
    "labels -1 and 1": (
        lambda f, y: pm.Bernoulli("y", logit_p=f, observed=2 * y - 1),
        r"must be 0 or 1, but among them are -1, 1. Write \(labels == 1\)",
    ),
    "three classes": (lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y + 1), "among them are 1, 2.*Multinomial"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_error_for_an_unreadable_link_advises_a_spelling(case):
    observe, message = REFUSED[case]
    with pytest.raises(StructureError, match=message):
        read_classifier(model_of(observe))


def test_rows_with_missing_labels_are_left_out():
    missing = np.ma.masked_array(Y, [True, *[False] * 6])
    for spelling in ("logit_p", "Probit"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
            model = model_of(SPELLINGS[spelling][1], missing)
        np.testing.assert_array_equal(read_classifier(model).labels.eval(), Y[1:])


@pytest.mark.filterwarnings("ignore:The fit learned next to nothing")
def test_column_of_labels_has_one_row_for_each_label():
    """With the same labels for two independent functions, the evidence is the square of one evidence."""
    spellings = [
        (lambda f, y: gpep.Probit("y", f, observed=y), {}),
        (lambda f, y: gpep.Probit("y", f[:, None], observed=y[:, None]), {}),
        (lambda f, y: gpep.Probit("y", f.T, observed=np.stack([y, y], 1)), {"n_outputs": 2}),
    ]
    models = [model_of(observe, **options) for observe, options in spellings]
    one, column, two = (pm.fit(model=model, method="ep", progressbar=False).log_evidence for model in models)
    assert column == pytest.approx(one, abs=1e-8)
    assert two == pytest.approx(2.0 * one, abs=1e-8)


def test_method_of_another_likelihood_is_refused():
    classifier = read_classifier(model_of(SPELLINGS["Probit"][1]))
    with pytest.raises(ValueError, match=r"'nested_ep' supports.*: multinomial_probit.*of the model is probit"):
        approximator("nested_ep", classifier.likelihood_model, {})
