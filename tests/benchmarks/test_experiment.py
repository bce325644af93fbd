"""Cells of the paper's experiments: kept, found again, and gone on with."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper.experiment import Cell, compute


def square(x: float, trace: str) -> dict[str, float]:
    """Notes each call in the file `trace`, and refuses what is negative."""
    with Path(trace).open("a") as file:
        file.write(f"{x}\n")
    if x < 0:
        raise ValueError("negative")
    return {"square": x * x}


def counting(checkpoint: Path) -> dict[str, int]:
    """Counts its calls in its checkpoint, and succeeds in the second."""
    calls = 1 + (int(np.load(checkpoint)) if checkpoint.exists() else 0)
    with checkpoint.open("wb") as file:
        np.save(file, calls)
    if calls < 2:
        raise RuntimeError("interrupted")
    return {"calls": calls}


def cells(folder: Path, *values: float) -> list[Cell]:
    return [Cell(f"of {i}", square, {"x": x, "trace": str(folder / "trace")}) for i, x in enumerate(values)]


def calls(folder: Path) -> list[float]:
    return sorted(map(float, (folder / "trace").read_text().split()))


def test_what_is_there_is_not_computed_again(tmp_path):
    found, errors = compute(cells(tmp_path, 2.0, 3.0), tmp_path, 2)
    assert not errors
    assert {name: float(x["square"]) for name, x in found.items()} == {"of 0": 4.0, "of 1": 9.0}
    again, _ = compute(cells(tmp_path, 2.0, 3.0), tmp_path, 2)
    assert calls(tmp_path) == [2.0, 3.0]
    assert {name: float(x["square"]) for name, x in again.items()} == {"of 0": 4.0, "of 1": 9.0}


def test_a_cell_with_other_arguments_is_another(tmp_path):
    compute(cells(tmp_path, 2.0), tmp_path, 1)
    found, _ = compute(cells(tmp_path, 5.0), tmp_path, 1)
    assert float(found["of 0"]["square"]) == 25.0
    assert calls(tmp_path) == [2.0, 5.0]


def test_a_cell_that_fails_is_named_and_the_others_are_kept(tmp_path):
    found, errors = compute(cells(tmp_path, -1.0, 3.0), tmp_path, 1)
    assert set(found) == {"of 1"}
    assert errors == {"of 0": "ValueError: negative"}
    assert not list(tmp_path.glob("*.part"))


def test_nothing_is_computed_without_jobs(tmp_path):
    assert compute(cells(tmp_path, 2.0), tmp_path, 0) == ({}, {})
    assert not (tmp_path / "trace").exists()


def test_a_cell_that_was_broken_off_goes_on_from_its_checkpoint(tmp_path):
    cell = Cell("long", counting, resumes=True)
    _, errors = compute([cell], tmp_path, 1)
    assert errors == {"long": "RuntimeError: interrupted"}
    found, _ = compute([cell], tmp_path, 1)
    assert int(found["long"]["calls"]) == 2
    assert not list(tmp_path.glob("*.checkpoint"))


def test_two_cells_of_the_same_name_are_refused(tmp_path):
    twice = cells(tmp_path, 2.0)
    with pytest.raises(ValueError, match="same name"):
        compute(twice + twice, tmp_path, 1)
