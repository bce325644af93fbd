"""Fits that several test modules look at, made once."""

import pymc as pm
import pytest

from tests import models


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
    """A few draws by PyMC's own NUTS of the same model."""
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
        )
