"""The multinomial probit as a PyMC distribution: densities, draws, derivatives and refusals."""

import pickle

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.testing import Domain, assert_support_point_is_expected, check_logp
from pytensor.gradient import verify_grad
from scipy import stats

from pymc_gpep.kernels.likelihoods.multinomial_probit import log_probability_and_gradient, log_probability_hessian
from pymc_gpep.likelihoods.multinomial_probit_distribution import (
    MultinomialProbit,
    MultinomialProbitRV,
    multinomial_probit_log_probability,
)

SEED = 20130
RNG = np.random.default_rng(SEED)
N, C = 12, 3
X = RNG.standard_normal((N, 2))
F = 1.5 * RNG.standard_normal((N, C))
Y = RNG.integers(0, C, N)


def log_probabilities(f, y):
    """Reference, one point after another, for f (n, c) and y (n,)."""
    return np.array(
        [log_probability_and_gradient(row, label, np.empty(len(row))) for row, label in zip(f, y, strict=True)]
    )


@pytest.mark.parametrize(
    ("f", "size", "expected", "mode"),
    [
        (F[0], None, (), "NUMBA"),
        (F[0], (), (), "CVM"),
        (F[0], 4, (4,), "CVM"),
        (F[0], (2, 3), (2, 3), "CVM"),
        (F, None, (N,), "CVM"),
        (F, (5, N), (5, N), "NUMBA"),
    ],
)
def test_draws_have_the_requested_size(f, size, expected, mode):
    rv = MultinomialProbit.dist(f, size=size)
    assert rv.type.shape == expected
    assert pm.draw(rv, random_seed=SEED, mode=mode).shape == expected


@pytest.mark.parametrize("mode", ["NUMBA", "CVM"])
def test_frequencies_of_draws_match_probabilities(mode):
    f = np.array([[0.5, -0.3, 0.1, -1.0], [3.0, 2.5, 3.0, -9.0]])
    draws = pm.draw(MultinomialProbit.dist(f, size=(20_000, 2)), random_seed=SEED, mode=mode)
    assert draws.dtype == np.int64
    for i in range(2):
        expected = 20_000 * np.exp(log_probabilities(np.tile(f[i], (4, 1)), range(4)))
        counts = np.bincount(draws[:, i], minlength=4)
        kept = expected > 5
        assert stats.chisquare(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()).pvalue > 1e-3


def test_log_probability_in_pymc_matches_the_kernel():
    def expected(value, f):
        return log_probability_and_gradient(np.asarray(f, float), int(value), np.empty(C))

    labels = Domain([0, 0, 1, 2, 2], dtype="int64")
    check_logp(MultinomialProbit, labels, {"f": Domain(list(F), edges=(None, None), shape=(C,))}, expected, decimal=12)


@pytest.mark.parametrize("mode", ["NUMBA", "CVM"])
@pytest.mark.parametrize(
    ("value_shape", "f_shape"),
    [((), (3,)), ((5,), (5, 3)), ((5,), (3,)), ((4, 5), (5, 3)), ((5,), (4, 1, 3)), ((0,), (0, 3))],
)
def test_latent_values_broadcast(mode, value_shape, f_shape):
    rng = np.random.default_rng(SEED)
    value, f = rng.integers(-1, 4, value_shape), rng.standard_normal(f_shape)
    batch = np.broadcast_shapes(value_shape, f_shape[:-1])
    flat_f = np.broadcast_to(f, (*batch, 3)).reshape(-1, 3)
    flat_value = np.broadcast_to(value, batch).ravel()
    expected = log_probabilities(flat_f, flat_value).reshape(batch)
    result = multinomial_probit_log_probability(pt.constant(value), pt.constant(f)).eval(mode=mode)
    np.testing.assert_allclose(result, expected, rtol=1e-13)
    assert np.all(np.isneginf(result) == np.broadcast_to((value < 0) | (value > 2), batch))


