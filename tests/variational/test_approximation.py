"""The result of `pm.fit`, against the solver's solution and the interfaces of PyMC and ArviZ."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pymc.variational.opvi import Approximation

import pymc_gpep as gpep
from tests import models
from tests.reference.dense_nested_ep import nested_ep as dense_nested_ep

fits = pytest.mark.parametrize("name", ["shared", "centred", "per_class", "fixed"])


@pytest.fixture
def fitted(name, request):
    return request.getfixturevalue(name)


def latent_draws(fitted, data):
    """Draws of the latent values, (draw, class, point)."""
    rows = []
    for latent in fitted.fit.classifier.latents:
        f = data.posterior[latent.f.name].stack(s=("chain", "draw")).transpose("s", ...).values
        rows.append(f if f.ndim == 3 else f[:, None])
    order = np.argsort([k for latent in fitted.fit.classifier.latents for k in latent.classes])
    return np.concatenate(rows, axis=1)[:, order]


@fits
def test_fit_is_an_approximation_with_its_convergence(fitted):
    fit = fitted.fit
    assert isinstance(fit, Approximation)
    assert fit.converged
    assert fit.convergence.converged
    assert "nested_ep: log evidence" in str(fit)
    assert "NOT" not in str(fit)
    assert fit.history["evidence"].values[-1] == pytest.approx(fit.log_evidence, abs=1e-4)
    assert_allclose(fit.hist, -fit.history["log_posterior"])
    assert (np.diff(fit.history["log_posterior"]) > -1e-6).all()


@pytest.mark.parametrize("name", ["shared", "per_class"])
def test_solution_equals_a_solve_at_the_hyperparameters(fitted):
    """The dense reference receives the prior moments that PyMC evaluates."""
    fit = fitted.fit
    moments = fit.classifier.prior.covariance(), fit.classifier.prior.mean()
    k, mean = (models.at_hyperparameters(fitted, moment) for moment in moments)
    # Started at the end of the fit, the reference needs few sweeps to its own fixed point.
    dense = dense_nested_ep(k, fitted.y, mean, c=3, start=tuple(fit.solution.start.reshape(2, 30, 2)), tolerance=1e-9)
    assert fit.log_evidence == pytest.approx(dense.evidence, abs=1e-7)
    assert_allclose(fit.latent["mean"].T, dense.mean, atol=1e-5)
    cov = dense.covariance.reshape(3, 30, 3, 30)
    assert_allclose(fit.latent["cov"], np.einsum("aibi->iab", cov), atol=1e-5)


@pytest.mark.parametrize("name", ["shared", "fixed"])
@models.interpreted_sampler
def test_sample_has_the_structure_of_pm_sample(fitted):
    with fitted.model:
        expected = pm.sample(
            10,
            tune=10,
            chains=2,
            cores=1,
            step=pm.DEMetropolisZ(),  # the cheapest step of PyMC: only the format of draws is compared
            progressbar=False,
            random_seed=1,
            compute_convergence_checks=False,
        )
    data = fitted.fit.sample(10, chains=2, random_seed=1)
    assert set(data.children) == set(expected.children)
    for group in ("posterior", "observed_data"):
        assert set(data[group].data_vars) == set(expected[group].data_vars)
        for name, variable in expected[group].data_vars.items():
            assert data[group][name].dims == variable.dims
            assert data[group][name].shape == variable.shape
            assert data[group][name].dtype == variable.dtype
        for name, coordinate in expected[group].coords.items():
            assert_equal_coords(data[group][name], coordinate)
    assert data.posterior.attrs["approximation"] == "nested_ep"


def assert_equal_coords(found, expected):
    assert found.dims == expected.dims
    assert (found.values == expected.values).all()


@pytest.mark.variation(but=["shared", "fixed"])
@fits
def test_draws_have_the_posterior_moments(fitted):
    fit = fitted.fit
    data = fit.sample(2000, chains=4, random_seed=2)
    f = latent_draws(fitted, data)
    spread = np.sqrt(fit.solution.cov.diagonal(axis1=1, axis2=2)).T
    assert_allclose((f.mean(0) - fit.solution.mean) / spread, 0, atol=4.5 / np.sqrt(8000))
    f = (f - fit.solution.mean) / spread
    correlation = fit.solution.cov / (spread.T[:, :, None] * spread.T[:, None, :])
    assert_allclose(np.einsum("sai,sbi->iab", f, f) / 8000, correlation, atol=5 * np.sqrt(2 / 8000))


@fits
def test_flat_vector_has_the_moments_of_its_variables(fitted):
    """Mean, std and cov of PyMC's unconstrained vector match the moments of draws of the vector."""
    fit = fitted.fit
    values = fit.sample_dict_fn(6000, random_seed=3)
    flat = np.concatenate([values[name].reshape(6000, -1) for name in fit.ordering], axis=1)
    mean, std, cov = fit.mean.eval(), fit.std.eval(), fit.cov.eval()
    assert_allclose(std, np.sqrt(cov.diagonal()), atol=1e-6)
    where = std > 0
    assert_allclose(((flat.mean(0) - mean) / np.maximum(std, 1e-12))[where], 0, atol=5 / np.sqrt(6000))
    assert_allclose(flat.mean(0)[~where], mean[~where])
    assert not cov[~where].any()
    scaled = ((flat - mean) / np.maximum(std, 1e-12))[:, where]
    expected = cov[np.ix_(where, where)] / np.outer(std[where], std[where])
    assert_allclose(scaled.T @ scaled / 6000, expected, atol=6 * np.sqrt(2 / 6000))


