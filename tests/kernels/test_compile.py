"""Compiled kernels on disk: reused while their code is unchanged, and compiled again after any change of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

import pymc_gpep.kernels
from pymc_gpep.kernels import compile
from pymc_gpep.registration import ensure_folder

KERNELS = Path(pymc_gpep.kernels.__file__).parent

# Prints for each kernel its value, whether it came from the cache, and its key for PyTensor.
_RUN = """
import importlib, json
from pymc_gpep.kernels.compile import source_key
found = {{}}
for module in {modules}:
    file = importlib.import_module(f"pymc_gpep.kernels.{{module}}")
    kernel = file.kernel_of_test
    value = kernel(-1.5)
    counts = (sum(each.values()) for each in (kernel.stats.cache_hits, kernel.stats.cache_misses))
    found[module] = [value, *counts, source_key(file.__file__)]
print(json.dumps(found))
"""


class Package:
    """A copy of the kernels in a package without other imports, with its own cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kernels = root / "pymc_gpep" / "kernels"
        shutil.copytree(KERNELS, self.kernels, ignore=shutil.ignore_patterns("__pycache__"))
        (root / "pymc_gpep" / "__init__.py").touch()

    def python(self, code: str, *options: str) -> str:
        """Output of a new interpreter that runs `code`."""
        environment = os.environ | {
            "NUMBA_CACHE_DIR": str(self.root / "cache"),
            "PYTHONPATH": str(self.root),
            # Python does not recompile a file of the same second and the same length.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTENSOR_FLAGS": f"base_compiledir={self.root / 'pytensor'}",
        }
        command = [sys.executable, *options, "-c", code]
        result = subprocess.run(command, cwd=self.root, env=environment, check=True, capture_output=True, text=True)
        return result.stdout

    def write(self, module: str, code: str) -> None:
        file = self.kernels.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"from pymc_gpep.kernels.compile import kernel\n{code}")

    def run(self, *modules: str) -> dict[str, list]:
        return json.loads(self.python(_RUN.format(modules=modules), "-W", "error"))


@pytest.fixture
def package(tmp_path):
    return Package(tmp_path)


def kernel_of(expression: str, docstring: str = "") -> str:
    return f"@kernel\ndef kernel_of_test(x):\n    {docstring!r}\n    return {expression}\n"


def test_kernel_is_compiled_once(package):
    """One kernel calls SciPy, whose address differs between processes. One kernel has two integer arguments."""
    package.write("tail", "from pymc_gpep.kernels.special.normal import log_ndtr as kernel_of_test\n")
    package.write("callee", "@kernel\ndef power(x, k):\n    return x**k\n")
    package.write("caller", "from pymc_gpep.kernels.callee import power\n" + kernel_of("power(x, 0) + power(x, 2)"))
    first = package.run("tail", "caller")
    assert [found[1:3] for found in first.values()] == [[0, 1], [0, 1]]
    assert first["caller"][0] == 3.25
    assert len(list((package.root / "cache").rglob("callee.power*.nbc"))) == 1
    again = package.run("tail", "caller")
    assert again == {module: [value, 1, 0, key] for module, (value, _, _, key) in first.items()}


CALLER = "from pymc_gpep.kernels.{} import kernel_of_test as callee\n" + kernel_of("callee(x)")
MODULES = ("callee", "caller", "callers_caller", "bystander")