def test_gradient_matches_differences():
    verify_grad(
        lambda f: multinomial_probit_log_probability(Y, f), [F], rng=RNG, abs_tol=1e-6, rel_tol=1e-6, mode="CVM"
    )
    # All labels share one vector of latent values: its gradient is a sum over labels.
    verify_grad(
        lambda f: multinomial_probit_log_probability(Y, f), [F[0]], rng=RNG, abs_tol=1e-6, rel_tol=1e-6, mode="CVM"
    )


@pytest.mark.parametrize("mode", [pytest.param("NUMBA", marks=pytest.mark.slow), "CVM"])
def test_second_derivative_matches_differences(mode):
    f = pt.matrix("f", shape=(N, C))
    direction = RNG.standard_normal((N, C))
    slope = pytensor.grad((multinomial_probit_log_probability(Y, f).sum()), f)
    product = pytensor.grad((slope * direction).sum(), f)
    expected = np.empty((N, C))
    for i in range(N):
        hessian = np.empty((C, C))
        log_probability_hessian(F[i], Y[i], hessian)
        expected[i] = hessian @ direction[i]
    np.testing.assert_allclose(pytensor.function([f], product, mode=mode)(F), expected, rtol=1e-12)


def test_third_derivative_is_refused():
    f = pt.vector("f", shape=(C,))
    derivative = multinomial_probit_log_probability(1, f)
    for _ in range(2):
        derivative = pytensor.grad(derivative.sum(), f)
    with pytest.raises(pytensor.gradient.NullTypeGradError, match="third derivatives"):
        pytensor.grad(derivative.sum(), f)


def test_support_point_is_a_valid_label():
    with pm.Model() as model:
        MultinomialProbit("x", F)
    assert_support_point_is_expected(model, F.argmax(-1))
    with pm.Model() as model:
        MultinomialProbit("x", F[0], size=4)
    assert_support_point_is_expected(model, np.full(4, F[0].argmax()))


def test_predictive_draws_work_in_numba():
    # Warnings are errors here, for example PyTensor's "Numba will use object mode".
    with pm.Model(coords={"point": range(N)}):
        f = pm.Normal("f", 0, 1.5, shape=(N, C))
        MultinomialProbit("y", f, observed=Y, dims="point")
        prior = pm.sample_prior_predictive(20, random_seed=SEED, compile_kwargs={"mode": "NUMBA"})
        posterior = pm.sample_posterior_predictive(prior["prior"].to_dataset(), random_seed=SEED, progressbar=False)
    labels = prior["prior_predictive"]["y"]
    assert labels.dims == ("chain", "draw", "point")
    assert set(np.unique(labels)) == {0, 1, 2}
    assert posterior["posterior_predictive"]["y"].shape == (1, 20, N)


@pytest.mark.slow
def test_nutpie_samples_a_multinomial_probit():
    """nutpie compiles the gradient of the log probability. Other tests use PyMC's sampler."""
    # The prior is wide and each point has one label: the latent value of the observed class has the largest mean.
    f_true = np.repeat(np.eye(C), 4, axis=0)
    y = f_true.argmax(1)
    with pm.Model(coords={"point": range(N), "class": range(C)}):
        f = pm.Normal("f", 0, 2, dims=("class", "point"))
        MultinomialProbit("y", f.T, observed=y, dims="point")
        tree = pm.sample(
            100, tune=100, chains=1, cores=1, nuts_sampler="nutpie", random_seed=SEED, progressbar=False,
            compute_convergence_checks=False, quiet=True,
        )  # fmt: skip
    mean = tree["posterior"]["f"].mean(("chain", "draw")).values
    assert np.array_equal(mean.argmax(0), y)


def test_find_map_equals_the_mode_of_laplace():
    with pm.Model() as model:
        f = pm.Normal("f", 0, 1, shape=(2, C))
        MultinomialProbit("y", f, observed=[0, 2])
        tree = pm.find_MAP(progressbar=False, return_inferencedata=True, jitter=False)
    point = tree["posterior"]["f"].values.squeeze()
    assert np.array_equal(point.argmax(1), [0, 2])
    np.testing.assert_allclose(model.compile_dlogp()({"f": point}), 0.0, atol=1e-4)


