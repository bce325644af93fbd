"""`pm.fit(method="auto")`: the method by numbers of rows and functions, and by memory."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.likelihoods.multinomial_probit import MultinomialProbitLikelihood
from pymc_gpep.likelihoods.ordered import OrderedLogitLikelihood
from pymc_gpep.prior_moments.effects_beside import by_inducing
from pymc_gpep.reading import read_classifier
from pymc_gpep.variational import method_choice
from pymc_gpep.variational.method_choice import MethodChoice, choose_method
from tests import models


def classifier(n, c, likelihood=MultinomialProbitLikelihood):
    return SimpleNamespace(
        n_points=n,
        n_functions=c,
        likelihood_model=likelihood(),
        prior=SimpleNamespace(effects=()),
        kind=likelihood.name,
        learned_parameters=[],
        check_one=lambda: None,
    )


def effects_of(n, place):
    """Placeholder for a model with effects of n rows and a process over all rows or over places."""
    where = np.arange(n) % 5
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("f", X=np.arange(5.0 if place else n)[:, None])
        gpep.Probit("y", pm.Normal("a", shape=5)[where] + (f[where] if place else f), observed=where > 2)
    return read_classifier(model)


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    monkeypatch.setattr(method_choice, "available_memory", lambda: 16e9)


def test_choice_for_few_rows_is_a_dense_method():
    assert choose_method(classifier(1000, 10), {})[:3] == ("nested_ep", {}, None)


def test_thousands_of_rows_with_inducing_inputs_use_sweeps():
    assert choose_method(classifier(5000, 3), {"inducing": 100})[:3] == ("sparse_ep", {}, None)
    found = choose_method(classifier(5000, 3), {})
    assert found[:3] == ("sparse_ep", {"batch_size": 200}, 1000)
    assert "5000 rows and 3 latent functions" in found.reason


def test_choice_uses_the_limit_of_rows_given_by_the_user():
    assert choose_method(classifier(900, 3), {}, 500).method == "sparse_ep"
    assert choose_method(classifier(4000, 3), {}, 5000).method == "nested_ep"


def test_text_of_a_choice_is_short():
    assert str(choose_method(classifier(100, 3), {})) == "nested_ep"
    assert str(choose_method(effects_of(5000, place=False), {})) == "sparse_ep, 100 inducing inputs"
    assert str(choose_method(classifier(12_000, 10), {})) == "sparse_ep, 1000 steps of 200 rows"


def test_choice_for_few_rows_uses_all_rows_in_each_step():
    few = choose_method(classifier(140, 3), {"batch_size": 100})
    assert few.reason.endswith("inducing inputs: all rows are inducing inputs, and each step uses all rows.")
    assert str(few) == "sparse_ep, at most 1000 iterations over all rows"
    for rows, given in ((160, {}), (140, {"learn_inducing": True}), (140, {"inducing": 20})):
        more = choose_method(classifier(rows, 3), {"batch_size": 100, **given})
        assert more.reason.endswith(": a step uses 100 rows.")


@pytest.mark.parametrize(("rows", "steps"), [(12_000, 1000), (60_000, 3000), (10**8, 10_000)])
def test_choice_for_many_rows_is_batches(rows, steps):
    assert choose_method(classifier(rows, 10), {})[:3] == ("sparse_ep", {"batch_size": 200}, steps)


def test_choice_for_matrices_that_exceed_memory_is_inducing_inputs(monkeypatch):
    monkeypatch.setattr(method_choice, "available_memory", lambda: 1e8)
    found = choose_method(classifier(1000, 3), {})
    assert found.method == "sparse_ep"
    assert "0.2 GB" in found.reason


def test_options_for_inducing_inputs_select_a_method_with_inducing_inputs():
    assert choose_method(classifier(100, 3), {"inducing": 20})[:2] == ("sparse_ep", {})
    assert choose_method(classifier(100, 3), {"batch_size": 50})[:2] == ("sparse_ep", {"batch_size": 50})
    data = np.zeros((30_000, 2)), np.zeros(30_000, int)
    assert choose_method(classifier(100, 3), {"data": data})[:2] == ("sparse_ep", {"batch_size": 200})


def test_models_without_support_for_inducing_inputs_keep_their_method():
    assert choose_method(effects_of(5000, place=True), {})[:2] == ("ep", {})
    assert choose_method(classifier(50_000, 1, OrderedLogitLikelihood), {})[:2] == ("ep", {})


def test_predicted_work_of_a_sweep_includes_effects(monkeypatch):
    monkeypatch.setattr(method_choice, "_DENSE", 1e6)
    effects = by_inducing(effects_of(200, place=False)).prior.n_normals
    monkeypatch.setattr(method_choice, "_SWEPT", 200.0 * (100 + effects) ** 2)
    found = choose_method(effects_of(200, place=False), {})
    assert found[:2] == ("sparse_ep", {"inducing": 100, "shared_inducing": True})
    monkeypatch.setattr(method_choice, "_SWEPT", 200.0 * (100 + effects) ** 2 - 1)
    assert choose_method(effects_of(200, place=False), {})[:2] == ("sparse_ep", {"batch_size": 200})


def test_learned_label_noise_excludes_inducing_inputs():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, 1.0)).prior("f", X=np.zeros((9, 1)), n_outputs=3)
        gpep.MultinomialProbit("y", f.T, epsilon=pm.Beta("epsilon", 1, 20), observed=np.arange(9) % 3)
    found = choose_method(read_classifier(model), {"inducing": 3})
    assert found.method == "nested_ep"
    assert "learns parameters" in found.reason


def test_chosen_method_is_used_and_its_reason_logged(caplog):
    with caplog.at_level("INFO", logger="pymc"), models.fixed()[0]:
        found = pm.fit(method="auto", progressbar=False)
        same = pm.fit(method="nested_ep", progressbar=False)
    assert found.log_evidence == same.log_evidence
    assert "method='auto' takes nested_ep: " in caplog.text
    assert "few enough" in caplog.text


def test_log_message_states_the_given_steps(caplog):
    with caplog.at_level("INFO", logger="pymc"), models.fixed()[0]:
        pm.fit(3, method="auto", batch_size=7, progressbar=False)
    assert ", 3 steps of 7 rows: " in caplog.text


def _unread():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Poisson("y", mu=rate, observed=[1, 2, 0])
    return model


def _batches():
    x, y = np.linspace(-1, 1, 20)[:, None], np.arange(20.0)
    with pm.Model() as model:
        some, theirs = pm.Minibatch(x, y, batch_size=5)
        pm.Normal("y", some @ pm.Normal("b", 0, 1, shape=1), 1.0, observed=theirs, total_size=20)
    return model


class CalledError(Exception):
    """Raised where PyMC's inference would start."""


