"""Dense methods are refused if matrices of the size of the data exceed the memory, before any is allocated."""

import re
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

import pymc_gpep as gpep
from pymc_gpep.evidence import memory_check
from pymc_gpep.gaussians.row_prior import RowPrior
from pymc_gpep.reading import read_classifier

ROWS = 20_000


def model(observe):
    x = np.random.default_rng(1).normal(size=(ROWS, 1))
    with pm.Model() as made:
        ls = pm.InverseGamma("ls", mu=1, sigma=0.5)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        observe(gp.prior("f", X=x))
    return made


def two_classes(f):
    pm.Bernoulli("y", logit_p=f, observed=np.arange(ROWS) % 2)


def counts(f):
    pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(ROWS) % 3)


@pytest.fixture
def six_gigabytes(monkeypatch):
    monkeypatch.setattr(memory_check, "available_memory", lambda: 6e9)


@pytest.mark.usefixtures("six_gigabytes")
def test_error_for_too_little_memory_names_smaller_methods():
    # eight matrices of 20 000 × 20 000 numbers of eight bytes
    with model(two_classes), pytest.raises(MemoryError, match=r"25\.6 GB, and 6\.0 GB of memory are free") as refused:
        pm.fit(method="ep")
    assert 'pm.fit(method="sparse_ep", inducing=100)' in str(refused.value)
    assert 'pm.fit(method="ivm", active=500)' in str(refused.value)


@pytest.mark.usefixtures("six_gigabytes")
def test_error_names_only_methods_for_the_likelihood():
    advised = r'without such matrices: pm\.fit\(method="sparse_ep", inducing=100\), with inducing inputs\. Or give'
    with model(counts), pytest.raises(MemoryError, match=advised):
        pm.fit(method="laplace")


@pytest.mark.usefixtures("six_gigabytes")
def test_memory_estimate_of_row_priors_excludes_dense_matrices():
    prior = SimpleNamespace(n_points=10**6, n_functions=4, n_normals=180, hyperparameters=("s",))
    read = SimpleNamespace(prior=prior)
    memory_check.check_memory(read, "a fit", learned=True, prior_type=RowPrior)
    prior.n_points = 10**7
    with pytest.raises(MemoryError, match=r"1 matrix of 10000000 × 180 numbers .* It takes 14\.4 GB"):
        memory_check.check_memory(read, "a fit", learned=True, prior_type=RowPrior)


@pytest.mark.usefixtures("six_gigabytes")
@pytest.mark.parametrize(
    "use", [lambda: gpep.marginalize(pm.modelcontext(None), "laplace"), gpep.samplers.EllipticalSlice]
)
def test_samplers_and_marginal_models_are_refused_like_fits(use):
    with model(two_classes), pytest.raises(MemoryError, match=r"20000 × 20000 numbers"):
        use()


def test_fit_within_memory_does_not_raise(monkeypatch):
    made = read_classifier(model(two_classes))
    monkeypatch.setattr(memory_check, "available_memory", lambda: 25.7e9)
    memory_check.check_memory(made, "ep", learned=True)
    monkeypatch.setattr(memory_check, "available_memory", lambda: 25.5e9)
    with pytest.raises(MemoryError):
        memory_check.check_memory(made, "ep", learned=True)


def test_available_memory_is_below_the_total():
    with open("/proc/meminfo") as file:
        total = 1024.0 * int(re.search(r"MemTotal:\s+(\d+)", file.read())[1])
    assert 1e7 < memory_check.available_memory() < total


def test_limit_of_the_address_space_bounds_available_memory(monkeypatch):
    size = 1024 * memory_check._numbers("/proc/self/status")["VmSize"]
    limit = {memory_check.resource.RLIMIT_AS: (int(size + 1e9), -1)}
    monkeypatch.setattr(memory_check.resource, "getrlimit", limit.get)
    assert 0.8e9 < memory_check.available_memory() <= 1.01e9
