"""Comparison of settings of batch fits: the table from artificial results, and a quick fit."""

import numpy as np
import pytest

from benchmarks.batch_settings import ARD, AS_IT_COMES, JUDGED, OTHERS, SETTINGS, TREES, BatchSettings, rows_of, work


def result(log_p, wrong):
    return {"log_p": np.array(log_p), "wrong": np.array(wrong), "steps": np.array(9), "spent": np.array(1.0)}


def test_default_fits_are_compared_with_the_best_setting():
    found = {
        f"usps, {AS_IT_COMES}": result([-0.1, -0.3], [False, True]),
        "usps, pairwise": result([-0.1, -0.2], [False, True]),
        f"usps, {ARD}": result([-0.01, -0.01], [False, False]),
        f"usps, {TREES}": result([-0.01, -0.01], [False, False]),
        "dna, pairwise": result([-0.1, -0.2], [False, True]),
    }
    record, text = BatchSettings().report(found)
    assert record["usps"]["behind"] == {"error": 0.0, "loss": pytest.approx(0.05)}
    assert "behind" not in record["dna"]
    assert "usps: 0.000 and 0.050 behind the best of other options, not near" in text
    assert "| usps | 0.500, 0.200 | " in text


def test_each_data_set_of_the_comparison_has_a_cell_for_each_setting():
    cells = {cell.name for cell in BatchSettings().cells("", quick=False)}
    assert {f"{name}, {each}" for name in JUDGED for each in (*SETTINGS, TREES)} <= cells
    assert {f"{name}, {each}" for name in OTHERS for each in (AS_IT_COMES, ARD, TREES)} <= cells


@pytest.fixture
def folder(tmp_path):
    """Write rows of three classes in the format of the segmentation data."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 60), ("test", 40)):
        X = rng.normal(size=(n, 2))
        lines = [
            f"{a},{b},{'abc'[k]}" for (a, b), k in zip(X, np.argmax(np.c_[X, -X.sum(axis=1)], axis=1), strict=True)
        ]
        (tmp_path / f"segmentation_{part}.csv").write_text("\n".join(["x,z,label", *lines]))
    return str(tmp_path)


def test_fit_is_scored_at_held_out_rows(folder):
    (cell, trees) = BatchSettings().cells(folder, quick=True)
    assert {cell.name, trees.name} == {f"segmentation, {AS_IT_COMES}", f"segmentation, {TREES}"}
    found = work(**cell.arguments)
    assert len(found["log_p"]) == 40
    assert found["wrong"].mean() < 0.2


def test_validation_rows_are_training_rows(folder):
    X, y, Xnew, ynew = rows_of(folder, "segmentation", kept_back=True)
    assert (len(X), len(Xnew)) == (len(y), len(ynew)) == (48, 12)
