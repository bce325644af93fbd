"""Advice in messages about methods of a fit, tried on the fits that cause the messages."""

import re

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from tests import models
from tests.advice import Advice, follow

N = 40
GROUP = np.arange(N) % 8
X = np.linspace(-1.0, 1.0, N)
COUNTS = (np.arange(N) * 7) % 5
GROUPS = [f"s{i}" for i in range(8)]


def _sum(named=True, method="laplace", **options):
    with pm.Model(coords={"group": GROUPS}):
        a, b, s = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1), pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, dims="group")
        x, of = (pm.Data("x", X), pm.Data("of", GROUP)) if named else (X, GROUP)
        pm.Poisson("y", mu=pm.math.exp(a + b * x + u[of]), observed=COUNTS)
        return pm.fit(method=method, progressbar=False, random_seed=1, **options)


@pytest.fixture(scope="module")
def fits():
    """Fits of the same sum at its maximum, with data by name and with arrays."""
    return {"sum": _sum(), "map": _sum(hyper="map"), "arrays": _sum(named=False)}


OTHERS = {"x": [0.0, 1.0], "of": [1, 2]}
OF_SUMS = {
    "no data": (
        lambda fits: fits["sum"].predict(),
        r"predict needs the data of the new rows: fit\.predict\(data=\{'x': \.\.\., 'of': \.\.\.\}\)",
        lambda fits: fits["sum"].predict(data=OTHERS),
    ),
    "Xnew of a sum": (
        lambda fits: fits["sum"].predict(np.zeros((2, 1))),
        r"Give data of the model at new rows, data=\{\.\.\.\} with x, of",
        lambda fits: fits["sum"].predict(data=OTHERS),
    ),
    "arrays without names": (
        lambda fits: fits["arrays"].predict(data={"x": [0.0]}),
        r"Declare the covariates of the rows as pm\.Data",
        lambda fits: fits["sum"].predict(data=OTHERS),
    ),
    "a new level": (
        lambda fits: fits["sum"].predict(data={"x": [0.0], "of": [9]}),
        "new_levels=True",
        lambda fits: fits["sum"].predict(data={"x": [0.0], "of": [9]}, new_levels=True),
    ),
    "intervals of counts": (
        lambda fits: fits["sum"].predict(data=OTHERS, intervals=0.9),
        r"Use quantiles=\[0\.05, 0\.95\]",
        lambda fits: fits["sum"].predict(data=OTHERS, quantiles=[0.05, 0.95]),
    ),
    "a hyperparameter as an effect": (
        lambda fits: fits["sum"].effects("s"),
        r"fit\.summary\(\['s'\]\)",
        lambda fits: fits["sum"].summary(["s"]),
    ),
    "no name of an effect": (
        lambda fits: fits["sum"].effects([]),
        r"effects\(\) returns all variables",
        lambda fits: fits["sum"].effects(),
    ),
    "a contrast without a name": (
        lambda fits: fits["sum"].contrast({"u": {"s1": 1, "s2": -1}}),
        r"contrast\(\{'my name': \{'u': \{'s1': 1, 's2': -1\}\}\}\)",
        lambda fits: fits["sum"].contrast({"my name": {"u": {"s1": 1, "s2": -1}}}),
    ),
    "refits of groups": (
        lambda fits: fits["sum"].loo(groups="of", refit_above=0.7),
        "Remove refit_above or groups",
        lambda fits: fits["sum"].loo(groups="of"),
    ),
    "an unknown group": (
        lambda fits: fits["arrays"].loo(groups="of"),
        "Give an array of labels",
        lambda fits: fits["arrays"].loo(groups=GROUP),
    ),
    "sensitivity of one node": (
        lambda fits: fits["map"].sensitivity("s", {"wide": pm.HalfNormal.dist(3)}),
        "Fit with hyper='grid'",
        lambda fits: fits["sum"].sensitivity("s", {"wide": pm.HalfNormal.dist(3)}),
    ),
    "a prior that is no dictionary": (
        lambda fits: fits["sum"].sensitivity("s", pm.HalfNormal.dist(5)),
        r'such as \{"wide": pm\.HalfNormal\.dist\(5\)\}',
        lambda fits: fits["sum"].sensitivity("s", {"wide": pm.HalfNormal.dist(5)}),
    ),
    "a prior with a shape": (
        lambda fits: fits["sum"].sensitivity("s", {"wide": pm.HalfNormal.dist(3, shape=2)}),
        "Leave out its shape",
        lambda fits: fits["sum"].sensitivity("s", {"wide": pm.HalfNormal.dist(3)}),
    ),
    "nothing missing": (
        lambda fits: fits["sum"].summary([]),
        "Leave it out to summarise all variables",
        lambda fits: fits["sum"].summary(),
    ),
    "a fit as reference": (
        lambda fits: gpep.compare_methods({"ep": fits["sum"], "laplace": fits["map"]}, fits["sum"]),
        r"compare_methods\(\{'ep': fit, 'laplace': other\}, 'ep'\)",
        lambda fits: gpep.compare_methods({"ep": fits["sum"], "laplace": fits["map"]}, "ep"),
    ),
    "few draws": (
        lambda fits: fits["sum"].importance(draws=3),
        "draws must be at least 100",
        lambda fits: fits["sum"].importance(draws=100),
    ),
    "a fit from a file goes on": (
        lambda fits: gpep.from_datatree(fits["map"].to_datatree(), fits["map"].model).refine(3),
        r"pm\.fit\(n, \.\.\., start=fit\) continues it",
        lambda fits: pm.fit(
            30,
            method="laplace",
            model=fits["map"].model,
            start=gpep.from_datatree(fits["map"].to_datatree(), fits["map"].model),
            progressbar=False,
        ),
    ),
    "columns of early stopping": (
        lambda fits: gpep.EarlyStopping(np.zeros((3, 1)), np.zeros((3, 1))),
        r"y\.ravel\(\) has one axis",
        lambda fits: gpep.EarlyStopping(np.zeros((3, 1)), np.zeros((3, 1)).ravel()),
    ),
    "a checkpoint without batches": (
        lambda fits: _sum(callbacks=[gpep.Checkpoint("state.zarr")]),
        r"Save a fit of all rows with fit\.to_datatree\(\)",
        lambda fits: fits["sum"].to_datatree(),
    ),
}