@pytest.mark.parametrize("name", ["shared", "per_class", "shared_ccd"])
def test_joint_moments_contain_the_moments_of_each_point(name, request):
    fitted = request.getfixturevalue(name)
    fit = fitted if name == "shared_ccd" else fitted.fit
    mean, cov = fit.latent_moments()
    joint_mean, joint = fit.joint_latent_moments([7, 2])
    assert_allclose(joint_mean, mean[[7, 2]])
    for place, i in enumerate((7, 2)):
        assert_allclose(joint[place, :, place], cov[i], atol=1e-8)
    assert_allclose(joint, joint.transpose(2, 3, 0, 1))


def test_joint_moments_match_the_flat_vector(centred):
    """The flat vector contains the latent values of the model."""
    fit = centred.fit
    name = centred.fit.classifier.latents[0].free.name
    place = fit.ordering[name][1]
    full = fit.cov.eval()[place, place].reshape(3, 30, 3, 30)
    _, joint = fit.joint_latent_moments([7, 2, 25])
    assert_allclose(joint, full[:, [7, 2, 25]][..., [7, 2, 25]].transpose(1, 0, 3, 2), atol=1e-10)
    with pytest.raises(ValueError, match=r"positions from 0 to 29, but \[30\] are among them"):
        fit.joint_latent_moments([0, 30])


def test_deterministics_are_computed_from_draws(shared):
    posterior = shared.fit.sample(20, random_seed=4).posterior
    assert_allclose(posterior["f_of_virginica"], posterior["f"].sel(species="virginica"))
    assert_allclose(posterior["eta_squared"], posterior["eta"] ** 2)
    L = np.linalg.cholesky(shared.fit.solution.posterior.prior.k[0])
    assert_allclose(posterior["f_rotated_"].values @ L.T, posterior["f"], atol=1e-8)


def test_draws_are_reproducible(shared):
    one, two, other = (shared.fit.sample(5, chains=2, random_seed=seed).posterior["f"] for seed in (1, 1, 2))
    assert_allclose(one, two)
    assert np.abs(one - other).min() > 0
    assert np.abs(one.sel(chain=0) - one.sel(chain=1)).min() > 0
    with pytest.raises(ValueError, match="draws and chains"):
        shared.fit.sample(0)


def test_multitrace_has_unconstrained_values(shared):
    trace = shared.fit.sample(5, return_inferencedata=False, random_seed=1)
    assert trace["f"].shape == (5, 3, 30)
    data = shared.fit.sample(5, random_seed=1, include_transformed=True)
    assert_allclose(np.exp(data.posterior["eta_log__"]), data.posterior["eta"])


def test_draws_have_the_labels_of_the_model(shared):
    fit = shared.fit
    assert fit.latent["mean"].dims == ("flower", "species")
    assert fit.latent["cov"].dims == ("flower", "species", "species_other")
    assert list(fit.latent["species"].values) == list(models.SPECIES)
    assert fit.latent["flower"].values[0] == 100
    assert fit.hyperparameters["ls"].dims == ("petal",)
    assert list(fit.hyperparameters["petal"].values) == ["length", "width"]
    state = fit.state.mean
    assert_allclose(state["ls"], fit.hyperparameters["ls"])