@pytest.fixture
def advi_is_called(monkeypatch):
    """Replace PyMC's ADVI by an error."""

    def made(*args, **kwargs):
        raise CalledError

    monkeypatch.setattr("pymc.variational.inference.ADVI", made)


@pytest.mark.usefixtures("advi_is_called")
@pytest.mark.parametrize("within", [True, False], ids=["in a context", "by name"])
def test_call_without_a_method_logs_advi_and_the_method_that_fits(within, caplog):
    model = models.fixed()[0]
    for calls in (1, 2):
        with pytest.raises(CalledError), model if within else nullcontext():
            pm.fit(progressbar=False, **({} if within else {"model": model}))
        said = [record.message for record in caplog.records if record.name == "pymc"]
        assert len(said) == calls
        assert "runs PyMC's ADVI" in said[-1]
        assert "with method='nested_ep'." in said[-1]
        assert "\n" not in said[-1]


@pytest.mark.usefixtures("advi_is_called")
@pytest.mark.parametrize("model", [_unread, _batches, pm.Model], ids=["gamma", "batches", "empty"])
def test_call_without_a_method_logs_nothing_for_an_unsupported_model(model, caplog):
    with pytest.raises(CalledError), model():
        pm.fit(progressbar=False)
    assert not caplog.records


@pytest.mark.usefixtures("advi_is_called")
def test_call_that_names_advi_logs_nothing(caplog):
    with pytest.raises(CalledError), models.fixed()[0]:
        pm.fit(method="advi", progressbar=False)
    assert not caplog.records


def test_call_without_a_method_or_a_model_is_passed_to_pymc():
    with pytest.raises(TypeError, match="model"):
        pm.fit()


def test_arguments_of_a_choice_are_valid_code():
    choice = MethodChoice("sparse_ep", {"batch_size": 200}, 1000, "")
    assert choice.arguments == "n=1000, method='sparse_ep', batch_size=200"
