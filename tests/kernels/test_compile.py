"""Compiled kernels on disk: used again while the sources are the same, and never after one of them has changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pymc_gpep.kernels

KERNELS = Path(pymc_gpep.kernels.__file__).parent

# Prints what it is asked, whether the cache had it, and the key that PyTensor would be given.
_RUN = """
import json, sys
import {module}
from {module} import {kernel}
from pymc_gpep.kernels.compile import source_key
value = {kernel}(-1.5)
hits, misses = (sum(counts.values()) for counts in ({kernel}.stats.cache_hits, {kernel}.stats.cache_misses))
print(json.dumps([value, hits, misses, source_key({module}.__file__)]))
"""


class Package:
    """A copy of the kernels, whose parent package imports nothing, with a cache of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kernels = root / "pymc_gpep" / "kernels"
        shutil.copytree(KERNELS, self.kernels, ignore=shutil.ignore_patterns("__pycache__"))
        (root / "pymc_gpep" / "__init__.py").touch()

    def python(self, code: str, *options: str) -> str:
        """What a new interpreter prints that runs `code`."""
        environment = os.environ | {
            "NUMBA_CACHE_DIR": str(self.root / "cache"),
            "PYTHONPATH": str(self.root),
            "PYTENSOR_FLAGS": f"base_compiledir={self.root / 'pytensor'}",
        }
        command = [sys.executable, *options, "-c", code]
        result = subprocess.run(command, cwd=self.root, env=environment, check=True, capture_output=True, text=True)
        return result.stdout

    def run(self, module: str, kernel: str) -> list:
        return json.loads(self.python(_RUN.format(module=module, kernel=kernel), "-W", "error"))


@pytest.fixture
def package(tmp_path):
    return Package(tmp_path)


def test_kernel_is_compiled_once(package):
    """Among them one that calls into SciPy, whose address differs from process to process."""
    value, hits, misses, key = package.run("pymc_gpep.kernels.special.normal", "log_ndtr")
    assert (hits, misses) == (0, 1)
    assert package.run("pymc_gpep.kernels.special.normal", "log_ndtr") == [value, 1, 0, key]


def test_change_of_a_callee_in_another_file_is_seen(package):
    header = "from pymc_gpep.kernels.compile import kernel\n"
    callee = package.kernels / "callee.py"
    (package.kernels / "caller.py").write_text(
        header + "from pymc_gpep.kernels.callee import slope\n\n@kernel\ndef line(x):\n    return slope() * x\n"
    )

    def run(slope):
        callee.write_text(header + f"\n@kernel\ndef slope():\n    return {slope}\n")
        return package.run("pymc_gpep.kernels.caller", "line")

    value, _, _, key = run(2.0)
    assert value == -3.0
    assert run(2.0) == [-3.0, 1, 0, key]
    value, hits, _, changed_key = run(4.0)
    assert (value, hits) == (-6.0, 0)
    assert changed_key != key
    value, hits, _, restored_key = run(2.0)
    assert (value, hits) == (-3.0, 0)
    assert restored_key == key


_GRAPH = """
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pymc_gpep.kernels.{module} import slope
from pymc_gpep.kernels.compile import source_key

class Line(Op):
    __props__ = ()
    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])
    def perform(self, node, inputs, outputs):
        raise AssertionError

@register_funcify_default_op_cache_key(Line)
def line(op, node, **kwargs):
    @numba_njit
    def call(x):
        return np.asarray({factor} * slope() * x.item())
    return call, source_key(__file__)

x = pt.dscalar()
print(pytensor.function([x], Line()(x), mode="NUMBA")(3.0))
"""


@pytest.mark.parametrize("module", [pytest.param("callee", marks=pytest.mark.slow), "folder.callee"])
def test_change_of_a_kernel_or_its_wrapper_is_seen_by_graphs(package, module):
    """PyTensor caches compiled nodes as well, under the key that it is given."""
    file = package.kernels.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)

    def run(slope, factor=1.0):
        file.write_text(f"from pymc_gpep.kernels.compile import kernel\n\n@kernel\ndef slope():\n    return {slope}\n")
        (package.root / "graph.py").write_text(_GRAPH.format(module=module, factor=factor))
        return float(package.python("import graph"))

    assert run(2.0) == 6.0
    assert list((package.root / "pytensor").rglob("*.nbi")), "nothing was cached, so that nothing could be stale"
    assert run(4.0) == 12.0
    assert run(2.0) == 6.0
    assert run(2.0, factor=5.0) == 30.0


def test_ops_name_the_file_of_their_wrapper():
    wrappers = [path for path in KERNELS.parent.rglob("*.py") if "@register_funcify" in path.read_text()]
    assert {path.stem for path in wrappers} == {"evidence", "log_probability", "unequal_noise"}
    assert [path for path in wrappers if "source_key(__file__)" not in path.read_text()] == []
