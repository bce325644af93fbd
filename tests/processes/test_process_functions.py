"""Prior at new inputs from the graph of a model, against its covariance and mean functions, and refusals."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.graphs.interpreted import evaluate, graph_function
from pymc_gpep.processes.process_functions import process_functions
from pymc_gpep.processes.processes import CrossCovariance
from pymc_gpep.reading import StructureError, read_classifier, read_processes
from tests.graph_modes import rewritten

cov = pm.gp.cov
RNG = np.random.default_rng(3)
X, A, B = (RNG.normal(size=(size, 2)) for size in (7, 4, 5))
TABLE = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 1.5]])


class Differences(cov.Covariance):
    """Covariance function defined by a user, with broadcasting."""

    def full(self, X, Xs=None):
        X, Xs = self._slice(X, Xs)
        Xs = X if Xs is None else Xs
        return pt.exp(-((X[:, None, :] - Xs[None, :, :]) ** 2).sum(-1)) + X[:, :1] * Xs[:, 0]

    def diag(self, X):
        return 1.0 + X[:, 0] ** 2


class Products(cov.Covariance):
    """Covariance function defined by a user, with a matrix product and a loop over columns."""

    def full(self, X, Xs=None):
        X, Xs = self._slice(X, Xs)
        Xs = X if Xs is None else Xs
        each = [pt.outer(pt.sin(X[:, j]), pt.sin(Xs[:, j])) for j in range(2)]
        return pt.exp(X @ Xs.T) * pt.switch(pt.gt(pt.outer(X[:, 0], Xs[:, 0]), 0), 1.0, 0.5) + sum(each)

    def diag(self, X):
        return pt.exp((X**2).sum(1)) + (pt.sin(X) ** 2).sum(1)


COVARIANCES = {
    "ExpQuad": cov.ExpQuad(2, ls=[1.0, 2.0]),
    "Matern12": cov.Matern12(2, ls=0.7),
    "Matern32": cov.Matern32(2, ls=0.7),
    "Matern52": cov.Matern52(2, ls_inv=[1.0, 0.3]),
    "RatQuad": cov.RatQuad(2, alpha=0.7, ls=1.1),
    "Exponential": cov.Exponential(2, ls=0.8),
    "Cosine": cov.Cosine(2, ls=2.0),
    "Linear": cov.Linear(2, c=[0.1, 0.2]),
    "Polynomial": cov.Polynomial(2, c=0.1, d=3, offset=1.0),
    "Periodic": cov.Periodic(2, period=1.3, ls=0.5),
    "WrappedPeriodic": cov.WrappedPeriodic(cov.ExpQuad(2, ls=1.0), period=2.0),
    "Circular": cov.Circular(2, period=3.0, active_dims=[0]),
    "Constant": cov.Constant(2.0) + cov.ExpQuad(2, ls=1.0),
    "WhiteNoise": cov.ExpQuad(2, ls=1.0) + cov.WhiteNoise(0.3),
    "products and sums": 2 * (cov.ExpQuad(2, ls=1.0) * cov.Linear(2, c=0.0) + cov.WhiteNoise(0.3)),
    "powers": cov.Exponential(2, ls=1.0) ** 2,
    "active_dims": cov.ExpQuad(2, ls=1.0, active_dims=[1]) * cov.Matern32(2, ls=[1.0, 2.0]),
    "ScaledCov": cov.ScaledCov(2, cov.ExpQuad(2, ls=1.0), lambda x, a: 1 + a * x[:, 0] ** 2, args=(0.3,)),
    "WarpedInput": cov.WarpedInput(2, cov.ExpQuad(2, ls=1.0), pt.tanh),
    "Gibbs": cov.Gibbs(2, lambda x: 1 + x**2, active_dims=[0]),
    "Coregion": cov.Coregion(2, B=TABLE, active_dims=[0]) * cov.ExpQuad(2, ls=1.0, active_dims=[1]),
    "broadcasting": Differences(2),
    "matrix products": Products(2),
}
MEANS = (pm.gp.mean.Zero(), pm.gp.mean.Constant(2.0), pm.gp.mean.Linear(np.array([1.0, 2.0]), 0.3))
# PyMC's graph replaces distances below 1e-6, and the diagonal is exactly 1.
ROUGH = ("Matern12", "Exponential", "powers")


def made(covariance, mean, X, as_data, rotated=True, outputs=1):
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=covariance, mean_func=mean)
        inputs = pm.Data("X", X) if as_data else X
        gp.prior("f", X=inputs, reparameterize=rotated, **({"n_outputs": outputs} if outputs > 1 else {}))
    (functions,) = process_functions(read_processes(model), None)
    return functions


@pytest.mark.variation(
    but=["products and sums-True", "active_dims-True", "WarpedInput-True", "Coregion-True", "Gibbs-False"]
)
@pytest.mark.parametrize(
    ("name", "as_data"),
    [*((name, i % 2 == 0) for i, name in enumerate(COVARIANCES)), ("ExpQuad", False), ("matrix products", True)],
)
def test_prior_at_new_inputs_equals_covariance_and_mean_functions(name, as_data):
    covariance, mean = COVARIANCES[name], MEANS[list(COVARIANCES).index(name) % 3]
    x, a, b = X, A, B
    if name == "Coregion":
        x, a, b = (np.column_stack([np.arange(len(each)) % 3, each[:, 1]]) for each in (X, A, B))
    functions = made(covariance, mean, x, as_data, rotated=as_data, outputs=3 if as_data else 1)
    (inputs,) = evaluate([functions.inputs])
    assert_allclose(inputs, x)
    found = evaluate(
        [functions.covariance(pt.constant(a), pt.constant(b)), functions.variance(pt.constant(b)),
         functions.mean(pt.constant(b))]
    )  # fmt: skip
    expected = evaluate(list(map(pt.as_tensor, (covariance(a, b), covariance(b, diag=True), mean(b)))))
    assert_allclose(found[0], expected[0], rtol=1e-14, atol=1e-15)
    assert_allclose(found[1], expected[1], rtol=2e-6 if name in ROUGH else 1e-10)
    # PyMC's mean has single precision
    assert_allclose(found[2] if found[2].ndim == 1 else found[2][1], expected[2], rtol=1e-6)


@pytest.mark.parametrize("with_gps", [False, True])
def test_moments_at_new_inputs_are_in_the_order_of_the_classes(with_gps):
    """One prior serves the classes 0 and 2, another prior the class 1."""
    with pm.Model() as model:
        wide = pm.gp.Latent(cov_func=4.0 * cov.ExpQuad(2, ls=2.0), mean_func=pm.gp.mean.Constant(1.0))
        narrow = pm.gp.Latent(cov_func=9.0 * cov.ExpQuad(2, ls=0.5), mean_func=pm.gp.mean.Constant(-1.0))
        f, g = wide.prior("f", X=X, n_outputs=2), narrow.prior("g", X=X)
        gpep.MultinomialProbit("y", pt.stack([f[0], g, f[1]]).T, observed=np.arange(7) % 3)
    crossing = CrossCovariance(read_classifier(model).prior, (wide, narrow) if with_gps else None, {})
    cross, variance, mean = crossing({}, A)
    squared = ((A[:, None] - X) ** 2).sum(-1)
    scales = np.array([[4.0, 2.0], [9.0, 0.5], [4.0, 2.0]])
    assert_allclose(cross, [eta2 * np.exp(-0.5 * squared / ls**2) for eta2, ls in scales], rtol=1e-10)
    assert_allclose(variance, np.repeat(scales[:, :1], 4, axis=1))
    assert_allclose(mean, np.repeat([[1.0], [-1.0], [1.0]], 4, axis=1))


def test_covariance_between_different_points_excludes_noise():
    functions = made(cov.ExpQuad(2, ls=1.0) + cov.WhiteNoise(0.3), MEANS[0], X, as_data=True)
    same, variance = evaluate(
        [functions.covariance(pt.constant(A), pt.constant(A)), functions.variance(pt.constant(A))]
    )
    assert_allclose(same.diagonal(), 1.0)
    assert_allclose(variance, 1.09)


def test_single_input_column_can_be_a_vector():
    x = np.linspace(0, 1, 6)
    with pm.Model() as model:
        pm.gp.Latent(cov_func=cov.ExpQuad(1, ls=0.5)).prior("f", X=pm.Data("x", x)[:, None])
    (functions,) = process_functions(read_processes(model), None)
    found, inputs = evaluate([functions.covariance(pt.constant(A[:, :1]), pt.constant(B[:, :1])), functions.inputs])
    assert_allclose(found, np.exp(-2 * (A[:, :1] - B[:, 0]) ** 2), rtol=1e-12)
    assert_allclose(inputs, x[:, None])


@pytest.mark.variation
def test_intermediate_arrays_have_at_most_one_axis_over_the_data():
    n = 200_000  # a full matrix would take 320 GB
    inputs = np.random.default_rng(0).normal(size=(n, 2))
    covariance = 2.0 * cov.Matern52(2, ls=1.0) + cov.WhiteNoise(0.1) + cov.Constant(1.0) * cov.Linear(2, c=0.0)
    for as_data in (False, True):
        functions = made(covariance, MEANS[1], inputs, as_data, rotated=False, outputs=3)
        found = evaluate(
            [functions.covariance(pt.constant(A), pt.constant(B)), functions.variance(functions.inputs),
             functions.mean(functions.inputs)]
        )  # fmt: skip
        assert [each.shape for each in found] == [(4, 5), (n,), (3, n)]


class Refused:
    """Covariance functions whose graph cannot be evaluated at new points."""

    class Inverse(cov.Covariance):
        """The graph has a matrix inverse over all points."""

        def full(self, X, Xs=None):
            return pt.linalg.inv(X @ X.T + 1.0) if Xs is None else X @ Xs.T

    class Normalised(cov.Covariance):
        """The covariance is divided by a number computed from all points."""

        def full(self, X, Xs=None):
            k = X @ (X if Xs is None else Xs).T
            return k / k.max()

    class Numeric(cov.Covariance):
        """The covariance is computed by NumPy."""

        def full(self, X, Xs=None):
            return pt.constant(np.eye(7)) + X @ X.T

    class Weights(cov.Covariance):
        """The covariance uses other data with a value for each point."""

        def full(self, X, Xs=None):
            w = pt.constant(np.arange(7.0))
            return pt.outer(w, w) * pt.exp(X @ X.T)


REFUSED = {
    "Inverse": (Refused.Inverse(2), "it uses the operation MatrixInverse"),
    "Normalised": (Refused.Normalised(2), "it uses a number that is computed from all points of 'X'"),
    "Numeric": (Refused.Numeric(2), r"it uses a constant of shape \(7, 7\), but not with points along the first axis"),
    "Weights": (Refused.Weights(2), r"it depends on a constant of shape \(7,\) in addition to 'X'"),
}


@pytest.mark.parametrize(("covariance", "why"), REFUSED.values(), ids=REFUSED)
def test_unsupported_priors_are_refused(covariance, why):
    with pytest.raises(
        StructureError, match=f"The prior of 'f' cannot be computed at other inputs.*{why}.*Give gp=..."
    ):
        made(covariance, MEANS[0], X, as_data=True)


COLUMNS = {
    "permuted": cov.ExpQuad(3, ls=[1.0, 2.0, 3.0], active_dims=[2, 0, 1]),
    "one": cov.ExpQuad(3, ls=1.0, active_dims=[1]),
    "two, permuted": cov.ExpQuad(3, ls=[1.0, 2.0], active_dims=[2, 0]),
    "others in each term": cov.ExpQuad(3, ls=1.0, active_dims=[2]) + cov.Matern32(3, ls=1.0, active_dims=[0]),
    "some in one factor": cov.ExpQuad(3, ls=1.0) * cov.Linear(3, c=1.0, active_dims=[1]),
    "split": cov.Kron([cov.ExpQuad(1, ls=1.0), cov.ExpQuad(2, ls=[1.0, 2.0])]),
}
THREE = RNG.normal(size=(7, 3))


@pytest.mark.filterwarnings("ignore:Only . column:UserWarning")
@pytest.mark.parametrize(("name", "rotated"), [(name, i % 2 == 0) for i, name in enumerate(COLUMNS)])
def test_covariance_at_new_inputs_uses_columns_in_the_order_of_the_prior_inputs(name, rotated):
    functions = made(COLUMNS[name], MEANS[0], THREE, as_data=False, rotated=rotated)
    a, b = RNG.normal(size=(2, 4, 3))
    found = evaluate([functions.covariance(pt.constant(a), pt.constant(b)), functions.variance(pt.constant(a))])
    assert_allclose(found[0], COLUMNS[name](a, b).eval(), rtol=1e-12)
    assert_allclose(found[1], COLUMNS[name](a, diag=True).eval(), rtol=1e-6)
    assert_allclose(*evaluate([functions.inputs]), THREE)


ALIKE = np.column_stack([THREE[:, 0], THREE[:, 0], THREE[:, 1]])


@pytest.mark.filterwarnings("ignore:Only . column:UserWarning")
@pytest.mark.parametrize(
    ("dims", "dtype", "as_data"),
    [
        ([1, 0, 2], "float64", False),
        ([1, 2, 0], "int8", True),
        ([0, 1, 2], "bool", False),
        ([1], "float64", True),
        ([2, 1], "int8", False),
        ([2, 1], "bool", True),
    ],
)
def test_constant_columns_are_distinguished(dims, dtype, as_data):
    """Columns that are constant at fitted points vary at new points. The reference is PyMC's covariance function."""
    covariance = cov.ExpQuad(3, ls=np.arange(1.0, 4.0)[: len(dims)], active_dims=dims)
    functions = made(covariance, MEANS[0], (3 * ALIKE).astype(dtype), as_data)
    a, b = RNG.normal(size=(2, 4, 3))
    found = evaluate([functions.covariance(pt.constant(a), pt.constant(b)), functions.inputs])
    assert_allclose(found[0], covariance(a, b).eval(), rtol=1e-12)
    assert_allclose(found[1], (3 * ALIKE).astype(dtype))


