"""Results of experiments that stand beside the pages, from which the pages draw the papers' figures."""

import importlib
import json
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.experiment import Arrays, Experiment, returned

FOLDER = Path(__file__).parents[1] / "docs" / "figures"

DIGITS = 4  # further digits are not seen in a picture


def store(
    paper: str, name: str, experiment: Experiment, found: Mapping[str, Arrays], only: Sequence[str], folder: Path
) -> Path:
    """Write the numbers that the picture of an experiment needs, and which commits computed them.

    Parameters
    ----------
    paper, name : str
        Folder and module of the experiment.
    experiment : Experiment
        What is drawn.
    found : mapping
        Results of its cells, by name.
    only : sequence of str
        Patterns of the cells that were asked for; others are left out.
    folder : Path
        Where the file goes, as `FOLDER`.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        If a piece was computed by code that is in no commit, or if these pieces make no picture.
    """
    found = {cell: arrays for cell, arrays in found.items() if any(fnmatchcase(cell, each) for each in only)}
    commits = sorted({str(arrays.get("commit", "unknown")) for arrays in found.values()})
    if bad := [commit for commit in commits if commit == "unknown" or commit.endswith("-dirty")]:
        raise ValueError(
            f"Results of {name} were computed by code of no commit ({', '.join(bad)}): commit, and run again."
        )
    needed = experiment.pictured(found)
    if experiment.draw(needed) is None:
        raise ValueError(
            f"The picture of {name} needs other pieces than those that fit {', '.join(map(repr, only))}: name more."
        )
    pictured = {
        cell: {key: _short(values) for key, values in returned(arrays).items()} for cell, arrays in needed.items()
    }
    chosen = "" if tuple(only) == ("*",) else f" --only {shlex.join(only)}"
    record = {
        "command": f"python -m benchmarks.{paper} {name} --data FOLDER --store{chosen}",
        "commits": commits,
        "found": pictured,
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{paper}.{name}.json"
    file.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    return file


def stored(folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Papers and experiments of which there is something."""
    return [(paper, name) for paper, name, _ in sorted(file.name.split(".") for file in folder.glob("*.json"))]


def read(paper: str, name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Return the record of an experiment, `found` as arrays."""
    record = json.loads((folder / f"{paper}.{name}.json").read_text())
    found = {cell: {key: np.asarray(x) for key, x in arrays.items()} for cell, arrays in record["found"].items()}
    return record | {"found": found}


def picture(paper: str, name: str) -> Figure:
    """Draw the figure of an experiment from what was stored of it."""
    experiment: Experiment = importlib.import_module(f"benchmarks.{paper}.{name}").EXPERIMENT
    figure = experiment.draw(read(paper, name)["found"])
    if figure is None:
        raise ValueError(f"The file of {name} is not enough for its picture: store it again.")
    return figure


def _short(values: np.ndarray) -> Any:
    """Nested lists, of numbers with few digits."""
    values = np.asarray(values)
    if values.dtype.kind != "f":
        return values.tolist()
    text = np.vectorize(lambda x: float(f"{x:.{DIGITS}g}"), otypes=[float])(values)
    return text.tolist()
