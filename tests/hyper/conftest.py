"""A fixture that sets the number of threads."""

import pytest

from pymc_gpep.solvers import team


@pytest.fixture
def threads(monkeypatch):
    """Return a function that sets the number of processors and the number of threads that BLAS reports."""

    def allow(count):
        monkeypatch.setattr(team, "_processors", lambda: count)
        monkeypatch.setattr(team, "_libraries", lambda: [team._Library(lambda: count, lambda count: None)])

    return allow