@pytest.mark.filterwarnings("ignore:Only . column:UserWarning")
def test_columns_that_are_equal_at_all_points_are_refused():
    one, other = cov.ExpQuad(3, ls=[1.0, 2.0], active_dims=[0, 1]), cov.ExpQuad(3, ls=[1.0, 2.0], active_dims=[1, 0])
    with pytest.raises(StructureError, match=r"columns of 'X' that are equal at all points.*Give gp="):
        made(one + other, MEANS[0], ALIKE, as_data=False)

    class Stubborn(cov.ExpQuad):
        def full(self, X, Xs=None):
            assert np.array_equal(X, ALIKE)
            return super().full(X, Xs)

    with pytest.raises(StructureError, match=r"columns of 'X' that are equal at all points"):
        made(Stubborn(3, ls=1.0), MEANS[0], ALIKE, as_data=False)


def test_array_changed_after_the_prior_call_keeps_its_former_values_in_the_model():
    x = THREE.copy()
    with pm.Model() as model:
        pm.gp.Latent(cov_func=COLUMNS["permuted"]).prior("f", X=x)
    x *= 2
    (functions,) = process_functions(read_processes(model), None)
    assert_allclose(*evaluate([functions.inputs]), THREE)


def test_array_with_unknown_order_of_columns_is_refused():
    with pm.Model() as model:  # declared as if the package were not imported
        pm.gp.Latent.prior.__wrapped__(pm.gp.Latent(cov_func=COLUMNS["permuted"]), "f", X=THREE)
    with pytest.raises(StructureError, match=r"an array of 3 columns in an unknown order.* as one pm.Data"):
        process_functions(read_processes(model), None)


