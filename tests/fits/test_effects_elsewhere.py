"""Terms of a sum at new inputs and data, against dense formulas in NumPy."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests.sum_models import BINARY, COUNTS, GROUP, KINDS, PLACES, XY, J, N, X, made

NEW = np.array([[0.3, -0.2], [1.1, 0.4], [-0.7, 2.0], [0.0, 0.0]])
LS = 1.3


def expquad(a, b):
    return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(axis=2) / LS**2)


def process(name, x, d=2, mean=None, **kwargs):
    mean = pm.gp.mean.Zero() if mean is None else mean
    return pm.gp.Latent(mean_func=mean, cov_func=pm.gp.cov.ExpQuad(d, ls=LS)).prior(name, X=x, **kwargs)


def fitted(declare, method="ep", **kwargs):
    with made(declare):
        return pm.fit(method=method, hyper="map", progressbar=False, **kwargs)


def conditional(fit, k, cross, variance):
    """Mean and sd of values with covariances `cross` with f at the rows, given the sites of a fit of one function."""
    posterior = fit.solution.posterior
    precision = np.ravel(posterior.precision)
    force = np.ravel(posterior.weights + posterior.precision * posterior.marginals()[0])
    force = force - precision * np.ravel(posterior.prior.mean)
    inner = np.linalg.solve(
        np.eye(len(k)) + precision[:, None] * k, np.column_stack([force, precision[:, None] * cross.T])
    )
    return cross @ inner[:, 0], np.sqrt(variance - (cross * inner[:, 1:].T).sum(axis=1))


def trend(x):
    f = process("f", x)
    b, a = pm.Normal("b", shape=2), pm.Normal("a")
    pm.Deterministic("both", f + x @ b)
    pm.Deterministic("line", pt.as_tensor(x) @ b)
    pm.Bernoulli("y", logit_p=f + x @ b + a, observed=BINARY)


@pytest.fixture(scope="module", params=["array", "pm.Data"])
def fit(request):
    return fitted(lambda: trend(XY if request.param == "array" else pm.Data("X", XY)))


@pytest.mark.variation(but=["array"])
def test_process_term_at_new_inputs_matches_dense_formula(fit):
    k = expquad(XY, XY) + 1e-6 * np.eye(N) + XY @ XY.T + 1.0
    found = fit.effects("f", Xnew=NEW)["f"]
    mean, sd = conditional(fit, k, expquad(NEW, XY), np.ones(len(NEW)))
    assert found.dims == ("moment", "new_point")
    assert_allclose(found.sel(moment="mean"), mean, atol=1e-8)
    assert_allclose(found.sel(moment="sd"), sd, atol=1e-8)
    both = fit.effects(["both", "f"], Xnew=NEW)
    cross = expquad(NEW, XY) + NEW @ XY.T
    mean, sd = conditional(fit, k, cross, 1.0 + (NEW**2).sum(axis=1))
    assert_allclose(both["both"], [mean, sd], atol=1e-8)
    assert_allclose(both["f"], found, atol=1e-10)


def test_terms_at_as_many_new_inputs_as_rows_match_dense_formula(fit):
    rows = np.concatenate([NEW, XY[len(NEW) :]])
    found = fit.effects("both", Xnew=rows)["both"]
    assert found.shape == (2, N)
    assert_allclose(found[:, : len(NEW)], fit.effects("both", Xnew=NEW)["both"], atol=1e-10)
    assert_allclose(fit.effects("f", Xnew=XY)["f"], fit.effects("f")["f"], atol=2e-3)  # up to the jitter


@pytest.mark.parametrize(
    ("names", "given", "message"),
    [
        ("a", {"Xnew": NEW}, "depend on no Gaussian process"),
        ("f", {"Xnew": NEW[:, :1]}, "1"),
        ("f", {"data": {"nothing": NEW}}, "depend on no data 'nothing'"),
        (None, {"Xnew": NEW}, "needs names"),
        ("y", {"Xnew": NEW}, "'y'"),
    ],
)
def test_invalid_new_data_raise_value_error(names, given, message, fit):
    with pytest.raises(ValueError, match=message):
        fit.effects(names, **given)


def test_term_without_a_process_has_the_value_at_new_data():
    fit = fitted(lambda: trend(pm.Data("X", XY)))
    posterior = fit.contrast({"one": {"b": [1.0, 0.0]}, "two": {"b": [0.0, 1.0]}})
    found = fit.effects("line", data={"X": NEW})["line"]
    assert_allclose(found.sel(moment="mean"), NEW @ fit.mean_data["b"].values, atol=1e-10)
    scale = fit.std_data["b"].values / posterior["sd"].values  # New rows have the moments of the Gaussian posterior.
    expected = np.einsum("ri,ij,rj->r", NEW, posterior["cov"].values * np.outer(scale, scale), NEW)
    assert_allclose(found.sel(moment="sd") ** 2, expected, atol=1e-10)


def test_field_by_a_basis_is_predicted_at_new_inputs():
    """The basis of PyMC's linearised process is evaluated at the grid."""
    gp = pm.gp.HSGP(m=[4, 3], L=[3.0, 4.0], cov_func=pm.gp.cov.Matern52(2, ls=0.8))

    def declare():
        at, x = pm.Data("at", XY), pm.Data("x", X**2)
        field = pm.Deterministic("smooth", gp.prior("field", X=at))
        pm.Bernoulli("y", logit_p=pm.Normal("level") + pm.Normal("beta") * x + field, observed=BINARY)

    fit = fitted(declare)
    found = fit.effects(["smooth"], data={"at": NEW})["smooth"]
    assert found.dims == ("moment", "new_point")
    with fit.model:
        phi, root = (each.eval() for each in gp.prior_linearized(NEW))
    size = 12
    unit = {f"{i}": {"field_hsgp_coeffs": np.eye(size)[i]} for i in range(size)}
    coefficients = fit.contrast(unit)
    rows = np.asarray(phi) * np.asarray(root)
    assert_allclose(found.sel(moment="mean"), rows @ coefficients["mean"].values, atol=1e-8)
    variance = np.einsum("ri,ij,rj->r", rows, coefficients["cov"].values, rows)
    assert_allclose(found.sel(moment="sd") ** 2, variance, atol=1e-8)


