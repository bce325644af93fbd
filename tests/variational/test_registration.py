"""`pm.fit` with methods of the package and with PyMC's own."""

import inspect

import numpy as np
import pymc as pm
import pymc.variational
import pytest

import pymc_gpep as gpep
from pymc_gpep.approximations import NestedEP
from pymc_gpep.log_posteriors import dense_log_posterior
from pymc_gpep.prior_moments import prior_functions
from pymc_gpep.variational.inference import GPInference
from tests import models


def test_registering_twice_has_no_effect():
    before = pm.fit
    gpep.registration.patch()
    assert pm.fit is before is pymc.variational.fit is pymc.variational.inference.fit
    assert list(inspect.signature(pm.fit).parameters)[:3] == ["n", "method", "model"]


def test_method_name_is_case_insensitive_and_arguments_are_positional(shared):
    fit = pm.fit(100, "Nested_EP", shared.model, 1, progressbar=False)
    assert fit.log_evidence == pytest.approx(shared.fit.log_evidence, abs=1e-8)


@pytest.mark.parametrize("n", [2.5, 2.0, "2", None])
def test_fractional_limit_on_iterations_raises_type_error(n, shared):
    with shared.model, pytest.raises(TypeError, match=f"^n, .* must be a whole number, but is {n!r}"):
        pm.fit(n, "nested_ep", progressbar=False)
    with pytest.raises(TypeError, match=r"^n, .* must be a whole number"):
        GPInference("nested_ep", shared.model).fit(n)


def test_inference_instance_equals_the_method_name(shared):
    with shared.model:
        fit = pm.fit(method=GPInference("nested_ep"), progressbar=False)
    assert fit.log_evidence == pytest.approx(shared.fit.log_evidence, abs=1e-8)


def test_options_are_passed_to_the_approximation(shared):
    with shared.model:
        direct = pm.fit(method="nested_ep", max_inner=7, progressbar=False)
        through = pm.fit(method="nested_ep", inf_kwargs={"max_inner": 7}, progressbar=False)
        with pytest.raises(
            TypeError, match=r"nested_ep has no option inner. Options: tolerance,.*and options of pm.fit: n,"
        ):
            pm.fit(method="nested_ep", inner=7)
        with pytest.raises(TypeError, match=r"Did you mean 'max_inner' and 'progressbar'\?"):
            pm.fit(method="nested_ep", maxinner=7, progresbar=False)
    for fit in (direct, through):
        assert fit.log_posterior.approximator == NestedEP(max_inner=7)


def test_error_for_unknown_names_lists_methods_of_pymc_and_of_this_package(shared):
    with shared.model, pytest.raises(KeyError, match=r"should be one of.*advi.*pymc_gpep adds.*nested_ep"):
        pm.fit(method="nested")
    for wrong, meant in (("sparse_seb", "sparse_sep"), ("fulrank_advi", "fullrank_advi"), ("TAP", "tap_naive")):
        with shared.model, pytest.raises(KeyError, match=rf"Did you mean '{meant}'\?"):
            pm.fit(method=wrong)
    with shared.model, pytest.raises(TypeError, match="should be one of"):
        pm.fit(method=3)
    with shared.model, pytest.raises(NotImplementedError, match="start_sigma"):
        pm.fit(method="nested_ep", start_sigma={"eta": 1.0})


def test_methods_of_pymc_still_run():
    with pm.Model():
        pm.Normal("x", 1.0, 0.5)
        fit = pm.fit(200, method="advi", progressbar=False, random_seed=1)
    assert fit.mean.eval() == pytest.approx(1.0, abs=0.1)


def test_call_without_a_model_is_passed_to_pymc():
    with pytest.raises(TypeError, match="model"):
        pm.fit(method="nested_ep")


def test_callback_receives_a_running_fit_and_can_stop_the_search():
    seen = []

    def callback(approx, losses, i):
        seen.append((i, losses[-1], approx.log_evidence, approx.mean.eval().sum()))
        if i == 3:
            raise StopIteration("enough")

    model, _ = models.shared()
    with model, pytest.warns(RuntimeWarning, match="Hyperparameters did not converge after 3 iterations"):
        fit = pm.fit(method="nested_ep", callbacks=[callback], progressbar=False)
    assert [i for i, *_ in seen] == [1, 2, 3]
    assert len({mean for *_, mean in seen}) == 3
    assert fit.hist.shape == (4,)
    assert fit.hist[-1] == seen[-1][1]
    assert not fit.converged


def test_argument_n_limits_the_iterations():
    model, _ = models.shared()
    with model, pytest.warns(RuntimeWarning, match="did not converge"):
        fit = pm.fit(2, method="nested_ep", progressbar=False)
    assert fit.history.sizes["iteration"] == 3