LEARNED = {
    "Constant(c) * K": (lambda c: cov.Constant(c) * cov.ExpQuad(2, ls=1.0), lambda c: c),
    "WhiteNoise(c) + K": (lambda c: cov.WhiteNoise(c) + cov.ExpQuad(2, ls=1.0), lambda c: 1 + c**2),
    "Constant(c) + K": (lambda c: cov.Constant(c) + cov.ExpQuad(2, ls=1.0), lambda c: 1 + c),
    "K * Constant(c)": (lambda c: cov.ExpQuad(2, ls=1.0) * cov.Constant(c), lambda c: c),
    "a product within": (lambda c: c**2 * (cov.Constant(c) * cov.ExpQuad(2, ls=1.0)), lambda c: c**3),
    "ScaledCov": (
        lambda c: cov.ScaledCov(2, cov.ExpQuad(2, ls=1.0), lambda x, s: s * pt.ones(x.shape[0]), args=(c,)),
        lambda c: c**2,
    ),
}


@pytest.mark.parametrize(
    ("covariance", "variance", "as_data"), [(*each, i % 2 == 0) for i, each in enumerate(LEARNED.values())], ids=LEARNED
)
def test_prior_variance_depends_on_hyperparameters_through_deterministics(covariance, variance, as_data):
    """The hyperparameter has a random parent, and a Deterministic depends on it. `variance` has the expected value."""
    with pm.Model() as model:
        parent = pm.HalfNormal("parent")
        c = pm.HalfNormal("c", sigma=parent)
        twice = pm.Deterministic("twice", 2 * c)
        gp = pm.gp.Latent(cov_func=covariance(twice))
        gp.prior("f", X=pm.Data("X", X) if as_data else X)
    (functions,) = process_functions(read_processes(model), None)
    a = pt.dmatrix("a")
    graph = model.replace_rvs_by_values([functions.variance(a)])
    function = graph_function(model, [*(model.rvs_to_values[rv] for rv in (parent, c)), a], graph)
    for value in (0.7, 1.3):
        assert_allclose(*function(0.0, np.log(value), A), np.full(len(A), variance(2 * value)), rtol=1e-6)


