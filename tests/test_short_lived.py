"""Processes that run tests, tested by a nested run of a few tests."""

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

def test_objects_made_before_still_exist(maker, record_property):
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


AROUND = """
import time
import pytest

@pytest.fixture
def fails_before():
    raise ValueError("in a setup")

@pytest.fixture
def fails_after():
    yield
    raise ValueError("in a teardown")

@pytest.fixture
def says():
    print("said in a setup")

@pytest.fixture
def takes_long():
    time.sleep(0.1)

def test_setup(fails_before):
    pass

def test_teardown(fails_after):
    pass

def test_skipped():
    pytest.skip("for a reason")

def test_said(says):
    pass

def test_long(takes_long):
    pass

def test_short():
    pass
"""


def run(folder: Path, options: str) -> str:
    """Output of a run of the tests in a folder by one worker."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = "-m pytest -n 1 --dist loadfile -W error -p no:cacheprovider --no-loadscope-reorder --rootdir . ."
    result = subprocess.run(
        [sys.executable, *command.split(), *options.split()],
        cwd=folder,
        env=outer | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return result.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems fork no process for tests")
@pytest.mark.parametrize(("most", "processes"), [(0, 3), (1e12, 2)], ids=["one for each file", "one for all"])
def test_files_have_separate_processes_once_memory_is_used(tmp_path, most, processes):
    """The second file ends its process, so that a third process starts in any case."""
    (tmp_path / "conftest.py").write_text(CONFTEST.format(most=most))
    for name, last in ("test_a", True), ("test_b", False), ("test_c", True):
        (tmp_path / f"{name}.py").write_text(TESTS.format(last=last))
    shown = run(tmp_path, "--junitxml found.xml")
    found = (tmp_path / "found.xml").read_text()
    assert len(set(re.findall(r'name="process" value="(\d+)"', found))) == processes, shown
    assert "4 failed, 3 passed, 2 skipped, 3 xfailed" in shown
    assert "The process of this test ended with code 3" in shown


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems fork no process for tests")
def test_setups_and_teardowns_with_output_are_shown(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.format(most=1e12))
    (tmp_path / "test_around.py").write_text(AROUND)
    shown = run(tmp_path, "-rA --durations 0")
    assert "4 passed, 1 skipped, 2 errors" in shown
    assert all(text in shown for text in ("in a setup", "in a teardown", "for a reason", "said in a setup"))
    assert {"test_long"} == set(re.findall(r"setup +test_around.py::(\w+)", shown)) - {"test_setup"}
