"""Comparison of methods in the package's table and in ArviZ's plots."""

import warnings

import arviz as az
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests import models
from tests.reference.data import iris

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def held_out():
    X, y = iris()
    chosen = np.arange(2, 150, 10)
    return {"Xnew": X[chosen][:, 2:], "ynew": y[chosen]}


@pytest.fixture(scope="module")
def results(shared, shared_iep, shared_mcmc):
    return {"EP": shared.fit, "IEP": shared_iep, "MCMC": shared_mcmc}


@pytest.fixture(scope="module")
def table(shared, results, held_out):
    return gpep.compare_methods(results, "EP", gp=shared.gp, random_seed=1, **held_out)


@pytest.mark.variation
def test_table_has_evidence_and_diagnostics_of_each_method(shared, shared_iep, shared_mcmc, table):
    assert list(table.index) == ["EP", "IEP", "MCMC"]
    assert_allclose(table["log_evidence"][:2], [shared.fit.log_evidence, shared_iep.log_evidence])
    assert np.isnan(table.loc["MCMC", "log_evidence"])
    assert table.loc["EP", "ls[width]"] == pytest.approx(shared.fit.hyperparameters["ls"].sel(petal="width").item())
    assert table.loc["MCMC", "eta"] == pytest.approx(shared_mcmc.posterior["eta"].mean().item())
    assert table.loc["MCMC", "seconds"] == shared_mcmc.posterior.attrs["sampling_time"] > 0
    assert 0 < table.loc["EP", "seconds"] < 60


def test_table_row_of_an_integrated_fit_has_the_posterior_means_of_hyperparameters(shared, shared_ccd):
    row = gpep.compare_methods({"map": shared.fit, "ccd": shared_ccd}, "map").loc["ccd"]
    assert row["log_evidence_integrated"] == shared_ccd.hyper_posterior.log_evidence < row["log_evidence"]
    table = shared_ccd.summary(["eta", "ls"])
    assert row["eta"] == pytest.approx(table.loc["eta", "mean"])
    assert row["ls[width]"] == pytest.approx(table.loc["ls[width]", "mean"])
    nodes = shared_ccd.nodes  # a few nodes, whose means are near the means of the interpolated density
    assert row["eta"] == pytest.approx(np.average(nodes["eta"], weights=nodes["weight"]), rel=0.05)


def test_differences_to_the_reference_match_direct_computation(shared, shared_iep, shared_mcmc, table):
    assert not table.loc["EP"].filter(like="difference").any()
    mean, cov = shared.fit.solution.mean, shared.fit.solution.cov
    variance = cov.diagonal(axis1=1, axis2=2).T
    other = shared_iep.solution
    assert table.loc["IEP", "latent_mean_difference"] == pytest.approx(np.abs(other.mean - mean).mean())
    f = shared_mcmc.posterior["f"].stack(s=("chain", "draw")).transpose("species", "flower", "s").values
    assert table.loc["MCMC", "latent_mean_difference"] == pytest.approx(np.abs(f.mean(-1) - mean).mean())
    found = table.loc["MCMC", "latent_variance_difference"]
    assert found == pytest.approx(np.abs(f.var(-1, ddof=1) - variance).mean())


