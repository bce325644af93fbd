"""Results of a fit do not change if the caller's arrays change in place."""

import numpy as np
import pymc as pm
import pytensor.sparse as ps
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

import pymc_gpep as gpep
from pymc_gpep.rows import in_memory
from pymc_gpep.rows.in_memory import InMemory

N = 18
NEW = np.random.default_rng(2).normal(size=(3, 2)) + 5.0


def arrays():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 2)) + 5.0
    labels = (X[:, 0] + 0.1 * rng.normal(size=N) > 5.0).astype(int)
    counts = rng.poisson(np.exp(0.5 * (X[:, 0] - 5.0)))
    group = np.arange(N) % 3
    design = sp.csr_matrix((X[:, 1] / 5.0, (np.arange(N), group)), shape=(N, 3))
    return {"X": X, "y": labels, "counts": counts, "group": group, "slope": np.array([0.01, 0.02]), "design": design}


def changed(given):
    given["X"] -= given["X"].mean(0)
    given["X"] *= 1.7
    given["slope"] += 1.0
    given["design"].data *= 3.0
    for name in ("y", "counts", "group"):
        given[name][:] = 1 - np.minimum(given[name], 1)


def process(given, first=N, mean=True):
    with pm.Model() as model:
        warped = pm.gp.cov.WarpedInput(
            2, cov_func=pm.gp.cov.Matern52(2, ls=1.0), warp_func=lambda x, w: x * w, args=(100.0 * given["slope"],)
        )
        line = pm.gp.mean.Linear(coeffs=given["slope"])
        gp = pm.gp.Latent(mean_func=line, cov_func=pm.LogNormal("eta", 0.0, 0.5) ** 2 * warped)
        gpep.Probit("y", gp.prior("f", X=given["X"][:first]), observed=given["y"][:first])
    return model, gp


def effects(given):
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, pm.HalfNormal("s", 1.0), shape=3)
        slope = pm.Normal("slope", 0.0, 1.0)
        pm.Poisson("y", pm.math.exp(u[given["group"]] + slope * given["X"][:, 0] / 5.0), observed=given["counts"])
    return model, None


def sparse_design(given):
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, pm.HalfNormal("s", 1.0), shape=3)
        eta = ps.structured_dot(ps.as_sparse_variable(given["design"]), u[:, None])[:, 0]
        pm.Poisson("y", pm.math.exp(eta), observed=given["counts"])
    return model, None


def of_process(fit, gp):
    return [fit.predict(gp, NEW)["p"], fit.predict(gp, NEW)["mean"], fit.loo().elpd_i]


def of_effects(fit, _):
    return [fit.summary().select_dtypes("number").to_numpy(), fit.latent.to_array().values, fit.loo().elpd_i]


CASES = {
    "process": (process, {"method": "ep"}, of_process),
    "inducing inputs": (process, {"method": "sparse_ep", "inducing": 5}, of_process),
    "effects": (effects, {"method": "ep"}, of_effects),
    "sparse design": (sparse_design, {"method": "ep"}, of_effects),
}


@pytest.mark.parametrize("name", CASES)
def test_changed_arrays_do_not_change_results(name):
    declare, options, answers = CASES[name]
    found = []
    for change in (False, True):
        given = arrays()
        model, gp = declare(given)
        with model:
            fit = pm.fit(random_seed=1, progressbar=False, hyper="map", **options)
        if change:
            changed(given)
        found.append(answers(fit, gp))
    for expected, after in zip(*found, strict=True):
        assert_allclose(after, expected, rtol=1e-9)


def test_changed_rows_in_memory_do_not_change_leave_one_out():
    found = []
    for change in (False, True):
        given = arrays()
        model, _ = process(arrays(), first=4)
        with model:
            fit = pm.fit(
                method="sparse_ep", inducing=5, data=(given["X"], given["y"]), random_seed=1, progressbar=False
            )
        if change:
            changed(given)
        found.append(fit.loo().elpd_i)
    assert_allclose(*found, rtol=1e-9)


def test_changed_rows_that_are_too_large_to_copy_raise(monkeypatch):
    monkeypatch.setattr(in_memory, "_COPIED", 100)
    given = arrays()
    rows = InMemory(given["X"], given["y"])
    assert np.shares_memory(rows.inputs(slice(0, 3)), given["X"])
    given["X"] -= given["X"].mean(0)
    with pytest.raises(ValueError, match="have changed in place"):
        rows.inputs(slice(0, 3))
