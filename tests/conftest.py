"""Fits that several test modules look at, made once."""

import gc
import signal

import pymc as pm
import pytensor
import pytest

from pymc_gpep.structure.interpreted import INTERPRETED
from tests import models

# Machine code takes ten seconds to make for a graph that a test evaluates a few times. Tests of compiled graphs ask for
# `machine_code`, or name their mode.
pytensor.config.mode = INTERPRETED

# A shell starts what it sends to the background with interrupts ignored, and tests interrupt fits.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def memory_given_back():
    """What a file of tests leaves behind, graphs above all, is freed before the next one begins."""
    yield
    gc.collect()


@pytest.fixture
def machine_code():
    """Graphs are compiled as PyMC compiles them for its users."""
    with pytensor.config.change_flags(mode="NUMBA"):
        yield


def _fit(build):
    model, gp = build()
    with model:
        fit = pm.fit(method="nested_ep", progressbar=False, random_seed=1)
    return models.Fitted(model, gp, *models.data(), fit)


@pytest.fixture(scope="session")
def shared():
    return _fit(models.shared)


@pytest.fixture(scope="session")
def centred():
    return _fit(lambda: models.shared(rotated=False))


@pytest.fixture(scope="session")
def per_class():
    return _fit(models.per_class)


@pytest.fixture(scope="session")
def fixed():
    return _fit(models.fixed)


@pytest.fixture(scope="session")
def shared_iep(shared):
    """A second fit of the same model."""
    with shared.model:
        return pm.fit(method="iep", progressbar=False, random_seed=1)


@pytest.fixture(scope="session")
def shared_ccd(shared):
    """The same model with the hyperparameters integrated out."""
    with shared.model:
        return pm.fit(method="nested_ep", hyper="ccd", progressbar=False, random_seed=1)


@pytest.fixture(scope="session")
def shared_mcmc(shared):
    """A few draws by PyMC's own NUTS of the same model, of short trajectories, since they are looked at and no more."""
    with shared.model:
        return pm.sample(
            50,
            tune=50,
            chains=2,
            cores=1,
            nuts_sampler="pymc",
            progressbar=False,
            random_seed=1,
            compute_convergence_checks=False,
            nuts={"max_treedepth": 4, "early_max_treedepth": 4},
        )
