"""A budget of the tests: processor seconds of each folder, and the share of the whole that a folder may take.

Shares differ less from machine to machine than seconds do. They differ between a first run, in which kernels are
compiled, and a repeated one; a stated share holds for both.
"""

import os
import resource
import sys
from collections import Counter
from pathlib import Path

import pytest

__all__ = [
    "pytest_addoption",
    "pytest_runtest_logreport",
    "pytest_runtest_logstart",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

TESTS = Path(__file__).parent
SHARES = {
    "approximations": 0.21,
    "variational": 0.18,
    "fits": 0.18,
    "structure": 0.17,
    "likelihoods": 0.13,
    "hyper": 0.11,
    "samplers": 0.10,
    "kernels": 0.10,
    "checks": 0.09,
    "streaming": 0.07,
    ".": 0.07,
}
"""Share of the processor time that each folder of tests may take, in a whole run by `make test`."""
OTHERS = 0.05
"""The same for each folder that the table does not name."""
WHOLE = 100.0
"""Processor seconds below which a run is taken for a part of the tests, whose shares mean nothing."""

_started = 0.0
_seconds: Counter[str] = Counter()
_largest = 0.0


def _processor_seconds() -> float:
    """Seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", action="store_true", help="fail where a folder takes more than its share of the time")


def pytest_runtest_logstart() -> None:
    global _started
    _started = _processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """The report of each phase of a test carries its time, also from the workers to the process that prints."""
    global _started
    report = yield
    now = _processor_seconds()
    report.processor_seconds, _started = now - _started, now
    unit = 1 if sys.platform == "darwin" else 1024
    report.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    global _largest
    first, *rest = report.nodeid.removeprefix(f"{TESTS.name}/").split("/")
    _seconds[first if rest else "."] += report.processor_seconds
    _largest = max(_largest, report.peak_bytes)


def _over_budget() -> list[str]:
    whole = _seconds.total()
    return [
        f"{folder} takes {seconds / whole:.0%} of the processor time, and may take {SHARES.get(folder, OTHERS):.0%}"
        for folder, seconds in _seconds.items()
        if whole > WHOLE and seconds / whole > SHARES.get(folder, OTHERS)
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("budget") and _over_budget() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    whole = _seconds.total()
    if whole < WHOLE:
        return
    terminalreporter.section("processor seconds by folder")
    for folder, seconds in _seconds.most_common():
        terminalreporter.line(f"{seconds:8.1f} {seconds / whole:5.1%} of {SHARES.get(folder, OTHERS):4.0%}  {folder}")
    terminalreporter.line(f"{whole:8.1f} in all; the largest process had {_largest / 1e9:.2f} GB")
    for line in _over_budget():
        terminalreporter.line(f"Over budget: {line}.", red=True)
