"""Tests run in short-lived processes, which end before they use much memory.

Graphs of tests have reference cycles. Collecting these cycles takes an eighth of the time of all tests, and a compiler
of kernels never frees its memory. The end of a process frees graphs and compiler at once.
"""

import gc
import os
import sys
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

__all__ = ["ShortLived"]

_MOST = 1.05e9  # memory of a process in bytes, above which it runs no further file of tests
_OBJECTS = 1_000_000  # new objects between two garbage collections
_SHORT = 0.005  # seconds, below which `--durations` does not show a phase


class ShortLived:
    """A plugin of a worker that forks a process for some files of tests, and another process for the following files.

    The worker itself runs no test, so that each process starts from the same state.

    Parameters
    ----------
    prepare : function
        Function that makes the shared fixtures before the first fork.
    """

    def __init__(self, prepare: Callable[[], object]) -> None:
        self._prepare = prepare
        self._prepared = False
        self._process: int | None = None
        self._connection: Connection | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if self._process == 0:  # the forked process, which runs the tests
            return None
        if self._process is None:
            self._fork(item.session)
        ends = nextitem is None or nextitem.path != item.path
        self._connection.send((item.nodeid, nextitem and nextitem.nodeid, ends))
        try:
            reports, over = self._connection.recv()
        except EOFError:
            reports, over = [], True
            self._report_end(item)
        for each in reports:
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=each)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._process is not None and (over or nextitem is None):
            self._end()
        return True

    def _report_end(self, item: pytest.Item) -> None:
        """Report a failure for a test that ends its process. Another process runs the following tests."""
        code = os.waitstatus_to_exitcode(self._end())
        says = f"The process of this test ended with code {code}; a negative one is that of a signal."
        no_cost = {"processor_seconds": 0.0, "peak_bytes": 0}
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", says, "call", **no_cost)
        item.ihook.pytest_runtest_logreport(report=report)

    def _fork(self, session: pytest.Session) -> None:
        if not self._prepared:
            self._prepare()
            gc.collect()
            gc.freeze()
            self._prepared = True
        self._connection, other = Pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            # A thread of pytest-xdist waits for messages. It holds no lock that tests need.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if self._process == 0:
            self._connection.close()
            try:
                _serve(other, session)
            finally:
                os._exit(0)
        other.close()

    def _end(self) -> int:
        self._connection.close()
        _, status = os.waitpid(self._process, 0)
        self._process = None
        return status


class _Reports:
    """A plugin that stores reports instead of sending them to the printing process.

    A short setup or teardown without output has no report, since each report passes three processes. Files of results
    in XML need the report of each teardown.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.kept = list[Any]()
        self._left_out = {"setup"} if config.getoption("xmlpath", None) else {"setup", "teardown"}
        self._seconds = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        says = report.sections or report.duration >= _SHORT or not report.passed
        if report.when in self._left_out and not says:
            self._seconds += getattr(report, "processor_seconds", 0.0)
            return
        if self._seconds:
            report.processor_seconds += self._seconds
            self._seconds = 0.0
        self.kept.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))


def _serve(connection: Connection, session: pytest.Session) -> None:
    """Run the requested tests until the other end closes."""
    gc.set_threshold(_OBJECTS, 10, 10)
    manager = session.config.pluginmanager
    for plugin in manager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            manager.unregister(plugin)
    reports = _Reports(session.config)
    manager.register(reports)
    items = {item.nodeid: item for item in session.items}
    me = psutil.Process()
    while True:
        try:
            name, next_name, ends = connection.recv()
        except EOFError:
            session._setupstate.teardown_exact(None)
            return
        item = items[name]
        item.ihook.pytest_runtest_protocol(item=item, nextitem=items.get(next_name))
        connection.send((reports.kept, ends and me.memory_info().rss > _MOST))
        reports.kept = []
