"""Properties of the whole project: modules, files, cost of imports, Makefile."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from pymc_gpep.gaussians.posterior import POSTERIORS
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.solvers.problem import Prior

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "pymc_gpep").rglob("*.py"))
# From the lowest upwards: a module imports from its own room and from rooms before it.
ROOMS = (
    "array_types",
    "argument_types",
    "registry",
    "rows",
    "priors",
    "tables",
    "user_warnings",
    "noted_inputs",
    "progress",
    "pytensor_settings",
    "kernels",
    "solvers",
    "gaussians",
    "likelihoods",
    "approximations",
    "methods",
    "graphs",
    "recipes",
    "latent",
    "processes",
    "univariate",
    "sums",
    "reading",
    "prior_moments",
    "evidence",
    "log_posteriors",
    "hyper",
    "cluster",
    "streaming",
    "samplers",
    "checks",
    "fits",
    "variational",
    "comparison",
    "diagnostics",
    "plots",
    "rivals",
    "sklearn",
    "registration",
    "__init__",
)
SLOW_TO_IMPORT = {"arviz", "arviz_base", "distributed", "jax", "matplotlib", "pyarrow", "sklearn"}
TOP_LEVEL = ["pymc_gpep", "tests", "docs", "examples", "benchmarks", ".ci", ".github"]
BUILT = {"__pycache__", "_build", "generated", "PKG-INFO", ".git"}  # in a worktree of git, .git is a file


@cache
def parsed(path: Path) -> ast.Module:
    """Return the code of a module, read once for all tests."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of the code of a module."""
    return list(ast.walk(parsed(path)))


def run_python(code: str) -> str:
    """Standard output of a new interpreter that runs `code` in the root of the project."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@cache
def sources() -> dict[str, str]:
    """Text of the project's own files, by path."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    paths += [path for folder in TOP_LEVEL for path in (ROOT / folder).rglob("*") if path.is_file()]
    relative = [path.relative_to(ROOT) for path in paths]
    return {str(path): (ROOT / path).read_text(errors="replace") for path in relative if not BUILT & set(path.parts)}


def matches(pattern: str) -> list[str]:
    return [f"{path}: {match[0]}" for path, text in sources().items() for match in re.finditer(pattern, text)]


def test_modules_have_docstrings():
    assert [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(parsed(path))] == []


FOLDERS = [path.parent for path in MODULES if path.name == "__init__.py" and path.parent.name != "pymc_gpep"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(ROOT / "pymc_gpep").as_posix())
def test_room_docstring_lists_its_modules(folder):
    """The docstring has a line for each module and each room inside, in reading order."""
    doc = ast.get_docstring(parsed(folder / "__init__.py"))
    inside = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    inside += [path.parent.name for path in folder.glob("*/__init__.py")]
    assert sorted(re.findall(r"^([a-z_0-9]+): \S", doc, flags=re.MULTILINE)) == sorted(inside)
    assert [line for line in doc.splitlines()[1:] if len(line) > 100 and re.match(r"[a-z_0-9]+: ", line)] == []


def architecture() -> str:
    return (ROOT / "docs" / "architecture.md").read_text()


def test_architecture_page_names_paths_that_exist():
    """Paths are relative to the package, or to the root of the project for tests and pages."""
    named = re.findall(r"`([\w/.]+(?:/\w+|\.py|\.md))`", architecture())
    assert {"likelihoods/all_likelihoods.py", "tests/sum_models.py", "docs/hyperparameters.md"} <= set(named)
    assert [path for path in named if not (ROOT / "pymc_gpep" / path).exists() and not (ROOT / path).exists()] == []


def test_architecture_page_has_a_paragraph_for_each_room_in_order():
    folders = [name for name in ROOMS if (ROOT / "pymc_gpep" / name).is_dir()]
    assert re.findall(r"^\*\*`(\w+)`\*\*", architecture(), flags=re.MULTILINE) == folders
    assert len(architecture().split()) <= 1500