def test_change_of_a_kernel_recompiles_only_its_callers(package):
    """The changed kernel has a caller, which has a caller itself. One more kernel is unrelated."""
    package.write("callee", kernel_of("2.0 * x"))
    package.write("caller", CALLER.format("callee"))
    package.write("callers_caller", CALLER.format("caller"))
    package.write("bystander", kernel_of("x"))
    first = package.run(*MODULES)
    assert [first[module][0] for module in MODULES] == [-3.0, -3.0, -3.0, -1.5]
    package.write("callee", kernel_of("4.0 * x"))
    changed = package.run(*MODULES)
    assert [changed[module][:3] for module in MODULES] == [[-6.0, 0, 1]] * 3 + [[-1.5, 1, 0]]
    assert [changed[module][3] == first[module][3] for module in MODULES] == [False, False, False, True]
    # Changes of comments or line numbers do not compile anything.
    package.write("callee", f"# a comment\n\n\n{kernel_of('4.0 * x', docstring='x four times.')}")
    package.write("caller", f'"""A caller."""\n{CALLER.format("callee")}')
    again = package.run(*MODULES)
    assert again == {module: [value, 1, 0, key] for module, (value, _, _, key) in changed.items()}


@pytest.mark.parametrize(
    "imported",
    [
        "from pymc_gpep.kernels.folder.callee import NUMBER",
        "from pymc_gpep.kernels.folder import NUMBER",
        "from pymc_gpep.kernels.folder import callee\nNUMBER = callee.NUMBER",
        "import pymc_gpep.kernels.folder.callee as callee\nNUMBER = callee.NUMBER",
        "from .folder.callee import NUMBER",
        "from .folder import NUMBER",
    ],
)
def test_source_key_changes_with_a_module_imported_in_any_form(package, imported, monkeypatch):
    monkeypatch.setattr(compile, "_PACKAGE", package.kernels.parent)
    package.write("folder.callee", "NUMBER = 2.0\n")
    (package.kernels / "folder" / "__init__.py").write_text("from pymc_gpep.kernels.folder.callee import NUMBER\n")
    package.write("caller", f"{imported}\n{kernel_of('NUMBER * x')}")

    def key():
        compile._read.cache_clear()
        compile._digest.cache_clear()
        return compile.source_key(str(package.kernels / "caller.py"))

    first = key()
    assert key() == first
    package.write("folder.callee", "NUMBER = 4.0\n")
    assert key() != first


def test_source_key_depends_on_kernels_imported_from_another_room():
    """Kernels of `rivals` call kernels of the core."""
    own = KERNELS.parent / "rivals" / "kernels" / "class_independent.py"
    callee = KERNELS / "methods" / "factors.py"
    assert callee in compile._read(own)[1]
    assert KERNELS / "special" / "normal.py" in compile._read(callee)[1]


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


@pytest.mark.variation
def test_change_of_a_kernel_or_its_wrapper_changes_the_graph_key(package):
    """PyTensor also caches compiled nodes, under the key from the package."""

    def run(slope, factor=1.0):
        package.write("folder.callee", f"@kernel\ndef slope():\n    return {slope}\n")
        (package.root / "graph.py").write_text(_GRAPH.format(module="folder.callee", factor=factor))
        return float(package.python("import graph"))

    assert run(2.0) == 6.0
    assert list((package.root / "pytensor").rglob("*.nbi")), "nothing was cached, so that nothing could be stale"
    assert run(4.0) == 12.0
    assert run(2.0, factor=5.0) == 30.0


def test_operations_have_a_key_from_the_source_file_of_their_wrapper():
    wrappers = [path for path in KERNELS.parent.rglob("*.py") if "@register_funcify" in path.read_text()]
    assert {path.stem for path in wrappers} == {"evidence", "multinomial_probit_distribution", "multinomial_probit"}
    assert [path for path in wrappers if "source_key(__file__)" not in path.read_text()] == []


@pytest.fixture
def files(tmp_path):
    """Make the cache files of one kernel as a process does, for the stamp of its source."""
    return lambda stamp=b"source": compile._Files([str(tmp_path)], "kernel", stamp)


def test_processes_that_save_at_once_never_exchange_code(files):
    """The second process reads the index before the first writes it, and saves during the first save."""
    first, second = files(), files()
    second._load_index = dict
    write = first._save_data

    def write_late(name, code):
        second.save("floats", "code for floats")
        write(name, code)

    first._save_data = write_late
    first.save("integers", "code for integers")
    assert (files().load("integers"), files().load("floats")) == ("code for integers", "code for floats")


