"""Rewritten graphs are stored on disk for later processes. Only graphs of known packages are read."""

import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_gpep.graphs import alike_graphs, graphs_on_disk
from pymc_gpep.graphs.interpreted import INTERPRETED, interpreted
from tests.graph_modes import HARDLY_REWRITTEN, rewritten


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of stored graphs."""
    found = tmp_path / "graphs"
    monkeypatch.setattr(graphs_on_disk, "_folder", lambda: found)
    return found


def stored(folder):
    return sorted(folder.glob("*.graph")) if folder.exists() else []


@pytest.fixture
def new_process(monkeypatch):
    """Forget the graphs of this process."""

    def forget():
        monkeypatch.setattr(alike_graphs, "_kept", type(alike_graphs._kept)())

    forget()
    return forget


def function(rate=1.0):
    x = pt.dvector("x")
    return interpreted([x], [pt.exp(-x * pt.constant(np.full(3, rate))).sum(), pt.log1p(x)])


def rewritings(monkeypatch):
    """Return a list that grows with each function that is made without a stored graph."""
    found, without_values = [], alike_graphs._without_values
    monkeypatch.setattr(
        alike_graphs, "_without_values", lambda made, structure: found.append(1) or without_values(made, structure)
    )
    return found


def test_graph_that_an_earlier_process_stored_is_not_rewritten(folder, new_process, monkeypatch):
    made = rewritings(monkeypatch)
    expected = function()([0.5, 1.0, 2.0])
    new_process()
    found = function()([0.5, 1.0, 2.0])
    assert len(made) == len(stored(folder)) == 1
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, other)
    new_process()
    np.testing.assert_allclose(function(2.0)([0.5, 1.0, 2.0])[0], np.exp([-1.0, -2.0, -4.0]).sum())
    assert len(made) == len(stored(folder)) == 2


def test_file_names_depend_on_mode_and_versions(folder, monkeypatch):
    with rewritten():
        described = [alike_graphs._described(mode) for mode in (INTERPRETED, HARDLY_REWRITTEN)]
    paths = [graphs_on_disk.path_of(each) for each in described]
    monkeypatch.setattr(graphs_on_disk, "_versions", lambda: ("another",))
    assert len({*paths, graphs_on_disk.path_of(described[0])}) == 3


class Doubled(Op):
    """An operation of another package. Its code may change between two processes."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2.0 * inputs[0]


def test_graph_with_an_operation_of_another_package_is_not_stored(folder, new_process):
    x = pt.dvector("x")
    np.testing.assert_array_equal(interpreted([x], [Doubled()(x) + 1.0])([1.0])[0], [3.0])
    assert not stored(folder)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(([], [])), pickle.dumps(3)])
def test_damaged_file_is_replaced(folder, new_process, content, monkeypatch):
    expected = function()([0.5, 1.0, 2.0])
    (path,) = stored(folder)
    whole = path.read_bytes()
    path.write_bytes(content)
    new_process()
    made = rewritings(monkeypatch)
    np.testing.assert_array_equal(function()([0.5, 1.0, 2.0])[0], expected[0])
    assert made == [1]
    assert len(path.read_bytes()) == len(whole)


class Deleted:
    """An object whose pickle deletes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.remove, (str(self.path),)


def test_file_that_calls_other_code_is_not_run(folder, tmp_path):
    folder.mkdir()
    kept, file = tmp_path / "kept", folder / "some.graph"
    kept.touch()
    data = pickle.dumps(Deleted(kept))
    file.write_bytes(hashlib.sha256(data).digest() + data)
    assert graphs_on_disk.read(file) is None
    assert kept.exists()


def test_functions_are_compiled_if_no_folder_for_graphs_exists(tmp_path, new_process, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(graphs_on_disk, "_folder", lambda: tmp_path / "file" / "graphs")
    np.testing.assert_allclose(function()([0.0, 0.0, 0.0])[0], 3.0)


def test_number_of_files_is_limited(folder, monkeypatch):
    monkeypatch.setattr(graphs_on_disk, "_MOST_FILES", 8)
    for i in range(9):
        graphs_on_disk.write(folder / f"{i}.graph", ([], []))
    assert len(stored(folder)) == 7


@pytest.mark.slow
def test_names_of_files_do_not_depend_on_the_process(tmp_path):
    code = """
import numpy as np, pymc as pm, pymc_gpep as gpep
with pm.Model():
    b, s = pm.Normal("b"), pm.HalfNormal("s")
    u = pm.Normal("u", 0, s, shape=4)
    pm.Bernoulli("y", logit_p=b + u[np.arange(12) % 4], observed=np.arange(12) % 3 == 0)
    pm.fit(method="ep", progressbar=False)
"""
    found = []
    for seed in ("1", "2"):
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, check=True)
        found.append({each.name for each in (tmp_path / "graphs").iterdir()})
    assert found[0] == found[1]
    assert len(found[0]) > 5
