"""Results that stand beside the pages: short, of a commit, and enough for the papers' figures."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.active_sets.sparse_toy import COUNTS, VARIANTS, SparseToy
from benchmarks.stored import FOLDER, picture, read, store, stored

PAGES = {
    "paper": "paper",
    "binary_paper": "binary_paper",
    "active_sets": "active_sets_papers",
    "scalable_paper": "scalable_paper",
}
RUN = {"error": np.linspace(1 / 3, 1e-7, len(COUNTS)), "radius": np.ones(3), "seconds": np.array(1.0)}


def of_commit(commit: str) -> dict[str, dict[str, np.ndarray]]:
    return {f"{variant} 0": RUN | {"commit": np.array(commit)} for variant in VARIANTS}


@pytest.mark.parametrize(("paper", "name"), stored())
def test_what_is_stored_can_be_drawn(paper, name):
    assert isinstance(picture(paper, name), Figure)
    record = read(paper, name)
    assert record["command"].startswith(f"python -m benchmarks.{paper} {name} ")
    assert all(re.fullmatch("[0-9a-f]{12}", commit) for commit in record["commits"])


def test_each_paper_has_a_picture_and_all_are_small():
    assert {paper for paper, _ in stored()} == set(PAGES)
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_000_000


def test_pages_draw_what_is_stored():
    asked = {pair for page in PAGES.values() for pair in re.findall(r'picture\("(\w+)", "(\w+)"\)', text_of(page))}
    assert asked == set(stored())


def text_of(page: str) -> str:
    return (FOLDER.parent / f"{page}.md").read_text()


def test_results_are_read_as_they_were_stored_to_four_digits(tmp_path: Path):
    file = store("active_sets", "sparse_toy", SparseToy(), of_commit("0" * 12), ("*",), tmp_path)
    assert file.stat().st_size < 200 * len(VARIANTS)
    found = read("active_sets", "sparse_toy", tmp_path)["found"]
    assert found.keys() == of_commit("").keys()
    for run in found.values():
        assert run.keys() == {"error"}
        np.testing.assert_allclose(run["error"], RUN["error"], rtol=5e-4)
    assert import_module("benchmarks.active_sets.sparse_toy").EXPERIMENT.draw(found) is not None


@pytest.mark.parametrize("commit", ["unknown", "0123456789ab-dirty"])
def test_results_of_no_commit_are_not_stored(tmp_path, commit):
    with pytest.raises(ValueError, match="commit, and run again"):
        store("active_sets", "sparse_toy", SparseToy(), of_commit(commit), ("*",), tmp_path)
    assert not list(tmp_path.iterdir())


def test_pieces_without_a_picture_do_not_take_the_place_of_those_that_have_one(tmp_path):
    with pytest.raises(ValueError, match=r"needs other pieces than those that fit 'nothing\*': name more"):
        store("active_sets", "sparse_toy", SparseToy(), of_commit("0" * 12), ("nothing*",), tmp_path)
    assert not list(tmp_path.iterdir())
