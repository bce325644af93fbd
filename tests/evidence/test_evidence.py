"""The evidence as an operation in PyTensor graphs: values, gradients, shapes, failures."""

import pickle
from functools import cache

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode
from pytensor.gradient import NullTypeGradError

from pymc_gpep.approximations import NestedEP
from pymc_gpep.evidence.evidence import Evidence
from pymc_gpep.kernels.status import CONVERGED, NOT_FINITE, NOT_POSITIVE_DEFINITE, OUT_OF_ITERATIONS
from tests.reference.data import random_problem

C, N, D = 3, 8, 3
TIGHT = NestedEP(tolerance=1e-12)
NUMBA, PYTHON = Mode(linker="numba"), Mode(linker="py", optimizer="fast_compile")
linkers = pytest.mark.parametrize("mode", [NUMBA, PYTHON], ids=["numba", "py"])
X = np.random.default_rng(0).standard_normal((N, D))
LABELS = np.arange(N) % C


def hyperparameters(per_class):
    """Names, values and symbols of all hyperparameters. Each is a vector with an entry for each covariance."""
    rng = np.random.default_rng(1)
    values = {}
    for k in range(C if per_class else 1):
        values |= {
            f"lengthscales_{k}": rng.uniform(0.5, 2.0, D),
            f"magnitude_{k}": np.array([1.5 + k]),
            f"centre_{k}": rng.normal(size=D),
            f"weight_{k}": np.array([0.4]),
            f"rough_{k}": rng.uniform(0.7, 1.5, D),
        }
    values["level"] = rng.normal(size=C)
    values["slope"] = rng.normal(size=(C * D))
    return values, {name: pt.vector(name, shape=value.shape) for name, value in values.items()}


def prior(symbols, per_class):
    """K of ARD exponentiated quadratic, linear and ARD Matérn covariances. The mean is linear in the inputs."""
    matrices = []
    for k in range(C if per_class else 1):
        of = {name.removesuffix(f"_{k}"): x for name, x in symbols.items() if name.endswith(f"_{k}")}
        cov = of["magnitude"][0] ** 2 * pm.gp.cov.ExpQuad(D, ls=of["lengthscales"])
        cov += of["weight"][0] * pm.gp.cov.Linear(D, c=of["centre"]) * pm.gp.cov.Matern52(D, ls=of["rough"])
        matrices.append(cov(X) + 1e-8 * pt.eye(N))
    return pt.stack(matrices), symbols["level"][:, None] + symbols["slope"].reshape((C, D)) @ X.T


def dense_inputs(seed=3, **kwargs):
    """Arrays for the four inputs: covariance (1, n, n), mean, labels, and a cold start."""
    problem = random_problem(seed, N, C, with_mean=True, **kwargs)
    return problem.K.reshape(-1, N, N), problem.m, problem.y, np.zeros(TIGHT.start_size(C, N))


@cache
def compiled(approximation=TIGHT, mode=NUMBA, outputs=slice(None), on_unused_input="raise"):
    inputs = [pt.dtensor3("k"), pt.dmatrix("mean"), pt.lvector("labels"), pt.dvector("start")]
    return pytensor.function(inputs, Evidence(approximation).make_node(*inputs).outputs[outputs], mode=mode)


