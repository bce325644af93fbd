"""Settings and fixtures of all tests, and fits that several files of tests share."""

import gc
import os
import signal
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import psutil
import pymc as pm
import pytensor
import pytest

from pymc_gpep.variational import inference
from tests import graph_modes, models
from tests.compile_once import compile_once
from tests.short_lived import ShortLived

# Tests of compiled graphs use the fixture `machine_code` or name their mode. Tests of C use `c_compiler`.
_CXX = pytensor.config.cxx
graph_modes.interpret_graphs()
# Variables do not record the source lines that made them, which takes a seventh of the time of a graph.
pytensor.config.traceback__limit = 0
graph_modes.make_functions_quickly()

# Most tests of Gaussian processes use the maximum. Tests of the default restore it.
inference._MOST_OF_PROCESSES = 0

_WORKER = "PYTEST_XDIST_WORKER" in os.environ
_FORKS = _WORKER and sys.platform == "linux"
if _WORKER:
    compile_once()

# A shell starts background jobs with interrupts ignored, and tests interrupt fits.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Folders and files whose graphs are rewritten as for users. They contain each kind of graph, and graphs that are
# evaluated often. In all other files results do not depend on rewriting, which would take most of the time.
_REWRITTEN = {
    "approximations/test_negative_sites.py",
    "checks/test_other_mode.py",
    "evidence/test_evidence.py",
    "samplers",
    "golden",
    "streaming/test_step.py",
    "graphs/test_interpreted.py",
    "reading/test_pymc_differences.py",
    "recipes/test_recipes.py",
    "graphs/test_rewrites.py",
    "reading/test_support.py",
    "rivals/test_active_log_posterior.py",
    "hyper/test_log_posterior.py",
    "hyper/test_sparse_log_posterior.py",
}
_NOT_REWRITTEN = {"samplers/test_inducing_model.py", "samplers/test_sum_values.py"}
"""Files of these folders that evaluate each graph only a few times."""
_EXTRA = {"cluster", "benchmarks", "test_docstring_examples.py", "test_examples.py"}
_GARBAGE = 150e6  # bytes
_process = psutil.Process()
_kept = _process.memory_info().rss


def pytest_collection_finish(session):
    """Exclude imported modules from garbage collection, which would visit them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    if _FORKS:
        session.config.pluginmanager.register(ShortLived(_make_shared))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Deselect tests that have a make target of their own: clusters, commands, examples and docstrings.

    In a test with the mark `variation`, the parameters that the mark names run with the quick tests, and all other
    parameters with the slow tests.
    """
    here = Path(__file__).parent
    named, found = set(), set()
    for item in items:
        if item.path.relative_to(here).parts[0] in _EXTRA:
            item.add_marker("extra")
        for mark in list(item.iter_markers("variation")):
            of, kept = item.nodeid.partition("[")[0], mark.kwargs.get("but", [])
            named |= {(of, each) for each in kept}
            if kept and item.callspec.id in kept:
                found.add((of, item.callspec.id))
            else:
                item.add_marker(pytest.mark.slow("a variation"))
    if (missing := named - found) and not any("::" in each for each in config.args):
        raise pytest.UsageError(f"Marks `variation` name parameters that do not exist: {sorted(missing)}.")


@pytest.fixture(scope="module", autouse=True)
def memory_given_back():
    """Free graphs of a file of tests before the next file starts, if there are many.

    Graphs have reference cycles. A collection visits all living objects, so that it takes longer with each file. With
    short-lived processes, the end of a process frees the graphs.
    """
    global _kept
    yield
    if not _FORKS and _process.memory_info().rss > _kept + _GARBAGE:
        gc.collect()
        _kept = _process.memory_info().rss


@pytest.fixture(scope="module", autouse=True)
def rewriting(request):
    """Rewrite graphs as for users in tests of rewriting, and hardly in other tests."""
    file = request.path.relative_to(Path(__file__).parent)
    names = {file.parts[0], file.as_posix()}
    as_for_users = names & _REWRITTEN and not names & _NOT_REWRITTEN
    with nullcontext() if as_for_users else graph_modes.hardly_rewritten():
        yield


@pytest.fixture(autouse=True)
def rewriting_of_slow_tests(request):
    """Rewrite graphs in slow tests, which mostly evaluate them: rewritten graphs are faster to evaluate.

    A variation uses the graphs of the test that it varies.
    """
    long = any(not mark.args for mark in request.node.iter_markers("slow"))
    with graph_modes.rewritten() if long else nullcontext():
        yield


@pytest.fixture
def machine_code():
    """Compile graphs as PyMC does for users."""
    with pytensor.config.change_flags(mode="NUMBA"):
        yield


@pytest.fixture
def c_compiler():
    """Let PyTensor find a C compiler, if one is installed."""
    if not _CXX:
        pytest.skip("there is no C compiler")
    with pytensor.config.change_flags(cxx=_CXX):
        yield


@cache
def _fit(build, **kwargs):
    model, gp = build()
    with model, graph_modes.hardly_rewritten():
        fit = pm.fit(method="nested_ep", progressbar=False, random_seed=1, **kwargs)
    return models.Fitted(model, gp, *models.data(), fit)


def _centred():
    return models.shared(rotated=False)


@cache
def _fit_again(**kwargs):
    with _fit(models.shared).model, graph_modes.hardly_rewritten():
        return pm.fit(progressbar=False, random_seed=1, **kwargs)


def _make_shared():
    """Make the shared fits once, before the processes that run tests are forked."""
    _fit(models.shared)
    _fit(_centred)
    _fit(models.per_class, hyperparameters=models.MEANS)
    _fit(models.fixed)
    _fit_again(method="iep")
    _fit_again(method="nested_ep", hyper="ccd")


@pytest.fixture(scope="session")
def shared():
    return _fit(models.shared)


@pytest.fixture(scope="session")
def centred():
    return _fit(_centred)


@pytest.fixture(scope="session")
def per_class():
    return _fit(models.per_class, hyperparameters=models.MEANS)


@pytest.fixture(scope="session")
def fixed():
    return _fit(models.fixed)


@pytest.fixture(scope="session")
def shared_iep():
    """Fit of the model of `shared` by class-independent EP."""
    return _fit_again(method="iep")


@pytest.fixture(scope="session")
def shared_ccd():
    """Fit of the model of `shared` with the hyperparameters integrated out."""
    return _fit_again(method="nested_ep", hyper="ccd")


@pytest.fixture(scope="session")
def shared_mcmc(shared):
    """A few draws of the model of `shared` by PyMC's NUTS, with short trajectories. Only their format matters."""
    with shared.model:
        return pm.sample(
            50,
            tune=20,
            chains=2,
            cores=1,
            nuts_sampler="pymc",
            progressbar=False,
            random_seed=1,
            compute_convergence_checks=False,
            nuts={"max_treedepth": 3, "early_max_treedepth": 3},
        )
