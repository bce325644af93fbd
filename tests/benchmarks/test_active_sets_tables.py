"""Tables and surfaces of Girolami and Rogers: predictions at given relevances, and reports on artificial runs."""

from typing import Any

import numpy as np
import pytest

from benchmarks.active_sets.known import GIBBS, approximated, prior_of, sampled, scores
from benchmarks.active_sets.printed import TABLE_1, TABLE_2
from benchmarks.active_sets.relevances import RELEVANCES, ended
from benchmarks.active_sets.surfaces import COLUMNS as METHODS
from benchmarks.active_sets.surfaces import GRID, PROBLEMS, Surfaces, load, name_of
from benchmarks.active_sets.table1 import COLUMNS, NAMES, SPLITS, Table1
from benchmarks.active_sets.table2 import HOW, KINDS, SVM, Table2, waveform
from benchmarks.active_sets.table2 import name_of as name_of_cell
from benchmarks.active_sets.toy import draw_data
from benchmarks.paper.data import Split
from pymc_gpep.approximations.methods import approximator
from pymc_gpep.likelihoods.bernoulli import ProbitLikelihood


def test_two_classes_equal_the_probit_of_one_function() -> None:
    split = load("two classes, two inputs", 40, 30)
    prior = prior_of(split, np.array([3.0, 3.0]), 2.0)
    p = approximated("Laplace, probit", prior, split.y, 2)
    one = approximator("laplace", ProbitLikelihood(), {})
    solution = one.solve(prior.k, np.zeros((1, 40)), split.y, likelihood=ProbitLikelihood())
    mean, cov = solution.posterior.predict(prior.cross[None], np.full((1, 30), 2.0), np.zeros((1, 30)))
    np.testing.assert_allclose(p, ProbitLikelihood().probabilities(mean.T, cov)[0], atol=1e-6)


def test_predictions_of_gibbs_sampling_match_nested_ep() -> None:
    rng = np.random.default_rng(3)
    (X, y), (Xnew, ynew) = draw_data(60, rng), draw_data(40, rng)
    split = Split(X, y, Xnew, ynew)
    phi = np.zeros(10)
    phi[:2] = 4.0, 2.0
    p = approximated("nested EP", prior_of(split, phi, 3.0), y, 3)
    drawn = sampled(split, phi, 3.0, burn=200, draws=1000, used=300, seed=0)
    assert np.abs(p - drawn).max() < 0.06
    assert np.abs(p - drawn).mean() < 0.015


def test_scores_are_computed_from_labels() -> None:
    p = np.array([[0.5, 0.5], [0.2, 0.8]]) * [1.0, 1.0]
    assert scores(p, np.array([0, 0])) == pytest.approx((0.5, np.log(0.1)))
    assert np.isnan(scores(p * np.nan, np.array([0, 0]))).all()


def test_class_means_of_waveform_data_are_averages_of_two_waves() -> None:
    X, y = waveform(30_000, np.random.default_rng(0))
    # A wave of the generator has height 6 at its centre. The mean weight of each wave is ½.
    for label, middles in enumerate(((11, 15), (11, 7), (15, 7))):
        of_label = X[y == label].mean(axis=0)
        expected = sum(0.5 * np.maximum(6 - np.abs(np.arange(1, 22) - middle), 0) for middle in middles)
        np.testing.assert_allclose(of_label, expected, atol=0.06)
    assert X[:, 0].std() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("last", "rise", "expected"), [(-49.0, 0.01, False), (-49.4, 0.01, True), (-49.0, 0.1, True)])
def test_run_ends_if_the_rise_is_a_small_share_of_the_printed_bound(last: float, rise: float, expected: bool) -> None:
    """The printed bound is the bound minus 0.919 n (c − 1). Here a hundredth of its size 68 is 0.68."""
    y = np.arange(10) % 3
    split = Split(np.zeros((10, 2)), y, np.zeros((1, 2)), y[:1])
    assert ended([-50.0, last], split, "authors", rise) is expected
    assert not ended([-50.0], split, "authors", rise)
    assert not ended([-50.0, last], split, "authors", None)


