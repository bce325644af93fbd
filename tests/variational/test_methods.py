"""Every approximation as a method of `pm.fit`, with likelihoods that it supports."""

import warnings

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.rivals.qep import QEP
from tests import models
from tests.approximations.every import EVERY

INEXACT = {QEP(): 0.05}
"""Relative errors of gradients that treat changing sites as constants: about one percent for diagonal sites."""
MODELS = {
    "multinomial_probit": models.probit,
    "softmax": models.softmax,
    "probit": models.bernoulli_probit,
    "logit": models.bernoulli_logit,
    "complementary_log_log": models.bernoulli_complementary,
}

ONE_OF_EACH = list({(type(each.approximator), each.approximator): each for each in EVERY}.values())
"""Each approximation with one likelihood: the pair matters only in the solver, which is tested on arrays."""


@pytest.fixture(scope="module", params=ONE_OF_EACH, ids=str)
def fitted(request):
    model, gp = MODELS[request.param.likelihood.name]()
    with model, warnings.catch_warnings():
        # The bound of a factorial posterior is highest for constant functions, and the fit warns about this.
        warnings.filterwarnings("ignore", "The fit learned next to nothing", UserWarning)
        fit = pm.fit(method=request.param.approximator.name, progressbar=False, **request.param.options)
    return request.param, models.Fitted(model, gp, models.data()[0], fit.solution.labels, fit)


def test_hyperparameters_are_at_the_maximum(fitted):
    case, found = fitted
    assert found.fit.log_posterior.approximator == case.approximator
    assert found.fit.solution.likelihood == case.likelihood
    assert found.fit.trace.converged
    theta = found.fit.trace.best.theta
    for step in (-0.1, 0.1):
        assert found.fit.log_posterior(theta + step).log_posterior < found.fit.trace.best.log_posterior


def test_bound_above_the_evidence_is_explained(fitted):
    _, found = fitted
    explained = "the exact log evidence is above both" in str(found.fit)
    assert explained == (found.fit.lower_bound > found.fit.log_evidence + 1e-3)


def test_gradient_matches_differences(fitted):
    case, found = fitted
    error = INEXACT.get(case.approximator, 1e-4)
    theta = found.fit.trace.best.theta + 0.3
    step = 1e-4
    difference = (
        found.fit.log_posterior(theta + step).log_posterior - found.fit.log_posterior(theta - step).log_posterior
    ) / (2 * step)
    assert found.fit.log_posterior(theta).gradient[0] == pytest.approx(difference, rel=error, abs=1e-4)


def test_draws_have_the_moments_of_the_solution(fitted):
    case, found = fitted
    f = found.fit.sample(1000, random_seed=1)["posterior"]["f"]
    assert f.dims == ("chain", "draw", *(["species"] if case.likelihood.function_axis else []), "flower")
    solution = found.fit.solution
    sd = np.sqrt(solution.cov.diagonal(axis1=1, axis2=2).T)
    shape = f.shape[2:]
    error = 5 * sd.max() / np.sqrt(1000)
    assert_allclose(f.mean(("chain", "draw")), solution.mean.reshape(shape), atol=error)
    assert_allclose(f.std(("chain", "draw")), sd.reshape(shape), rtol=0.16)


def test_probabilities_match_averages_of_the_likelihood(fitted):
    case, found = fitted
    predicted = found.fit.predict(found.gp, found.X)
    p, mean = predicted["p"].values, found.fit.solution.mean.T
    assert_allclose(p.sum(1), 1.0, atol=1e-12)
    assert_allclose(predicted["mean"], mean.reshape(predicted["mean"].shape), atol=2e-3)
    frequencies = np.bincount(found.y) / found.y.size
    if case.approximator.bounds and found.fit.log_evidence < found.y.size * frequencies @ np.log(frequencies):
        return  # the bound is highest if nothing is learned
    assert (p.argmax(1) == found.y).mean() > 0.85


def test_method_that_does_not_support_the_likelihood_is_refused():
    model, _ = models.softmax()
    with model, pytest.raises(ValueError, match=r"'vb' supports.*: multinomial_probit.*is softmax.* are 'laplace'"):
        pm.fit(method="vb")
    with pytest.raises(ValueError, match=r"'nested_ep' supports.*: multinomial_probit.*is softmax.* are 'laplace'"):
        gpep.marginalize(model, "nested_ep")
    model, _ = models.bernoulli_probit()
    with model, pytest.raises(ValueError, match=r"'nested_ep' supports.*: multinomial.*is probit.* are 'ep', "):
        pm.fit(method="nested_ep")


@pytest.mark.parametrize(("build", "method"), [(models.softmax, "laplace"), (models.bernoulli_logit, "ep")])
def test_every_method_has_default_options(build, method):
    model, _ = build()
    assert gpep.marginalize(model).approximator.name == method


def test_corrected_class_probabilities_match_tierney_kadane(fitted):
    case, found = fitted
    x = found.X[::10]
    if "tk" not in case.approximator.corrections:
        with pytest.raises(ValueError, match="corrects the Laplace approximation of a softmax"):
            found.fit.predict(found.gp, x, correction="tk")
        return
    corrected = found.fit.predict(found.gp, x, correction="tk")
    plain = found.fit.predict(found.gp, x)
    assert corrected.attrs["correction"] == "tk"
    assert_allclose(corrected["p"].sum("species"), 1.0, atol=1e-12)
    assert_allclose(corrected["mean"], plain["mean"])
    # Laplace's Gaussian makes the probabilities too equal.
    assert (corrected["p"].max("species") > plain["p"].max("species")).all()
    with pytest.raises(ValueError, match="correction is 'other', but must be 'tk'"):
        found.fit.predict(found.gp, x, correction="other")
    with pytest.raises(ValueError, match="probabilities is 'orthant', but must be 'average'"):
        found.fit.predict(found.gp, x, probabilities="orthant")


def test_an_error_that_an_interrupt_caused_is_raised_as_an_interrupt(monkeypatch):
    """PyTensor's rewriting of a graph raises an UnboundLocalError if an interrupt arrives in its first lines."""

    def interrupted(*_, **__):
        try:
            raise KeyboardInterrupt
        finally:
            raise UnboundLocalError("rewrite_time")

    monkeypatch.setattr("pymc_gpep.variational.inference.GPInference.__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pm.fit(method="ep", model=models.bernoulli_probit()[0])