def words(page: str) -> int:
    """Number of words on a page, without separators of tables."""
    return sum(any(map(str.isalnum, word)) for word in (ROOT / "docs" / page).read_text().split())


def listed(page: str) -> list[str]:
    """Pages that the tables of contents of a page name."""
    tables = re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    return re.sub(r"^:.*$", "", "\n".join(tables), flags=re.MULTILINE).split()


def test_documentation_stays_within_its_number_of_words():
    """Figures and experiments are the pages of Evidence. All other pages except the architecture are for users."""
    pages = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if not BUILT & set(path.parts))
    counts = {path.as_posix().removesuffix(".md"): words(path.as_posix()) for path in pages}
    evidence = listed("evidence.md")
    assert {"paper", "results", "gallery"} <= set(evidence)
    assert sum(counts[page] for page in evidence) <= 25_000
    assert sum(counts[page] for page in counts.keys() - {*evidence, "architecture"}) <= 30_000


def test_code_lines_on_pages_have_at_most_the_width_of_the_column():
    """A wide screen shows code of at most 100 characters without wrapping."""
    long = {
        path.name: line
        for path in (ROOT / "docs").rglob("*.md")
        if not BUILT & set(path.parts)
        for code in re.findall(
            r"^```(?:python|{code-cell}[^\n]*)\n(.*?)^```$", path.read_text(), flags=re.DOTALL | re.MULTILINE
        )
        for line in code.splitlines()
        if len(line) > 100
    }
    assert long == {}


def test_reference_pages_have_at_most_900_words():
    pages = ["hyperparameters", "leave_one_out", "fitting", "sums", "rows", "checks"]
    assert {page: words(f"{page}.md") for page in pages if words(f"{page}.md") > 900} == {}


SEARCHED = json.loads((ROOT / "docs" / "searched.json").read_text())
"""Search terms, with the page that the site's search must list first."""


def test_search_terms_are_main_index_entries_of_one_page():
    """The search lists pages with an exact main entry (`!`) first, and pages with other entries last."""
    entries = {
        (entry.strip(), path.relative_to(ROOT / "docs").with_suffix("").as_posix())
        for path in (ROOT / "docs").rglob("*.md")
        for line in re.findall(r"^```{index} (.*)$", path.read_text(), flags=re.MULTILINE)
        for entry in line.split(",")
    }
    mains = {(word.removeprefix("!").strip(), page) for word, page in entries if word.startswith("!")}
    assert {(word, page) for word, page in mains if word in SEARCHED} == set(SEARCHED.items())


def room(module: str) -> str:
    """Room of a module by its dotted name, or `__init__` for the package itself."""
    _, *inside = module.split(".")
    return inside[0] if inside else "__init__"


def imports_among(nodes: Iterable[ast.AST]) -> list[tuple[str, int]]:
    """Modules that these nodes import, as dotted names, with line numbers."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "pymc_gpep":
            found += [(f"pymc_gpep.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((str(node.module), node.lineno))
    return found


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Modules that a module imports, as dotted names, with line numbers."""
    return imports_among(nodes(path))


def test_imports_between_rooms_go_one_way():
    upwards = []
    for path in MODULES:
        own = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
        upwards += [
            f"{path.relative_to(ROOT)}:{line} imports {name}"
            for name, line in imports(path)
            if name.split(".")[0] == "pymc_gpep" and ROOMS.index(room(name)) > ROOMS.index(own)
        ]
    assert upwards == []


def test_imports_between_modules_have_no_cycle():
    """Imports inside functions and for type checkers count as well.

    Modules without remaining imports are removed, then modules that no other module imports. Remaining modules form a
    cycle.
    """
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in MODULES}
    needs = {}
    for name, path in modules.items():
        froms = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
        named = [f"{node.module}.{alias.name}" for node in froms for alias in node.names]
        needs[name] = {other for other, _ in imports(path)}.union(named) & modules.keys() - {name}
    while free := [name for name, others in needs.items() if not others & needs.keys()]:
        needs = {name: others for name, others in needs.items() if name not in free}
    while idle := needs.keys() - set().union(*needs.values()):
        needs = {name: others for name, others in needs.items() if name not in idle}
    assert sorted(needs) == []


