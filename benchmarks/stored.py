"""Stored results of experiments, from which the pages draw figures and build tables.

A file of `docs/tables` belongs to one experiment. It has the command, the machine and the seconds of the run, null if
they were not recorded. A table of another run has its own. Each table has columns and rows as text. It also has
`commits`, whose code computed it, or `printed`: the commits that first printed its rows on a page, before there were
such files.
"""

import importlib
import json
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Experiment, returned

FOLDER = Path(__file__).parents[1] / "docs" / "figures"

TABLES = FOLDER.parent / "tables"

DIGITS = 4  # a picture shows no further digits


def store(
    paper: str, name: str, experiment: Experiment, found: Mapping[str, Arrays], only: Sequence[str], folder: Path
) -> Path:
    """Write the numbers that the picture of an experiment needs, and the commits that computed them.

    Parameters
    ----------
    paper, name : str
        Folder and module of the experiment.
    experiment : Experiment
        The experiment with the picture.
    found : mapping
        Results of its cells, by name.
    only : sequence of str
        Patterns of the cells to use. Other cells are left out.
    folder : Path
        Folder of the file, such as `FOLDER`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If the code of a result is not in a commit, or if the results are not sufficient for the picture.
    """
    found = _chosen(found, only)
    commits = _commits(name, found)
    needed = experiment.pictured(found)
    if experiment.draw(needed) is None:
        raise ValueError(
            f"Results of {', '.join(map(repr, only))} are not sufficient for the picture of {name}: name more cells."
        )
    pictured = {
        cell: {key: _short(values) for key, values in returned(arrays).items()} for cell, arrays in needed.items()
    }
    record = {
        "command": _command(paper, name, only),
        "commits": commits,
        "found": pictured,
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{paper}.{name}.json"
    file.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    return file


def store_tables(
    paper: str, name: str, experiment: Experiment, found: Mapping[str, Arrays], only: Sequence[str], folder: Path
) -> Path:
    """Write the tables of an experiment, and keep other tables of its file.

    Parameters and errors are those of `store`, and `folder` is like `TABLES`.
    """
    found = _chosen(found, only)
    commits = _commits(name, found)
    run = {
        "command": _command(paper, name, only, " tables" if experiment.draw(experiment.pictured(found)) else ""),
        "machine": machine(),
        "seconds": round(sum(float(arrays["seconds"]) for arrays in found.values()), 1),
    }
    new = {
        key: {
            "commits": commits,
            "columns": list(each.columns),
            "rows": [[_signed(cell) for cell in row] for row in each.cells],
        }
        for key, each in experiment.tables(found).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{paper}.{name}.json"
    before = json.loads(file.read_text()) if file.exists() else {"tables": {}}
    if before["tables"].keys() <= new.keys():
        record = run | {"tables": new}
    else:  # the other tables keep their command
        record = before | {"tables": before["tables"] | {key: run | own for key, own in new.items()}}
    # one line of the file for each row
    text = json.dumps(record, ensure_ascii=False, indent=1)
    rows = re.compile(r"\[\n\s+([^][{}]*?)\n\s+\]")
    file.write_text(rows.sub(lambda row: f"[{re.sub(r',\n\s+', ', ', row[1])}]", text) + "\n")
    return file


def _signed(cell: str) -> str:
    """Return a cell with minus signs instead of hyphens in negative numbers."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", cell)


def machine() -> str:
    """Return the number of cores and the model of the processor."""
    info = Path("/proc/cpuinfo")
    models = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}"


def _chosen(found: Mapping[str, Arrays], only: Sequence[str]) -> dict[str, Arrays]:
    return {cell: arrays for cell, arrays in found.items() if any(fnmatchcase(cell, each) for each in only)}


def _commits(name: str, found: Mapping[str, Arrays]) -> list[str]:
    """Return the commits that computed these pieces. Raise an error for pieces without a commit."""
    commits = sorted({str(arrays.get("commit", "unknown")) for arrays in found.values()})
    if bad := [commit for commit in commits if commit == "unknown" or commit.endswith("-dirty")]:
        raise ValueError(
            f"Results of {name} were computed by code without a commit ({', '.join(bad)}): commit, and run again."
        )
    return commits


def _command(paper: str, name: str, only: Sequence[str], which: str = "") -> str:
    chosen = "" if tuple(only) == ("*",) else f" --only {shlex.join(only)}"
    return f"python -m benchmarks.{paper} {name} --data FOLDER --store{which}{chosen}"


def stored(folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Papers and experiments with stored results."""
    return [(paper, name) for paper, name, _ in sorted(file.name.split(".") for file in folder.glob("*.json"))]


def read(paper: str, name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Return the record of an experiment, `found` as arrays."""
    record = json.loads((folder / f"{paper}.{name}.json").read_text())
    found = {cell: {key: np.asarray(x) for key, x in arrays.items()} for cell, arrays in record["found"].items()}
    return record | {"found": found}


def _experiment(paper: str, name: str) -> Experiment:
    experiment: Experiment = importlib.import_module(f"benchmarks.{paper}.{name}").EXPERIMENT
    return experiment


def picture(paper: str, name: str) -> Figure:
    """Draw the figure of an experiment from its stored numbers."""
    figure = _experiment(paper, name).draw(read(paper, name)["found"])
    if figure is None:
        raise ValueError(f"The file of {name} lacks numbers for its picture: store the results again.")
    return figure


@dataclass(frozen=True)
class PageTable:
    """A Markdown table that a notebook shows, with the command and the commits of its numbers below."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    origin: str

    def __str__(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        return f"{table}\n\n{self.origin}"

    def _repr_markdown_(self) -> str:
        return str(self)


def read_tables(paper: str, name: str, folder: Path = TABLES) -> dict[str, Any]:
    """Return the record of the tables of an experiment."""
    return json.loads((folder / f"{paper}.{name}.json").read_text())


def page_tables(paper: str, name: str) -> dict[str, dict[str, Any]]:
    """Return tables of an experiment by key, with command, commits, columns and rows.

    Tables come from the record of its tables, or are built from the record of its picture. Joined tables have the
    commands, the commits and the seconds of all their runs.
    """
    found: dict[str, dict[str, Any]] = {}
    if (paper, name) in stored():
        record = read(paper, name)
        origin = {"command": record["command"], "commits": record["commits"], "machine": None, "seconds": None}
        for key, each in _experiment(paper, name).drawn_tables(record["found"]).items():
            rows = [[_signed(cell) for cell in row] for row in each.cells]
            found[key] = origin | {"columns": list(each.columns), "rows": rows}
    if (paper, name) in stored(TABLES):
        record = read_tables(paper, name)
        found |= {key: record | own for key, own in record["tables"].items()}
        rows = {key: own["rows"] for key, own in found.items()}
        for key, (sources, each) in _joined(paper, name, rows).items():
            runs = [found[source] for source in sorted(sources)]
            found[key] = {
                "command": " && ".join(run["command"] for run in runs),
                "commits": sorted({commit for run in runs for commit in run["commits"]}),
                "machine": ", ".join(dict.fromkeys(run["machine"] for run in runs)),
                "seconds": sum(run["seconds"] for run in runs),
                "columns": list(each.columns),
                "rows": each.cells,
            }
    return found


def _joined(paper: str, name: str, rows: Mapping[str, Any]) -> Mapping[str, tuple[set[str], Table]]:
    """Return the joined tables of an experiment. Records of other commands have none."""
    if not (FOLDER.parents[1] / "benchmarks" / paper / f"{name}.py").exists():
        return {}
    experiment = getattr(importlib.import_module(f"benchmarks.{paper}.{name}"), "EXPERIMENT", None)
    return {} if experiment is None else experiment.joined_tables(rows)


def table(paper: str, name: str, key: str) -> PageTable:
    """Build a table of a page from its record, or from that of the picture."""
    own = page_tables(paper, name)[key]
    run = "computed by" if "commits" in own else "first printed by"
    parts = [f"`{own['command']}`", f"{run} {', '.join(own.get('commits', own.get('printed')))}"]
    if own["machine"]:
        parts.append(own["machine"])
    if own["seconds"]:
        parts.append(f"{own['seconds']:.0f} s of one core")
    return PageTable(tuple(own["columns"]), tuple(map(tuple, own["rows"])), f"*{'; '.join(parts)}*")


def _short(values: np.ndarray) -> Any:
    """Nested lists with numbers of few digits."""
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return values.tolist()
    text = np.vectorize(lambda x: float(f"{x:.{DIGITS}g}"), otypes=[float])(values)
    return text.tolist()
