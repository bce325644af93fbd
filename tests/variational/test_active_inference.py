"""`pm.fit(method="ivm")`: results, predictions, files and refusals."""

from copy import copy
from functools import partial
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from tests import models

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(6, 2))


@pytest.fixture(scope="module")
def fitted():
    model, gp = models.shared()
    with model, pytest.warns(RuntimeWarning, match="Hyperparameters did not converge after 8 iterations"):
        fit = pm.fit(8, method="ivm", active=10, progressbar=False)
    return model, gp, fit


@pytest.mark.variation(but=["bernoulli_probit-ep"])
@pytest.mark.parametrize(
    ("make", "method"),
    [(models.shared, "nested_ep"), (partial(models.bernoulli_probit, apart=True), "ep")],
    ids=["shared-nested_ep", "bernoulli_probit-ep"],
)
def test_fit_with_all_rows_active_equals_the_dense_fit(make, method):
    model, _ = make()
    with model:
        fit = pm.fit(method="ivm", active=100, rounds=0, progressbar=False)
        with pytest.warns(RuntimeWarning, match="No iteration was allowed"):
            dense = pm.fit(0, method=method, progressbar=False)
    assert fit.converged
    assert "Hyperparameters stay at their initial values; sites on the active rows converged" in str(fit)
    assert_allclose(fit.active_evidence, dense.log_evidence, rtol=1e-6)
    ours, theirs = fit.predict(NEW), dense.predict(NEW)
    assert_allclose(ours.p, theirs.p, atol=1e-5)
    assert ours.p.dims == theirs.p.dims
    assert_allclose(fit.loo().elpd_i, dense.loo().elpd_i, atol=1e-4)


def test_hyperparameters_are_learned_by_the_bound(fitted):
    _, _, fit = fitted
    assert fit.hist[-1] < fit.hist[0]
    assert_allclose(fit.hist, -fit.history.log_posterior)
    assert fit.lower_bound == fit.solution.bound == fit.objective
    assert np.isnan(fit.log_evidence)
    assert "ivm (sites='coupled', criterion='expected', 10 of 30 rows active): lower bound" in str(fit)
    assert "NOT converged" in str(fit)


def test_left_out_densities_of_inactive_rows_equal_predictions(fitted):
    _, _, fit = fitted
    found, p = fit.loo(), fit.predict(X).p.values[np.arange(len(Y)), Y]
    rest = np.setdiff1d(np.arange(len(Y)), fit.active.row)
    assert_allclose(found.elpd_i[rest], np.log(p[rest]), atol=1e-6)
    assert (found.p_loo_i[fit.active.row.values] > 0).mean() > 0.8
    table = gpep.compare_methods({"ivm": fit}, "ivm", Xnew=NEW, ynew=np.zeros(6, int))
    assert table.loc["ivm", "lower_bound"] == fit.lower_bound


def test_fit_lists_active_rows(fitted):
    _, _, fit = fitted
    active = fit.active
    assert len(set(active.row.values)) == 10
    assert_array_equal(active.label, Y[active.row])
    assert_array_equal(active.input, X[active.row])
    assert_array_equal(active.flower, active.row + 100)
    assert_array_equal(np.isnan(active.score), np.arange(10) < 3)
    assert active.site.all()


def test_saved_fit_equals_the_fit(fitted, tmp_path):
    model, gp, fit = fitted
    tree = fit.to_datatree()
    tree.to_netcdf(tmp_path / "fit.nc")
    with xr.open_datatree(tmp_path / "fit.nc") as stored, model:
        back = gpep.from_datatree(stored.load())
    assert_allclose(back.predict(gp, NEW).p, fit.predict(gp, NEW).p, atol=1e-10)
    assert str(back) == str(fit)
    assert_array_equal(back.active.row, fit.active.row)
    with pytest.raises(ValueError, match="hyperparameters"):
        gpep.from_datatree(tree, models.per_class()[0])


def test_rows_given_as_data_replace_rows_of_the_model(fitted, tmp_path):
    model, _, fit = fitted
    data = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(data[0], X)
    np.save(data[1], Y)
    with model, pytest.warns(RuntimeWarning, match="did not converge after 8 iterations"):
        other = pm.fit(8, method="ivm", active=10, data=data, progressbar=False)
    assert_array_equal(other.active.row, fit.active.row)
    assert_allclose(other.lower_bound, fit.lower_bound)
    assert_allclose(other.loo().elpd_i, fit.loo().elpd_i, atol=1e-8)
    assert "flower" not in other.active.coords
    tree = other.to_datatree()
    assert "y" not in tree["observed_data"]
    back = gpep.from_datatree(tree, model)
    assert str(back) == str(other)
    assert_array_equal(back.active.label, other.active.label)
    assert_allclose(back.predict(NEW).p, other.predict(NEW).p, atol=1e-10)
    with pytest.raises(ValueError, match="30 rows of this fit came from"):
        back.loo()


