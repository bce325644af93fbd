"""Stored results for the pages: small, with their commit, and sufficient for the figures and tables of the papers."""

import json
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.active_sets.sparse_toy import COUNTS, VARIANTS, SparseToy
from benchmarks.binary_paper.tap_equations import EXPERIMENT as TAP
from benchmarks.stored import (
    FOLDER,
    TABLES,
    PageTable,
    page_tables,
    picture,
    read,
    read_tables,
    store,
    store_tables,
    stored,
    table,
)

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
def test_stored_results_can_be_plotted(paper, name):
    assert isinstance(picture(paper, name), Figure)
    record = read(paper, name)
    assert record["command"].startswith(f"python -m benchmarks.{paper} {name} ")
    assert all(re.fullmatch("[0-9a-f]{12}", commit) for commit in record["commits"])


def test_each_paper_has_a_picture_and_all_pictures_are_small():
    assert {paper for paper, _ in stored()} == set(PAGES)
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_000_000
    assert sum(file.stat().st_size for folder in (FOLDER, TABLES) for file in folder.iterdir()) < 2_000_000


def test_pages_draw_all_stored_results():
    asked = {pair for page in PAGES.values() for pair in re.findall(r'picture\("(\w+)", "(\w+)"\)', text_of(page))}
    assert asked == set(stored())


def text_of(page: str) -> str:
    return (FOLDER.parent / f"{page}.md").read_text()


def test_results_are_stored_and_read_with_four_digits(tmp_path: Path):
    file = store("active_sets", "sparse_toy", SparseToy(), of_commit("0" * 12), ("*",), tmp_path)
    assert file.stat().st_size < 200 * len(VARIANTS)
    found = read("active_sets", "sparse_toy", tmp_path)["found"]
    assert found.keys() == of_commit("").keys()
    for run in found.values():
        assert run.keys() == {"error"}
        np.testing.assert_allclose(run["error"], RUN["error"], rtol=5e-4)
    assert import_module("benchmarks.active_sets.sparse_toy").EXPERIMENT.draw(found) is not None


@pytest.mark.parametrize("commit", ["unknown", "0123456789ab-dirty"])
def test_results_without_a_commit_are_not_stored(tmp_path, commit):
    with pytest.raises(ValueError, match="commit, and run again"):
        store("active_sets", "sparse_toy", SparseToy(), of_commit(commit), ("*",), tmp_path)
    assert not list(tmp_path.iterdir())


def test_results_that_do_not_suffice_for_a_picture_are_not_stored(tmp_path):
    with pytest.raises(ValueError, match=r"Results of 'nothing\*' are not sufficient .*: name more"):
        store("active_sets", "sparse_toy", SparseToy(), of_commit("0" * 12), ("nothing*",), tmp_path)
    assert not list(tmp_path.iterdir())


def test_tables_are_stored_and_read_without_changes(tmp_path):
    run = {
        "sites": np.array([1.5, 2.5]),
        "first": np.array(1e-9),
        "second": np.array(3.25),
        "with noise": np.array(2e-7),
    }
    found = {"logit, 5 points": run | {"commit": np.array("0" * 12), "seconds": np.array(0.5)}}
    store_tables("binary_paper", "tap_equations", TAP, found, ("*",), tmp_path)
    record = read_tables("binary_paper", "tap_equations", tmp_path)
    assert record["seconds"] == 0.5
    assert "cores" in record["machine"]
    own = record["tables"]["differences"]
    assert own["commits"] == ["0" * 12]
    assert own["rows"] == [["logit, 5 points", "1.50 to 2.5", "1e-09", "3.25", ""]]
    shown = str(PageTable(tuple(own["columns"]), tuple(map(tuple, own["rows"])), "origin")).splitlines()
    assert shown[0].startswith("| likelihood, points | ")
    assert shown[2] == "| logit, 5 points | 1.50 to 2.5 | 1e-09 | 3.25 |  |"
    assert shown[-1] == "origin"


def test_earlier_tables_in_a_file_are_kept(tmp_path):
    others = {"command": "before", "machine": None, "seconds": None, "tables": {"older": {"printed": ["1" * 12]}}}
    file = tmp_path / "binary_paper.tap_equations.json"
    file.write_text(json.dumps(others))
    run = {key: np.array([1.0, 2.0]) for key in ("sites", "first", "second", "with noise")}
    found = {"logit, 5 points": run | {"commit": np.array("0" * 12), "seconds": np.array(0.5)}}
    for key in ("first", "second", "with noise"):
        found["logit, 5 points"][key] = np.array(1.0)
    for _ in range(2):
        store_tables("binary_paper", "tap_equations", TAP, found, ("logit*",), tmp_path)
        record = read_tables("binary_paper", "tap_equations", tmp_path)
        assert record["command"] == "before"
        assert record["tables"]["older"] == {"printed": ["1" * 12]}
        assert "--only 'logit*'" in record["tables"]["differences"]["command"]
        assert record["tables"]["differences"]["seconds"] == 0.5


