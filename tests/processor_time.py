"""Budget of the tests: processor seconds of each folder, and the largest share of the total for a folder.

Shares vary less between machines than seconds. A first run compiles kernels, so its shares differ from later shares. A
stated share holds for first and later runs of `make test`. Other selections of tests, such as `make test-slow`, have no
budget.
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
    "variational": 0.25,
    "fits": 0.30,
    "reading": 0.13,
    "sums": 0.08,
    "rivals": 0.10,
    "likelihoods": 0.13,
    "hyper": 0.16,
    "samplers": 0.10,
    "kernels": 0.10,
    "checks": 0.09,
    "univariate": 0.07,
    "streaming": 0.07,
    "evidence": 0.07,
    ".": 0.07,
}
"""Largest share of the processor time of each folder in a run by `make test`."""
OTHERS = 0.05
"""Largest share of a folder that the table does not name."""
WHOLE = 100.0
"""A run with fewer processor seconds is a partial run, for which no times are shown."""

_started = 0.0
_seconds: Counter[str] = Counter()
_largest = 0.0


def _processor_seconds() -> float:
    """Processor seconds of this process and of its finished child processes."""
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", action="store_true", help="fail where a folder takes more than its share of the time")


def pytest_runtest_logstart() -> None:
    global _started
    _started = _processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Add the time of each phase of a test to its report, which workers send to the printing process."""
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


def _has_budget(config: pytest.Config) -> bool:
    """Whether this run has the tests of `make test`: no path, no `-k`, and the default marks."""
    usual = config.getini("addopts")
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not config.option.keyword
        and config.option.markexpr == usual[usual.index("-m") + 1]
        and _seconds.total() >= WHOLE
    )


def _over_budget(config: pytest.Config) -> list[str]:
    if not _has_budget(config):
        return []
    whole = _seconds.total()
    return [
        f"{folder} takes {seconds / whole:.0%} of the processor time, and may take {SHARES.get(folder, OTHERS):.0%}"
        for folder, seconds in _seconds.items()
        if seconds / whole > SHARES.get(folder, OTHERS)
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    over = session.config.getoption("budget") and _over_budget(session.config)
    if over and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    whole = _seconds.total()
    if whole < WHOLE:
        return
    terminalreporter.section("processor seconds by folder")
    budget = _has_budget(terminalreporter.config)
    for folder, seconds in _seconds.most_common():
        share = f" of {SHARES.get(folder, OTHERS):4.0%}" if budget else ""
        terminalreporter.line(f"{seconds:8.1f} {seconds / whole:5.1%}{share}  {folder}")
    terminalreporter.line(f"{whole:8.1f} in all; the largest process had {_largest / 1e9:.2f} GB")
    for line in _over_budget(terminalreporter.config):
        terminalreporter.line(f"Over budget: {line}.", red=True)
