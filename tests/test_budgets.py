"""Budgets of the package: lines and floors of each room, files of a folder, lines of a file, names of classes.

A commit that raises a figure names the ability that it adds. Lower a figure whenever you can.
"""

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.test_project import MODULES, ROOMS, ROOT, imports, nodes, parsed, room

# Room → lines of its modules after formatting, and floors. A module stands one floor above the modules it imports.
BUDGETS = {
    "array_types": (12, 1),
    "argument_types": (92, 1),
    "registry": (332, 1),
    "rows": (882, 3),
    "priors": (71, 1),
    "tables": (713, 2),
    "user_warnings": (20, 1),
    "noted_inputs": (112, 1),
    "progress": (74, 1),
    "pytensor_settings": (64, 1),
    "kernels": (10542, 6),
    "solvers": (5838, 5),
    "gaussians": (4242, 6),
    "likelihoods": (7636, 6),
    "approximations": (4681, 6),
    "methods": (220, 1),
    "graphs": (2582, 4),
    "recipes": (1351, 3),
    "latent": (1403, 2),
    "processes": (1855, 3),
    "univariate": (3591, 5),
    "sums": (3999, 5),
    "reading": (4146, 5),
    "prior_moments": (2512, 3),
    "evidence": (1145, 2),
    "log_posteriors": (2795, 3),
    "hyper": (4605, 5),
    "cluster": (691, 2),
    "streaming": (3001, 5),
    "samplers": (1398, 3),
    "checks": (1418, 1),
    "fits": (5301, 6),
    "variational": (2456, 6),
    "comparison": (1083, 2),
    "diagnostics": (11, 1),
    "plots": (1841, 2),
    "rivals": (6338, 6),
    "sklearn": (861, 2),
    "registration": (173, 1),
    "__init__": (113, 1),
}
FILES, FILES_OF_A_FOLDER, LINES_OF_A_FILE = 329, 26, 700


def lines(path: Path) -> int:
    """Return the number of lines of a module."""
    return path.read_text().count("\n")


def dotted(path: Path) -> str:
    """Return the name of a module, as imports spell it."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def rooms() -> dict[str, list[Path]]:
    """Return the modules of each room."""
    found = defaultdict(list)
    for path in MODULES:
        found[room(dotted(path))].append(path)
    return found


def floors(paths: list[Path]) -> int:
    """Return the number of floors of some modules, without the `__init__` module of their folder."""
    inside = {dotted(path): path for path in paths if path.stem != "__init__"}
    below = {}
    for name, path in inside.items():
        froms = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
        named = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
        below[name] = named.union(other for other, _ in imports(path)) & inside.keys() - {name}

    @cache
    def floor(name: str) -> int:
        return 1 + max(map(floor, below[name]), default=0)

    return max(map(floor, inside), default=1)


@pytest.mark.parametrize("name", ROOMS)
def test_room_is_within_its_budget(name):
    most, highest = BUDGETS[name]
    assert sum(map(lines, rooms()[name])) <= most
    assert floors(rooms()[name]) <= highest <= 6


def test_numbers_of_files_and_lines_are_within_their_budgets():
    folders = Counter(path.parent for path in MODULES)
    assert len(MODULES) <= FILES
    assert {str(folder) for folder, count in folders.items() if count > FILES_OF_A_FOLDER} == set()
    assert {str(path) for path in MODULES if lines(path) > LINES_OF_A_FILE} == set()


def classes() -> dict[str, list[tuple[str, ast.ClassDef]]]:
    """Return the classes of all modules by name, each with its room."""
    found = defaultdict(list)
    for name, paths in rooms().items():
        for node in (node for path in paths for node in parsed(path).body):
            if isinstance(node, ast.ClassDef):
                found[node.name].append((name, node))
    return found


def test_each_public_class_has_its_own_name():
    assert {name for name, each in classes().items() if not name.startswith("_") and len(each) > 1} == set()


@cache
def members(node: ast.ClassDef) -> set[str]:
    """Return the names that a class defines: methods, fields, and attributes that it stores."""
    inside = list(ast.walk(node))
    fields = [each.target for each in inside if isinstance(each, ast.AnnAssign)]
    stored = [each for each in inside if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
    methods = {each.name for each in inside if isinstance(each, ast.FunctionDef)}
    return methods | {getattr(each, "id", getattr(each, "attr", "")) for each in [*fields, *stored]}


def lonely_protocols(found: dict[str, list[tuple[str, ast.ClassDef]]]) -> set[str]:
    """Return the names of protocols whose only implementation is in the same room."""
    every = [(place, node) for each in found.values() for place, node in each]
    lonely = set()
    for place, node in every:
        asked = members(node) - {"__call__"}
        if asked and "Protocol" in {getattr(base, "id", "") for base in node.bases}:
            implementations = [other for other, each in every if each is not node and asked <= members(each)]
            lonely |= {node.name} if implementations == [place] else set()
    return lonely


def test_protocols_have_several_implementations_or_an_implementation_in_another_room():
    assert lonely_protocols(classes()) == set()


def test_protocols_with_one_implementation_are_found():
    code = "class Shape(Protocol):\n    def area(self): ...\nclass Disc:\n    def area(self): ..."
    found = {node.name: [("one", node)] for node in ast.parse(code).body}
    assert lonely_protocols(found) == {"Shape"}
    assert lonely_protocols(found | {"Square": [("two", ast.parse(code.replace("Disc", "Square")).body[1])]}) == set()