def test_longest_chain_of_imports_has_at_most_seventeen_rooms():
    """Each room stands one floor above the highest room that it imports from."""
    below = {name: set() for name in ROOMS}
    for path in MODULES:
        own = room(".".join(path.relative_to(ROOT).with_suffix("").parts))
        names = [name for name, _ in imports(path) if name.split(".")[0] == "pymc_gpep"]
        below[own] |= {room(name) for name in names} - {own, "__init__"}
    floors = {}
    for name in ROOMS[:-1]:  # the package itself exports names of all rooms
        floors[name] = 1 + max((floors[other] for other in below[name]), default=0)
    del floors["rivals"]  # no room imports from this room
    assert max(floors.values()) <= 17, floors


def test_only_the_package_imports_rivals():
    """Other rooms reach the methods of rivals by the tables in which the methods are registered."""
    importers = {
        str(path.relative_to(ROOT / "pymc_gpep"))
        for path in MODULES
        if path.relative_to(ROOT / "pymc_gpep").parts[0] != "rivals"
        for name, _ in imports(path)
        if name.startswith("pymc_gpep.rivals")
    }
    assert importers == {"__init__.py"}


def test_kernels_are_called_in_lower_rooms_only():
    """Rooms above the approximations import only statuses of kernels, with three exceptions."""
    upper = set(ROOMS[ROOMS.index("approximations") + 1 :]) - {"rivals"}  # this room contains approximations
    own = {
        "evidence/evidence.py": {"kernels.compile"},
        "samplers/probit_gibbs.py": {"kernels.sampling"},
        "cluster/cluster_log_posterior.py": {"kernels.acceleration"},
        "univariate/local_scales.py": {"kernels.scalar"},
    }
    calls = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in MODULES
        if room(".".join(path.relative_to(ROOT).with_suffix("").parts)) in upper
        for name, line in imports(path)
        if name.startswith("pymc_gpep.kernels.") and name != "pymc_gpep.kernels.status"
        if ".".join(name.split(".")[1:3]) not in own.get(str(path.relative_to(ROOT / "pymc_gpep")), ())
    ]
    assert calls == []


def test_only_lower_rooms_import_forms_of_priors():
    """Code that uses rows of effects or sparse precisions does not distinguish these forms."""
    forms = {f"{kind}_{what}" for kind in ("row", "precision") for what in ("form", "prior", "posterior")}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in MODULES
        if room(".".join(path.relative_to(ROOT).with_suffix("").parts))
        not in {"solvers", "gaussians", "sums", "prior_moments"}
        for name, line in imports(path)
        if name.startswith("pymc_gpep.") and name.split(".")[-1] in forms
    ]
    assert found == []


def brings(name: str) -> set[str]:
    """Libraries that importing a module loads, directly or by other modules of the package."""
    path = (ROOT / name.replace(".", "/")).with_suffix(".py")
    return {each.split(".")[0] for each, _ in imports(path)} if path.exists() else {name.split(".")[0]}


def test_only_slow_imports_are_inside_functions():
    late = []
    # `registration` runs in `import pymc_gpep`. All other modules are imported on demand.
    for path in (path for path in MODULES if path.stem != "registration"):
        functions = [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]
        late += [
            f"{path.relative_to(ROOT)}:{line} imports {name}"
            for function in functions
            for name, line in imports_among(ast.walk(function))
            if not brings(name) & SLOW_TO_IMPORT
        ]
    assert late == []


