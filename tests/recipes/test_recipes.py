"""Recipes of Gaussian variables against PyMC's log densities.

The log density of a Gaussian is quadratic: differences of three values give precision and mean up to rounding.
"""

from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.distributions.multivariate import CARRV
from pymc.distributions.transforms import ZeroSumTransform, ordered
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import applys_between, toposort
from pytensor.scalar.basic import Add, Cast, Mul, Neg, Second, Sub, TrueDiv
from pytensor.sparse.basic import as_sparse_variable
from pytensor.tensor.basic import Alloc, Join, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.inverse import MatrixInverse
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from scipy.sparse import csc_matrix, csr_matrix

import pymc_gpep as gpep
from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.recipes import recipe, why_no_recipe
from tests.graph_modes import HARDLY_REWRITTEN

RNG = np.random.default_rng(41)
COORDS = {"group": range(3), "week": range(5), "term": ["level", "slope"]}
W = np.array([[0, 1, 0, 0, 1], [1, 0, 1, 1, 0], [0, 1, 0, 1, 0], [0, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
BESIDE = -np.eye(4, k=1) - np.eye(4, k=-1)
SPARSE = as_sparse_variable(csc_matrix(np.diag([2.0, 3, 4, 5]) + BESIDE))


def function_of(inputs, outputs):
    return pytensor.function(list(inputs), outputs, mode=HARDLY_REWRITTEN, on_unused_input="ignore")


def computed(outputs, given=None):
    given = given or {}
    return function_of(given, outputs)(*given.values())


def shape_of(variable):
    if None not in variable.type.shape:
        return variable.type.shape
    return tuple(int(length) for length in computed(get_symbolic_rv_shapes([variable]))[0])


def covariance(n):
    root = RNG.normal(size=(n, n + 2))
    return root @ root.T


def tril(n):
    return np.linalg.cholesky(covariance(n))


def packed(chol):
    return chol[np.tril_indices(len(chol))]


def start(*args, **kwargs):
    return {"init_dist": pm.Normal.dist(*args, **kwargs)}


class Given:
    """Values of the parents of the variable `v`, at which the density is evaluated."""

    def __init__(self):
        self.values = {}

    def mean(self, name="mean", **kwargs):
        variable = pm.Normal(name, **kwargs)
        self.values[variable] = RNG.normal(size=shape_of(variable))
        return variable

    def scale(self, name="scale", **kwargs):
        variable = pm.HalfNormal(name, **kwargs)
        self.values[variable] = RNG.uniform(0.5, 1.5, size=shape_of(variable))
        return variable

    def factor(self, n, name="factor"):
        return pt.tril(self.scale(name, shape=(n, n)))

    def lkj(self, n, name="factor"):
        chol, *_ = pm.LKJCholeskyCov(name, n=n, eta=2, sd_dist=pm.Exponential.dist(1.0))
        packed_chol = pm.modelcontext(None)[name]
        self.values[packed_chol] = packed(tril(n))
        return chol


MODELS = {
    "normal": lambda g: pm.Normal("v", g.mean(), g.scale()),
    "normal of a group": lambda g: pm.Normal("v", g.mean(), g.scale(), dims="group"),
    "normal by tau": lambda g: pm.Normal("v", g.mean(), tau=g.scale(), shape=2),
    "normal, broadcast": lambda g: pm.Normal("v", g.mean(shape=(3, 1)), g.scale(shape=2), dims=("group", "term")),
    "normal, larger": lambda g: pm.Normal("v", g.mean(shape=2), g.scale(), shape=(2, 3, 2)),
    "normal of length one": lambda g: pm.Normal("v", g.mean(), g.scale(shape=1)),
    "normal of data": lambda g: pm.Normal(
        "v", g.mean() + g.mean("slope") * pm.Data("x", np.float32([0.5, -1, 2])), pm.Data("s", np.float32([1, 2, 3]))
    ),
    "multivariate": lambda g: pm.MvNormal("v", g.mean(shape=3), g.scale() ** 2 * covariance(3)),
    "multivariate by a factor": lambda g: pm.MvNormal("v", g.mean(), chol=g.lkj(2), shape=(3, 2)),
    "multivariate by an upper factor": lambda g: pm.MvNormal("v", g.mean(shape=3), chol=tril(3).T, lower=False),
    "multivariate, factors in a batch": lambda g: pm.MvNormal(
        "v", g.mean(shape=(3, 2)), chol=g.scale(shape=(3, 1, 1)) * tril(2)
    ),
    "multivariate, covariances in a batch": lambda g: pm.MvNormal(
        "v", g.mean(shape=2), g.scale(shape=(3, 1, 1)) * covariance(2)
    ),
    "multivariate of one number": lambda g: pm.MvNormal("v", g.mean(), g.scale()[None, None], shape=(2, 1)),
    "multivariate by a precision": lambda g: pm.MvNormal("v", g.mean(), tau=covariance(3) / g.scale() ** 2),
    "multivariate by a sparse precision": lambda g: pm.MvNormal(
        "v", g.mean(shape=(2, 4)), tau=np.diag([2.0, 3, 4, 5]) / g.scale() - np.eye(4, k=1) - np.eye(4, k=-1)
    ),
    "normal by a sparse precision": lambda g: gpep.SparseNormal("v", g.mean(), g.scale() * SPARSE),
    "normals by a sparse precision": lambda g: gpep.SparseNormal(
        "v", g.mean(shape=4), SPARSE + g.scale() * SPARSE, shape=(2, 4)
    ),
    "multivariate by a wide factor": lambda g: pm.MvNormal(
        "v", g.mean(), (wide := g.scale() * pt.constant(RNG.normal(size=(2, 4)))) @ wide.T
    ),
    "multivariate of float32": lambda g: pm.MvNormal(
        "v", np.float32([1, 2]), pm.Data("c", np.float32([[2, 1], [1, 3]]))
    ),
    "zero sum": lambda g: pm.ZeroSumNormal("v", g.scale(), dims="week"),
    "zero sum of groups": lambda g: pm.ZeroSumNormal("v", g.scale(shape=(3, 1)), dims=("group", "term")),
    "zero sum over two axes": lambda g: pm.ZeroSumNormal("v", g.scale(), n_zerosum_axes=2, dims=("group", "term")),
    "walk": lambda g: pm.GaussianRandomWalk("v", g.mean(), g.scale(), **start(g.mean("first"), 0.7), dims="week"),
    "walks": lambda g: pm.GaussianRandomWalk(
        "v", g.mean(), g.scale(shape=3), **start(g.mean("first", shape=3), 2), dims=("group", "week")
    ),
    "walk of growing steps": lambda g: pm.GaussianRandomWalk(
        "v", 0.5, g.scale(shape=4), **start(0, g.scale("s")), dims="week"
    ),
    "walk by steps": lambda g: pm.RandomWalk(
        "v", init_dist=pm.Normal.dist(1, 2), innovation_dist=pm.Normal.dist(0, g.scale()), steps=3
    ),
    "walk of vectors": lambda g: pm.MvGaussianRandomWalk(
        "v", g.mean(shape=2), chol=g.factor(2), init_dist=pm.MvNormal.dist(np.ones(2), covariance(2)), shape=(3, 2)
    ),
    "walks of vectors": lambda g: pm.MvGaussianRandomWalk(
        "v", g.mean(shape=2), cov=covariance(2), init_dist=pm.MvNormal.dist(np.ones(2), covariance(2)), shape=(2, 3, 2)
    ),
    "autoregressive": lambda g: pm.AR("v", g.scale("rho", shape=1), g.scale(), **start(g.mean(), 2), dims="week"),
    "autoregressive of order two": lambda g: pm.AR(
        "v", [0.6, -0.3], tau=g.scale(), **start(g.mean(shape=2), g.scale("s", shape=2)), dims="week"
    ),
    "autoregressive with a constant": lambda g: pm.AR(
        "v", g.scale("rho", shape=3), g.scale(), **start(g.mean(), 2), constant=True, dims=("term", "week")
    ),
    "autoregressive, of series of their own": lambda g: pm.AR(
        "v", g.scale("rho", shape=(3, 1)), g.scale(shape=3), **start(g.mean(), 2), shape=(3, 4)
    ),
    "autoregressive, of a start with a covariance": lambda g: pm.AR(
        "v", [0.4, 0.2], g.scale(), init_dist=pm.MvNormal.dist(np.ones(2), covariance(2)), shape=5
    ),
    "autoregressive about zero": lambda g: pm.AR(
        "v", g.scale("rho", shape=2), g.scale(), **start(0, g.scale("s", shape=2)), dims="week"
    ),
    "autoregressive about zero, series of their own": lambda g: pm.AR(
        "v", g.scale("rho", shape=(3, 1)), g.scale(shape=3), **start(0, 2), shape=(3, 4)
    ),
    "areas": lambda g: pm.CAR("v", g.mean(shape=5), W, alpha=pm.math.tanh(g.scale("a")), tau=g.scale()),
    "areas, one mean": lambda g: pm.CAR("v", g.mean() * np.ones(5), W, alpha=0.5, tau=g.scale()),
    "areas by a sparse matrix": lambda g: pm.CAR("v", g.mean(shape=5), csr_matrix(W), alpha=0.9, tau=g.scale()),
    "intrinsic": lambda g: pm.ICAR("v", W, sigma=1.5, zero_sum_stdev=0.3),
    "intrinsic, of a learned sum": lambda g: pm.ICAR("v", W, zero_sum_stdev=g.scale()),
    "Kronecker": lambda g: pm.KroneckerNormal("v", g.mean(shape=6), covs=[covariance(2) * g.scale(), covariance(3)]),
    "Kronecker by a precision": lambda g: pm.KroneckerNormal(
        "v",
        g.mean(shape=8),
        covs=[covariance(2) * g.scale(), pt.linalg.inv(g.scale("t") * np.diag([2.0, 3, 4, 5]) + BESIDE)],
    ),
    "Kronecker by factors": lambda g: pm.KroneckerNormal("v", np.arange(6.0), chols=[g.factor(2), pt.eye(3)]),
    "Kronecker with noise": lambda g: pm.KroneckerNormal(
        "v", g.mean(shape=6), covs=[covariance(3), covariance(2)], sigma=g.scale()
    ),
    "matrix": lambda g: pm.MatrixNormal("v", g.mean(), rowchol=g.factor(2), colcov=g.scale() * covariance(3)),
    "matrix by factors": lambda g: pm.MatrixNormal("v", g.mean(shape=(2, 3)), rowchol=tril(2), colchol=tril(3)),
}


@cache
def built(name):
    given = Given()
    with pm.Model(coords=COORDS) as model:
        variable = MODELS[name](given)
    return variable, model, given.values


def made(variable, model):
    found = recipe(variable, model)
    z = pt.vector("z", shape=(found.size,))
    return found, z, found.make(z, found.means, found.scales)


def zero_sums(shape, axes):
    """Basis of the flattened arrays that sum to zero along the last axes."""
    basis = np.eye(1)
    for axis, length in enumerate(shape):
        differences = np.linalg.svd(np.ones((1, length)))[2][1:].T
        basis = np.kron(basis, differences if axis >= len(shape) - axes else np.eye(length))
    return basis


def moments(variable, values, basis):
    """Mean and covariance of the coordinates of a variable in a basis, from PyMC's log density."""
    shape = shape_of(variable)
    value = variable.type()
    (alone,) = clone_replace([variable], {parent: pt.constant(number) for parent, number in values.items()})
    # Only rewriting removes a sum over an axis in the density of areas.
    mode = INTERPRETED if isinstance(variable.owner.op, CARRV) else HARDLY_REWRITTEN
    function = pytensor.function([value], pm.logp(alone, value).sum(), mode=mode)

    def density(coordinates):
        return function((basis @ coordinates).reshape(shape))

    eye = np.eye(basis.shape[1])
    at_zero, at_one = density(eye[0] * 0), np.array([density(e) for e in eye])
    back = np.array([density(-e) for e in eye])
    both = np.array([[density(e + f) for f in eye] for e in eye])
    cov = np.linalg.inv(at_one[:, None] + at_one - at_zero - both)
    return cov @ (at_one - back) / 2, cov


# PyMC's density of a MatrixNormal calls a function that PyTensor has moved.
@pytest.mark.filterwarnings("ignore:pytensor.tensor.linalg.trace is deprecated:FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_recipe_has_the_mean_and_covariance_of_the_density(name):
    variable, model, values = built(name)
    found, z, graph = made(variable, model)
    many = pt.matrix("many", shape=(None, found.size))
    units = np.vstack([np.zeros(found.size), np.eye(found.size)])
    at_units, one = computed([vectorize_graph(graph, {z: many}), graph], values | {many: units, z: units[-1]})

    assert graph.dtype == "float64"
    assert one.shape == shape_of(variable)
    assert_allclose(at_units[-1], one, rtol=1e-12)

    mean, *columns = at_units.reshape(len(units), -1)
    jacobian = np.transpose(columns) - mean[:, None]
    axes = variable.owner.op.ndim_supp if name.startswith("zero sum") else 0
    basis = zero_sums(one.shape, axes)
    assert_allclose(basis @ basis.T @ jacobian, jacobian, atol=1e-12)
    expected_mean, expected = moments(variable, values, basis)
    assert_allclose(basis.T @ mean, expected_mean, rtol=1e-6, atol=1e-6)
    assert_allclose(basis.T @ jacobian @ jacobian.T @ basis, expected, rtol=1e-6, atol=1e-6)


FIELDS = {name for name in MODELS if name.startswith(("areas", "intrinsic", "walk", "autoregressive about"))}
FIELDS |= {"zero sum", "zero sum of groups", "multivariate by a precision", "multivariate by a sparse precision"}
FIELDS |= {name for name in MODELS if name.startswith("Kronecker")}
FIELDS |= {"normal by a sparse precision", "normals by a sparse precision"}
FIELDS -= {"walk of vectors", "walks of vectors", "intrinsic, of a learned sum"}


def cumulated(field, shape):
    """The field by running sums along its last block, or along the whole field of shape `shape` without blocks."""
    part = field.blocks[-1] if field.blocks else shape
    return field.cumulated(field.columns.shape[1] - int(np.prod(part)), part)


@pytest.mark.parametrize("change", [lambda field, _: field, cumulated], ids=["plain", "running sums"])
@pytest.mark.parametrize("name", sorted(FIELDS))
def test_sparse_field_of_a_variable_has_the_mean_and_covariance_of_its_recipe(name, change):
    variable, model, values = built(name)
    found, z, graph = made(variable, model)
    field = change(found.field, tuple(shape_of(variable)))
    x = pt.vector("x", shape=(found.size,))
    again = field.make(x, found.means, found.scales)
    many = pt.matrix("many", shape=(None, found.size))
    units = np.vstack([np.zeros(found.size), np.eye(found.size)])
    outputs = [vectorize_graph(graph, {z: many}), vectorize_graph(again, {x: many}), field.entries(found.scales)]
    by_normals, by_field, entries = computed(outputs, values | {many: units})
    (mean, *root), (own_mean, *slopes) = (each.reshape(len(units), -1) for each in (by_normals, by_field))
    root, slopes = np.array(root) - mean, np.array(slopes) - own_mean
    precision = np.zeros((found.size, found.size))
    np.add.at(precision, (field.first, field.second), entries)
    inverse = np.linalg.inv(np.tril(precision) + np.tril(precision, -1).T)
    pull = inverse @ field.columns.T
    inverse -= pull @ np.linalg.inv(np.diag(field.widths) + field.columns @ pull) @ pull.T
    assert again.dtype == "float64"
    assert_allclose(own_mean, mean, atol=1e-12)
    assert_allclose(slopes.T @ inverse @ slopes, root.T @ root, atol=1e-9)


@pytest.mark.parametrize("name", sorted(set(MODELS) - FIELDS))
def test_variable_without_a_sparse_field_has_field_none(name):
    variable, model, _ = built(name)
    assert recipe(variable, model).field is None


AFFINE = (DimShuffle, Reshape, Subtensor, AdvancedSubtensor, Join, Split, CumOp, Sum, Dot, Alloc)
ELEMENTWISE = (Add, Sub, Neg, Mul, TrueDiv, Second, Cast)


def is_affine(node):
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    return isinstance(op, AFFINE) or (isinstance(op, Elemwise) and isinstance(op.scalar_op, ELEMENTWISE))


@pytest.mark.parametrize("name", MODELS)
def test_recipe_is_affine_in_its_normals(name):
    """The graph from normals z, means and scales has no random variable, and is affine in z and means jointly.

    In each product at most one factor depends on z or on means.
    """
    variable, model, _ = built(name)
    found = recipe(variable, model)
    z, *parameters = pt.vector("z", shape=(found.size,)), *(each.type() for each in found.means + found.scales)
    means, scales = parameters[: len(found.means)], parameters[len(found.means) :]
    graph = found.make(z, means, scales)
    assert not any(isinstance(node.op, RNGConsumerOp) for node in applys_between([], [graph]))

    above = {z, *means}
    for node in toposort([graph]):
        if not above.isdisjoint(node.inputs):
            assert is_affine(node), node.op
            above |= set(node.outputs)
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Mul | TrueDiv):
            assert sum(each in above for each in node.inputs) <= 1
            assert isinstance(node.op.scalar_op, Mul) or node.inputs[1] not in above
    assert graph in above


SLOPES = [
    "normal of a group",
    "multivariate",
    "multivariate, covariances in a batch",
    "walk of vectors",
    "autoregressive with a constant",
    "autoregressive, of series of their own",
    "areas",
    "Kronecker with noise",
    "matrix",
]


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_of_recipes_in_scales_match_differences(name):
    variable, model, values = built(name)
    found, z, graph = made(variable, model)
    scales = [model[each] for each in ("scale", "rho", "a", "factor") if each in model.named_vars]
    total = (graph * RNG.normal(size=shape_of(variable))).sum()
    function = function_of([z, *values], [total, *pytensor.grad(total, scales)])
    noise = RNG.normal(size=found.size)
    slopes = dict(zip(scales, function(noise, *values.values())[1:], strict=True))
    for scale, slope in slopes.items():
        direction = RNG.normal(size=slope.shape)
        up, down = (
            function(noise, *(values | {scale: values[scale] + step * direction}).values())[0] for step in (1e-5, -1e-5)
        )
        assert_allclose((slope * direction).sum(), (up - down) / 2e-5, rtol=1e-6, atol=1e-8)


def test_single_draws_equal_draws_of_a_batch():
    """Two recipes in a chain: the mean of the second depends on the standard normals of the first."""
    given = Given()
    with pm.Model(coords=COORDS) as model:
        level = pm.MvNormal("level", np.ones(2), covariance(2))
        v = pm.GaussianRandomWalk("v", level[0], given.scale(), init_dist=pm.Normal.dist(level[1], 2), shape=(2, 4))
    first, z_first, graph_first = made(level, model)
    second = recipe(v, model)
    z_second = pt.vector("z_second", shape=(second.size,))
    means = clone_replace(list(second.means), {level: graph_first})
    graph = second.make(z_second, means, second.scales)
    many = [pt.matrix(shape=(None, each.size)) for each in (first, second)]
    noise = [RNG.normal(size=(3, each.size)) for each in (first, second)]
    batch = vectorize_graph(graph, dict(zip((z_first, z_second), many, strict=True)))
    (found,) = computed([batch], given.values | dict(zip(many, noise, strict=True)))
    one = function_of([z_first, z_second, *given.values], graph)
    for k in range(3):
        assert_allclose(found[k], one(noise[0][k], noise[1][k], *given.values.values()), rtol=1e-12)


def test_recipe_uses_factors_and_precisions_in_the_graph_without_another_factorisation():
    def operations(name):
        variable, model, _ = built(name)
        found, _, graph = made(variable, model)
        nodes = toposort([graph], blockers=[*found.means, *found.scales])
        return [type(getattr(node.op, "core_op", node.op)) for node in nodes]

    assert Cholesky not in operations("multivariate by a factor")
    assert Cholesky not in operations("multivariate, factors in a batch")
    assert Cholesky not in operations("Kronecker by factors")
    assert MatrixInverse not in operations("multivariate by a precision")
    assert Cholesky in operations("multivariate")


def test_recipes_have_double_precision_in_a_model_of_single_precision():
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        scale = pm.HalfNormal("scale")
        variables = [
            pm.Normal("a", 0, scale, shape=3),
            pm.MvNormal("b", np.zeros(2, "float32"), np.eye(2, dtype="float32") * scale),
            pm.GaussianRandomWalk("c", 0, scale, init_dist=pm.Normal.dist(0, 1), shape=3),
            pm.ZeroSumNormal("d", scale, shape=3),
        ]
    assert {each.dtype for each in variables} == {"float32"}
    for variable in variables:
        found, z, graph = made(variable, model)
        noise = RNG.normal(size=found.size)
        with pytensor.config.change_flags(floatX="float64"):
            (exact,) = computed([graph], {z: noise, scale: np.float32(1)})
        assert graph.dtype == "float64"
        assert not np.array_equal(exact, exact.astype("float32"))


def test_size_of_a_recipe_follows_the_data():
    with pm.Model(coords={"group": range(3)}) as model:
        x = pm.Data("x", np.zeros(4))
        variables = [
            pm.Normal("a", x, 1),
            pm.ZeroSumNormal("b", dims="group"),
            pm.MvNormal("c", np.zeros(2), np.eye(2)),
        ]
    assert [recipe(each, model).size for each in variables] == [4, 3, 2]
    with model:
        pm.set_data({"x": np.zeros(6)})
    assert recipe(variables[0], model).size == 6


W_OF_TWO = np.kron(np.eye(2), [[0, 1], [1, 0]]).astype(int)

REFUSED = {
    "an ordered normal": (
        lambda s: pm.Normal("v", 0, 1, shape=3, transform=ordered, initval=[-1, 0, 1]),
        "'v' (Normal) is not Gaussian because of its transform, Ordered",
    ),
    "a normal that sums to zero by a transform": (
        lambda s: pm.Normal("v", 0, 1, shape=3, transform=ZeroSumTransform([-1])),
        "'v' (Normal) is not Gaussian because of its transform, ZeroSumTransform",
    ),
    "a zero sum without its transform": (
        lambda s: pm.ZeroSumNormal("v", shape=3, default_transform=None),
        "leave `default_transform` out",
    ),
    "areas with a learned sigma": (lambda s: pm.ICAR("v", W, sigma=s), "Write sigma * pm.ICAR('v', W)."),
    "two maps": (lambda s: pm.ICAR("v", W_OF_TWO), "a pm.ICAR of its own"),
    "heavy tails": (lambda s: pm.StudentT("v", nu=3, sigma=s), "pm.InverseGamma('w', nu / 2, nu / 2)"),
    "Laplace": (lambda s: pm.Laplace("v", 0, s), "with w = pm.Exponential('w', 1)."),
    "Cauchy": (lambda s: pm.Cauchy("v", 0, s), "pm.InverseGamma('w', 0.5, 0.5)"),
    "a walk of heavy tails": (
        lambda s: pm.RandomWalk(
            "v", init_dist=pm.Normal.dist(), innovation_dist=pm.StudentT.dist(nu=3, sigma=s), steps=3
        ),
        "has innovations by StudentT",
    ),
    "a walk with another start": (
        lambda s: pm.GaussianRandomWalk("v", 0, s, init_dist=pm.HalfNormal.dist(), steps=3),
        "has a start by HalfNormal",
    ),
    "a series with another start": (
        lambda s: pm.AR("v", [0.5], s, init_dist=pm.Uniform.dist(-1, 1), steps=3),
        "has a start by Uniform",
    ),
    "a positive variable": (lambda s: pm.HalfNormal("v"), ""),
    "a density of the user's": (lambda s: pm.CustomDist("v", s, logp=lambda x, s: -0.5 * (x / s) ** 2), ""),
    "a distribution of the user's": (
        lambda s: pm.CustomDist("v", s, dist=lambda s, size: pm.Normal.dist(0, s, size=size)),
        "",
    ),
    "censored": (lambda s: pm.Censored("v", pm.Normal.dist(0, s), -1, 1), ""),
    "truncated": (lambda s: pm.Truncated("v", pm.Normal.dist(0, s), -1, 1), ""),
    "a mixture": (lambda s: pm.NormalMixture("v", w=[0.5, 0.5], mu=[0, s], sigma=1), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_message_for_a_variable_without_a_recipe_advises_a_spelling(name):
    build, message = REFUSED[name]
    with pm.Model() as model:
        variable = build(pm.HalfNormal("s"))
    assert recipe(variable, model) is None
    said = why_no_recipe(variable, model)
    assert message in said
    assert bool(said) == bool(message)


def test_variable_with_a_recipe_has_no_message():
    variable, model, _ = built("walk")
    assert why_no_recipe(variable, model) == ""