EXPERIMENTS_WITH_TABLES = [of for of in sorted({*stored(), *stored(TABLES)}) if of[0] in PAGES and page_tables(*of)]


def numbers(text: str) -> list[str]:
    """Numbers of a text as written, without numbers in names of data, section titles and code."""
    return re.findall(r"(?<![\w.,])[−-]?\d+(?:[  ]\d{3})*(?:\.\d+)?(?![\w.]*\d)", text)


@cache
def recorded(paper: str) -> frozenset[str]:
    """Numbers in tables and table headings of a paper."""
    found: set[str] = set()
    for of, name in EXPERIMENTS_WITH_TABLES:
        for each in page_tables(of, name).values() if of == paper else ():
            for line in [each["columns"], *each["rows"]]:
                found |= {number for cell in line for number in numbers(cell)}
    return frozenset(found)


@pytest.mark.parametrize(("paper", "name"), EXPERIMENTS_WITH_TABLES)
def test_each_table_names_its_command_and_commits(paper, name):
    for key, own in page_tables(paper, name).items():
        assert re.match(f"python -m benchmarks.({'|'.join(PAGES)})[. ]", own["command"])
        assert {"machine", "seconds"} <= own.keys()
        commits = own.get("commits", own.get("printed"))
        assert commits
        assert all(re.fullmatch("[0-9a-f]{12}", commit) for commit in commits)
        assert {len(row) for row in own["rows"]} == {len(own["columns"])}
        assert commits[0] in str(table(paper, name, key))


def test_pages_build_all_tables_that_are_stored():
    asked = [
        each for page in PAGES.values() for each in re.findall(r'table\("(\w+)", "(\w+)", "(.+)"\)', text_of(page))
    ]
    there = [(paper, name, key) for paper, name in EXPERIMENTS_WITH_TABLES for key in page_tables(paper, name)]
    assert sorted(asked) == sorted(there)


def written(text: str) -> float:
    return float(text.replace("−", "-"))


def test_printed_tables_agree_with_the_records_of_pictures():
    sets = {"New-thyroid": "new-thyroid", "Image segmentation": "segmentation", "USPS 3 vs. 5 vs. 7": "usps357"}
    for key, score in (("densities", "mlpd"), ("accuracies", "accuracy")):
        printed = read_tables("paper", "figures9_10")["tables"][key]
        for title, *cells in printed["rows"]:
            found = read("paper", "figures9_10")["found"][sets.get(title, title.lower())]
            for head, cell in zip(printed["columns"][1:], cells, strict=True):
                method = head.removesuffix(" − EP")
                if method in found["method"]:
                    i = found["method"].tolist().index(method)
                    of = score if head == "EP" else f"{score}_difference"
                    own = [found[f"{of}{end}"][i] for end in ("", "_low", "_high")]
                    values = [written(x) for x in numbers(cell)]
                    np.testing.assert_allclose(values, own[: len(values)], atol=1.1e-3)


def test_largest_values_of_figure7_are_at_the_last_tie_in_the_grid_of_the_paper():
    magnitudes = np.arange(17.0)
    rising = {"evidence": np.minimum(magnitudes, 11.0) - 20.0, "mlpd": np.minimum(magnitudes, 9.0) - 10.0}
    flat = dict.fromkeys(("accuracy", "iterations"), np.ones(17)) | {"converged": np.ones(17, bool)}
    found = {
        f"EP-{at}": {"log_lengthscale": np.array(at), "log_variance": magnitudes, **flat}
        | {name: values + (at == 2.0) for name, values in rising.items()}
        for at in (2.0, 3.0)
    }
    experiment = import_module("benchmarks.paper.figure7").EXPERIMENT
    assert experiment.drawn_tables(found)["largest"].cells == [["EP", "-8.0", "(2, 12)", "0.000", "(2, 12)", "0.000"]]
    assert experiment.tables(found) == {}
    both = found | {name.replace("EP", "IEP"): own for name, own in found.items()}
    first, second = experiment.tables(both)["rows"].cells
    assert first == ["2", *["-8.0", "-11.0", "0.0000"] * 2]
    assert second == ["3", *["-9.0", "-12.0", "-1.0000"] * 2]


