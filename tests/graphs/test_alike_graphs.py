"""A graph that equals a stored graph is not rewritten again, and uses its own constants."""

from collections import OrderedDict

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from scipy.sparse import csr_matrix

import pymc_gpep as gpep
from pymc_gpep.approximations import approximator
from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.graphs import alike_graphs
from pymc_gpep.graphs.alike_graphs import arrays_as_shared
from pymc_gpep.graphs.interpreted import evaluate, interpreted
from pymc_gpep.likelihoods.bernoulli import ProbitLikelihood
from pymc_gpep.reading import StructureError
from tests.graph_modes import rewritten


@pytest.fixture
def kept(monkeypatch):
    """The stored graphs, initially empty."""
    graphs = OrderedDict()
    monkeypatch.setattr(alike_graphs, "_kept", graphs)
    return graphs


def _product(values, factor=2.0):
    x = pt.dvector("x")
    return interpreted([x], [pt.exp(x) * pytensor.shared(values, shape=(None,)) * factor])


def test_second_alike_graph_is_not_rewritten_and_has_its_own_values(kept):
    x = np.array([0.1, 0.2, 0.3])
    first = _product(np.array([1.0, 2.0, 3.0]))
    second = _product(np.array([4.0, 5.0, 6.0]))
    assert len(kept) == 1
    np.testing.assert_allclose(first(x)[0], 2 * np.exp(x) * [1.0, 2.0, 3.0])
    np.testing.assert_allclose(second(x)[0], 2 * np.exp(x) * [4.0, 5.0, 6.0])


def test_graphs_with_different_constants_types_or_operations_are_not_exchanged():
    x = np.array([0.1, 0.2])
    values = np.ones(2)
    np.testing.assert_allclose(_product(values, 3.0)(x)[0], 3 * np.exp(x))
    np.testing.assert_allclose(_product(values, 4.0)(x)[0], 4 * np.exp(x))
    y = pt.dvector("y")
    np.testing.assert_allclose(interpreted([y], [pt.exp(y) - y])(x)[0], np.exp(x) - x)
    np.testing.assert_allclose(interpreted([y], [pt.exp(y) + y])(x)[0], np.exp(x) + x)
    z = pt.vector("z", dtype="int64")
    found = [interpreted([v], [v / 2])(np.array([1, 2], v.dtype))[0] for v in (y, z)]
    np.testing.assert_allclose(found[0], found[1])


def test_graphs_with_inputs_in_another_order_are_not_exchanged():
    x, y = pt.dscalars("x", "y")
    assert interpreted([x, y], [x - 2 * y])(5.0, 1.0) == [3.0]
    assert interpreted([y, x], [x - 2 * y])(5.0, 1.0) == [-9.0]
    assert interpreted([x, y], [x - 2 * y, x])(5.0, 1.0) == [3.0, 5.0]


def test_graph_with_a_constant_changed_in_place_is_rewritten_again():
    """PyTensor stores the caller's array without a copy. Rewriting computes expressions of constants."""
    values = np.array([1.0, 2.0, 4.0])
    x = pt.dscalar("x")
    with rewritten():
        for _ in range(2):
            (found,) = interpreted([x], [pt.exp(pt.constant(values)) * x])(1.0)
            np.testing.assert_allclose(found, np.exp(values))
            values[:] = values[::-1].copy()


def test_graph_with_a_scanned_array_changed_in_place_is_rewritten_again():
    values, x = np.array([1.0, 2.0, 4.0]), pt.dvector("x")
    for _ in range(2):
        with rewritten():
            steps = pytensor.scan(
                lambda one, sum_: sum_ + one + pt.exp(pt.constant(values)),
                sequences=[x],
                outputs_info=[pt.zeros(3)],
                return_updates=False,
            )
            (found,) = interpreted([x], [steps[-1]])([1.0, 2.0])
        np.testing.assert_allclose(found, 3 + 2 * np.exp(values))
        values[:] = values[::-1].copy()