def test_functions_of_a_softmax_can_have_separate_active_rows():
    model, gp = models.softmax()
    with model, pytest.warns(RuntimeWarning, match="did not converge after 3 iterations"):
        fit = pm.fit(3, method="ivm", sites="separate", active=5, progressbar=False)
    assert fit.history.log_posterior[-1] > fit.history.log_posterior[0]
    there = fit.solution.posterior.sites.precision > 0.0
    assert_array_equal(there.sum(axis=1), 5)
    assert 5 < len(fit.active.row) == there.shape[1]
    assert_array_equal(fit.active.site, there.T)
    assert f"sites='separate', criterion='expected', {there.shape[1]} of 30 rows active" in str(fit)
    p = fit.predict(gp, X).p
    assert (p.values.argmax(axis=1) == Y).mean() > 0.8
    back = gpep.from_datatree(fit.to_datatree(), model)
    assert_allclose(back.predict(gp, NEW).p, fit.predict(gp, NEW).p, atol=1e-10)
    assert_array_equal(back.solution.selection.precision, fit.solution.selection.precision)
    curve = gpep.diagnostics.learning_curve(fit, X, Y, every=3)
    assert curve.mlpd.values[-1] > curve.mlpd.values[0]


@pytest.mark.variation
def test_equal_seeds_give_equal_fits():
    model, _ = models.bernoulli_logit()
    options = {"method": "ivm", "active": 6, "pool": 8, "rounds": 0, "criterion": "probability", "progressbar": False}
    with model:
        one, two = (pm.fit(random_seed=3, **options) for _ in range(2))
    assert_array_equal(one.active.row, two.active.row)
    assert one.lower_bound == two.lower_bound
    assert one.active.site.dims == ("inclusion",)


def test_positions_of_active_rows_keep_their_dim_name(fitted):
    _, _, fit = fitted
    named = SimpleNamespace(
        function_dims=(), class_names=[], point_dim="row", coords_of_points=lambda: np.arange(len(Y)) + 1000
    )
    log_posterior = copy(fit.log_posterior)
    log_posterior.space = SimpleNamespace(classifier=named)
    found, rows = log_posterior.active(fit.theta, fit.solution), fit.solution.selection.rows
    assert_array_equal(found.row, rows)
    assert_array_equal(found.row_name, rows + 1000)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"active": 2.5}, TypeError, "active must be a whole number"),
        ({"active": "15"}, TypeError, "active must be a whole number, but is '15'"),
        ({"active": np.arange(3)}, TypeError, "active must be a whole number, but is array"),
        ({"rounds": -1}, ValueError, "rounds, .*, must be at least 0"),
        ({"inducing": 5}, TypeError, "ivm has no option inducing. .* Other methods support inducing: 'sparse_ep'"),
        ({"hyper": "nuts"}, ValueError, "hyper='nuts' is only for methods that work on all latent values together"),
        ({"sites": "utility"}, ValueError, "cannot be chosen by 'utility' sites"),
        ({"score": "information"}, TypeError, "score must be True or False, but is 'information'"),
        ({"criterion": "best"}, ValueError, "criterion must be one of"),
        ({"active": 10, "rows": 10}, ValueError, "rows must be larger than active"),
    ],
)
def test_invalid_options_raise_errors(options, error, message):
    model, _ = models.softmax()
    with model, pytest.raises(error, match=message):
        pm.fit(method="ivm", **options)


def test_rows_with_label_noise_are_refused():
    with pm.Model() as model:
        f = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0)).prior("f", X=X, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, epsilon=0.01, observed=Y)
    with model, pytest.raises(ValueError, match=r"Methods for this likelihood are .*'sparse_ep', 'sparse_vi'"):
        pm.fit(method="ivm", active=5)


def test_tools_for_active_rows_refuse_other_fits():
    with pytest.raises(TypeError, match=r'fit must be a fit by pm\.fit\(method="ivm"\), but is a dict'):
        gpep.diagnostics.learning_curve({}, NEW, np.zeros(6))
    with pytest.raises(TypeError, match="but is a dict"):
        gpep.plots.plot_active({})


def test_checks_of_a_joint_posterior_raise_not_implemented_error(fitted):
    with pytest.raises(NotImplementedError, match=r"importance needs .*, which a fit by active rows does not have"):
        fitted[2].importance()
