"""A missing backend raises an error before any computation."""

import importlib.util

import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.graphs import interpreted as backends
from tests import models


@pytest.fixture
def no_jax(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: None if name == "jax" else importlib.util.find_spec(name))


@pytest.mark.parametrize("how", [{"backend": "jax"}, {"compile_kwargs": {"mode": "JAX"}}], ids=str)
def test_error_of_a_fit_names_the_missing_package(how, no_jax, monkeypatch):
    monkeypatch.setattr("pymc_gpep.variational.inference.LogPosterior", None)  # fails if anything is computed first
    with models.probit()[0], pytest.raises(ModuleNotFoundError, match="JAX, which is not installed: pip install jax"):
        pm.fit(method="nested_ep", progressbar=False, **how)


def test_error_of_a_sampler_names_the_missing_package(no_jax, monkeypatch):
    monkeypatch.setattr("pymc_gpep.samplers.guided.fit_sites", None)
    with models.probit()[0], pytest.raises(ModuleNotFoundError, match="pip install jax"):
        gpep.samplers.GuidedHMC(compile_kwargs={"mode": "JAX"})


def test_default_backends_need_no_package(no_jax):
    for mode in (None, "NUMBA", "CVM", "FAST_COMPILE"):
        backends.check_installed({"mode": mode})
    backends.check_installed({})
