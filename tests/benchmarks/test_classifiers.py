"""The table of classifiers from artificial results."""

import numpy as np
import pytest

from benchmarks.classifiers import CLASSIFIERS, EXPERIMENT, FOLDED, OURS, SPLIT, piece, splits


def result(log_p, seconds=1.0):
    return {"log_p": np.array(log_p), "wrong": np.array(log_p) < np.log(0.5), "fold_seconds": np.array(seconds)}


def test_differences_between_classifiers_use_common_folds():
    other = "logistic regression"
    found = {
        piece("wine", OURS, 0): result([-0.1, -0.2]),
        piece("wine", OURS, 1): result([-0.3]),
        piece("wine", OURS, 2): result([-9.0]),  # a fold that the other classifier lacks
        piece("wine", other, 0): result([-0.4, -1.1], 0.25),
        piece("wine", other, 1): result([-0.9], 0.75),
    }
    record, text = EXPERIMENT.report(found)
    values = record["wine"][other]
    differences = np.array([0.3, 0.9, 0.6])
    assert values["difference"] == pytest.approx(differences.mean())
    assert values["standard_error"] == pytest.approx(differences.std(ddof=1) / np.sqrt(3))
    assert values["error"] == pytest.approx(2 / 3)
    assert "| wine | 4 | 2.400 (3 of 10 folds) | – | 0.800 ± 0.173 (2 of 10 folds) | – | – | – |" in text
    assert "| wine | 4 | 1 (3 of 10 folds) | – | 0.5 (2 of 10 folds) | – | – | – |" in text
    for name in (*FOLDED, *SPLIT):  # classifiers without results appear in both tables
        assert text.count(f"| {name} | ") == 2


def test_every_classifier_has_a_cell_for_every_set():
    names = {cell.name for cell in EXPERIMENT.cells("", False)}
    numbers = [(name, fold) for name in FOLDED for fold in range(10)] + [(name, 0) for name in SPLIT]
    assert names == {piece(name, which, fold) for name, fold in numbers for which in CLASSIFIERS}


def test_each_row_is_in_one_test_fold(tmp_path):
    rows = [f"{k},{k % 7},{'ab'[k % 2]}" for k in range(40)]
    (tmp_path / "iris.csv").write_text("\n".join(["x,z,label", *rows]))
    folds = splits(tmp_path, "iris")
    assert len(folds) == 10
    assert sorted(np.concatenate([Xnew[:, 0] for _, _, Xnew, _ in folds])) == list(range(40))
    assert all(set(y) == {"a", "b"} == set(ynew) for _, y, _, ynew in folds)