def named_types(nodes: Iterable[ast.AST]) -> dict[ast.expr, int]:
    """Types in `isinstance`, `issubclass` and comparisons with `type(...)`, with line numbers."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"isinstance", "issubclass"}:
            found[node.args[1]] = node.lineno
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Call) and getattr(side.func, "id", "") == "type" for side in sides):
                found |= dict.fromkeys(sides, node.lineno)
        if isinstance(node, ast.MatchClass):
            found[node.cls] = node.lineno
    return found


def classes_of(kind: type) -> set[str]:
    """Names of the classes of the package that derive from a class."""
    below = kind.__subclasses__()
    return {kind.__name__}.union(*map(classes_of, below)) if below else {kind.__name__}


def asks_which(nodes: Iterable[ast.AST], classes: set[str]) -> list[int]:
    """Lines of nodes that check for one of these classes."""
    asked = named_types(nodes)
    return [line for types, line in asked.items() if {getattr(n, "id", "") for n in ast.walk(types)} & classes]


def test_no_code_checks_the_class_of_a_likelihood():
    names, classes = {likelihood.name for likelihood in LIKELIHOODS}, classes_of(Likelihood)
    assert {"ProbitLikelihood", "RobustMaxLikelihood", "LabelNoise"} <= classes
    room, found = ROOT / "pymc_gpep" / "likelihoods", []
    for path in (path for path in MODULES if room not in path.parents):
        compared = [node for node in nodes(path) if isinstance(node, ast.Compare | ast.MatchValue)]
        lines = [
            each.lineno
            for each in compared
            if any(isinstance(node, ast.Constant) and node.value in names for node in ast.walk(each))
        ]
        found += [f"{path.relative_to(ROOT)}:{line}" for line in lines + asks_which(nodes(path), classes)]
    assert found == []


@pytest.mark.parametrize(
    "code",
    ["isinstance(one, ProbitLikelihood)", "type(one) is ProbitLikelihood", "issubclass(kind, A | ProbitLikelihood)"],
)
def test_class_checks_are_detected(code):
    assert asks_which(ast.walk(ast.parse(code)), {"ProbitLikelihood"}) == [1]
    assert asks_which(ast.walk(ast.parse(code)), {"LogitLikelihood"}) == []


def test_only_the_room_gaussians_checks_the_class_of_a_prior():
    classes = classes_of(Prior)
    assert {prior.__name__ for prior, *_ in POSTERIORS} <= classes
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        if room(".".join(path.relative_to(ROOT).with_suffix("").parts)) != "gaussians"
        for line in asks_which(nodes(path), classes)
    ]
    assert found == []


def test_private_names_of_libraries_are_only_in_three_files():
    """An attribute is a library's private attribute if no module of the package sets or defines it."""
    modules = {str(path.relative_to(ROOT / "pymc_gpep")): nodes(path) for path in MODULES}
    own, used, imported = {"_replace", "_asdict", "_fields", "_make"}, [], []
    for path, inside in modules.items():
        for node in inside:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own |= {node.attr} if getattr(node.value, "id", "") == "self" else set()
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                used.append((path, node.attr))
            elif isinstance(node, ast.Name | ast.arg):
                own |= {getattr(node, "id", getattr(node, "arg", ""))}
            elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] != "pymc_gpep":
                imported += [path for alias in node.names if re.match("_[a-z]", alias.name)]
    found = {path for path, name in used if name not in own} | set(imported)
    assert found == {"graphs/private_names.py", "kernels/compile.py", "fits/fit.py"}


def test_kernels_import_neither_pymc_nor_pytensor():
    # An empty module replaces the parent package, whose own __init__ imports PyMC.
    imported = run_python(
        "import importlib, pkgutil, sys, types\n"
        "package = types.ModuleType('pymc_gpep')\n"
        "package.__path__ = ['pymc_gpep']\n"
        "sys.modules['pymc_gpep'] = package\n"
        "for name in ('pymc_gpep.kernels', 'pymc_gpep.rivals.kernels'):\n"
        "    kernels = importlib.import_module(name)\n"
        "    for module in pkgutil.walk_packages(kernels.__path__, name + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "print(*sys.modules)"
    ).split()
    assert {"pymc_gpep.kernels.special.normal", "pymc_gpep.rivals.kernels.quadrature_ep"} <= set(imported)
    assert not {"pymc", "pytensor"} & set(imported)