def test_report_of_table_1_has_errors_and_differences() -> None:
    def run(shift: float) -> dict[str, np.ndarray]:
        values = np.array([[0.05, -10.0 + shift], [0.05, -8.0], [0.04, -7.0], [0.04, -7.0], [0.04, -6.5]])
        return {"scores": values, "steps": np.array(9), "effective": np.array(30.0), "bound": np.array(-40.0)}

    runs = {f"iris, {RELEVANCES[0]}, split {seed}": run(seed) for seed in range(2)}
    record, text = Table1().report(runs)
    assert "| iris, 2 | error, % | 3.88 ± 2.0; 4.08 ± 2.16; 4.08 ± 2.16 | 5.00 ± 0.00 |" in text
    assert "-9.50 ± 0.50" in text
    assert "VB − Gibbs: -0.50 ± 0.00" in text
    assert "Laplace, softmax − Gibbs: -3.00 ± 0.35" in text
    assert text.count("| not computed |") == (len(NAMES) * len(RELEVANCES) - 1) * ((3 + len(METHODS)) // 2)
    assert record[f"iris, {RELEVANCES[0]}"]["steps"] == 9
    assert COLUMNS[-1] == GIBBS
    cells = Table1().cells("", quick=False)
    assert len({cell.name for cell in cells}) == SPLITS * len(NAMES) * len(RELEVANCES)
    assert set(TABLE_1) == set(NAMES)


def test_report_of_the_surfaces_has_the_best_points() -> None:
    problem = next(iter(PROBLEMS))
    assert GRID.tolist() == [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    def cell(log_s: float, log_phi: float) -> dict[str, np.ndarray]:
        density = -0.5 + 0.01 * log_s - 0.1 * (log_phi - 2.0) ** 2 + np.array([0.0, -0.2, -0.1, -0.02, 0.01])
        return {"scores": np.stack([np.full(len(METHODS), 0.25), density], axis=1)}

    runs = {name_of(problem, s, phi): cell(s, phi) for s in GRID for phi in GRID}
    record, text = Surfaces().report(runs)
    assert f"## {problem}: 49 points" in text
    assert "| -0.450 (5, 2) | 25.0 % |" in text
    assert f"| VB | 0.020, 0.020 (-1, -1) |{' -0.020 |' * len(GRID)}" in text
    assert np.shape(record[problem]["density"]) == (len(METHODS), 7, 7)
    assert text.count("not computed") == len(PROBLEMS) - 1
    figure = Surfaces().draw(runs)
    assert figure is not None
    assert len(figure.axes) == len(METHODS) + 1  # one more for the colour bar
    # Incomplete surfaces are reported and not drawn.
    part = {name_of(problem, 0.0, phi): cell(0.0, phi) for phi in GRID}
    assert "| log s = 0 |" in Surfaces().report(part)[1]
    assert Surfaces().draw(part) is None


def test_report_of_table_2_has_errors_and_steps() -> None:
    def run(error: float, **more: Any) -> dict[str, np.ndarray]:
        values = {"scores": [error, -0.3], "seconds": 2.0, **more}
        return {name: np.array(value) for name, value in values.items()}

    how = next(iter(HOW))
    runs = {name_of_cell("waveform", how, "ARD", seed): run(error, steps=7) for seed, error in enumerate((0.2, 0.3))}
    runs[name_of_cell("waveform", SVM, None, 0)] = run(0.16)
    record, text = Table2().report(runs)
    assert f"| waveform | {how} | {KINDS['ARD']} | 2 | 25.2 ± 1.2 | 25.00 ± 5.00 | -0.300 | 7 | 2 |" in text
    assert f"| waveform | {SVM} |  | 1 | 15.6 ± 1.1 | 16.00 ± 0.00 |  |  | 2 |" in text
    assert len(record) == 2
    cells = Table2().cells("", quick=False)
    assert len({cell.name for cell in cells}) == 20 * len(TABLE_2) * (1 + len(HOW) * len(KINDS))
