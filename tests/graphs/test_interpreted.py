"""Interpreted graphs do not need a compiler."""

import platform
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.link.c.basic import CLinker

import pymc_gpep as gpep
from pymc_gpep import pytensor_settings
from pymc_gpep.graphs.interpreted import (
    GraphFunction,
    ModelFunctions,
    evaluate,
    graph_function,
    interpreted,
)
from pymc_gpep.pytensor_settings import without_c_compiler, without_traces
from tests.interrupted_calls import interrupt, moments_of


@pytest.mark.usefixtures("c_compiler")
def test_graphs_within_graphs_are_not_compiled_by_c(monkeypatch):
    """The log density with label noise contains an inner graph, as a random variable and as a log density."""

    def compiled(*_, **__):
        raise AssertionError("the C compiler was called")

    monkeypatch.setattr(CLinker, "compile_cmodule", compiled)
    with pm.Model() as model:
        f = pm.Normal("f", shape=(4, 3))
        gpep.MultinomialProbit("y", f, epsilon=0.25, observed=[0, 1, 2, 0])
    log_p = model.logp(vars=model["y"])
    (found,) = graph_function(model, model.value_vars, [log_p])(np.zeros((4, 3)))
    assert found == pytest.approx(4 * np.log(1 / 3))
    constant = pm.logp(gpep.MultinomialProbit.dist(np.zeros((4, 3)), epsilon=0.25), [0, 1, 2, 0])
    np.testing.assert_allclose(*evaluate([constant]), np.log(1 / 3))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries release memory at other sizes")
def test_evaluation_reuses_memory():
    """Run alone in a process, the test fails on systems that take back the memory of freed arrays at once."""
    resource = pytest.importorskip("resource")
    x = pt.dmatrix("x")
    function, value = interpreted([x], [pt.exp(k * x) for k in range(1, 12)]), np.zeros((600, 600))
    faults = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        function(value)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    pages = value.nbytes / resource.getpagesize()
    assert min(faults[1:]) < pages, f"{faults} pages were cleared; an array has {pages:.0f}."


def test_random_variables_are_replaced_before_their_data():
    with pm.Model() as model:
        x = pm.Data("x", [1.0, 2.0])
        tau = pm.HalfNormal("tau")
        mu = pm.Normal("mu", x.sum())
    new = pt.dvector("new")
    functions = ModelFunctions(model, [tau, mu], {x: pt.constant([3.0, 4.0])})
    point = functions.nearby(np.random.default_rng(1))
    assert list(point) == functions.names == ["tau_log__", "mu"]
    function = functions([tau * x, mu + x], [new], {x: new})
    for values in ([1.0, 1.0], [0.0, 2.0]):
        product, total = function(point, values)
        np.testing.assert_allclose(product, np.exp(point["tau_log__"]) * np.array(values))
        np.testing.assert_allclose(total, point["mu"] + np.array(values))
    np.testing.assert_allclose(*functions([x])(point), [3.0, 4.0])
    assert functions([])(point) == []


def test_function_with_fixed_data_evaluates_expressions_of_data_once():
    calls = []

    @pytensor.wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
    def counted(values):
        calls.append(values.sum())
        return 2.0 * values

    x, data = pt.dvector("x"), pytensor.shared(np.arange(3.0))
    made = counted(data)
    # The caller may change a returned array that depends on data alone.
    outputs = [(pt.exp(made) * x).sum(), made + 1.0, pytensor.grad((pt.exp(made) * x).sum(), x)]
    plain = GraphFunction(interpreted([x], outputs))
    settled = plain.copy().settled()
    other, before = settled.copy(), len(calls)
    for seed in range(3):
        at = np.random.default_rng(seed).normal(size=3)
        expected = plain(at)
        for function in (settled, other):
            found = function(at)
            for own, its in zip(found, expected, strict=True):
                np.testing.assert_array_equal(own, its)
            found[1][:] = np.nan
    assert len(calls) == before + 3


@pytest.fixture
def frequent_switches():
    """Threads take turns so often that any race between them occurs."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_interrupt_at_any_call_restores_settings_of_pytensor():
    def work():
        with without_traces(), without_c_compiler(), without_traces():
            pass

    settings, files = ("cxx", "traceback__limit"), {pytensor_settings.__file__}
    before, total = [getattr(pytensor.config, each) for each in settings], moments_of(work, files)
    assert total > 10
    for moment in range(total):
        with pytest.raises(KeyboardInterrupt), interrupt(moment, files):
            work()
        assert [getattr(pytensor.config, each) for each in settings] == before


@pytest.mark.usefixtures("frequent_switches")
def test_functions_made_and_copied_by_several_threads_keep_settings_of_pytensor():
    settings = "mode", "cxx", "traceback__limit"
    before = [getattr(pytensor.config, each) for each in settings]

    def make(number):
        with without_traces():
            x = pt.dvector()
            function = GraphFunction(interpreted([x], [pt.exp(x * number).sum()]))
            return [function.copy()([1.0])[0] for _ in range(3)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(make, range(12)))
    assert [getattr(pytensor.config, each) for each in settings] == before
    np.testing.assert_allclose(found, np.exp(np.repeat(np.arange(12.0)[:, None], 3, axis=1)))


@pytest.mark.parametrize(("cause", "raised"), [(KeyboardInterrupt, KeyboardInterrupt), (ValueError, SystemError)])
def test_an_interrupt_in_numba_is_raised_as_an_interrupt(cause, raised):
    """Numba's C code raises a SystemError with the interrupt as its cause."""

    def kernel(_):
        try:
            raise cause
        except cause as error:
            raise SystemError("returned a result with an exception set") from error

    with pytest.raises(raised):
        GraphFunction(kernel)(0.0)
