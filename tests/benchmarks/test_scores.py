"""The report on held-out points from artificial predictions."""

import json

import numpy as np
import pytest

from benchmarks.paper import scores
from benchmarks.paper.scores import Statement

ORDER = ("EP", "LA", "MCMC")


def fitted(y: np.ndarray, right: float, points: np.ndarray | None = None, **others: object) -> dict[str, np.ndarray]:
    """Result of a cell whose approximation gives all labels the same probability."""
    points = np.arange(len(y)) if points is None else points
    p = np.full((len(points), 3), (1 - right) / 2)
    p[np.arange(len(points)), y[points]] = right
    result = {"point": points, "y": y[points], "p": p, "log_evidence": -3.0, "converged": True, "message": ""}
    return {key: np.asarray(value) for key, value in (result | others).items()}


def sampled(y: np.ndarray, right: float, seed: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Result of a chain with independent draws."""
    rng = np.random.default_rng(seed)
    single = fitted(y, right)
    return {
        **{key: single[key] for key in ("point", "y")},
        "p": np.repeat(single["p"][None], 4, axis=0),
        "magnitude": np.exp(rng.normal(size=500) + shift),
        "length_scale": np.exp(rng.normal(size=(500, 2))),
        "diverging": np.zeros(500, dtype=bool),
    }


@pytest.fixture
def y() -> np.ndarray:
    return np.random.default_rng(0).integers(3, size=60)


def test_folds_and_parts_are_joined(y: np.ndarray) -> None:
    found = {
        "a.0.EP.0": fitted(y, 0.5), "a.1.EP.0": fitted(y, 0.7),
        "a.0.LA.0": fitted(y, 0.5, np.arange(20)), "a.0.LA.1": fitted(y, 0.5, np.arange(20, 60)),
        "a.1.LA.0": fitted(y, 0.7),
    }  # fmt: skip
    methods = scores.collect(found)["a"]
    assert len(methods["EP"].points) == 120
    assert methods["EP"].points["mlpd"].mean() == pytest.approx(np.log([0.5, 0.7]).mean())
    assert scores.difference("mlpd", methods["LA"], methods["EP"]) == (0.0, 0.0, 0.0)


def test_differences_are_computed_over_common_points(y: np.ndarray) -> None:
    found = {"a.0.EP.0": fitted(y, 0.5), "a.1.EP.0": fitted(y, 0.9), "a.0.LA.0": fitted(y, 0.6)}
    methods = scores.collect(found)["a"]
    assert scores.difference("mlpd", methods["LA"], methods["EP"]).mean == pytest.approx(np.log(0.6 / 0.5))
    _, text = scores.report(found, ORDER, [], {})
    assert "60 of 120" in text
    assert "Without results: MCMC" in text


def test_accuracy_is_marked_worse_equal_or_better(y: np.ndarray) -> None:
    found = {"a.0.EP.0": fitted(y, 0.5), "a.0.LA.0": fitted(y, 0.4)}
    methods = scores.collect(found)["a"]
    assert scores.difference("accuracy", methods["LA"], methods["EP"]) == (0.0, 0.0, 0.0)
    for wrong, certain in ((1, False), (30, True)):
        found["a.0.LA.0"]["p"][:wrong] = np.eye(3)[(y[:wrong] + 1) % 3]
        methods = scores.collect(found)["a"]
        difference = scores.difference("accuracy", methods["LA"], methods["EP"])
        assert difference.mean == pytest.approx(-wrong / 60)
        assert difference.low < difference.mean < difference.high
        assert difference.certain == certain


def test_bad_chains_are_reported(y: np.ndarray) -> None:
    good = scores.collect({f"a.0.MCMC.{seed}": sampled(y, 0.6, seed) for seed in range(2)})["a"]["MCMC"]
    bad = scores.collect({f"a.0.MCMC.{seed}": sampled(y, 0.6, seed, 2.0 * seed) for seed in range(2)})["a"]["MCMC"]
    single = scores.collect({"a.0.MCMC.0": sampled(y, 0.6, 0)})["a"]["MCMC"]
    assert not any("BAD" in remark for remark in good.remarks)
    assert any("BAD" in remark for remark in bad.remarks)
    assert any("BAD" in remark for remark in single.remarks)


def test_table_shows_failures_and_notes(y: np.ndarray) -> None:
    result = fitted(y, 0.5, converged=False, message="Out of iterations.")
    result["p"][0] = np.nan
    record, text = scores.report({"a.0.EP.0": result}, ORDER, [], {"a": "A note."})
    assert "fold 0: Out of iterations." in text
    assert "no probabilities at 1 points" in text
    assert "A note." in text
    assert record["data"]["a"]["methods"]["EP"]["points"] == 59
    json.dumps(record, allow_nan=False)


def test_table_shows_the_difference_for_each_statement_of_the_paper(y: np.ndarray) -> None:
    found = {"a.0.EP.0": fitted(y, 0.5), "a.0.LA.0": fitted(y, 0.6), "b.0.EP.0": fitted(y, 0.5)}
    record, text = scores.report(found, ORDER, [Statement("LA is better", "mlpd", "LA", "EP")], {})
    assert list(record["statements"][0]["ours"]) == ["a"]
    assert "| LA is better | mlpd | LA − EP | a **+0.182 (+0.182, +0.182)** |" in text


def test_statements_may_cover_a_subset_of_data_sets(y: np.ndarray) -> None:
    found = {f"{label}.0.{method}.0": fitted(y, p) for label in "ab" for method, p in (("EP", 0.5), ("LA", 0.6))}
    statements = [
        Statement("LA is better in B", "mlpd", "LA", "EP", ("b",)),
        Statement("C", "mlpd", "LA", "EP", ("c",)),
    ]
    record, text = scores.report(found, ORDER, statements, {})
    assert [list(statement["ours"]) for statement in record["statements"]] == [["b"], []]
    assert "| LA is better in B | mlpd | LA − EP | b **+0.182 (+0.182, +0.182)** |" in text
    assert "| C | mlpd | LA − EP | not computed |" in text


def test_differences_to_bad_chains_are_never_bold(y: np.ndarray) -> None:
    chains = {f"a.0.MCMC.{seed}": sampled(y, 0.6, seed, 2.0 * seed) for seed in range(2)}
    statement = Statement("MCMC is better", "mlpd", "MCMC", "EP")
    _, text = scores.report({"a.0.EP.0": fitted(y, 0.5), **chains}, ORDER, [statement], {})
    assert "| MCMC is better | mlpd | MCMC − EP | a† +0.182 (+0.182, +0.182) |" in text
    assert "| MCMC† | 60 |" in text
    assert "**" not in text


def test_interval_of_the_accuracy_has_a_width_even_if_all_points_are_right() -> None:
    few = scores.accuracy(np.ones(18))
    assert few == (1.0, pytest.approx(0.025 ** (1 / 19)), 1.0)  # Beta(19, 1) has the distribution function x¹⁹
    half = scores.accuracy(np.repeat([0.0, 1.0], 1000))
    assert half.high - half.low == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 2000), rel=0.01)


def test_data_sets_have_their_published_names() -> None:
    assert [scores.title_of(label) for label in ("new-thyroid", "usps10-1000", "other-1")] == [
        "New-thyroid", "USPS, ten classes, n = 1000", "other-1",
    ]  # fmt: skip


def test_report_without_results_states_this() -> None:
    assert scores.report({}, ORDER, [], {}) == ({}, "There are no results.")
    assert scores.draw(scores.pictured({}, ORDER)) is None


def test_picture_has_a_row_for_each_data_set(y: np.ndarray) -> None:
    found = {f"{label}.0.{method}.0": fitted(y, 0.5) for label in "ab" for method in ("EP", "LA")}
    figure = scores.draw(scores.pictured(found, ORDER))
    assert figure is not None
    assert len(figure.axes) == 8
    assert figure.axes[1].get_xlabel().endswith("difference to EP")


def test_picture_marks_bad_chains(y: np.ndarray) -> None:
    found = {"a.0.EP.0": fitted(y, 0.5), "a.0.MCMC.0": sampled(y, 0.6, 0)}
    figure = scores.draw(scores.pictured(found, ORDER))
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["EP", "MCMC†"]
    assert figure.axes[2].get_xlim()[1] == 1.0