def assert_gradient(k, mean, values, symbols, mode, directions):
    """Compare the gradient of the evidence with differences in some directions, for `symbols` at `values`."""
    evidence = Evidence(TIGHT)(k, mean, LABELS)
    arguments = list(symbols.values())
    flat, sizes = np.concatenate([x.ravel() for x in values.values()]), [x.size for x in values.values()]
    function = pytensor.function(arguments, [evidence, *pt.grad(evidence, arguments)], mode=mode, trust_input=True)

    def evaluate(theta):
        parts = np.split(theta, np.cumsum(sizes)[:-1])
        value, *gradient = function(*(x.reshape(y.shape) for x, y in zip(parts, values.values(), strict=True)))
        return value, np.concatenate([x.ravel() for x in gradient])

    _, gradient = evaluate(flat)
    assert (np.abs(gradient) > 1e-4).all()
    # Richardson extrapolation of two central differences removes their truncation error.
    fine, coarse = (
        np.array([evaluate(flat + h * step)[0] - evaluate(flat - h * step)[0] for step in directions]) / (2 * h)
        for h in (1e-3, 2e-3)
    )
    assert_allclose(directions @ gradient, (4 * fine - coarse) / 3, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("per_class", [False, True], ids=["shared", "per class"])
def test_gradient_in_every_hyperparameter_matches_differences(per_class):
    values, symbols = hyperparameters(per_class)
    size = sum(x.size for x in values.values())
    # The linker of plain Python is slow: use one random direction of all hyperparameters.
    signs = np.random.default_rng(2).choice([-1.0, 1.0], size=(2, size))
    assert_gradient(*prior(symbols, per_class), values, symbols, PYTHON, signs)


@pytest.mark.slow
def test_gradient_of_a_compiled_graph_matches_differences():
    """The graph has no matrix products of PyMC's covariances: numba compiles each in about 15 s."""
    rng = np.random.default_rng(1)
    values = {"inverse": rng.uniform(0.1, 1.0, (C, D)), "slope": rng.normal(size=(C, D))}
    symbols = {name: pt.matrix(name, shape=value.shape) for name, value in values.items()}
    squares = (X[:, None] - X) ** 2
    k = 4.0 * pt.exp(-(squares * symbols["inverse"][:, None, None]).sum(axis=-1)) + 1e-8 * np.eye(N)
    mean = (symbols["slope"][:, None] * X).sum(axis=-1)
    assert_gradient(k, mean, values, symbols, NUMBA, np.eye(sum(x.size for x in values.values())))


@pytest.mark.usefixtures("c_compiler")
def test_c_linker_gives_equal_evidence_and_gradient():
    arguments = dense_inputs()
    expected = compiled()(*arguments)
    for found, value in zip(compiled(mode=Mode(linker="cvm"))(*arguments), expected, strict=True):
        assert_allclose(found, value, rtol=1e-12)


@linkers
@pytest.mark.parametrize("per_class", [False, True], ids=["shared", "per class"])
def test_outputs_equal_the_solution(per_class, mode):
    k, mean, labels, start = dense_inputs(per_class=per_class)
    expected = TIGHT.solve(k, mean, labels)
    evidence, gradient_k, gradient_mean, sites, status, iterations, _ = compiled(mode=mode)(k, mean, labels, start)
    assert evidence == expected.evidence
    assert gradient_k.shape == k.shape
    assert_allclose(gradient_mean, expected.posterior.weights, rtol=1e-12)
    assert (sites == expected.start).all()
    assert (status, iterations) == (CONVERGED, expected.convergence.iterations)


def test_inputs_of_any_dtype_are_accepted():
    """PyTensor converts inputs to double precision before a linker calls the solver."""
    k, mean, labels, start = dense_inputs(per_class=True)
    inputs = [pt.ftensor3("k"), pt.fmatrix("mean"), pt.bvector("labels"), pt.dvector("start")]
    function = pytensor.function(inputs, Evidence(TIGHT)(*inputs), mode=PYTHON)
    single = k.astype("float32"), mean.astype("float32"), labels.astype("int8")
    expected = TIGHT.solve(single[0].astype(float), single[1].astype(float), labels).evidence
    assert function(*single, start) == pytest.approx(expected, rel=1e-12)


@linkers
def test_inputs_of_any_memory_layout_are_accepted(mode):
    k, mean, labels, start = dense_inputs(per_class=True)
    strided = np.asfortranarray(k), np.repeat(mean, 2, 1)[:, ::2], np.repeat(labels, 2)[::2], np.repeat(start, 2)[::2]
    assert compiled(mode=mode, outputs=0)(*strided) == pytest.approx(TIGHT.solve(k, mean, labels).evidence, rel=1e-12)


def test_inputs_are_not_modified():
    arguments = dense_inputs()
    before = [x.copy() for x in arguments]
    compiled()(*arguments)
    for x, y in zip(arguments, before, strict=True):
        assert (x == y).all()


@linkers
def test_warm_start_reaches_the_same_solution_sooner(mode):
    k, mean, labels, start = dense_inputs(variance=30.0)
    function = compiled(NestedEP(tolerance=1e-10), mode=mode)
    cold = function(k, mean, labels, start)
    warm = function(k, mean, labels, cold[3])
    assert warm[0] == pytest.approx(cold[0], abs=1e-10)
    assert_allclose(warm[1], cold[1], atol=1e-8)
    assert warm[5] < cold[5] / 2


def test_cold_start_is_the_default():
    k, mean, labels, start = dense_inputs()
    op = Evidence(TIGHT)
    assert op(k, mean, labels).eval() == op(k, mean, labels, start).eval()


def test_shapes_are_inferred_without_solving():
    inputs = pt.dtensor3("k"), pt.dmatrix("mean"), pt.lvector("labels")
    outputs = Evidence(TIGHT).make_node(*inputs, np.zeros(TIGHT.start_size(C, N))).outputs
    function = pytensor.function(inputs, [x.shape for x in outputs], on_unused_input="ignore", mode="FAST_RUN")
    assert not any(isinstance(node.op, Evidence) for node in function.maker.fgraph.apply_nodes)
    k, mean, labels, start = dense_inputs()
    shapes = [tuple(shape) for shape in function(k, mean, labels)]
    assert shapes == [(), k.shape, mean.shape, start.shape, (), (), (0, N)]


def test_static_shapes_are_kept():
    node = Evidence(TIGHT).make_node(*(pt.as_tensor_variable(x) for x in dense_inputs(per_class=True)))
    assert [x.type.shape for x in node.outputs] == [(), (C, N, N), (C, N), (2 * N * (C - 1),), (), (), (0, N)]


@linkers
@pytest.mark.parametrize(
    ("entry", "approximation", "status"),
    [
        (5.0, TIGHT, NOT_POSITIVE_DEFINITE),
        (np.nan, TIGHT, None),
        (np.inf, TIGHT, None),
        (0.1, NestedEP(max_iterations=2), OUT_OF_ITERATIONS),
    ],
    ids=["indefinite", "NaN", "infinite", "out of iterations"],
)
def test_failure_returns_nan_and_a_status(entry, approximation, status, mode):
    _, mean, labels, start = dense_inputs()
    k = np.eye(N)[None]
    k[0, 0, 1] = k[0, 1, 0] = entry
    evidence, gradient_k, gradient_mean, _, found, *_ = compiled(approximation, mode=mode)(k, mean, labels, start)
    assert found in ([status] if status is not None else [NOT_FINITE, NOT_POSITIVE_DEFINITE])
    assert np.isnan(evidence)
    assert np.isnan(gradient_k).all()
    assert np.isnan(gradient_mean).all()


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, np.eye(N), "k, the array of the prior, must have 3 axes, but has 2"),
        (1, np.zeros(N), "mean must have 2 axes, but has 1"),
        (2, np.zeros((N, 1), int), "labels must have 1 axes, but has 2"),
        (3, np.zeros((2, N, C - 1)), "start must have 1 axes, but has 3"),
    ],
)
def test_wrong_number_of_axes_raises_type_error(position, value, message):
    arguments = list(dense_inputs())
    arguments[position] = value
    with pytest.raises(TypeError, match=message):
        Evidence(TIGHT)(*arguments)


