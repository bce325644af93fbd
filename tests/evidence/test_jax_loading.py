"""JAX support is loaded if JAX compiles operations of the package. The tests do not need JAX."""

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import FunctionGraph

from pymc_gpep.approximations import NestedEP
from pymc_gpep.evidence import jax_loading
from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.likelihoods.multinomial_probit_distribution import multinomial_probit_log_probability

F, Y = pt.dmatrix("f"), pt.lvector("y")


def evidence():
    return Evidence(NestedEP())(pt.dtensor3("k"), np.zeros((3, 4)), np.zeros(4, int))


OURS = {
    "log probability": lambda: multinomial_probit_log_probability(Y, F).sum(),
    "gradient": lambda: pt.grad(multinomial_probit_log_probability(Y, F).sum(), F),
    "Hessian": lambda: pt.grad(pt.grad(multinomial_probit_log_probability(Y, F).sum(), F)[0, 0], F),
    "evidence": evidence,
}


@pytest.fixture
def loaded(monkeypatch):
    """Names of the modules that the rewrite imports. They need not exist."""
    names = []
    monkeypatch.setattr(jax_loading, "import_module", names.append)
    return names


def rewrite(output, mode):
    graph = FunctionGraph(outputs=[output], clone=True)
    get_mode(mode).optimizer.rewrite(graph)


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_jax_dispatch_is_loaded_where_jax_compiles_operations_of_the_package(make, loaded):
    rewrite(make(), "JAX")
    assert loaded == ["pymc_gpep.evidence.jax_dispatch"]


def test_jax_dispatch_is_not_loaded_by_other_backends(loaded):
    rewrite(OURS["log probability"](), "NUMBA")
    assert loaded == []


def test_jax_dispatch_is_not_loaded_for_graphs_without_operations_of_the_package(loaded):
    rewrite(pt.exp(F).sum(), "JAX")
    assert loaded == []