def test_stored_graph_has_its_own_copy_of_constants():
    values, x = np.array([1.0, 2.0, 4.0]), pt.dscalar("x")
    for _ in range(2):
        np.testing.assert_allclose(interpreted([x], [pt.constant(values) * x])(2.0)[0], [2.0, 4.0, 8.0])
        before, values = values, values.copy()
        before += 1


def test_graphs_with_different_small_sparse_constants_are_not_exchanged():
    """PyTensor compares sparse constants with a tolerance, so small constants are equal for PyTensor."""
    x = pt.dmatrix("x")
    for scale in (1e-7, 3e-7):
        matrix = ps.as_sparse_variable(csr_matrix(scale * np.eye(3)))
        found = interpreted([x], [ps.structured_dot(matrix, x)])(np.ones((3, 1)))[0]
        np.testing.assert_allclose(found, scale)


def test_graphs_with_positive_and_negative_zeros_are_not_exchanged():
    x = pt.dscalar("x")
    for zero in (0.0, -0.0):
        assert interpreted([x], [pt.arctan2(pt.constant(zero), x)])(-1.0)[0] == np.arctan2(zero, -1.0)


def test_input_that_is_an_output_of_a_node_is_replaced_in_the_graph():
    given, a = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[2.0, 1.0], [1.0, 3.0]])
    expected = np.linalg.qr(a)[1]
    for first in (True, False):
        x = pt.dmatrix("x")
        q, r = pt.linalg.qr(x)
        (found,) = interpreted([q, x], [q - r if first else r - q])(given, a)
        np.testing.assert_allclose(found, given - expected if first else expected - given)


def test_function_reads_the_shared_variable_of_its_caller():
    """Each function sees new values of its own shared variable."""
    held = [pytensor.shared(np.arange(3.0)) for _ in range(2)]
    functions = [interpreted([], [pt.cumsum(each) * 7]) for each in held]
    held[1].set_value(np.ones(3))
    np.testing.assert_allclose(functions[0]()[0], [0.0, 7.0, 21.0])
    np.testing.assert_allclose(functions[1]()[0], [7.0, 14.0, 21.0])


@pytest.mark.filterwarnings("ignore:.*default_update:DeprecationWarning")  # deprecated, and still accepted by PyTensor
def test_update_of_a_shared_variable_is_applied():
    """Updates are outputs of the rewritten graph, but not outputs of the function."""
    x = pt.dscalar("x")
    for _ in range(2):
        count = pytensor.shared(np.array(3.0))
        count.default_update = count + 1.0
        function = interpreted([x], [x * count, x - count])
        assert [float(each) for each in function(2.0)] == [6.0, -1.0]
        assert [float(each) for each in function(2.0)] == [8.0, -2.0]


def test_random_graph_is_refused_in_each_evaluation():
    for _ in range(2):
        with pytest.raises(StructureError, match="drawn anew"):
            evaluate([pm.Normal.dist() + 1])


def _fitted(seed, method, rows=25):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 2))
    with pm.Model():
        gp = pm.gp.Latent(cov_func=2.0 * pm.gp.cov.ExpQuad(2, ls=pm.Gamma("ls", 2, 1)))
        f = gp.prior("f", X=X, jitter=1e-6)
        gpep.Probit("y", f, observed=(X[:, 0] > 0).astype(int))
        return pm.fit(method=method, progressbar=False, random_seed=1)


def test_model_is_rewritten_once_for_two_data_sets_and_two_methods(kept, monkeypatch):
    """The second fit uses the stored graphs of prior and log posterior. Its result equals a fit without them."""
    first = _fitted(1, "ep")
    large = [key for key in kept if len(key[2]) > 10]
    assert len(large) == 2
    second = _fitted(2, "kl")
    assert [key for key in kept if len(key[2]) > 10] == large
    monkeypatch.setattr(alike_graphs, "_MOST_BYTES", -1)
    alone = _fitted(2, "kl")
    np.testing.assert_array_equal(second.theta, alone.theta)
    assert second.log_evidence == alone.log_evidence != first.log_evidence


