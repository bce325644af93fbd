"""Rewritten graphs have the same values and derivatives, with fewer operations."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import GE, Mul
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot

from pymc_gpep.graphs.interpreted import INTERPRETED, Ufunc
from pymc_gpep.processes.stationary import scales_outside

PLAIN = Mode("py", None)
Z, X = (pt.tensor(name, dtype="float64", shape=(rows, 3)) for name, rows in (("z", 4), ("x", 5)))
SCALE, SCALES = pt.dscalar("scale"), pt.tensor("scales", dtype="float64", shape=(3,))
AT = [np.random.default_rng(0).normal(size=shape) for shape in ((4, 3), (5, 3))] + [1.7, np.array([0.5, 1.0, 2.0])]
COVARIANCES = {
    "one scale": lambda: pm.gp.cov.ExpQuad(3, ls=SCALE),
    "a scale for each column": lambda: pm.gp.cov.Matern52(3, ls=SCALES),
    "some columns": lambda: pm.gp.cov.Matern32(3, ls=SCALE, active_dims=[0, 2]),
    "sum and product": lambda: SCALE**2 * pm.gp.cov.ExpQuad(3, ls=SCALE) + pm.gp.cov.Linear(3, c=SCALES),
    "rational quadratic": lambda: pm.gp.cov.RatQuad(3, ls=SCALE, alpha=SCALE),
}


def values_and_slopes(graphs, mode):
    """Values of all graphs, and the derivatives of their sum of squares."""
    total = pt.add(*(pt.sqr(graph).sum() for graph in graphs))
    slopes = pytensor.grad(total, [Z, X, SCALE, SCALES], disconnected_inputs="ignore")
    return pytensor.function([Z, X, SCALE, SCALES], [*graphs, *slopes], mode=mode, on_unused_input="ignore")(*AT)


@pytest.mark.variation(but=["some columns"])
@pytest.mark.parametrize("name", COVARIANCES)
def test_moving_length_scales_out_of_distances_does_not_change_values(name):
    covariance = COVARIANCES[name]()
    graphs = [covariance(Z, Z), covariance(Z, X), covariance(X, diag=True)]
    plain = values_and_slopes(graphs, PLAIN)
    for mode in (PLAIN, INTERPRETED):
        for one, other in zip(values_and_slopes(scales_outside(graphs), mode), plain, strict=True):
            assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_common_length_scale_divides_products_instead_of_inputs():
    (graph,) = scales_outside([pm.gp.cov.ExpQuad(3, ls=SCALE)(Z, X)])
    product = next(each for each in ancestors([graph]) if each.owner is not None and isinstance(each.owner.op, Dot))
    assert SCALE not in ancestors([product])


def test_gradient_of_squared_distances_has_no_comparisons():
    """XLA may round a distance of 0 to either sign. Terms masked by a comparison would then differ."""
    plain = pm.gp.cov.ExpQuad(3, ls=SCALE)(Z, Z)
    for graph, compares in ((plain, True), (scales_outside([plain])[0], False)):
        nodes = [v.owner.op for v in ancestors([pytensor.grad(graph.sum(), Z)]) if v.owner is not None]
        assert any(isinstance(op, Elemwise) and isinstance(op.scalar_op, GE) for op in nodes) == compares


A, B, C = (pt.tensor(name, dtype="float64", shape=(2, 3, 3)) for name in "abc")
R, S = (pt.tensor(name, dtype="float64", shape=(2, 3, 1)) for name in "rs")
MANY = [pt.dvector(f"term_{i}") for i in range(70)]
SUMS = {
    "products with one factor": ([A, B, C], pt.matmul(A, C) + pt.matmul(B, C) + A, 1),
    "products with two factors": ([A, B, C], pt.matmul(A, C) + pt.matmul(B, A), 2),
    "multiples of rows": ([A, B, R, S], R * A * B + S * A * B, 0),
    "small factors": ([A, B, R, S], R * A * S * B, 0),
    "more than NumPy's functions take": (MANY, pt.add(*MANY), 0),
}


@pytest.mark.parametrize("name", SUMS)
def test_rewritten_sums_and_products_have_fewer_operations(name):
    inputs, graph, products = SUMS[name]
    rng = np.random.default_rng(1)
    at = [rng.normal(size=[2 if each is None else each for each in variable.type.shape]) for variable in inputs]
    function = pytensor.function(inputs, graph, mode=INTERPRETED)
    nodes = function.maker.fgraph.toposort()
    assert sum(isinstance(node.op, BatchedDot) for node in nodes) == products
    expected = np.sum(at, axis=0) if inputs is MANY else pytensor.function(inputs, graph, mode=PLAIN)(*at)
    assert_allclose(function(*at), expected, rtol=1e-12)


@pytest.mark.parametrize(("name", "most"), [("multiples of rows", 2), ("small factors", 2)])
def test_products_have_few_operands_of_the_full_shape(name, most):
    inputs, graph, _ = SUMS[name]
    nodes = pytensor.function(inputs, graph, mode=INTERPRETED).maker.fgraph.toposort()
    products = [node for node in nodes if isinstance(node.op, Ufunc) and isinstance(node.op.elemwise.scalar_op, Mul)]
    assert sum(v.type.shape == (2, 3, 3) for node in products for v in node.inputs) <= most


P, Q = pt.dvector("p"), pt.dmatrix("q")
OPERATIONS = {
    "one operand": (pt.exp(P), 1),
    "a function of SciPy": (pt.erfcx(P), 1),
    "a condition": (pt.switch(P > 0.0, P, -1.0), 2),
    "conditions": (pt.and_(P > 0.0, P < 1.0) * P, 4),
    "numbers of another type": (P + pt.arange(3), 1),
    "truths that are added": (pt.add(P > 0.0, P < 1.0), 2),
    "a function of its own": (pt.softplus(P), 1),
    "the end of a probability": (pt.log1mexp(-pt.abs(P)), 3),
    "derivatives of the gamma function": (pt.polygamma(1, pt.abs(P)) + pt.psi(pt.abs(P)), 4),
    "an incomplete beta function": (pt.betainc(2.5, 1.0, P) + pt.betainc(2.5, 1.5, P), 3),
    "no function of NumPy": (pt.round(P, mode="half_away_from_zero"), 0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_evaluated_by_numpy_functions(name):
    graph, count = OPERATIONS[name]
    found, plain = (pytensor.function([P], graph, mode=mode) for mode in (INTERPRETED, PLAIN))
    for at in ([0.5, -1.0, 2.0], [np.nan, np.inf, -np.inf]):
        one, other = found(at), plain(at)
        assert one.dtype == other.dtype
        assert_allclose(one, other, rtol=1e-12)
    assert sum(isinstance(node.op, Ufunc) for node in found.maker.fgraph.toposort()) == count


def test_unknown_shapes_are_checked_at_run_time():
    function = pytensor.function([P, Q], P + Q, mode=INTERPRETED)
    assert_allclose(function([1.0, 2.0], [[1.0, 2.0]] * 2), [[2.0, 4.0]] * 2)
    with pytest.raises(ValueError, match="broadcast"):
        function([1.0], [[1.0, 2.0]] * 2)


def test_rewritten_function_can_be_pickled():
    function = pytensor.function([P], pt.exp(P) + P, mode=INTERPRETED)
    assert_allclose(cloudpickle.loads(cloudpickle.dumps(function))([0.0, 1.0]), [1.0, np.e + 1.0])
