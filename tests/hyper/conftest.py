"""How many threads there are, as tests would have it."""

import pytest

from pymc_gpep.solvers import team


@pytest.fixture
def threads(monkeypatch):
    """Sets how many threads BLAS is said to have been allowed."""

    def allow(count):
        monkeypatch.setattr(team, "_processors", lambda: count)
        monkeypatch.setattr(team, "_libraries", lambda: [team._Library(lambda: count, lambda count: None)])

    return allow
