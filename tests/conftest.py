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