def test_graphs_with_random_variables_are_refused_in_evaluations():
    with pm.Model() as model:
        c = pm.HalfNormal("c")
        pm.Normal("inputs", shape=(7, 2))
    with pytest.raises(StructureError, match="drawn anew at each evaluation: 'c'"):
        graph_function(model, [], [c**2])
    with pytest.raises(StructureError, match=r"drawn anew at each evaluation: 'inputs'.*pm\.Data"):
        evaluate([model["inputs"]])
    assert np.shape(graph_function(model, [], [c**2], draws=True)()) == (1,)
    with rewritten():
        assert_allclose(*evaluate([model["inputs"].shape]), [7, 2])  # the shape does not need values


class Overlap(cov.Covariance):
    """Tanimoto similarity: number of bits in both rows divided by number of bits in either row."""

    def full(self, X, Xs=None):
        X, Xs = map(pt.as_tensor_variable, self._slice(X, X if Xs is None else Xs))
        both = X @ Xs.T
        return both / (X.sum(axis=1)[:, None] + Xs.sum(axis=1) - both)

    def diag(self, X):
        return pt.ones(X.shape[0])


class Table(cov.Covariance):
    """Covariance matrix in a table, indexed by row numbers."""

    def full(self, X, Xs=None):
        X, Xs = map(pt.as_tensor_variable, self._slice(X, X if Xs is None else Xs))
        return pt.constant(SQUARE)[X[:, 0]][:, Xs[:, 0]]

    def diag(self, X):
        return pt.constant(SQUARE.diagonal())[pt.as_tensor_variable(X)[:, 0]]