@cache
def imported_and_named() -> list[str]:
    """Return two lines: modules that the package loads after PyMC, and public names after imports of modules."""
    return run_python(
        "import sys, pymc\nbefore = set(sys.modules)\nimport pymc_gpep\nprint(*sorted(set(sys.modules) - before))\n"
        "import pymc_gpep.fits.prediction, pymc_gpep.variational.inference\n"
        "print(*(getattr(pymc_gpep, name).__name__ for name in pymc_gpep.__all__))\n"
        "assert set(pymc_gpep.__all__) <= set(dir(pymc_gpep))\n"
        "assert {*pymc_gpep._HOME, *pymc_gpep._MODULES} == set(pymc_gpep.__all__)"
    ).splitlines()


def test_times_are_measured_by_monotonic_clocks():
    # The system's clock can be set during a fit. Durations need time.monotonic or perf_counter.
    jumps = re.compile(r"\btime\.time\(|from time import .*\btime\b|datetime\S*\.(utc)?now\(")
    assert [str(path) for path in MODULES if jumps.search(path.read_text())] == []


def test_import_loads_no_optional_or_slow_library():
    # These libraries are for plots or comparisons. `import pymc` may load them, and `import pymc_gpep` must not.
    added = imported_and_named()[0].split()
    assert "pymc_gpep" in added
    assert not {"arviz", "jax", "matplotlib", "numba", "nutpie", "sklearn"} & set(added)


def test_process_that_distributes_tests_does_not_import_pymc():
    assert run_python("import sys, tests.conftest; print({'pymc', 'pytensor'} & set(sys.modules))") == "set()\n"


def test_files_name_no_package_index():
    assert matches(r"index[-_]url|--find[-]links|python[h]osted|https?://[^\s/]+(:\d+)?/(pypi|simple)\b") == []


def test_files_contain_no_path_of_a_machine():
    # A path may follow another name, as in docs/work/, and "/tmp" may be mentioned. A file or folder in it may not.
    assert matches(r"(?<![\w.~)}\]-])/(home|root|work|tmp|Users)/[\w.-]+") == []


def test_package_reads_no_wall_clock():
    """A clock that jumps changes neither files nor the seconds of a fit."""
    found = matches(r"\btime\.time\(|\.(now|today|utcnow)\(|st_mtime|getmtime")
    assert [each for each in found if each.startswith("pymc_gpep/")] == []


def test_version_is_stated_in_a_single_file():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert len(matches(re.escape(version))) == 1


def test_make_targets_in_scripts_and_pages_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    used = matches(r"(?:`|\b(?:run|entry): )make [a-z-]+")
    assert {".pre-commit-config.yaml: entry: make lint", ".github/workflows/checks.yml: run: make test"} <= set(used)
    assert [line for line in used if line.split()[-1] not in targets] == []


def test_python_versions_agree_in_all_files():
    """Classifiers and the page of versions name the tried versions. Checks also run on the next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tried = re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert f"tried with Python {' and '.join(tried)}." in (ROOT / "docs" / "versions.md").read_text()
    versions = [*tried, f"3.{int(tried[-1].removeprefix('3.')) + 1}"]
    assert project["requires-python"] == f">={versions[0]}"
    assert (ROOT / ".python-version").read_text().strip() == versions[0]
    assert f"PYTHON_VERSIONS := {' '.join(reversed(versions))}\n" in (ROOT / "Makefile").read_text()
    quoted = ", ".join(f'"{version}"' for version in versions)
    assert f"python-version: [{quoted}]\n" in (ROOT / ".github" / "workflows" / "checks.yml").read_text()


@pytest.fixture
def machine(tmp_path):
    """Return a function that runs `make python` on a simulated machine with the given Python versions."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")

    def make_python(**versions: str) -> subprocess.CompletedProcess[str]:
        for name, version in versions.items():
            interpreter = tmp_path / name
            interpreter.write_text(f"#!/bin/sh\necho {version}\n")
            interpreter.chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHON", "MAKEFLAGS"}}
        environment = inherited | {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path)}
        command = [make, "--no-print-directory", "python"]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    return make_python