@models.interpreted_sampler
def test_sample_node_draws_latent_values_from_the_posterior(shared):
    draws = shared.fit.sample_node(shared.model["f"], size=400).eval()
    spread = np.sqrt(shared.fit.solution.cov.diagonal(axis1=1, axis2=2)).T
    assert_allclose((draws.mean(0) - shared.fit.solution.mean) / spread, 0, atol=0.3)


def test_pymc_predicts_from_draws(shared):
    """PyMC's gp.conditional and likelihood at new inputs, against the predictions of the fit."""
    x = np.array([[-1.2, -1.0], [0.3, 0.2], [1.0, 1.1]])
    data = shared.fit.sample(500, chains=4, random_seed=5)
    with pm.Model(coords=dict(shared.model.coords) | {"new": np.arange(3)}) as model:
        ls = pm.InverseGamma("ls", 3, 3, dims="petal")
        eta = pm.HalfNormal("eta", 3)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
        gp.prior("f", X=shared.X, n_outputs=3, dims=("species", "flower"))
        new = gp.conditional("f_new", x, dims=("species", "new"))
        gpep.MultinomialProbit("y_new", new.T, dims="new")
    predicted = pm.sample_posterior_predictive(
        data, model=model, var_names=["f_new", "y_new"], predictions=True, random_seed=6, progressbar=False
    ).predictions
    own = shared.fit.predict(shared.gp, x)
    frequency = np.stack([(predicted["y_new"] == k).mean(("chain", "draw")) for k in range(3)], axis=1)
    assert_allclose(frequency, own["p"], atol=5 * np.sqrt(0.25 / 2000))
    spread = np.sqrt(np.einsum("maa->ma", own["cov"].values))
    difference = predicted["f_new"].mean(("chain", "draw")).transpose("new", "species") - own["mean"].values
    assert_allclose(difference / spread, 0, atol=5 / np.sqrt(2000))


@pytest.mark.filterwarnings("ignore:invalid value encountered in scalar divide")
def test_constant_traces_of_hyperparameters_cause_a_single_message(shared_iep, shared_ccd, fixed, caplog):
    caplog.set_level("INFO", "pymc")
    for fit, said in ((shared_iep, "all draws of ls, eta are equal"), (shared_ccd, ""), (fixed.fit, "")):
        fit._told = None  # other tests share the fits
        for _ in range(2):
            fit.sample(2, random_seed=1)
        messages = [record.message for record in caplog.records if "flat lines" in record.message]
        assert len(messages) == bool(said)
        assert said in "".join(messages)
        caplog.clear()


def test_arviz_summarises_the_draws(shared):
    ep = shared.fit.sample(50, chains=2, random_seed=1)
    other = shared.fit.sample(50, chains=2, random_seed=2)
    summary = az.summary(ep, var_names=["f_of_virginica"])
    assert len(summary) == 30
    pc = az.plot_forest({"EP": ep, "again": other}, var_names=["ls", "eta"], backend="none")
    assert pc is not None


def test_fit_does_not_change_with_the_model():
    """pm.set_data and gp.conditional after a fit do not change its results."""
    X, y = models.data()
    with pm.Model() as model:
        inputs = pm.Data("X", X)
        gp = pm.gp.Latent(cov_func=9 * pm.gp.cov.ExpQuad(2, ls=1.0))
        f = gp.prior("f", X=inputs, n_outputs=3)
        gpep.MultinomialProbit("y", f.T, observed=y)
        fit = pm.fit(method="nested_ep", progressbar=False)
        draws = fit.sample(5, random_seed=1).posterior
        p = fit.predict(gp, X[:3])["p"]

        pm.set_data({"X": 2 * X})
        gp.conditional("f_new", X[:2] + 0.1)
        again = fit.sample(5, random_seed=1).posterior
    assert set(again) == set(draws)
    assert_allclose(again["f"], draws["f"])
    assert_allclose(fit.predict(gp, X[:3])["p"], p)
    assert model.free_RVs[-1].name == "f_new"
