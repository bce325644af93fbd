"""Hooks of all tests. Fixtures are in `shared.py`, which processes that run tests import."""

import os
from importlib import import_module

import pytest

from tests.processor_time import (  # noqa: F401  # pytest looks for hooks here
    pytest_addoption,
    pytest_runtest_logreport,
    pytest_runtest_logstart,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)


def pytest_configure(config: pytest.Config) -> None:
    """Do not import PyMC in a process that only distributes tests: it would delay them by seconds."""
    has_others = config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    if not has_others:
        config.pluginmanager.register(import_module("tests.shared"), "tests.shared")