def test_log_density_uses_new_labels_after_set_data():
    with pm.Model() as model:
        labels = pm.Data("labels", Y)
        f = pm.Normal("f", 0, 1, shape=(N, C))
        MultinomialProbit("y", f, observed=labels)
        logp = model.compile_logp(vars=model["y"])
        assert logp({"f": F}) == pytest.approx(log_probabilities(F, Y).sum())
        pm.set_data({"labels": (Y + 1) % C})
        assert logp({"f": F}) == pytest.approx(log_probabilities(F, (Y + 1) % C).sum())
        pm.set_data({"labels": Y + 1})
        assert logp({"f": F}) == -np.inf


def test_random_variable_has_its_operation_after_pickling():
    op = pickle.loads(pickle.dumps(MultinomialProbit.dist(F))).owner.op
    assert isinstance(op, MultinomialProbitRV)


LABELS = [0, 1, 2, 1]


@pytest.mark.parametrize(
    "labels",
    [
        np.array(LABELS, np.int8),
        np.array(LABELS, float),
        np.array([True, False, True, True]),
        LABELS,
        pd.Series(LABELS, dtype="Int64"),
        np.ma.masked_array(LABELS, mask=False),
        np.array(LABELS, object),
    ],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}",
)
def test_integer_and_boolean_labels_are_accepted(labels):
    with pm.Model() as model:
        MultinomialProbit("y", F[:4], observed=labels)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].data, np.asarray(labels, int))


WRONG_VALUES = [
    ([0, 1, 3, -1], r"y: 2 of 4 observed labels are out of range \(value by position: 2: 3; 3: -1\).*0 \.\.\. 2"),
    ([1, 2, 3, 1], r"y: 1 of 4 observed labels are out of range .*: labels - 1 does so"),
    ([0, 1, 2, 3], r"y: 1 of 4 observed labels are out of range .*for 4 classes .* n_outputs=4"),
    ([0, 1.5, 2, 1], r"y: 1 of 4 observed labels are not whole numbers \(value by position: 1: 1\.5\)"),
    ([0, np.inf, 2, 1], r"y: 1 of 4 observed labels are not whole numbers"),
]


@pytest.mark.parametrize(("labels", "message"), WRONG_VALUES)
@pytest.mark.parametrize("as_data", [False, True])
@pytest.mark.parametrize("in_shared_f", [False, True])
def test_labels_of_wrong_type_are_refused(labels, message, as_data, in_shared_f):
    with pm.Model() as model:
        f = pm.Data("f", F[:4]) if in_shared_f else F[:4]
        observed = pytensor.shared(np.array(labels)) if as_data else labels
        before = set(model.named_vars), dict(model.coords)
        with pytest.raises(ValueError, match=message):
            MultinomialProbit("y", f, observed=observed, dims="point")
        assert (set(model.named_vars), dict(model.coords)) == before
        MultinomialProbit("y", f, observed=LABELS)
    assert [rv.name for rv in model.observed_RVs] == ["y"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.ma.masked_array(LABELS, mask=True), r"labels are missing at 4 of 4 points \(position 0; 1; 2; 3\)"),
        (pytensor.shared(np.array([np.nan, 1, 2, np.nan])), r"missing at 2 of 4 points \(position 0; 3\)"),
        (pd.Series([3, None, 2, 1], dtype="Int64"), r"1 of 4 .* out of range .*0: 3.*labels - 1 does so"),
        ([0, None, 2.5, 1], r"1 of 4 observed labels are not whole numbers \(value by position: 2: 2\.5\)"),
        (["a", None, "b", "a"], "whole numbers"),
        (list("abca"), "whole numbers.*'a'.*pandas.factorize"),
        (np.full(4, 9), r"4 of 4 .* out of range"),
        (np.full(30, 9), "9; ..."),
        (LABELS[:3], r"y: observed labels have shape \(3,\), but the points of f have .*4,\), with one vector"),
        (LABELS[:2], r"have shape \(2,\), .* shape \(4,\), .* each\. Give each of these points one label"),
        (np.eye(3, dtype=int)[LABELS], r"shape \(4, 3\).*argmax"),
        (1, r"shape \(\), but"),
    ],
)
def test_labels_outside_the_classes_are_refused(labels, message):
    f = np.zeros((30, 3)) if isinstance(labels, np.ndarray) and labels.size == 30 else F[:4]
    with pm.Model() as model, pytest.raises(ValueError, match=message):
        MultinomialProbit("y", f, observed=labels)
    assert not model.named_vars