def test_make_uses_the_first_python_that_is_recent_enough(machine):
    result = machine(python3="3.11", **{"python3.12": "3.12"})
    assert (result.returncode, result.stdout) == (0, "python3.12\n")


def test_make_reports_a_python_that_is_too_old(machine):
    result = machine(python3="3.11")
    assert result.returncode != 0
    assert "No suitable Python: one of 3.14 3.13 3.12 is needed" in result.stderr
    assert "python3 is Python 3.11\n" in result.stderr


def test_make_reports_a_missing_python(machine):
    result = machine()
    assert result.returncode != 0
    assert "these run:\n  none\n" in result.stderr


def test_make_leaves_a_linked_environment_of_another_folder_alone(tmp_path):
    """`venv --clear` follows a link, and would empty an environment in use."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    clone, other = tmp_path / "clone", tmp_path / "other"
    clone.mkdir()
    (other / "lib").mkdir(parents=True)
    (other / "lib" / "used.py").touch()
    (clone / ".venv").symlink_to(other, target_is_directory=True)
    for name in ("Makefile", ".python-version"):
        shutil.copy(ROOT / name, clone)
    inherited = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "VENV"}}
    command = [make, f"PYTHON={sys.executable}", ".venv/.made"]
    result = subprocess.run(command, cwd=clone, env=inherited, capture_output=True, text=True)
    assert result.returncode != 0
    assert ".venv is outside this folder, and is not replaced" in result.stderr
    assert [file.name for file in other.rglob("*")] == ["lib", "used.py"]


def test_public_names_exist_for_any_order_of_imports():
    assert {"from_datatree", "marginalize", "open_rows"} < set(imported_and_named()[1].split())


def test_conda_recipe_reads_the_version_and_has_the_floors_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = (ROOT / ".ci" / "recipe.yaml").read_text()
    assert 'version: ${{ load_from_file("../pyproject.toml").project.version }}' in recipe
    wanted = {re.sub(r"(?<=\w)(?=[<>=!])", " ", each) for each in project["dependencies"]}
    listed = re.findall(r"^    - (\S.*)$", recipe.partition("  run:\n")[2].partition("\n\n")[0], flags=re.MULTILINE)
    assert {re.sub(r"^(pymc|pytensor)-base", r"\1", each) for each in listed} == {
        *wanted,
        f"python {project['requires-python']}",
    }


def test_table_of_dependencies_has_the_floors_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [each for name in ("plot", "files", "scikit-learn") for each in project["optional-dependencies"][name]]
    floors = re.findall(r"^(\S+?)>=([\d.]+)", "\n".join([*project["dependencies"], *wanted]), flags=re.MULTILINE)
    rows = re.findall(
        r"^\| ([a-z0-9, -]+) \|.*\| ([\d.]+) \| [\d.]+ \|$", sources()["CONTRIBUTING.md"], flags=re.MULTILINE
    )
    assert {(names.split(", ")[0], floor) for names, floor in rows} == set(floors)


def test_release_refuses_a_tag_without_version_or_changelog(tmp_path):
    check_tag = runpy.run_path(str(ROOT / ".ci" / "check_tag.py"))["faults"]
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 0.2.0 (2027-01-01)\n")
    assert check_tag("v0.2.0", tmp_path) == []
    assert check_tag("v0.3.0", tmp_path) == ["The tag is v0.3.0, but pyproject.toml has the version 0.2.0."]
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n")
    assert check_tag("v0.2.0", tmp_path) == ["CHANGELOG.md has no section '## 0.2.0 (date)'."]
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0.dev0"\n')
    assert "is not the version of a release" in check_tag("v0.2.0.dev0", tmp_path)[0]