@pytest.mark.parametrize(("paper", "name"), [("binary_paper", "figures9_11"), ("scalable_paper", "figure4")])
def test_largest_values_in_tables_match_the_data_of_pictures(paper, name):
    found = read(paper, name)["found"]
    if name == "figure4":
        for method, inducing, lowest, last, *_ in read_tables(paper, name)["tables"]["scores"]["rows"]:
            own = found[f"{method.lower()}, M {inducing}"]["score"]
            np.testing.assert_allclose([written(lowest), written(last)], [own.min(), own[-1]], atol=1.1e-3)
        return
    rows = read_tables(paper, name)["tables"]["largest"]["rows"]
    for figure, first in (("Figure 9", 0), ("Figure 11", 10)):
        for method, evidence, bound, bits, *_, errors in (row[1:] for row in rows[first : first + 4]):
            own = found[f"{figure}, {method}"]
            values = [written(numbers(cell)[0]) for cell in (evidence, bound, bits, errors)]
            best = [own[of].max() for of in ("evidence", "bound", "information")]
            np.testing.assert_allclose(values, [*best, own["errors"].min()], rtol=1e-3)


def claims(page: str) -> list[list[str]]:
    """Rows of the first table of a page."""
    beginning = text_of(page).split("Each experiment is one command")[0]
    lines = [line.split(" | ") for line in beginning.splitlines() if line.startswith("| ")]
    return [line for line in lines if "---" not in line[-2] and "ours" not in line[-2]]


@pytest.mark.parametrize(("paper", "page"), PAGES.items())
def test_numbers_in_the_first_table_of_a_page_match_stored_records(paper, page):
    rows = claims(page)
    assert len(rows) > 10
    assert [(row[0], number) for row in rows for number in numbers(row[-2]) if number not in recorded(paper)] == []
    assert sum(bool(numbers(row[-2])) for row in rows) > len(rows) / 2


@pytest.mark.parametrize(
    ("page", "most"), [("paper", 4000), ("binary_paper", 4500), ("active_sets_papers", 4500), ("scalable_paper", 5000)]
)
def test_pages_of_papers_are_short(page, most):
    assert len(text_of(page).split()) <= most


CHEAP: dict[tuple[str, str], tuple[int, list[str]]] = {
    ("active_sets", "sparse_toy"): (
        2,
        [f"utility sites, {score}, same rows {i}" for score in ("probability", "random") for i in range(20)],
    ),
    ("binary_paper", "figures2_5"): (3, ["probit", "logit", "footnote"]),
    ("active_sets", "constants"): (2, [f"toy of {points}" for points in (40, 80, 120, 160)]),
    ("binary_paper", "tap_equations"): (
        3,
        [f"{name}, {n} points" for name in ("probit", "logit") for n in (5, 20, 100)],
    ),
}
"""Pieces of experiments that take at most a second and need no files: number of pieces to repeat, and names."""


def chosen_at_random(seed: int) -> list[tuple[str, str, str]]:
    rng = np.random.default_rng(seed)
    return [
        (*of, str(piece)) for of, (count, pieces) in CHEAP.items() for piece in rng.choice(pieces, count, replace=False)
    ]


def test_ten_distinct_cells_are_chosen_at_random():
    assert len(set(chosen_at_random(83))) == 10


@pytest.mark.parametrize(("paper", "name", "piece"), chosen_at_random(seed=83))
def test_fresh_run_equals_the_stored_record(paper, name, piece):
    experiment = import_module(f"benchmarks.{paper}.{name}").EXPERIMENT
    cell = next(each for each in experiment.cells(str(FOLDER), quick=False) if each.name == piece)
    fresh = {key: np.asarray(value) for key, value in cell.function(**cell.arguments).items()}
    if (paper, name) in stored():
        for key, old in read(paper, name)["found"][piece].items():
            np.testing.assert_allclose(fresh[key], old, rtol=1e-3, atol=2e-4)
        return
    for key, own in experiment.tables({piece: fresh}).items():
        rows = {row[0]: row[1:] for row in read_tables(paper, name)["tables"][key]["rows"]}
        for first, *cells in own.cells:
            values, old = ([float(x.replace("−", "-")) for x in numbers(" ".join(row))] for row in (cells, rows[first]))
            np.testing.assert_allclose(values, old, rtol=0.02, atol=1e-4)
