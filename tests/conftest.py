"""Hooks of all tests; the rest is in `shared.py`, which processes that run tests import."""

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
    """A process that has others run tests does not import PyMC, which would take it seconds before they begin."""
    has_others = config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    if not has_others:
        config.pluginmanager.register(import_module("tests.shared"), "tests.shared")
