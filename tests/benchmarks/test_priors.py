"""The report on priors from artificial results."""

import numpy as np

from benchmarks.priors import DATA, EXPERIMENT, PAIRS


def result(folds, first, best, log_posterior):
    sweeps = np.tile([100, 70], (folds, 1))
    return {
        "seconds": np.array(1.0),
        "fold": np.arange(folds),
        "first_mlpd": np.full(folds, first),
        "best_mlpd": np.full(folds, best),
        "log_posterior": np.tile(log_posterior, (folds, 1)),
        "sweeps": sweeps,
    }


def test_folds_of_a_setting_are_joined():
    cells = {cell.name: cell.arguments for cell in EXPERIMENT.cells("", False)}
    wanted = ("teaching", False, *PAIRS[0])
    names = [n for n, a in cells.items() if (a["name"], a["ard"], a["scale"], a["magnitude"]) == wanted]
    assert len(names) == 2
    found = {names[0]: result(5, -0.8, -0.7, [-3.0, -1.0]), names[1]: result(5, -0.6, -0.5, [-2.0, -2.0])}
    record, text = EXPERIMENT.report(found)
    (values,) = record.values()
    assert len(values["best_mlpd"]) == 10
    assert f"| {PAIRS[0][0]} | {PAIRS[0][1]} | -0.600 (10) |" in text
    assert "| teaching | one | 10 | -0.700 | -0.600 | -0.600 |  | 5 | 2.0 | 0.70 |" in text


def test_names_of_cells_are_valid_file_names():
    names = [cell.name for cell in EXPERIMENT.cells("", False)]
    assert len(set(names)) == len(names)
    assert not any("/" in name for name in names)
    assert {name.split()[0] for name in names} == set(DATA)
