"""Cells of experiments: stored, found again, and resumed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import benchmarks.quick
from benchmarks.command import run_paper
from benchmarks.experiment import Cell, InThisProcess, compute, workers


def square(x: float, trace: str) -> dict[str, float]:
    """Write each call to the file `trace`, and raise for negative numbers."""
    with Path(trace).open("a") as file:
        file.write(f"{x}\n")
    if x < 0:
        raise ValueError("negative")
    return {"square": x * x}


def counting(checkpoint: Path, of: str = "") -> dict[str, int]:
    """Count calls in the checkpoint. The first call is interrupted, and the second succeeds."""
    calls = 1 + (int(np.load(checkpoint)) if checkpoint.exists() else 0)
    with checkpoint.open("wb") as file:
        np.save(file, calls)
    if calls < 2:
        raise RuntimeError("interrupted")
    return {"calls": calls}


def sleep(seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    return {"slept": seconds}


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether a condition becomes true within the time limit."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def cells(folder: Path, *values: float) -> list[Cell]:
    return [Cell(f"of {i}", square, {"x": x, "trace": str(folder / "trace")}) for i, x in enumerate(values)]


def calls(folder: Path) -> list[float]:
    return sorted(map(float, (folder / "trace").read_text().split()))


def test_stored_results_are_not_computed_again(tmp_path):
    found, errors = compute(cells(tmp_path, 2.0, 3.0), tmp_path, 2)
    assert not errors
    assert {name: float(x["square"]) for name, x in found.items()} == {"of 0": 4.0, "of 1": 9.0}
    again, _ = compute(cells(tmp_path, 2.0, 3.0), tmp_path, 2)
    assert calls(tmp_path) == [2.0, 3.0]
    assert {name: float(x["square"]) for name, x in again.items()} == {"of 0": 4.0, "of 1": 9.0}


def test_cell_with_other_arguments_is_computed_again(tmp_path):
    compute(cells(tmp_path, 2.0), tmp_path, 1)
    found, _ = compute(cells(tmp_path, 5.0), tmp_path, 1)
    assert float(found["of 0"]["square"]) == 25.0
    assert calls(tmp_path) == [2.0, 5.0]


def test_error_names_the_failed_cell_and_remaining_cells_are_stored(tmp_path):
    found, errors = compute(cells(tmp_path, -1.0, 3.0), tmp_path, 1)
    assert set(found) == {"of 1"}
    assert errors == {"of 0": "ValueError: negative"}
    assert not list(tmp_path.glob("*.part"))


def process(number: int) -> dict[str, int]:
    return {"process": os.getpid(), "number": number}


def test_two_experiments_run_in_the_same_worker_process(tmp_path):
    with workers(1) as pool:
        one, two = (compute([Cell(f"{i}", process, {"number": i})], tmp_path, 1, pool=pool)[0] for i in range(2))
    assert int(one["0"]["process"]) == int(two["1"]["process"]) != os.getpid()
    assert int(two["1"]["number"]) == 1


def test_experiments_can_be_computed_in_this_process(tmp_path):
    with InThisProcess() as pool:
        found, _ = compute([Cell("here", process, {"number": 3})], tmp_path, 1, pool=pool)
        mixed, errors = compute(cells(tmp_path, -1.0, 3.0), tmp_path, 1, pool=pool)
    assert (int(found["here"]["process"]), int(found["here"]["number"])) == (os.getpid(), 3)
    assert set(mixed) == {"of 1"}
    assert errors == {"of 0": "ValueError: negative"}


def test_nothing_is_computed_without_jobs(tmp_path):
    assert compute(cells(tmp_path, 2.0), tmp_path, 0) == ({}, {})
    assert not (tmp_path / "trace").exists()


def test_interrupted_cell_resumes_from_its_checkpoint(tmp_path):
    cell = Cell("long", counting, resumes=True)
    _, errors = compute([cell], tmp_path, 1)
    assert errors == {"long": "RuntimeError: interrupted"}
    _, errors = compute([Cell("long", counting, {"of": "another"}, resumes=True)], tmp_path, 1)
    assert errors == {"long": "RuntimeError: interrupted"}
    found, _ = compute([cell], tmp_path, 1)
    assert int(found["long"]["calls"]) == 2
    assert len(list(tmp_path.glob("*.checkpoint"))) == 1  # checkpoint of the other cell


def test_two_cells_with_the_same_name_are_refused(tmp_path):
    twice = cells(tmp_path, 2.0)
    with pytest.raises(ValueError, match="same name"):
        compute(twice + twice, tmp_path, 1)


def test_location_of_data_sets_does_not_change_cells():
    here, there = (Cell("a", square, {"folder": folder, "x": 1.0}) for folder in ("here", "there"))
    assert here.identity == there.identity
    assert here.identity != Cell("a", square, {"folder": "here", "x": 2.0}).identity


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_stopped_run_keeps_its_results_and_leaves_no_process(tmp_path, sent):
    code = (
        "import sys; from pathlib import Path; from benchmarks.experiment import Cell, compute;"
        "from tests.benchmarks.test_experiment import sleep;"
        "compute([Cell(f'{s}', sleep, {'seconds': s}) for s in (0, 600, 601, 602)], Path(sys.argv[1]), 2)"
    )
    # The run has a session of its own, so that signals to its group do not reach the tests.
    run = subprocess.Popen(
        [sys.executable, "-c", f"if __name__ == '__main__':\n    {code}", str(tmp_path)],
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert until((tmp_path / "0.npz").exists)
        if sent == signal.SIGINT:
            os.killpg(run.pid, sent)
        else:
            run.send_signal(sent)
        run.wait(30)
        assert until(lambda: is_gone(run.pid), 30)
    finally:
        if not is_gone(run.pid):
            os.killpg(run.pid, signal.SIGKILL)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.npz"]


def test_only_requested_cells_are_computed(tmp_path):
    some = cells(tmp_path, 2.0, 3.0, 4.0)
    found, _ = compute(some, tmp_path, 1, ["of [02]"])
    assert set(found) == {"of 0", "of 2"}
    found, _ = compute(some, tmp_path, 1, ["*1"])
    assert set(found) == {"of 0", "of 1", "of 2"}
    assert calls(tmp_path) == [2.0, 3.0, 4.0]


def test_pattern_without_matching_piece_is_refused(tmp_path, monkeypatch, capsys):
    given = ["figure1", "--quick", "--data", str(tmp_path), "--output", str(tmp_path), "--only", "inner", "nonesuch"]
    monkeypatch.setattr(sys, "argv", ["benchmarks.scalable_paper", *given])
    with pytest.raises(SystemExit):
        run_paper("scalable_paper", ["figure1"], "a paper")
    assert "no piece matches 'nonesuch'. The pieces are inner." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_paper_has_a_quick_form():
    folders = {path.parent.name for path in Path(benchmarks.quick.__file__).parent.glob("*/__main__.py")}
    assert set(benchmarks.quick.PAPERS) == folders


def test_quick_forms_stop_at_the_first_failing_paper(tmp_path):
    """The message comes from the failing paper. Later papers are not run."""
    command = [sys.executable, "-m", "benchmarks.quick", "--data", str(tmp_path / "nowhere"), "--jobs", "1"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("--data: there is no folder") == 1
