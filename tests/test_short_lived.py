"""Processes that tests run in, by a run of a few tests within this one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import os
import pytest
from tests import short_lived

short_lived._MOST = {most}
made = []

def pytest_collection_finish(session):
    if "PYTEST_XDIST_WORKER" in os.environ:
        session.config.pluginmanager.register(short_lived.ShortLived(lambda: made.append(os.getpid())))

@pytest.fixture(scope="session")
def maker():
    return made
"""
TESTS = """
import os
import warnings
import pytest

def test_what_was_made_before_is_there(maker, record_property):
    assert maker == [os.getppid()]
    record_property("process", os.getpid())

@pytest.mark.xfail(strict=True)
def test_that_fails():
    assert False

def test_that_warns():
    warnings.warn("a warning")

@pytest.mark.skipif({last}, reason="one is enough")
def test_that_ends_its_process():
    os._exit(3)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems fork no process for tests")
@pytest.mark.parametrize(("most", "processes"), [(0, 3), (1e12, 2)], ids=["one for each file", "one for all"])
def test_files_have_processes_of_their_own_once_memory_is_taken(tmp_path, most, processes):
    """The second file ends its process, after which a third one begins in any case."""
    (tmp_path / "conftest.py").write_text(CONFTEST.format(most=most))
    for name, last in ("test_a", True), ("test_b", False), ("test_c", True):
        (tmp_path / f"{name}.py").write_text(TESTS.format(last=last))
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = "-m pytest -n 1 --dist loadfile -W error -p no:cacheprovider --no-loadscope-reorder --junitxml"
    result = subprocess.run(
        [sys.executable, *command.split(), "found.xml", "--rootdir", ".", "."],
        cwd=tmp_path,
        env=outer | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    found = (tmp_path / "found.xml").read_text()
    assert len(set(re.findall(r'name="process" value="(\d+)"', found))) == processes, result.stdout
    assert "4 failed, 3 passed, 2 skipped, 3 xfailed" in result.stdout
    assert "The process of this test ended with code 3" in result.stdout