@pytest.mark.variation
def test_model_is_rewritten_once_for_two_numbers_of_rows(kept, monkeypatch):
    """Folds of a cross-validation differ by a row. Fits and predictions use stored graphs."""
    new = np.ones((3, 2))
    _fitted(1, "ep").predict(new, progressbar=False)
    large = [key for key in kept if len(key[2]) > 10]
    assert len(large) == 3
    second = _fitted(2, "ep", rows=26)
    probabilities = second.predict(new, progressbar=False)["p"].values
    assert {key for key in kept if len(key[2]) > 10} == set(large)
    monkeypatch.setattr(alike_graphs, "_MOST_BYTES", -1)
    alone = _fitted(2, "ep", rows=26)
    np.testing.assert_array_equal(second.theta, alone.theta)
    np.testing.assert_array_equal(probabilities, alone.predict(new, progressbar=False)["p"].values)


def test_graph_does_not_contain_the_lengths_of_its_arrays():
    """The graph works for any number of rows. The constant 30 that is not a length stays."""
    x = pt.constant(np.arange(60.0).reshape(30, 2))
    fixed = x @ x.T + pt.eye(30)
    outputs = arrays_as_shared([fixed * pt.zeros((1, 30)), pt.constant(30)])
    left = [int(v.data) for v in ancestors(outputs[:1]) if isinstance(v, Constant) and not v.ndim]
    assert 30 not in left
    shared = {v.name: v for v in ancestors(outputs) if isinstance(v, SharedVariable)}
    shared["array"].set_value(np.ones((20, 2)))
    shared["length"].set_value(20)
    zeros, number = pytensor.function([], outputs, mode="FAST_COMPILE")()
    assert zeros.shape == (20, 20)
    assert number == 30


def test_numbers_other_than_lengths_stay_constant():
    """Fill values, vector entries and offsets stay constants, even if their values equal or round to a length."""
    row = pt.constant(np.linspace(0.0, 1.0, 17))
    outputs = [
        pt.full((17,), 17.9) + row,
        pt.stack([-20.5, row.sum(), 17.9]),
        pt.eye(17, 17, 20) + row,
        pt.stack([pt.constant(17, dtype="int32"), row.size.astype("int32")]),
        pt.full((17,), 18) + row,
    ]
    before = pytensor.function([], outputs, mode="FAST_COMPILE")()
    after = pytensor.function([], arrays_as_shared(outputs), mode="FAST_COMPILE")()
    for found, expected in zip(after, before, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_constant_evidence_is_not_shared_between_methods():
    """Rewriting evaluates expressions of constants, with the method of the graph."""
    k, mean, labels = np.eye(5)[None], np.zeros((1, 5)), np.array([0, 1, 1, 0, 1])
    found = {}
    for method in ("ep", "kl"):
        op = Evidence(approximator(method, ProbitLikelihood(), {}), ProbitLikelihood())
        graph = op(k, mean, labels)
        (found[method],) = evaluate([graph])
        assert found[method] == op.evaluate(k, mean, labels, np.zeros(graph.owner.inputs[3].type.shape))[0]
    assert found["ep"] != found["kl"]


def test_number_of_stored_graphs_is_bounded(kept, monkeypatch):
    monkeypatch.setattr(alike_graphs, "_MOST_GRAPHS", 3)
    x = pt.dscalar("x")
    for factor in range(2, 7):
        assert interpreted([x], [x * factor])(1.0) == [factor]
    assert len(kept) == 3


def test_stored_graphs_do_not_refer_to_data(kept):
    """No reference leads to variables of the model or shared variables, which are therefore freed with the fit."""
    fit = _fitted(1, "ep")
    model = fit.log_posterior.classifier.model
    for graph in kept.values():
        reached = set(ancestors(graph.outputs))
        assert reached.isdisjoint(model.basic_RVs + model.value_vars)
        assert not [each for each in reached if isinstance(each, SharedVariable)]