def test_approximation_that_does_not_converge_is_reported():
    model, _ = models.fixed()
    with model, pytest.warns(RuntimeWarning, match="nested_ep ran out of iterations after 3 iterations"):
        fit = pm.fit(method="nested_ep", max_iterations=3, progressbar=False)
    assert not fit.converged
    assert np.isfinite(fit.log_evidence)
    model, _ = models.shared()
    with (
        model,
        pytest.raises(ValueError, match=r"cannot start: it ran out of iterations.*Increase max_iter"),
    ):
        pm.fit(method="nested_ep", max_iterations=3, progressbar=False)


def test_text_of_a_fit_without_hyperparameters_does_not_mention_them(fixed):
    assert fixed.fit.message.startswith("No hyperparameters; nested_ep converged after")


def test_error_names_a_prior_that_cannot_be_sampled():
    X, y = models.data()
    with pm.Model():
        prior = pm.gp.Latent(cov_func=1e7 * pm.gp.cov.ExpQuad(2, ls=3.0))
        f = prior.prior("f", X=X, n_outputs=3, jitter=0.0)
        gpep.MultinomialProbit("y", f.T, observed=y)
        fit = pm.fit(method="nested_ep", progressbar=False)
    with pytest.raises(ValueError, match=r"covariance of the latent values 'f' is not positive definite.*jitter"):
        fit.sample(2)


def test_error_names_inputs_that_are_not_finite():
    X, y = models.data()
    X[3, 1] = np.nan
    with pm.Model():
        f = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
        with pytest.raises(ValueError, match=r"inputs of 'f' are not finite in row 3\. Remove these rows"):
            pm.fit(method="nested_ep", progressbar=False)


def test_search_begins_at_the_given_start(shared):
    model = shared.model
    start = {"eta": 0.3, "ls": np.array([2.0, 0.5])}
    with model, pytest.warns(RuntimeWarning, match="did not converge"):
        fit = pm.fit(0, method="nested_ep", start=start, progressbar=False)
    assert float(fit.hyperparameters["eta"]) == pytest.approx(0.3)
    assert fit.hyperparameters["ls"].values == pytest.approx(start["ls"])


@pytest.fixture
def counted(monkeypatch):
    """Numbers of solves and of compiled graphs so far."""
    counts = {"solves": 0, "graphs": 0}

    def counting(module, name, what):
        original = getattr(module, name)

        def wrapper(*args, **kwargs):
            counts[what] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapper)

    counting(NestedEP, "run", "solves")
    counting(dense_log_posterior, "graph_function", "graphs")
    counting(prior_functions, "ModelFunctions", "graphs")
    return counts


def test_callback_causes_no_extra_evaluations(counted):
    model, _ = models.shared()
    spent = []
    for callbacks in (None, [lambda approx, losses, i: approx.hyper_posterior.weights]):
        before = dict(counted)
        with model:
            fit = pm.fit(method="nested_ep", callbacks=callbacks, progressbar=False)
        assert fit.converged
        spent.append({name: counted[name] - before[name] for name in counted})
    assert spent[0] == spent[1]


def test_refine_uses_stored_graphs_and_sites_again(counted):
    model, _ = models.shared()
    inference = GPInference("nested_ep", model)
    inference.fit(100, progressbar=False, include_transformed=True, compile_kwargs={"mode": "FAST_COMPILE"})
    kept = inference.approx.log_posterior
    before = dict(counted)
    inference.refine(1, progressbar=False)
    assert inference.approx.log_posterior is kept
    assert counted["graphs"] == before["graphs"]
    assert inference.approx.trace.history[0].iterations <= 2
    assert all(group.include_transformed for group in inference.approx.groups)


def test_refine_continues_the_search(shared):
    model, _ = models.shared()
    inference = GPInference("nested_ep", model)
    with pytest.warns(RuntimeWarning, match="did not converge"):
        inference.fit(2, progressbar=False)
    inference.refine(100, progressbar=False)
    assert inference.approx.converged
    found, expected = (fit.trace.best.log_posterior for fit in (inference.approx, shared.fit))
    assert found == pytest.approx(expected, abs=1e-5)  # the log posterior is flat here, and the evidence is not


def test_fit_shows_progress(shared, capsys):
    with shared.model:
        pm.fit(method="nested_ep")
    assert "nested_ep" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.usefixtures("c_compiler")
@pytest.mark.slow
def test_every_backend_gives_the_same_fit():
    with pm.Model():  # a model of few operations: the compiler takes a second for each
        pm.Bernoulli("y", logit_p=pm.Normal("f", 0.2, 2.0, shape=3), observed=[0, 1, 1])
        expected, fit = (pm.fit(method="ep", progressbar=False, **more) for more in ({}, {"backend": "c"}))
    assert fit.log_evidence == pytest.approx(expected.log_evidence, abs=1e-8)
