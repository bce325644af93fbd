"""The examples: scripts in notebook cells, each with a page in the documentation."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGE = ROOT / "docs" / "examples.md"
of_each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def cells(path: Path) -> list[tuple[str, str]]:
    """Text before the first cell, and kind and text of each cell in jupytext's percent format."""
    first, *parts = re.split(r"^# %%(.*)\n", path.read_text(), flags=re.MULTILINE)
    return [("before", first), *((kind.strip(), text) for kind, text in zip(parts[::2], parts[1::2], strict=True))]


@of_each_example
def test_example_begins_with_a_title(path):
    (before, nothing), (kind, text), *_ = cells(path)
    assert (before, nothing, kind) == ("before", "", "[markdown]")
    assert re.match(r"# # \S", text)


@of_each_example
def test_cells_are_text_or_code(path):
    for kind, text in cells(path)[1:]:
        assert text.strip()
        if kind == "[markdown]":
            assert all(line.startswith("#") for line in text.strip().splitlines())
        else:
            assert kind == ""
            assert ast.parse(text).body


@of_each_example
def test_example_has_no_command_line_and_draws_its_figure_in_the_last_cell(path):
    module = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names}
    assert not {"argparse", "matplotlib", "sys"} & imported
    assert "__name__" not in path.read_text()
    kind, last = cells(path)[-1]
    assert kind == ""
    # a notebook shows a figure below the cell that makes it
    assert re.search(r"^figure.* = plt\.", last, flags=re.MULTILINE)
    assert last.rstrip().splitlines()[-1] == f'figure.savefig("output/{path.stem}.png", dpi=110)'


def test_every_example_has_its_page():
    linked = re.findall(r"\]\(generated/examples/(\w+)\)", PAGE.read_text())
    listed = re.findall(r"^generated/examples/(\w+)$", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(linked) == [path.stem for path in EXAMPLES]