def test_scores_of_held_out_points_match_direct_computation(shared, shared_iep, shared_mcmc, held_out, table):
    X, y = held_out.values()
    p = {name: fit.predict(shared.gp, X)["p"].values for name, fit in (("EP", shared.fit), ("IEP", shared_iep))}
    p["MCMC"] = gpep.predict_draws(shared_mcmc, shared.gp, X, model=shared.model, progressbar=False)["p"].values
    for name, each in p.items():
        density = np.log(each[np.arange(len(y)), y])
        assert table.loc[name, "mlpd"] == pytest.approx(density.mean())
        assert table.loc[name, "accuracy"] == (each.argmax(axis=1) == y).mean()
        assert table.loc[name, "probability_difference"] == pytest.approx(np.abs(each - p["EP"]).mean())
        low, high = np.quantile(gpep.diagnostics.bayesian_bootstrap(density, random_seed=1), [0.025, 0.975])
        assert table.loc[name, "mlpd_low"] == pytest.approx(low)
        assert table.loc[name, "mlpd_high"] == pytest.approx(high)
    difference = np.log(p["IEP"][np.arange(len(y)), y] / p["EP"][np.arange(len(y)), y])
    assert table.loc["IEP", "mlpd_difference"] == pytest.approx(difference.mean())
    low, high = np.quantile(gpep.diagnostics.bayesian_bootstrap(difference, random_seed=1), [0.025, 0.975])
    assert table.loc["IEP", "mlpd_difference_low"] == pytest.approx(low)
    assert table.loc["IEP", "mlpd_difference_high"] == pytest.approx(high)


def test_given_probabilities_are_scored(shared, results, held_out):
    certain = np.eye(3)[held_out["ynew"]]
    table = gpep.compare_methods(
        results, "EP", gp=shared.gp, probabilities={"MCMC": certain}, prob=0.5, random_seed=1, **held_out
    )
    assert table.loc["MCMC", "mlpd"] == 0
    assert table.loc["MCMC", "accuracy"] == 1
    assert table.loc["EP", "mlpd_low"] > table.loc["EP", "mlpd"] - 0.3


def test_sums_are_scored_at_data():
    group, y = np.arange(12) % 3, np.arange(12) % 2
    with pm.Model():
        where, s = pm.Data("where", group), pm.HalfNormal("s", 1)
        pm.Bernoulli("y", logit_p=pm.Normal("u", 0, s, shape=3)[where], observed=y)
        fits = {name: pm.fit(method=name, hyper="map", progressbar=False) for name in ("ep", "laplace")}
    table = gpep.compare_methods(fits, "ep", data={"where": [0, 1, 2]}, ynew=[1, 0, 1])
    p = fits["ep"].predict(data={"where": [0, 1, 2]}, progressbar=False)["p"].values
    assert table.loc["ep", "mlpd"] == pytest.approx(np.log([p[0, 1], p[1, 0], p[2, 1]]).mean())
    with pytest.raises(ValueError, match=r"give Xnew=\.\.\., or data="):
        gpep.compare_methods(fits, "ep", ynew=[1, 0, 1])


def test_table_without_held_out_points_has_no_scores(results):
    table = gpep.compare_methods(results, "MCMC")
    assert {"latent_mean_difference", "seconds", "eta"} < set(table)
    assert not {"mlpd", "accuracy", "probability_difference"} & set(table)


def test_table_has_columns_of_checks(shared, shared_iep, results):
    check = shared_iep.importance(200, random_seed=1)
    row = gpep.compare_methods(results, "EP", checks={"IEP": check}).loc["IEP"]
    for column in ("effective_size", "pareto_k", "probability_shift", "known"):
        assert row[column] == getattr(check, column)
    with pytest.raises(ValueError, match=r"checks names \['VB'\], but the results are"):
        gpep.compare_methods(results, "EP", checks={"VB": check})


def test_latent_values_of_another_likelihood_are_not_compared():
    fits = {}
    for build, method in ((models.probit, "nested_ep"), (models.softmax, "laplace")):
        with build()[0]:
            fits[method] = pm.fit(method=method, progressbar=False)
    table = gpep.compare_methods(fits, "nested_ep")
    assert table.loc["nested_ep", "latent_mean_difference"] == 0
    assert np.isnan(table.loc["laplace", "latent_mean_difference"])
    assert table["ls"].notna().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": "VB"}, r"reference names \['VB'\], but the results are"),
        ({"probabilities": {"VB": 1}}, r"probabilities names \['VB'\]"),
        ({"probabilities": {"EP": np.ones((4, 3))}}, "give Xnew=.*, or data=.*; or their probabilities"),
        ({"probabilities": {n: np.ones((4, 2)) for n in ("EP", "IEP", "MCMC")}}, r"must all be \(points, 3\)"),
        (
            {"probabilities": {n: np.ones((4, 3)) for n in ("EP", "IEP", "MCMC")}, "ynew": np.zeros(4), "prob": 95},
            "prob must be",
        ),
    ],
)
def test_invalid_arguments_raise_errors(results, options, message):
    with pytest.raises(ValueError, match=message):
        gpep.compare_methods(results, **{"reference": "EP"} | options)