def test_process_indexed_by_places_is_predicted_at_new_inputs():
    """Rows select values of the process, which has fewer inputs than rows."""

    def declare():
        f = process("f", PLACES, 1)
        pm.Poisson("y", mu=pm.math.exp(f[GROUP] + pm.Normal("a")), observed=COUNTS)

    fit = fitted(declare)
    grid = np.array([[0.1], [0.55]])
    k = expquad(PLACES, PLACES) + 1e-6 * np.eye(J)
    place = GROUP[fit.classifier.groups.first]  # rows at a place are one point
    mean, sd = conditional(fit, k[place][:, place] + 1.0, expquad(grid, PLACES)[:, place], np.ones(len(grid)))
    assert_allclose(fit.effects("f", Xnew=grid)["f"], [mean, sd], atol=1e-7)


def test_two_processes_are_predicted_separately():
    def declare():
        x = pm.Data("x", XY[:, :1])
        f, g = process("f", x, 1), process("g", XY[:, 1:], 1, pm.gp.mean.Constant(pm.Normal("c")))
        pm.Bernoulli("y", logit_p=f + X * g, observed=BINARY)

    fit = fitted(declare)
    own, grid = XY[:, :1], np.array([[-1.0], [0.4], [2.0]])
    other = expquad(XY[:, 1:], XY[:, 1:]) + 1e-6 * np.eye(N) + 1.0
    k = expquad(own, own) + 1e-6 * np.eye(N) + X[:, None] * other * X
    assert_allclose(fit.effects("f", Xnew=grid)["f"], conditional(fit, k, expquad(grid, own), np.ones(3)), atol=1e-8)
    cross = (expquad(grid, XY[:, 1:]) + 1.0) * X
    assert_allclose(fit.effects("g", Xnew=grid)["g"], conditional(fit, k, cross, np.full(3, 2.0)), atol=1e-8)


def test_sum_of_processes_without_other_terms_is_predicted():
    def declare():
        f = process("f", XY, mean=pm.gp.mean.Linear(coeffs=pm.Normal("b", shape=2)))
        gpep.Probit("y", f, observed=BINARY)

    fit = fitted(declare)
    found, predicted = fit.effects("f", Xnew=NEW)["f"], fit.predict(NEW, progressbar=False)
    assert_allclose(found, [predicted["mean"], np.sqrt(predicted["variance"])], atol=1e-10)
    plain = fitted(lambda: gpep.Probit("y", process("f", XY), observed=BINARY))
    k = expquad(XY, XY) + 1e-6 * np.eye(N)
    expected = conditional(plain, k, expquad(NEW, XY), np.ones(len(NEW)))
    assert_allclose(plain.effects("f", Xnew=NEW)["f"], expected, atol=1e-8)
    with pytest.raises(ValueError, match="depend only on inputs"):
        plain.effects("f", data={"X": NEW})


@pytest.mark.variation(but=["pm.Data"])
@pytest.mark.parametrize("data", [False, True], ids=["array", "pm.Data"])
def test_effects_of_classes_are_predicted_at_new_inputs(data):
    """The sum of each class's process and trend is the prediction."""

    def declare():
        x = pm.Data("X", XY) if data else XY
        f, b = process("f", x, n_outputs=3), pm.Normal("b", shape=(2, 3))
        pm.Deterministic("both", f.T + x @ b)
        gpep.MultinomialProbit("y", f.T + x @ b, observed=KINDS)

    fit = fitted(declare, "nested_ep")
    found, predicted = fit.effects(["both", "f"], Xnew=NEW), fit.predict(NEW, progressbar=False)
    assert found["f"].dims == ("moment", "f_dim_0", "new_point")
    assert_allclose(found["both"].sel(moment="mean"), predicted["mean"], atol=1e-7)
    variance = predicted["cov"].values.diagonal(axis1=1, axis2=2)
    assert_allclose(found["both"].sel(moment="sd") ** 2, variance, atol=1e-6)


def test_random_walk_is_predicted_at_selected_weeks():
    def declare():
        week = pm.Data("week", GROUP)
        walk = pm.GaussianRandomWalk("walk", sigma=0.4, init_dist=pm.Normal.dist(0, 1), dims="group")
        pm.Deterministic("there", walk[week])
        pm.Poisson("y", mu=pm.math.exp(walk[week]), observed=COUNTS)

    fit = fitted(declare)
    assert_allclose(
        fit.effects("there", data={"week": [3, 0]})["there"], fit.effects("walk")["walk"][:, [3, 0]], atol=1e-10
    )
    with pytest.raises(ValueError, match="has 8, but its levels are 0 to 7"):
        fit.effects("there", data={"week": [8]})
    with pytest.raises(ValueError, match="Values of 'walk' depend on no data 'week'"):
        fit.effects("walk", data={"week": [1]})