SQUARE = np.cov(RNG.normal(size=(9, 20)))
BITS = np.column_stack([np.ones(9), RNG.integers(0, 2, size=(9, 3))])
NUMBERS = np.arange(9.0)[:, None]
SHARED = BITS @ BITS.T
SQUARES = ((BITS[:, None] - BITS) ** 2).sum(axis=-1)
TYPES = {
    "numbers": (
        4.0 * cov.ExpQuad(4, ls=1.0) + cov.Linear(4, c=1.0),
        BITS,
        4 * np.exp(-SQUARES / 2) + (BITS - 1) @ (BITS - 1).T,
    ),
    "own": (Overlap(4), BITS, SHARED / (BITS.sum(axis=1)[:, None] + BITS.sum(axis=1) - SHARED)),
    "table": (Table(1), NUMBERS, SQUARE),
}


WHOLE = ["int8", "uint8", "int16", "int64"]
EACH_TYPE = [
    *(("numbers", dtype) for dtype in [*WHOLE, "bool", "float16", "float32", "float64"]),
    *(("own", dtype) for dtype in ("int8", "bool", "float32")),
    *(("table", dtype) for dtype in ("uint8", "int64")),
]


@pytest.mark.parametrize(("name", "dtype", "as_data"), [(*each, i % 2 == 0) for i, each in enumerate(EACH_TYPE)])
def test_inputs_of_any_type_are_numbers_in_double_precision(name, dtype, as_data):
    covariance, x, right = TYPES[name]
    x = x.astype(dtype)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=covariance, mean_func=pm.gp.mean.Constant(0.3))
        gp.prior("f", X=pm.Data("X", x) if as_data else x)
    processes = read_processes(model)
    k, mean = evaluate([processes.covariance(), processes.mean()])
    assert k.dtype == mean.dtype == "float64"
    assert_allclose(k, right + 1e-6 * np.eye(9), rtol=1e-12, atol=1e-15)
    a, b = (pt.constant(x[rows].astype("float64")) for rows in (slice(0, 4), slice(2, 9)))
    for gps in (None, {processes.latents[0]: gp}):
        (functions,) = process_functions(processes, gps)
        cross, variance, inputs = evaluate([functions.covariance(a, b), functions.variance(a), functions.inputs])
        apart = np.arange(4)[:, None] != np.arange(2, 9)
        assert_allclose(cross[apart], right[:4, 2:][apart], rtol=1e-12, atol=1e-15)
        assert_allclose(variance, right.diagonal()[:4], rtol=1e-12)
        assert_allclose(inputs, x.astype("float64"))


