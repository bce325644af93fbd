"""Abilities of all kinds of fits: draws, integrals over hyperparameters, several starts, continuing."""

import warnings

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_gpep as gpep
from pymc_gpep.approximations import EP
from tests import models

X, Y = models.data()
NEW = np.random.default_rng(0).uniform(-2, 2, size=(5, 2))
KINDS = {
    "all rows": {"method": "nested_ep"},
    "inducing inputs": {"method": "sparse_ep", "inducing": 8},
    "active rows": {"method": "ivm", "active": 12},
    "batches": {"method": "sparse_ep", "inducing": 8, "batch_size": 10, "n": 12},
}


def fit_of(build, options, **more):
    model, _ = build()
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a few iterations do not converge
        return pm.fit(**{"n": 6, "progressbar": False, "random_seed": 1} | options | more)


@pytest.fixture(scope="module")
def fits():
    made = {}

    def make(kind):
        if kind not in made:
            made[kind] = fit_of(models.probit, KINDS[kind])
        return made[kind]

    return make


@pytest.mark.variation(but=["inducing inputs"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_fits_share_the_same_interface(kind, fits):
    fit = fits(kind)
    assert isinstance(fit, gpep.Fit)
    assert_allclose(fit.hist, -fit.history["log_posterior"])
    assert fit.nodes.sizes["node"] == 1
    assert_allclose(fit.nodes["ls"][0], fit.hyperparameters["ls"])
    assert fit.message in str(fit)
    numbers = [fit.log_evidence, fit.lower_bound, fit.objective]
    assert any(np.isclose(fit.objective, each) for each in numbers[:2]) or kind == "batches"
    mean, cov = fit.latent_moments()
    found = fit.predict(X, progressbar=False)
    assert_allclose(found["mean"], mean, atol=1e-4)  # the model's own rows have PyMC's jitter
    assert_allclose(found["cov"], cov, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_moments_of_predictions(kind, fits):
    fit, draws = fits(kind), 4000
    drawn = fit.sample(draws, Xnew=NEW, random_seed=2)["posterior"]
    assert drawn["f"].dims == ("chain", "draw", "species", "new_point")
    f = drawn["f"].values[0]
    expected = fit.predict(NEW, progressbar=False)
    sd = np.sqrt(np.diagonal(expected["cov"].values, axis1=1, axis2=2))
    assert_allclose((f.mean(axis=0).T - expected["mean"]) / sd, 0.0, atol=4.5 / np.sqrt(draws))
    spread = (f - f.mean(axis=0)).transpose(2, 1, 0) / sd[:, :, None]
    correlation = expected["cov"].values / (sd[:, :, None] * sd[:, None, :])
    assert_allclose(spread @ spread.transpose(0, 2, 1) / draws, correlation, atol=6.0 / np.sqrt(draws))
    assert_array_equal(drawn["ls"].values[0], np.full(draws, fit.hyperparameters["ls"]))


@pytest.mark.parametrize("kind", ["inducing inputs", "active rows", "batches"])
def test_draws_at_rows_have_the_names_of_the_model(kind, fits):
    drawn = fits(kind).sample(3, chains=2, random_seed=2)["posterior"]
    assert drawn["f"].dims == ("chain", "draw", "species", "flower")
    again = fits(kind).sample(3, chains=2, random_seed=2)["posterior"]
    assert_array_equal(again["f"], drawn["f"])


@pytest.mark.parametrize("kind", ["inducing inputs", "active rows", "batches"])
def test_draws_of_a_function_do_not_depend_on_the_number_of_drawn_rows(kind, fits):
    """Inducing values determine the function up to rounding. Its draws do not depend on the number of drawn rows."""
    fit = fits(kind)
    at = fit.inducing_inputs[0][:3]  # inducing inputs of the first function
    both = np.concatenate([at, NEW])
    whole, other = (fit.sample(5, Xnew=both, random_seed=seed)["posterior"]["f"][0, :, 0] for seed in (3, 4))
    part = fit.sample(5, Xnew=at, random_seed=3)["posterior"]["f"][0, :, 0]
    assert_allclose(part, whole[:, :3], atol=0.05)
    assert np.abs(whole - other).max() > 0.05


def test_draws_that_exceed_memory_are_refused(fits, monkeypatch):
    monkeypatch.setattr("pymc_gpep.fits.sample.available_memory", lambda: 1e3)
    with pytest.raises(MemoryError, match=r"50 draws of 3 latent functions at 30 rows take .*Xnew=X\[:1000\]"):
        fits("inducing inputs").sample(50)


@pytest.mark.parametrize("reparameterize", [True, False])
def test_flat_vector_with_all_rows_as_inducing_inputs_equals_a_dense_fit(reparameterize):
    x = X + 1e-3 * np.arange(len(X))[:, None]  # dense EP would group rows with equal inputs
    with pm.Model():
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(2, ls=0.7))
        gpep.Probit("y", gp.prior("f", X=x, reparameterize=reparameterize), observed=(Y == 2).astype(int))
        dense = pm.fit(method="ep", progressbar=False)
        sparse = pm.fit(method="sparse_ep", inducing=x, jitter=1e-10, progressbar=False)
        active = pm.fit(method="ivm", active=30, progressbar=False)
    for other in (sparse, active):
        for name in ("mean", "std", "cov"):
            assert_allclose(getattr(other, name).eval(), getattr(dense, name).eval(), atol=2e-3, err_msg=name)


@pytest.mark.variation(but=["laplace"])
@pytest.mark.parametrize("hyper", ["laplace", "ccd"])
def test_integrals_with_all_rows_as_inducing_inputs_equal_a_dense_fit(hyper):
    options = {
        "hyper": hyper,
        "hyper_options": {"nodes": 8} if hyper == "laplace" else {},
    }
    dense = fit_of(models.bernoulli_probit, {"method": "ep", "n": 100} | options)
    sparse = fit_of(
        models.bernoulli_probit, {"method": "sparse_ep", "inducing": X, "jitter": 1e-10, "n": 100} | options
    )
    assert_allclose(sparse.hyper_posterior.log_evidence, dense.hyper_posterior.log_evidence, atol=0.01)
    assert_allclose(sparse.nodes["weight"], dense.nodes["weight"], atol=0.01)
    assert_allclose(sparse.predict(NEW)["p"], dense.predict(NEW)["p"], atol=2e-3)
    assert f"Integrated over hyperparameters at {len(sparse.hyper_posterior)} nodes" in str(sparse)
    again = gpep.from_datatree(sparse.to_datatree(), models.bernoulli_probit()[0])
    assert str(again) == str(sparse)
    assert_allclose(again.predict(NEW)["p"], sparse.predict(NEW)["p"], rtol=1e-9)
    assert np.unique(sparse.sample(200, Xnew=NEW, random_seed=1)["posterior"]["ls"]).size > 2


@pytest.mark.parametrize("kind", ["active rows", "batches"])
def test_nodes_are_weighted_by_their_density(kind):
    """The weight of a node is its posterior density times the weight of the design.

    Each node is evaluated again here.
    """
    fit = fit_of(models.bernoulli_probit, KINDS[kind], hyper="laplace", hyper_options={"nodes": 5}, n=30)
    assert fit.nodes.sizes["node"] == 5
    function = fit.hyper_posterior.log_posterior
    for node in fit.hyper_posterior.nodes[:2]:
        assert_allclose(function(node.theta).log_posterior, node.log_posterior, atol=1e-3)
    averaged = fit.predict(NEW)["p"]
    assert_allclose(averaged.sum(axis=1), 1.0)
    again = gpep.from_datatree(fit.to_datatree(), models.bernoulli_probit()[0])
    assert_allclose(again.predict(NEW)["p"], averaged, rtol=1e-7)
    assert_allclose(fit.solution.lower_bound, again.solution.lower_bound)


@pytest.mark.variation
def test_sites_of_active_rows_depend_on_the_hyperparameters():
    """The reference is the approximation on the same rows, at other hyperparameters."""
    fit = fit_of(models.bernoulli_probit, KINDS["active rows"])
    x = fit.theta + 0.3
    rows = fit.active["row"].values
    function = fit.log_posterior
    prior = function.rows_at(x).block(rows, rows)
    dense = EP().solve(prior.cross, prior.mean, (Y == 2).astype(int)[rows], likelihood=function.likelihood)
    assert_allclose(function.solve(x).active_evidence, dense.evidence, atol=1e-6)
    slope = function(x).gradient
    differences = [
        (function(x + step).log_posterior - function(x - step).log_posterior) / 2e-2 for step in 1e-2 * np.eye(x.size)
    ]
    assert_allclose(slope, differences, rtol=1e-6)


@pytest.mark.variation(but=["inner"])
@pytest.mark.parametrize(
    "options",
    [KINDS["inducing inputs"], KINDS["inducing inputs"] | {"update": "inner"}, KINDS["active rows"]],
    ids=["outer", "inner", "active rows"],
)
def test_fit_from_several_starts_has_the_highest_log_posterior(options):
    fit = fit_of(models.bernoulli_probit, options, starts=3, n=12)
    ends = fit.starts["log_posterior"].values
    assert len(ends) == 3
    assert_allclose(fit.trace.best.log_posterior, np.nanmax(ends))
    assert fit.inducing_inputs.shape[1] in (8, 12)


@pytest.mark.parametrize("kind", KINDS)
def test_refine_returns_a_new_fit_and_does_not_change_the_original(kind, fits):
    fit = fits(kind)
    before = str(fit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        further = fit.refine(5, progressbar=False)
    assert str(fit) == before
    assert further is not fit
    assert further.trace.best.log_posterior > fit.trace.best.log_posterior - 1e-6 or kind == "batches"
    assert len(further.hist) == len(fit.hist) + 5 if kind == "batches" else len(further.hist) <= 6


def test_text_of_a_loaded_fit_names_how_to_continue(fits):
    again = gpep.from_datatree(fits("inducing inputs").to_datatree(), models.probit()[0])
    with pytest.raises(ValueError, match=r"was read from a file\. pm\.fit\(n, \.\.\., start=fit\) continues it"):
        again.refine(3)
    further = fit_of(models.probit, {"method": "sparse_ep"}, start=again, n=1)
    assert_allclose(further.trace.first.theta, again.theta)
    assert_array_equal(further.inducing_inputs, again.inducing_inputs)


@pytest.mark.parametrize("kind", ["inducing inputs", "batches"])
def test_predict_of_all_fits_refuses_data_that_the_likelihood_does_not_use(kind, fits):
    dense = pytest.raises(ValueError, match="data names 'exposure', but 'y' depends on")
    for each in ("all rows", kind):
        with dense:
            fits(each).predict(NEW, data={"exposure": 1.0})


def scaled_by_all_inputs():
    """Model whose covariance at new inputs cannot be read from its graph: it depends on all inputs."""
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        ls = pm.InverseGamma("ls", 3, 3)
        gp = pm.gp.Latent(cov_func=(inputs**2).max() * pm.gp.cov.ExpQuad(2, ls=ls))
        gpep.Probit("y", gp.prior("f", X=inputs), observed=(Y == 2).astype(int))
    return model, gp


@pytest.mark.variation(but=["batches"])
@pytest.mark.parametrize("kind", ["inducing inputs", "active rows", "batches"])
def test_fit_with_gp_is_loaded_with_gp(kind):
    model, gp = scaled_by_all_inputs()
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fit = pm.fit(**{"n": 3, "progressbar": False} | KINDS[kind], gp=gp)
    tree = fit.to_datatree()
    model, gp = scaled_by_all_inputs()
    with pytest.raises(gpep.StructureError, match=r"Give gp=\.\.\."):
        gpep.from_datatree(tree, model).predict(NEW)
    again = gpep.from_datatree(tree, model, gp=gp)
    assert_allclose(again.predict(NEW)["p"], fit.predict(NEW)["p"], rtol=1e-9)
    assert_allclose(again.latent["mean"], fit.latent["mean"], rtol=1e-7)


@pytest.mark.parametrize("kind", ["inducing inputs", "active rows", "batches"])
def test_pymc_predicts_from_draws_like_the_fit(kind, fits, monkeypatch):
    fit, draws = fits(kind), 400
    expected = fit.predict(X, progressbar=False)["p"].values
    drawn = fit.sample(draws, random_seed=3)
    assert "f_rotated_" in drawn["posterior"]
    labels = pm.sample_posterior_predictive(drawn, model=fit.model, random_seed=4, progressbar=False)
    y = labels["posterior_predictive"]["y"].values[0]
    found = np.stack([(y == k).mean(axis=0) for k in range(3)], axis=-1)
    assert_allclose(found, expected, atol=4.5 * 0.5 / np.sqrt(draws))
    monkeypatch.setattr("pymc_gpep.fits.sample._WITH_NORMALS", 10)
    without = fit.sample(draws, random_seed=3)["posterior"]
    assert "f_rotated_" not in without
    assert_array_equal(without["f"], drawn["posterior"]["f"])


@pytest.mark.variation
def test_batch_fit_starts_at_the_end_of_another_fit(fits):
    model, _ = models.probit()
    other = fits("inducing inputs")
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fit = pm.fit(1, method="sparse_ep", batch_size=10, warmup=1, start=other, progressbar=False)
    assert_allclose(fit.theta, other.theta)  # hyperparameters are fixed in the first epoch
    assert_allclose(fit.inducing_inputs, other.inducing_inputs)


def test_draws_of_a_batch_fit_do_not_read_the_rows():
    """Also for a loaded fit, whose file does not contain rows from `data=`."""
    model, _ = models.bernoulli_probit()
    labels = (Y == 2).astype(int)
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        fit = pm.fit(4, method="sparse_ep", inducing=5, batch_size=10, data=(X, labels), progressbar=False)
    again = gpep.from_datatree(fit.to_datatree(), models.bernoulli_probit()[0])
    drawn, expected = (each.sample(3, Xnew=NEW, random_seed=1)["posterior"] for each in (again, fit))
    assert_allclose(drawn["f"], expected["f"], rtol=1e-9)
    assert "log_evidence" not in drawn.attrs


def test_advice_for_a_maximum_without_curvature_suits_the_method():
    with pm.Model():
        unused = pm.CustomDist("unused", logp=lambda value: 0.0 * value, initval=0.0)
        gp = pm.gp.Latent(cov_func=4.0 * pm.gp.cov.ExpQuad(2, ls=1.0 + 0.0 * unused))
        gpep.Probit("y", gp.prior("f", X=X), observed=(Y == 2).astype(int))
        with pytest.raises(ValueError, match=r"no curved maximum .* keep them at their maximum, hyper='map'\."):
            pm.fit(method="sparse_ep", inducing=5, hyper="ccd", progressbar=False)
        with pytest.raises(ValueError, match=r"no curved maximum .* or integrate with hyper='nuts'\."):
            pm.fit(method="ep", hyper="ccd", progressbar=False)


@pytest.mark.variation
def test_error_of_a_failed_integral_carries_the_fit_at_the_maximum():
    with pytest.raises(ValueError, match="nodes must be at least 3") as raised:
        fit_of(models.bernoulli_probit, KINDS["inducing inputs"], hyper="laplace", hyper_options={"nodes": 2})
    assert raised.value.fit.predict(NEW)["p"].notnull().all()