@pytest.mark.parametrize(
    "labels",
    [
        np.ma.masked_array(LABELS, mask=[0, 0, 1, 0]),
        pd.Series(LABELS, dtype="Int64").where(np.arange(4) != 2),
        [each if i != 2 else None for i, each in enumerate(LABELS)],
        np.where(np.arange(4) == 2, np.nan, LABELS),
    ],
    ids=["masked", "Int64", "None", "nan"],
)
def test_missing_labels_become_a_separate_variable(labels):
    with pm.Model() as model, pytest.warns(pm.exceptions.ImputationWarning):
        MultinomialProbit("y", F[:4], observed=labels)
    np.testing.assert_array_equal(model.rvs_to_values[model["y_observed"]].data, np.array(LABELS)[[0, 1, 3]])
    assert model["y_unobserved"].shape.eval() == (1,)


@pytest.mark.parametrize("data", [False, True])
def test_error_names_a_missing_transpose_of_latent_values(data):
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=pm.Data("X", X) if data else X, n_outputs=C)
        with pytest.raises(ValueError, match=r"pass f\.T"):
            MultinomialProbit("y", f, observed=Y)
        with pytest.raises(ValueError, match=r"out of range.*0 \.\.\. 2"):
            MultinomialProbit("y", f.T, observed=Y + 1)
        MultinomialProbit("y", f.T, observed=Y)


def test_labels_of_a_minibatch_have_a_finite_log_density():
    with pm.Model() as model:
        # PyMC 6.4 refuses minibatches of 64-bit integers, for all distributions.
        f, labels = pm.Minibatch(F, Y.astype("int32"), batch_size=4)
        MultinomialProbit("y", f, observed=labels, total_size=N)
    assert np.isfinite(model.compile_logp()({}))


@pytest.mark.parametrize(
    ("f", "message"),
    [(0.0, "y: f is a scalar"), (np.zeros((5, 1)), r"y: .* at least 2 classes, but f has shape \(5, 1\)")],
)
def test_wrong_latent_values_are_refused(f, message):
    with pm.Model() as model, pytest.raises(ValueError, match=message):
        MultinomialProbit("y", f)
    assert not model.named_vars
    with pytest.raises(ValueError, match=message.replace("y:", "MultinomialProbit:")):
        MultinomialProbit.dist(f)


def test_distribution_works_under_jax():
    jax = pytest.importorskip("jax")
    f = pt.matrix("f", shape=(None, C))
    value = multinomial_probit_log_probability(Y, f)
    slope = pytensor.grad(value.sum(), f)
    compiled = pytensor.function([f], [value, slope], mode="JAX")
    expected = pytensor.function([f], [value, slope], mode="CVM")(F)
    for result, other in zip(compiled(F), expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-13)
    jitted = compiled.vm.jit_fn
    np.testing.assert_allclose(jax.grad(lambda x: jitted(x)[0].sum())(F), expected[1], rtol=1e-13)
    h = 1e-6
    numeric = (compiled(F + h * np.eye(N, C))[0] - compiled(F - h * np.eye(N, C))[0]) / (2 * h)
    np.testing.assert_allclose((expected[1] * np.eye(N, C)).sum(1), numeric, atol=1e-8)
