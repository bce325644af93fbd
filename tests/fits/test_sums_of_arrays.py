"""Predictions of sums with arrays as inputs, against models with `pm.Data` and a dense formula in NumPy."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests.sum_models import BINARY, GROUP, HOURS, KINDS, XY, J, N, made

NEW = np.array([[0.3, -0.2], [1.1, 0.4], [-0.7, 2.0], [0.0, 0.0]])
LS = 1.3


def process(name, x, mean=None, **kwargs):
    mean = pm.gp.mean.Zero() if mean is None else mean
    return pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.ExpQuad(2, ls=LS)).prior(name, X=x, **kwargs)


class Values(pm.gp.mean.Mean):
    """A mean function whose values are a variable of the model."""

    def __init__(self, values):
        self.values = values

    def __call__(self, X):
        return self.values


def trend(x):
    pm.Bernoulli("y", logit_p=process("f", x) + x @ pm.Normal("b", shape=2) + pm.Normal("a"), observed=BINARY)


def one_column(x):
    f = process("f", x, reparameterize=False)
    gpep.Probit("y", 2.0 * f - x[:, 1] * pm.Normal("b") + 0.5 * pm.Normal("a"), observed=BINARY)


def classes(x):
    b, a = pm.Normal("b", shape=(2, 3)), pm.Normal("a", shape=3)
    gpep.MultinomialProbit("y", process("f", x, n_outputs=3).T + x @ b + a, observed=KINDS)


def process_on_process(x):
    f = process("f", x, Values(process("g", x)))
    pm.Bernoulli("y", logit_p=f + x[:, 0] * pm.Normal("b"), observed=BINARY)


def known_coefficients(x):
    """Known coefficients, in the mean of the process and as a separate term."""
    f = process("f", x, pm.gp.mean.Linear(np.array([0.3, -0.2]), intercept=0.5))
    pm.Bernoulli("y", logit_p=f + pt.as_tensor(x) @ np.array([0.4, -0.2]) + pm.Normal("a"), observed=BINARY)


FORMS = {each.__name__: each for each in (trend, one_column, known_coefficients, classes, process_on_process)}


def by_array(declare):
    return fit_of(lambda: declare(XY), declare)


def by_data(declare):
    return fit_of(lambda: declare(pm.Data("X", XY)), declare)


def fit_of(declare, original=None):
    with made(declare):
        method = "nested_ep" if original is classes else "ep"
        return pm.fit(method=method, hyper="map", progressbar=False)


@pytest.fixture(scope="module")
def of_arrays():
    return by_array(trend)


@pytest.mark.variation(but=["one_column"])
@pytest.mark.parametrize("form", FORMS)
def test_predictions_equal_predictions_with_data(form, of_arrays):
    fits = of_arrays if form == "trend" else by_array(FORMS[form]), by_data(FORMS[form])
    found, expected = (fit.predict(NEW, progressbar=False) for fit in fits)
    for name in ("mean", "p"):
        assert_allclose(found[name], expected[name], atol=1e-10)
    for name in {"variance", "cov"} & set(found.data_vars):
        assert_allclose(found[name], expected[name], atol=1e-10)


def test_inputs_given_twice_are_refused():
    with pytest.raises(TypeError, match=r"data\['X'\] are the same inputs"):
        by_data(one_column).predict(NEW, data={"X": NEW})


def test_predictions_of_arrays_match_the_dense_formula(of_arrays):
    posterior = of_arrays.solution.posterior
    precision = np.ravel(posterior.precision)
    # natural parameters of the sites
    force = np.ravel(posterior.weights + posterior.precision * posterior.marginals()[0])

    def covariance(a, b):
        distance = ((a[:, None] - b[None]) ** 2).sum(axis=2)
        return np.exp(-0.5 * distance / LS**2) + a @ b.T + 1.0

    k = covariance(XY, XY) + 1e-6 * np.eye(N)
    cross = covariance(NEW, XY)
    inner = np.linalg.solve(np.eye(N) + precision[:, None] * k, np.column_stack([force, precision[:, None] * cross.T]))
    found = of_arrays.predict(NEW, progressbar=False)
    assert_allclose(found["mean"], cross @ inner[:, 0], atol=1e-8)
    assert_allclose(
        found["variance"], covariance(NEW, NEW).diagonal() - (cross * inner[:, 1:].T).sum(axis=1), atol=1e-8
    )


def test_prediction_at_as_many_new_rows_as_fitted_rows_uses_the_new_rows(of_arrays):
    """Arrays of the fit must not be used as arrays of new rows."""
    rows = np.concatenate([NEW, XY[len(NEW) :]])
    found = of_arrays.predict(rows, progressbar=False)
    assert_allclose(found["mean"][: len(NEW)], of_arrays.predict(NEW, progressbar=False)["mean"], atol=1e-10)


def test_predictions_at_fitted_rows_equal_the_fit(of_arrays):
    """The results differ only by the jitter that PyMC adds to the covariance of fitted rows."""
    assert_allclose(of_arrays.predict(XY, progressbar=False)["mean"], of_arrays.latent_moments()[0][:, 0], atol=1e-5)
    assert_allclose(of_arrays.fitted_inputs(), XY)


def test_prediction_with_gp_equals_prediction_without_gp():
    def declare():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=LS))
        makers.append(gp)
        pm.Bernoulli("y", logit_p=gp.prior("f", X=XY) + XY @ pm.Normal("b", shape=2), observed=BINARY)

    makers = []
    fit = fit_of(declare)
    found = fit.predict(makers[0], NEW, progressbar=False)
    assert_allclose(found["mean"], fit.predict(NEW, progressbar=False)["mean"], atol=1e-10)


def beside(declare):
    """A process of an array, plus another term."""
    return fit_of(lambda: pm.Bernoulli("y", logit_p=process("f", XY) + declare(), observed=BINARY))


@pytest.mark.variation
def test_inputs_and_data_can_be_given_together():
    hours = np.linspace(0.5, 2, len(NEW))

    def declare(x):
        where, given = pm.Data("where", GROUP), pm.Data("hours", HOURS)
        u = pm.Normal("u", shape=J)
        pm.Bernoulli("y", logit_p=process("f", x) + u[where] + given * pm.Normal("b"), observed=BINARY)

    fit, other = by_array(declare), by_data(declare)
    data = {"where": [0, 3, 7, 7], "hours": hours}
    found, expected = fit.predict(NEW, data=data), other.predict(NEW, data=data)
    assert_allclose(found["mean"], expected["mean"], atol=1e-10)
    assert_allclose(found["variance"], expected["variance"], atol=1e-10)
    with pytest.raises(ValueError, match=r"further data: data=\{\.\.\., 'where': \.\.\.\}"):
        fit.predict(NEW, data={"hours": hours})
    with pytest.raises(ValueError, match=r"depend on inputs: predict\(Xnew, data=\{\.\.\.\}\)"):
        fit.predict(data=data)
    with pytest.raises(ValueError, match="must have the same number of rows"):
        fit.predict(NEW, data={"where": [0, 1], "hours": hours})


@pytest.mark.variation(
    but=[
        "another array-few rows",
        "a mean over rows-as many rows as in the fit",
        "another array-as many rows as in the fit",
    ]
)
@pytest.mark.parametrize("rows", [len(NEW), N], ids=["few rows", "as many rows as in the fit"])
@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda: HOURS * pm.Normal("b"), r"sum depends on a constant of shape \(30,\) in addition to the inputs"),
        (
            lambda: pm.Normal("u", shape=J)[GROUP],
            r"sum depends on a constant of shape \(30,\) in addition to the inputs",
        ),
        (lambda: pm.Normal("u", shape=N), "'u', a random variable with a value for each point"),
        (lambda: pm.Normal("b") * pt.as_tensor(XY).mean(), "is computed from all points"),
    ],
    ids=["another array", "groups as an array", "an effect of each row", "a mean over rows"],
)
def test_arrays_without_new_values_are_refused_with_advice(declare, why, rows):
    with pytest.raises(ValueError, match=rf"{why}.*pm\.Data"):
        beside(declare).predict(np.resize(NEW, (rows, 2)), progressbar=False)


def test_inputs_have_the_columns_of_the_model(of_arrays):
    with pytest.raises(ValueError, match=r"Xnew has 3 columns, but the model's inputs have 2"):
        of_arrays.predict(np.zeros((2, 3)))


def test_columns_with_equal_values_at_all_rows_are_refused():
    twice = np.column_stack([XY, XY[:, 0]])

    def declare():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(3, ls=LS))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=twice) + XY[:, 0] * pm.Normal("b"), observed=BINARY)

    with pytest.raises(ValueError, match="equals another column"):
        fit_of(declare).predict(np.zeros((2, 3)))


@pytest.mark.parametrize("kept", [[], ["b"]], ids=["integrated", "a hyperparameter"])
def test_prediction_with_gp_equals_prediction_without_gp_for_a_mean_with_one_coefficient(kept):
    with pm.Model():
        b = pm.Normal("b", 0.0, 1.0)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Linear(coeffs=b), cov_func=pm.gp.cov.ExpQuad(1, ls=LS))
        f = gp.prior("f", X=XY[:, :1])
        pm.Bernoulli("y", logit_p=f, observed=BINARY)
        fit = pm.fit(method="laplace", hyper="map", hyperparameters=kept, progressbar=False)
    expected = fit.predict(NEW[:, :1], progressbar=False)["mean"]
    for rows in (3, 1):
        found = fit.predict(gp, NEW[:rows, :1], progressbar=False)["mean"]
        assert_allclose(found, expected[:rows], atol=1e-10)
