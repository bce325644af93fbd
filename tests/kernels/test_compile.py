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

# Prints what it is asked, whether the cache had it, and the key that PyTensor is given.
_RUN = """
import json, sys
from {module} import {kernel}
from pymc_gpep.kernels.compile import SOURCE_KEY
value = {kernel}(-1.5)
stats = {kernel}.stats
print(json.dumps([value, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), SOURCE_KEY]))
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
    value, hits, misses, key = package.run("pymc_gpep.kernels.normal", "log_ndtr")
    assert (hits, misses) == (0, 1)
    assert package.run("pymc_gpep.kernels.normal", "log_ndtr") == [value, 1, 0, key]


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


_ENTRY = """
from numba import carray
from pymc_gpep.kernels.callee import slope
from pymc_gpep.kernels.entry import Entry

def _line(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):
    carray(evidence_, (1,))[0] = slope() * carray(options_, (1,))[0]

line = Entry(_line)
"""

_CALL_ENTRY = """
import numpy as np
from pymc_gpep.kernels.caller import line
result = line(np.eye(1)[None], np.zeros((2, 1)), np.zeros(1, int), np.zeros(2), (3.0,), 1, (2, 1), False)
print(result.evidence, line._compiled.cache_hits)
"""


def test_change_of_a_callee_is_seen_by_an_entry(package):
    header = "from pymc_gpep.kernels.compile import kernel\n\n@kernel\ndef slope():\n    return "
    (package.kernels / "caller.py").write_text(_ENTRY)

    def run(slope):
        (package.kernels / "callee.py").write_text(f"{header}{slope}\n")
        return tuple(map(float, package.python(_CALL_ENTRY).split()))

    assert run(2.0) == (6.0, 0)
    assert run(2.0) == (6.0, 1)
    assert run(4.0) == (12.0, 0)
    assert run(2.0) == (6.0, 0)


_GRAPH = """
import sys
import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pymc_gpep.kernels.callee import slope
from pymc_gpep.kernels.compile import SOURCE_KEY

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
        return np.asarray(slope() * x.item())
    return call, SOURCE_KEY

x = pt.dscalar()
print(pytensor.function([x], Line()(x), mode="NUMBA")(3.0))
"""


def test_change_of_a_kernel_is_seen_by_graphs(package):
    """PyTensor caches compiled nodes as well, under the key that it is given."""
    header = "from pymc_gpep.kernels.compile import kernel\n\n@kernel\ndef slope():\n    return "

    def run(slope):
        (package.kernels / "callee.py").write_text(f"{header}{slope}\n")
        return float(package.python(_GRAPH))

    assert run(2.0) == 6.0
    assert list((package.root / "pytensor").rglob("*.nbi")), "nothing was cached, so that nothing could be stale"
    assert run(4.0) == 12.0
    assert run(2.0) == 6.0


_LATE = """
import numpy as np
from numba import carray
from pymc_gpep.kernels.entry import Entry

def _inner(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):
    carray(evidence_, (1,))[0] = 7.0 * n

inner = Entry(_inner, late=True)
call = inner.external

def _outer(
    matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
    evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
):
    if max_iterations > 1:
        call(
            matrices, c, n, k_, prior_mean_, y_, sites_, options_, wanted,
            evidence_, gradient_, gradient_mean_, weights_, mean_, cov_, precision_, history_, max_iterations, outcome_,
        )

outer = Entry(_outer, calls=(inner,))

def run(limit):
    outcome = outer(np.eye(1)[None], np.zeros((2, 1)), np.zeros(1, int), np.zeros(2), (3.0,), limit, (2, 1), False)
    return outcome.evidence, "_compiled" in vars(inner)
"""


def test_a_late_entry_is_compiled_when_compiled_code_calls_it(package):
    (package.kernels / "late.py").write_text(_LATE)
    code = "from pymc_gpep.kernels.late import run\nprint(*run(1), *run(2))"
    assert package.python(code).split() == ["nan", "False", "7.0", "True"]
    assert package.python(code).split() == ["nan", "False", "7.0", "True"]
