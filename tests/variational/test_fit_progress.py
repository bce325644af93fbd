"""Progress of a fit: messages, interrupts, and compilation."""

import signal
import threading

import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_gpep as gpep
from pymc_gpep.hyper import optimum as ends
from pymc_gpep.variational.fit_run import FitProgress, FitRun, compilation
from tests import models


def fit(model, **kwargs):
    with model:
        return pm.fit(method="nested_ep", random_seed=1, **{"progressbar": False} | kwargs)


@pytest.fixture
def interrupt(monkeypatch):
    """Send Ctrl-C's signal to this process at given sweeps of the solver, counted over the whole fit."""

    def at(*sweeps):
        seen = []

        def sweep(self, number, evidence, residual):
            seen.append(number)
            if len(seen) in sweeps:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(FitProgress, "sweep", sweep)
        return seen

    return at


def test_interrupt_before_a_fit_begins_ends_its_contexts(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pymc_gpep.variational.fit_run.compilation", interrupt)
    threads = threading.active_count()
    with pytensor.config.change_flags(traceback__limit=3):
        with pytest.raises(KeyboardInterrupt), FitRun("ep", None, True, None):
            pass
        assert pytensor.config.traceback__limit == 3
    assert threading.active_count() == threads


def test_progress_names_each_stage_before_it_starts(capsys, monkeypatch):
    monkeypatch.setattr("pymc_gpep.variational.fit_run._QUIET", -1.0)
    model, _ = models.probit()
    said = []

    def look(*_):
        said.append(capsys.readouterr().out)

    fit(model, progressbar=True, callbacks=[look])
    assert "making the graph" in said[0]
    assert "first solve" in said[0]


@pytest.mark.parametrize("lines", [0, 1])
def test_short_fit_prints_at_most_one_line_into_a_pipe(capsys, lines):
    model, _ = models.probit()
    fit(model, hyper="ccd", progressbar=bool(lines))
    printed = [line for line in capsys.readouterr().out.splitlines() if "compiling" not in line]
    assert len(printed) == lines
    assert all(line.startswith("nested_ep: iteration ") and line.endswith(" s") for line in printed)


def test_progress_of_a_long_solve_shows_its_sweeps(capsys, monkeypatch):
    monkeypatch.setattr("pymc_gpep.variational.fit_run._PATIENCE", -1.0)
    monkeypatch.setattr("pymc_gpep.variational.fit_run._QUIET", -1.0)
    model, _ = models.fixed()
    fit(model, progressbar=True)
    assert "solve 1: sweep 2, residual" in capsys.readouterr().out


def test_interrupt_in_a_solve_keeps_the_best_point(interrupt):
    model, _ = models.shared()
    whole = fit(model)
    seen = interrupt(30)
    with pytest.warns(RuntimeWarning, match="Interrupted"):
        stopped = fit(model)
    assert len(seen) == 30  # no further solve is made before the solution is requested
    assert stopped.convergence.iterations < 8  # the final solve starts from the last sites
    assert not stopped.converged
    assert "Interrupted" in stopped.message
    history = stopped.history.log_posterior.values
    assert 1 < history.size <= whole.history.sizes["iteration"]
    assert stopped.trace.best.log_posterior == history.max()
    assert np.isfinite(stopped.log_evidence)


def sparse_fit(model, **options):
    with model:
        return pm.fit(method="sparse_ep", inducing=5, random_seed=1, progressbar=False, **options)


@pytest.mark.variation(but=["{'learn_inducing': True, 'n': 6}"])
@pytest.mark.parametrize("options", [{"learn_inducing": True, "n": 6}, {"update": "inner", "n": 40}], ids=str)
@pytest.mark.filterwarnings("ignore:Hyperparameters and inducing inputs did not converge:RuntimeWarning")
def test_interrupt_in_a_sweep_over_rows_keeps_the_best_point(interrupt, options):
    model, _ = models.probit()
    interrupt(0)
    first = sparse_fit(model, **options).history.log_posterior.values[0]
    seen = interrupt(35)
    with pytest.warns(RuntimeWarning, match="Interrupted"):
        stopped = sparse_fit(model, **options)
    assert len(seen) == 35  # no further solve is made before the solution is requested
    assert not stopped.converged
    history = stopped.history.log_posterior.values
    assert stopped.trace.best.log_posterior == history.max() >= first
    p = stopped.predict(models.data()[0][:3], progressbar=False).p
    np.testing.assert_allclose(p.sum(p.dims[1]), 1.0)


@pytest.mark.parametrize("made", [fit, sparse_fit])
def test_interrupt_in_the_last_solve_keeps_the_result(interrupt, made):
    model, _ = models.probit()
    seen = interrupt(0)
    whole = made(model)
    last = len(seen)
    seen = interrupt(last)
    with pytest.warns(RuntimeWarning, match="the search ended, and its last solve was interrupted"):
        stopped = made(model)
    assert len(seen) == last
    assert not stopped.converged
    assert stopped.log_evidence == pytest.approx(whole.log_evidence, abs=1e-6)
    assert float(stopped.hyperparameters.ls) == pytest.approx(float(whole.hyperparameters.ls), rel=1e-6)


def test_interrupt_after_the_search_keeps_the_result(monkeypatch):
    """After the search, the fit looks for a border of the prior's support, where the log posterior may still rise."""
    X, y = models.data()

    def stop(*_):
        raise KeyboardInterrupt

    with pm.Model():
        eta = pm.Uniform("eta", 0.1, 0.5, default_transform=None)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X)
        pm.Bernoulli("y", logit_p=f, observed=y == 2)
        monkeypatch.setattr(ends, "_at_a_border", stop)
        with pytest.warns(RuntimeWarning, match="the search ended, and the check of its end was interrupted"):
            stopped = pm.fit(method="laplace", progressbar=False)
    assert float(stopped.hyperparameters.eta) == pytest.approx(0.5, rel=0.01)
    assert np.isfinite(stopped.log_evidence)


