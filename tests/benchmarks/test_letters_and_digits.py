"""Reports of the experiments with active rows on letters and digits, from artificial runs."""

import numpy as np
import pytest

from benchmarks.active_sets.even_digits import MANY, SMALL, SPLITS, EvenDigits, name_of
from benchmarks.active_sets.isolet import STARTS, WHOLE, Isolet
from benchmarks.active_sets.printed import EVEN_DIGITS


def test_report_of_letters_has_all_runs() -> None:
    runs = {
        f"probability {seed}": {
            "counts": np.array([250, 500]),
            "scores": np.array([[0.1, -0.5, 0.7], [error, -0.2, 0.8]]),
            "seconds": np.array(10.0),
            "MB": np.array(900.0),
        }
        for seed, error in enumerate((0.04, 0.06))
    }
    runs[WHOLE] = {"scores": np.array([0.03, -0.1, 0.9]), "seconds": np.array(60.0), "MB": np.array(1500.0)}
    record, text = Isolet().report(runs)
    assert "| by probability | 2 | 250: 10.00 %, -0.500, 0.700; 500: 5.00 %, -0.200, 0.800 | 10 | 900 |" in text
    assert f"| {WHOLE} | 1 | 3.00 %, -0.100, 0.900 | 60 | 1500 |" in text
    assert record["probability"]["scores"][1] == pytest.approx([0.05, -0.2, 0.8])
    assert Isolet().draw({}) is None
    figure = Isolet().draw(runs)
    assert figure is not None
    assert [len(ax.lines) for ax in figure.axes] == [2, 2, 2]
    assert len(Isolet().cells("", quick=False)) == 2 * STARTS + 1


def test_report_of_digits_has_all_runs() -> None:
    assert len(EVEN_DIGITS) == 21
    counts = np.array([75, 150])
    runs = {
        name_of(v, w, 0): {"counts": counts, "found": np.array([[0.1, 0.2, 1.5, 1.6], list(printed)])}
        for (v, w), printed in EVEN_DIGITS.items()
    }
    record, text = EvenDigits().report(runs)
    assert "| 0.5, 40 | 1 | 0.030, 0.030 (0.030 to 0.030) | 0.251, 0.251 (0.251 to 0.251) |" in text
    assert record["5, 20"]["mean"] == pytest.approx(list(EVEN_DIGITS[5, 20]))
    # The paper's statements about orders hold for its printed numbers.
    assert "Orders: 31 of 31 pairs of neighbours are as in the paper." in text
    assert EvenDigits().draw({}) is None
    figure = EvenDigits().draw(EvenDigits().pictured(runs))
    assert figure is not None
    assert [len(ax.lines) for ax in figure.axes] == [2, 2, 2, 2]
    runs[name_of(5, 50, 0, "separate")] = {"counts": np.array([320]), "found": np.array([[0.04, 0.3, 1.5, 1.6]])}
    assert "| separate | 5, 50 | 1 | 320 | 0.040 | 0.300 |" in EvenDigits().report(runs)[1]
    assert len(EvenDigits().cells("", quick=False)) == (2 * 21 + len(SMALL) + 6) * SPLITS + MANY - SPLITS
