"""Errors for unknown names suggest the closest known name, for every option with a set of names."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.argument_types import check_name, did_you_mean
from pymc_gpep.sklearn import GaussianProcessClassifier, GaussianProcessCounts
from pymc_gpep.variational.inference import GPInference
from tests import models

N = 24
GROUP = np.arange(N) % 4
X = np.linspace(-1.0, 1.0, N)
COUNTS = np.arange(N) % 3
FRAME = pd.DataFrame({"age": X, "city": np.array(["Rome", "Oslo"])[GROUP % 2]})


def _sum():
    with pm.Model(coords={"county": ["north", "south", "east", "west"]}) as model:
        at, of = pm.Data("at", X), pm.Data("of", GROUP)
        level, slope, s = pm.Normal("level", 0, 2), pm.Normal("slope", 0, 1), pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, dims="county")
        pm.Poisson("counts", mu=pm.math.exp(level + slope * at + u[of]), observed=COUNTS)
    return model


@pytest.fixture(scope="module")
def fit():
    with _sum():
        return pm.fit(method="laplace", progressbar=False)


def _two_responses():
    with pm.Model():
        level = pm.Normal("level", 0, 2)
        pm.Poisson("visits", mu=pm.math.exp(level + np.zeros(N)), observed=COUNTS)
        pm.Poisson("falls", mu=pm.math.exp(level + np.ones(N)), observed=COUNTS)
        return pm.fit(method="laplace", progressbar=False)


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"hyper": "cdd"}, "ccd"),
        ({"hyper": "Grid"}, "grid"),
        ({"hyper": "ccd", "hyper_options": {"resolutio": 9}}, "resolution"),
        ({"start": {"S": 1.0}}, "s"),
        ({"likelihood": "count"}, "counts"),
        ({"hyperparameters": ["slop"]}, "slope"),
        ({"hyper_option": {}}, "hyper_options"),
        ({"tolerence": 1e-3}, "tolerance"),
    ],
)
def test_misspelt_option_of_a_fit_gets_a_suggestion(options, meant):
    with _sum(), pytest.raises((ValueError, TypeError), match=rf"Did you mean '{meant}'\?"):
        GPInference("laplace", **options).fit(progressbar=False)


@pytest.mark.parametrize(
    ("method", "options", "meant"),
    [
        ("sparse_ep", {"update": "iner"}, "inner"),
        ("sparse_ep", {"inducing": 5, "sites": "quadratur"}, "quadrature"),
        ("sparse_ep", {"batch_size": 5, "memory": "statless"}, "stateless"),
        ("sparse_ep", {"batch_size": 5, "sites": "quadratur"}, "quadrature"),
        ("ivm", {"criterion": "informaton"}, "information"),
        ("ivm", {"sites": "couple"}, "coupled"),
        ("vb", {"hyper": "meanfield"}, "mean_field"),
    ],
)
def test_misspelt_option_of_a_process_gets_a_suggestion(method, options, meant):
    model, _ = models.probit()
    with model, pytest.raises(ValueError, match=rf"Did you mean '{meant}'\?"):
        GPInference(method, **options).fit(1, progressbar=False)


OF_A_SUM = {
    "effects": (lambda fit: fit.effects("slop"), "slope"),
    "summary": (lambda fit: fit.summary(["levl", "s"]), "level"),
    "contrast": (lambda fit: fit.contrast({"a": {"U": {"north": 1}}}), "u"),
    "label of a contrast": (lambda fit: fit.contrast({"a": {"u": {"nord": 1, "south": -1}}}), "north"),
    "data of predict": (lambda fit: fit.predict(data={"at": [0.5], "off": [1]}), "of"),
    "sensitivity": (lambda fit: fit.sensitivity("S", {"wide": pm.HalfNormal.dist(5)}), "s"),
    "groups": (lambda fit: fit.loo(groups="off"), "of"),
    "picture of effects": (lambda fit: gpep.plots.plot_effects(fit, "uu"), "u"),
}


@pytest.mark.parametrize("case", OF_A_SUM)
def test_misspelt_name_in_a_call_of_a_fit_gets_a_suggestion(case, fit):
    call, meant = OF_A_SUM[case]
    with pytest.raises(ValueError, match=rf" Did you mean {meant!r}\?$"):
        call(fit)


def test_misspelt_response_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"Did you mean 'falls'\?"):
        _two_responses().predict(response="fals")


OF_A_PROCESS = {
    "correction": (lambda fit: fit.predict(models.data()[0], correction="tkk"), "tk"),
    "probabilities": (lambda fit: fit.predict(models.data()[0], probabilities="orthan"), "orthant"),
    "values of hyperparameters": (lambda fit: gpep.diagnostics.evidence_grid(fit.model, {"Eta": [1.0]}), "eta"),
    "point": (lambda fit: gpep.diagnostics.annealed_evidence(fit.model, {"etta": 1.0}), "eta"),
    "start": (lambda fit: gpep.diagnostics.annealed_evidence(fit.model, {"eta": 1.0}, start="nestedep"), "nested_ep"),
    "reference": (lambda fit: gpep.compare_methods({"EP": fit, "KL": fit}, "E"), "EP"),
    "of": (lambda fit: gpep.plots.plot_convergence(fit, of="site"), "sites"),
    "class": (lambda fit: gpep.plots.plot_latent_pair(fit, 100, classes=("setos", "virginica")), "setosa"),
}


@pytest.mark.parametrize("case", OF_A_PROCESS)
def test_misspelt_name_in_a_call_with_classes_gets_a_suggestion(case, shared):
    call, meant = OF_A_PROCESS[case]
    with pytest.raises(ValueError, match=rf"Did you mean {meant!r}\?$"):
        call(shared.fit)
    plt.close("all")


ELSEWHERE = {
    "kernel of columns": (lambda: gpep.columns(FRAME).covariance("matern25"), "matern52"),
    "missing": (lambda: gpep.columns(FRAME, missing="inpute"), "impute"),
    "column": (lambda: gpep.columns(FRAME).encode(FRAME.rename(columns={"age": "Age"})), "Age"),
    "kernel of an estimator": (lambda: GaussianProcessClassifier(kernel="rfb").fit(FRAME, GROUP), "rbf"),
    "likelihood of an estimator": (lambda: GaussianProcessCounts(likelihood="poison").fit(FRAME, COUNTS), "poisson"),
    "likelihood of arrays": (lambda: gpep.methods.ep(np.eye(2), np.zeros(2), [0, 1], "probitt"), "probit"),
    "input": (lambda: gpep.plots.input_grid(FRAME[["age"]].assign(size=1.0), ["agee", "size"]), "age"),
    "backend": (lambda: pm.fit(method="laplace", model=_sum(), backend="nunba", progressbar=False), "numba"),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_misspelt_name_in_other_functions_gets_a_suggestion(case):
    call, meant = ELSEWHERE[case]
    with pytest.raises(ValueError, match=rf"Did you mean {meant!r}\?$"):
        call()


@pytest.mark.parametrize(
    ("step", "options", "meant"),
    [
        (gpep.samplers.GuidedHMC, {"guide": "nestedep"}, "nested_ep"),
        (gpep.samplers.GuidedHMC, {"targetaccept": 0.9}, "target_accept"),
        (gpep.samplers.ProbitGibbs, {"hyper": "whitned"}, "whitened"),
    ],
)
def test_misspelt_option_of_a_sampler_gets_a_suggestion(step, options, meant, shared):
    with shared.model, pytest.raises((ValueError, TypeError), match=rf"Did you mean {meant!r}\?"):
        step(**options)


def test_python_suggests_the_closest_public_name():
    with pytest.raises(AttributeError) as raised:
        _ = gpep.Probitt
    assert raised.value.name == "Probitt"
    assert raised.value.obj is gpep


def test_closest_name_ignores_capitals_and_values_other_than_strings():
    assert did_you_mean(["x", 3], ["X", 4]) == " Did you mean 'X'?"
    assert did_you_mean(["nothing like it"], ["X"]) == ""
    assert did_you_mean(["multinom"], ["multinomial_probit", "poisson"]) == " Did you mean 'multinomial_probit'?"
    with pytest.raises(ValueError, match=re.escape("how is 3, but must be 'a' or 'b' for fun.")):
        check_name("how", 3, ("a", "b"), " for fun")
    check_name("how", "a", ("a", "b"))