@pytest.mark.parametrize("case", OF_SUMS)
def test_advised_call_for_a_fit_of_a_sum_works(case, fits):
    provoke, message, advised = OF_SUMS[case]
    follow(Advice(lambda: provoke(fits), message, lambda: advised(fits)))


OF_PROCESSES = {
    "one input as a row": (
        lambda fit, x: fit.predict(x[0]),
        r"one point is a row, Xnew\[None\]",
        lambda fit, x: fit.predict(x[0][None]),
    ),
    "quantiles of classes": (
        lambda fit, x: fit.predict(x, quantiles=[0.1]),
        "leave quantiles out",
        lambda fit, x: fit.predict(x),
    ),
    "inputs of another scale": (
        lambda fit, x: fit.predict(x + 1e3),
        "Scale Xnew like the inputs of the model",
        lambda fit, x: fit.predict(x),
    ),
    "no values of a grid": (
        lambda fit, x: gpep.diagnostics.evidence_grid(fit.model, {}),
        "Give values of hyperparameters. The model has 'ls', 'eta'",
        lambda fit, x: gpep.diagnostics.evidence_grid(fit.model, {"eta": [1.0]}, at={"ls": [1.0, 1.0]}),
    ),
    "a hyperparameter without a value": (
        lambda fit, x: gpep.diagnostics.evidence_grid(fit.model, {"eta": [1.0]}),
        r"'ls' have no value\. Fix them: at=",
        lambda fit, x: gpep.diagnostics.evidence_grid(fit.model, {"eta": [1.0]}, at={"ls": [1.0, 1.0]}),
    ),
    "a grid of three inputs": (
        lambda fit, x: gpep.plots.input_grid(np.c_[x, x[:, :1] ** 2]),
        r"gpep\.plots\.input_grid\(X, columns=\(0, 1\)\)",
        lambda fit, x: gpep.plots.input_grid(np.c_[x, x[:, :1] ** 2], columns=(0, 1)),
    ),
}


@pytest.mark.parametrize("case", OF_PROCESSES)
def test_advised_call_for_a_fit_of_a_process_works(case, shared):
    provoke, message, advised = OF_PROCESSES[case]
    x = models.data()[0][:3] + 0.1
    follow(Advice(lambda: provoke(shared.fit, x), message, lambda: advised(shared.fit, x)))


YEAR = 2010 + np.arange(N) % 12
VISITS = np.random.default_rng(1).poisson(np.exp(0.3 + 0.05 * (YEAR - 2015)))


def _trend(year, second=False, name="year"):
    with pm.Model():
        at = pm.Data(name, year)
        eta = pm.Normal("a", 0, 3000) + pm.Normal("b", 0, 10) * at
        eta = eta + pm.Normal("c", 0, 10) * at if second else eta
        pm.Poisson("y", mu=pm.math.exp(eta), observed=VISITS)
        fit = pm.fit(method="laplace", progressbar=False)
    fit.effects()
    return fit