def test_draws_of_all_methods_have_equal_structure(shared, shared_iep, shared_mcmc):
    """Compare variables, dims, shapes, types and coords of the posterior, and the data."""
    for fit in (shared.fit, shared_iep):
        draws = fit.sample(50, chains=2, random_seed=1)
        for group in ("posterior", "observed_data"):
            found, expected = (tree[group].to_dataset() for tree in (draws, shared_mcmc))
            assert {n: (v.dims, v.shape, v.dtype) for n, v in found.variables.items()} == {
                n: (v.dims, v.shape, v.dtype) for n, v in expected.variables.items()
            }
            for name, coordinate in expected.coords.items():
                assert (found[name].values == coordinate.values).all()


@pytest.fixture(scope="module")
def drawn(shared, shared_iep, shared_mcmc):
    """Draws of each method, equally many: ArviZ requires this."""
    fits = {"EP": shared.fit, "IEP": shared_iep}
    return {name: fit.sample(50, chains=2, random_seed=1) for name, fit in fits.items()} | {"MCMC": shared_mcmc}


@pytest.mark.parametrize("plot", ["plot_forest", "plot_dist", "plot_ridge", "plot_pair"])
def test_arviz_plots_all_methods_together(drawn, plot):
    latent = {"var_names": ["f"], "coords": {"flower": [114]}}
    pc = getattr(az, plot)(drawn["MCMC"] if plot == "plot_pair" else drawn, **latent)
    pc.viz["figure"].item().canvas.draw()
    plt.close("all")


@pytest.mark.filterwarnings(
    "ignore:Detected variables likely created by GP objects", "ignore:Estimated shape parameter"
)
def test_arviz_compares_predictions_of_all_methods(shared, drawn):
    with shared.model:
        trees = {
            name: pm.compute_log_likelihood(tree.copy(), progressbar=False, extend_inferencedata=True)
            for name, tree in drawn.items()
        }
    assert set(az.compare(trees).index) == set(trees)


@pytest.fixture(scope="module")
def checked(shared):
    """Draws of a fit with log likelihoods and replicated labels, for ArviZ's checks."""
    tree = shared.fit.sample(100, chains=2, random_seed=1)
    with shared.model, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected variables likely created by GP objects")
        pm.compute_log_likelihood(tree, progressbar=False, extend_inferencedata=True)
        pm.sample_posterior_predictive(tree, progressbar=False, random_seed=1, extend_inferencedata=True)
    return tree


CHECKS = {
    "pair": lambda tree, fits: az.plot_pair(tree, var_names=["f"], coords={"flower": [114]}),
    "khat": lambda tree, fits: az.plot_khat(az.loo(tree, pointwise=True)),
    "compare": lambda tree, fits: az.plot_compare(az.compare({name: fit.loo() for name, fit in fits.items()})),
    "calibration": lambda tree, fits: az.plot_ppc_pava(tree, data_type="categorical"),
}


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
@pytest.mark.parametrize("check", CHECKS)
def test_arviz_checks_run_on_a_fit(check, shared, shared_iep, checked):
    pc = CHECKS[check](checked, {"EP": shared.fit, "IEP": shared_iep})
    pc.viz["figure"].item().canvas.draw()
    plt.close("all")