def test_inputs_that_index_a_table_must_be_whole_numbers():
    functions = made(Table(1), MEANS[0], np.arange(9)[:, None], as_data=False)
    between = functions.covariance(pt.constant([[0.5]]), pt.constant([[1.0]]))
    with pytest.raises(ValueError, match="whole numbers"):
        evaluate([between])


INNER = {
    "scaled": lambda X: (X - 1.0) / 3.0,
    "some columns": lambda X: X[:, [1, 0]],
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_inputs_computed_within_the_model_follow_new_data(inner):
    covariance = cov.ExpQuad(2, ls=[1.0, 2.0])
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=covariance)
        gp.prior("f", X=inner(pm.Data("X", X)))
    processes = read_processes(model)
    (functions,) = process_functions(processes, None)
    (found,) = evaluate([functions.covariance(pt.constant(A), pt.constant(B))])
    assert_allclose(found, covariance(inner(A), inner(B)).eval(), rtol=1e-12)
    with pytest.raises(StructureError, match=r"inputs of 'f' are computed within the model from 'X'.*Leave gp out"):
        process_functions(processes, {processes.latents[0]: gp})


def test_inputs_computed_from_all_rows_are_refused_without_gp():
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        gp = pm.gp.Latent(cov_func=cov.ExpQuad(2, ls=1.0))
        gp.prior("f", X=inputs / inputs.std(axis=0))
    processes = read_processes(model)
    with pytest.raises(
        StructureError, match=r"a number that is computed from all points of 'X'.* in the form of its prior\(X=...\)"
    ):
        process_functions(processes, None)
    (functions,) = process_functions(processes, {processes.latents[0]: gp})
    assert_allclose(*evaluate([functions.inputs]), X / X.std(axis=0))


def test_covariance_array_cannot_be_evaluated_at_new_inputs():
    with pm.Model() as model:
        f = pm.MvNormal("f", mu=np.zeros(7), cov=SQUARE[:7, :7] + np.eye(7))
        pm.Bernoulli("y", logit_p=f, observed=np.arange(7) % 2)
    with pytest.raises(StructureError, match=r"shape \(7, 7\).*covariance function of inputs: pm.gp.Latent"):
        process_functions(read_classifier(model).prior, None)