@linkers
@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, np.stack([np.eye(N)] * 2)),
        (0, np.eye(N + 1)[None]),
        (2, np.zeros(N - 1, int)),
        (2, np.full(N, C)),
        (2, np.full(N, -1)),
        (3, np.zeros(0)),
        (3, np.zeros(1000)),
    ],
    ids=["two of three matrices", "matrix", "few labels", "large label", "negative label", "no sites", "many sites"],
)
def test_sizes_and_labels_are_checked_at_evaluation(position, value, mode):
    arguments = list(dense_inputs())
    arguments[position] = value
    function = compiled(mode=mode, outputs=0)
    with pytest.raises((ValueError, AssertionError)):
        function(*arguments)


def test_second_derivative_is_refused():
    scale = pt.dscalar("scale")
    k, mean, labels, _ = dense_inputs()
    slope = pt.grad(Evidence(TIGHT)(scale * k, mean, labels), scale)
    with pytest.raises(NullTypeGradError, match="Only the evidence itself can be differentiated, and only once"):
        pt.grad(slope, scale)


@pytest.mark.parametrize("output", [3, 4], ids=["sites", "status"])
def test_outputs_besides_the_evidence_have_no_derivative(output):
    k = pt.dtensor3("k")
    _, mean, labels, _ = dense_inputs()
    found = Evidence(TIGHT).make_node(k, mean, labels).outputs[output].sum().astype("float64")
    with pytest.raises((NullTypeGradError, pytensor.gradient.DisconnectedInputError)):
        pt.grad(found, k)


def test_labels_and_start_have_no_derivative():
    k, mean, labels, _ = dense_inputs()
    start = pt.dvector("start")
    with pytest.raises(pytensor.gradient.DisconnectedInputError):
        pt.grad(Evidence(TIGHT)(k, mean, labels, start), start)


def test_equal_approximations_make_equal_graph_nodes():
    assert Evidence(NestedEP()) == Evidence(NestedEP())
    assert Evidence(NestedEP()) != Evidence(TIGHT)
    assert Evidence(NestedEP()) != Evidence(NestedEP(max_iterations=3))
    k, mean, labels = pt.dtensor3("k"), pt.dmatrix("mean"), pt.lvector("labels")
    start = np.zeros(TIGHT.start_size(C, N))
    twice = Evidence(TIGHT)(k, mean, labels, start) + Evidence(NestedEP(tolerance=1e-12))(k, mean, labels, start)
    function = pytensor.function([k, mean, labels], twice)
    assert sum(isinstance(node.op, Evidence) for node in function.maker.fgraph.apply_nodes) == 1


@pytest.mark.parametrize("package", [pickle, cloudpickle])
def test_compiled_function_can_be_pickled(package):
    arguments = dense_inputs()
    function = compiled(outputs=0)
    assert package.loads(package.dumps(function))(*arguments) == function(*arguments)