def test_interrupt_before_the_first_evaluation_is_raised(interrupt):
    model, _ = models.shared()
    interrupt(2)
    with pytest.raises(KeyboardInterrupt):
        fit(model)


def test_interrupted_integration_keeps_the_maximum(interrupt):
    model, _ = models.probit()
    seen = interrupt()
    maximum = fit(model)
    interrupt(len(seen) + 3)
    with pytest.warns(RuntimeWarning, match="was interrupted"):
        stopped = fit(model, hyper="ccd")
    assert len(stopped.hyper_posterior) == 1
    assert not stopped.converged
    assert stopped.log_evidence == pytest.approx(maximum.log_evidence)


@pytest.mark.filterwarnings("ignore:.*did not converge:RuntimeWarning")
def test_second_model_needs_no_compilation():
    """Only kernels are compiled, for all shapes and structures of models."""
    first, gp = models.probit()
    fit(first).predict(gp, models.data()[0][:3])
    compiled = []
    with compilation(compiled.append) as listener:
        model, gp = models.shared()
        result = fit(model, n=1)
        result.predict(gp, models.data()[0][:3])
        result.sample(5)
    assert compiled == []
    assert listener.seconds == 0.0


def test_seconds_exclude_compilation():
    model, _ = models.probit()
    result = fit(model)
    assert 0.0 < result.seconds < 10.0
    assert 0.0 < result.compile_seconds < 60.0


@pytest.mark.parametrize(
    "kwargs",
    [pytest.param({"backend": "numba"}, marks=pytest.mark.slow), {"compile_kwargs": {"mode": "FAST_COMPILE"}}],
    ids=str,
)
def test_results_do_not_depend_on_the_backend_of_graphs(kwargs):
    X, y = models.data()
    with pm.Model() as model:  # a covariance without matrix products, which numba compiles fastest
        ls, eta = pm.LogNormal("ls", 0, 0.5), pm.HalfNormal("eta", 3)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Periodic(1, period=9.0, ls=ls))
        gpep.MultinomialProbit("y", gp.prior("f", X=X[:, :1], n_outputs=3).T, observed=y)
    interpreted, other = fit(model), fit(model, **kwargs)
    assert other.log_evidence == pytest.approx(interpreted.log_evidence, rel=1e-9)
    for name, value in interpreted.hyperparameters.items():
        assert np.allclose(other.hyperparameters[name], value, rtol=1e-5)


@pytest.mark.variation
def test_repeated_fits_release_memory():
    import gc
    import weakref

    def once():
        model, _ = models.probit()
        result = fit(model)
        return weakref.ref(result), weakref.ref(model)

    references = [once() for _ in range(2)]
    gc.collect()
    assert [alive for pair in references for alive in pair if alive() is not None] == []


def test_message_names_compilation_and_its_time():
    import numba

    compiled = []
    with compilation(compiled.append) as listener:
        inner = numba.njit(lambda x: x + 1)

        @numba.njit
        def outer(x):
            return inner(x)

        outer(1)
        outer(2)
    assert compiled == ["outer"]
    assert listener.seconds > 0.0
