"""Default treatment of hyperparameters."""

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.variational import inference
from tests import models


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch):
    monkeypatch.setattr(inference, "_MOST_OF_PROCESSES", 4)


def test_hyperparameters_of_a_process_of_few_rows_are_integrated():
    X, y = models.data()
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 3, 3)))
        gpep.Probit("y", gp.prior("f", X=X), observed=(y == 1).astype(int))
        fit = pm.fit(method="ep", progressbar=False)
    assert fit.hyper_posterior.name == "adaptive"
    table = fit.summary("ls")
    assert table.loc["ls", "eti89_lb"] < float(fit.hyperparameters["ls"]) < table.loc["ls", "eti89_ub"]


@pytest.mark.parametrize(("setting", "value"), [("_WORK", 100.0), ("_MOST_OF_PROCESSES", 0)])
def test_many_rows_or_hyperparameters_of_a_process_use_the_maximum(monkeypatch, setting, value):
    monkeypatch.setattr(inference, setting, value)
    X, y = models.data()
    with pm.Model():
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(2, ls=pm.InverseGamma("ls", 3, 3)))
        gpep.Probit("y", gp.prior("f", X=X), observed=(y == 1).astype(int))
        fit = pm.fit(method="ep", progressbar=False)
    assert fit.hyper_posterior.name == "map"
    assert "a Gaussian process of this size is hyper='map'" in str(fit)


def test_hyperparameters_of_sums_of_effects_are_integrated():
    group = np.arange(24) % 6
    with pm.Model():
        u = pm.Normal("u", 0, pm.HalfNormal("s", 1), shape=6)
        pm.Poisson("y", pm.math.exp(u[group]), observed=np.arange(24) % 4)
        assert pm.fit(method="ep", progressbar=False).hyper_posterior.name == "adaptive"
        assert pm.fit(method="ep", hyper="map", progressbar=False).hyper_posterior.name == "map"