@pytest.mark.parametrize("kind", [int, float])
def test_advised_centring_of_a_year_does_not_change_predictions(kind):
    year = YEAR.astype(kind)
    message = (
        r"correlation of a and b is -(1|0\.999\d+): .*covariate 'year' is 2015\.1 ± 3\.5, .*: year - year\.mean\(\)"
    )
    centred = follow(Advice(lambda: _trend(year), message, lambda: _trend(year - year.mean())))
    with pytest.warns(UserWarning, match="Centre it"):
        fit = _trend(year)
    found = centred.predict(data={"year": [2020 - YEAR.mean()]})["y_mean"]
    assert_allclose(found, fit.predict(data={"year": [2020]})["y_mean"], rtol=2e-3)


def test_advice_to_omit_a_duplicate_column_works():
    message = r"correlation of b and c is -(1|0\.999\d+): .*Leave one effect out"
    follow(Advice(lambda: _trend(X, second=True), message, lambda: _trend(X)))


def _constant_and_groups(sum_to_zero):
    with pm.Model():
        u = pm.ZeroSumNormal("u", 1000, shape=2) if sum_to_zero else pm.Normal("u", 0, 1000, shape=2)
        pm.Normal("y", pm.Normal("a", 0, 1000) + u[np.arange(N) % 2], 0.1, observed=X)
        fit = pm.fit(method="laplace", progressbar=False)
    fit.effects()
    return fit


def test_advice_to_let_effects_sum_to_zero_works():
    message = r"correlation of u\[0\] and a is -1.*pm\.ZeroSumNormal"
    follow(Advice(lambda: _constant_and_groups(False), message, lambda: _constant_and_groups(True)))


def _steep(jitter):
    x, y = models.data()
    with pm.Model():
        f = pm.gp.Latent(cov_func=1e7 * pm.gp.cov.ExpQuad(2, ls=3.0)).prior("f", X=x, n_outputs=3, jitter=jitter)
        gpep.MultinomialProbit("y", f.T, observed=y)
        fit = pm.fit(method="nested_ep", progressbar=False)
    return fit.sample(2, random_seed=1)


def test_advised_jitter_lets_a_fit_be_sampled():
    with pytest.raises(ValueError, match=r"\(smallest eigenvalue -\S+\) at .* jitter=(\S+)\),") as raised:
        _steep(0.0)
    jitter = float(re.search(r"jitter=(\S+)\),", str(raised.value))[1])
    x, _ = models.data()
    least = np.linalg.eigvalsh(1e7 * np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1) / 9.0)).min()
    assert jitter > -least
    assert np.isfinite(_steep(jitter)["posterior"]["f"]).all()


def test_advised_name_of_a_response_lets_a_fit_predict():
    with pm.Model():
        level = pm.Normal("a", 0, 2)
        pm.Poisson("falls", mu=pm.math.exp(level + pm.Data("x", X)), observed=COUNTS)
        pm.Poisson("visits", mu=pm.math.exp(level - X), observed=COUNTS)
        fit = pm.fit(method="laplace", progressbar=False)
    message = r"Give response=\.\.\. from 'falls', 'visits'"
    follow(
        Advice(
            lambda: fit.predict(data={"x": [0.5]}), message, lambda: fit.predict(data={"x": [0.5]}, response="falls")
        )
    )


def test_advised_choice_of_gp_lets_a_fit_predict(shared):
    x = models.data()[0][:3] + 0.1
    other = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
    for advised in (lambda: shared.fit.predict(shared.gp, x), lambda: shared.fit.predict(x)):
        follow(
            Advice(
                lambda: shared.fit.predict(other, x),
                r"Pass the pm\.gp\.Latent whose \.prior made.*leave gp out",
                advised,
            )
        )


def test_advised_recovery_of_latent_values_lets_marginal_draws_be_compared(shared):
    marginal = gpep.marginalize(shared.model)
    with marginal:
        idata = pm.sample(
            4, tune=0, chains=1, step=pm.DEMetropolisZ(), progressbar=False, random_seed=1,
            compute_convergence_checks=False,
        )  # fmt: skip
    follow(
        Advice(
            lambda: gpep.compare_methods({"EP": shared.fit, "MCMC": idata}, "EP"),
            "need gpep.recover_latent first",
            lambda: gpep.compare_methods(
                {"EP": shared.fit, "MCMC": gpep.recover_latent(idata, marginal, progressbar=False)}, "EP"
            ),
        )
    )


def test_advised_xnew_before_transformation_lets_a_fit_predict():
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=1.0))
        f = gp.prior("f", X=pm.math.exp(pm.Data("x", X[:, None])))
        pm.Bernoulli("y", logit_p=f, observed=(X > 0).astype(int))
        fit = pm.fit(method="laplace", progressbar=False)
    new = X[:3, None]
    follow(Advice(lambda: fit.predict(gp, new), r"Leave gp out, .* as in predict\(Xnew\)", lambda: fit.predict(new)))
