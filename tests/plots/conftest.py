"""Plots open no window and leave no figure open. Settings of matplotlib are restored."""

import matplotlib
import matplotlib.pyplot as plt
import pymc as pm
import pytest

from tests import models

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def clean_matplotlib():
    settings = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == settings


@pytest.fixture(scope="session")
def one_function():
    """Fits of a model with one latent function."""
    model, _ = models.bernoulli_probit()
    with model:
        return {name: pm.fit(method=name, progressbar=False, random_seed=1) for name in ("ep", "laplace")}


@pytest.fixture
def given():
    """Make axes. After the test no other axes may exist."""
    made = []

    def subplots(*shape):
        made.append(plt.subplots(*shape)[1])
        return made[-1]

    yield subplots
    assert len(plt.get_fignums()) == len(made)