def test_interrupted_save_leaves_no_code_of_older_source(files, tmp_path, monkeypatch):
    files(b"older").save("floats", "older code")

    def interrupt(*_):
        raise KeyboardInterrupt

    for half in ("_save_data", "_save_index"):
        with monkeypatch.context() as patch:
            patch.setattr(compile._Files, half, interrupt)
            with pytest.raises(KeyboardInterrupt):
                files().save("floats", "code")
        assert files().load("floats") is None
    files().save("floats", "code")
    assert files().load("floats") == "code"
    assert len(list(tmp_path.glob("*.nbc"))) == 1


def test_damaged_files_of_the_cache_are_compiled_again(files, tmp_path):
    files().save("floats", "code")
    for file in tmp_path.iterdir():
        whole = file.read_bytes()
        for content in (b"", whole[: len(whole) // 2], b"no pickle"):
            file.write_bytes(content)
            assert files().load("floats") is None
        file.write_bytes(whole)
    next(tmp_path.glob("*.nbi")).write_bytes(b"")
    files().save("floats", "code")
    assert files().load("floats") == "code"


def test_cache_ignores_times_of_files(files, tmp_path):
    """After a jump of the clock, files may have times in the future, and newer sources may have earlier times."""
    files().save("floats", "code")
    for seconds in (0, 2**33):
        for file in tmp_path.iterdir():
            os.utime(file, (seconds, seconds))
        assert files().load("floats") == "code"
        assert files(b"newer source").load("floats") is None


def doubled(x):
    return 2.0 * x


def test_kernels_are_read_from_a_folder_without_write_permission(tmp_path, monkeypatch):
    """Simulated by a folder inside of a file, which root cannot write to either."""
    filled, absent = tmp_path / "filled", tmp_path / "file" / "absent"
    (tmp_path / "file").touch()
    monkeypatch.setattr(compile, "_digest", lambda path: b"source")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(filled))
    assert compile.kernel(doubled)(1.5) == 3.0
    monkeypatch.setattr(compile._Places, "_locator_classes", [compile._Beside])
    again = compile.kernel(doubled)
    assert again(1.5) == 3.0
    assert sum(again.stats.cache_hits.values()) == 1
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(absent))
    with pytest.warns(
        RuntimeWarning, match=r"cannot be stored in .*absent: Not a directory.* NUMBA_CACHE_DIR to a folder"
    ):
        assert compile.kernel(doubled)(1.5) == 3.0


def test_compiled_graphs_have_a_temporary_folder_if_the_default_folder_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for base, kept in ((tmp_path / "new", True), (tmp_path / "file" / "absent", False)):
        parameter = SimpleNamespace(val=base)
        ensure_folder(parameter)
        assert (parameter.val == base) == kept
        assert (parameter.val / "numba").is_dir() == kept
        assert os.access(parameter.val, os.W_OK)


@pytest.mark.slow
def test_package_can_be_imported_if_the_home_folder_cannot_be_written(tmp_path):
    (tmp_path / "home").touch()
    home = {"HOME": str(tmp_path / "home"), "PYTENSOR_FLAGS": "", "NUMBA_CACHE_DIR": numba.config.CACHE_DIR}
    code = "import pymc_gpep as gpep, pytensor; gpep.Probit; print(pytensor.config.compiledir)"
    found = subprocess.run([sys.executable, "-c", code], env=os.environ | home, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "pymc_gpep-" in found.stdout
    assert not Path(found.stdout.strip()).exists()


def test_failed_write_of_digests_leaves_no_file(tmp_path):
    resource = pytest.importorskip("resource")
    notes = compile._Notes(tmp_path)
    notes(Path(compile.__file__))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        notes._write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    notes._write()
    assert len(list(tmp_path.iterdir())) == 1
