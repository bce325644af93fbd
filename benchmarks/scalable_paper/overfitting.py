"""In addition to the paper: held-out scores while the objective rises, for the methods of table 2."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import subset
from benchmarks.scalable_paper.data import NOTE, TITLES, fold, folds_of
from benchmarks.scalable_paper.methods import METHODS, PAPERS, Curve, run
from benchmarks.scalable_paper.models import inducing_rows, sizes
from benchmarks.scalable_paper.printed import TABLE2
from pymc_gpep.plots.canvas import LINE_STYLES, colours

SHOWN = (("waveform", 10), ("glass", 10), ("new-thyroid", 10), ("vowel", 10), ("vowel", 5))
"""Data sets, and the percentage of the points that are inducing inputs."""
FOLDS = 5
SCORED = (1, 2, 5, 10, 20, 30, 45, 70, 100, 150, 250, 500, 1000)
COLUMNS = (1, 5, 10, 20, 30, 45, 70, 100, 150, 250)
"""Iterations of the tables of the page."""
ON_THE_PAGE = {
    "waveform": (
        ("ep", 10, "log Z_q"),
        ("ep", 10, "held out"),
        ("gfitc", 10, "log Z_q"),
        ("gfitc", 10, "held out"),
        ("sep", 10, "held out"),
        ("vi", 10, "held out"),
    ),
    "vowel": (("ep", 5, "held out"), ("ep", 10, "held out"), ("sep", 5, "held out"), ("sep", 10, "held out")),
}
"""Rows of these tables: methods, percentages, and whether the row has objectives or scores."""
ITERATIONS = {"gfitc": 1000}
"""Numbers of iterations other than the table's 250: L-BFGS ends by itself."""


def follow(
    data: str, name: str, percent: int, method: str, number: int, iterations: int, size: list[int] | None
) -> Arrays:
    """Return the objective at each iteration, and scores at some iterations."""
    split = fold(name, data, number)
    split = split if size is None else subset(split, *size)
    first = inducing_rows(split.X, split.classes, sizes(split.y.size, [percent])[percent], number)
    scored = [at for at in SCORED if at <= iterations]
    curve = Curve(split, scored)
    run(method, split, first, iterations, [curve])
    arrays = curve.arrays  # fewer scores than requested if the optimiser ended earlier
    return {"loss": arrays["loss"], "iterations": np.array(scored)[: len(arrays["scores"])], "scores": arrays["scores"]}


class Overfitting(Experiment):
    title = "Held-out scores while the objective rises"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        if quick:
            return [_cell(data, "wine", 10, "ep", 0, 3, [40, 10])]
        return [
            _cell(data, name, percent, method, number, ITERATIONS.get(method, 250), None)
            for number in range(FOLDS)
            for name, percent in SHOWN
            for method in PAPERS
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {}
        lines = []
        for shown_set, title in _sets(found).items():
            curves = {method: average(runs) for method in PAPERS if (runs := folds_of(found, f"{shown_set}, {method}"))}
            shown = SCORED[: max(len(iterations) for iterations, *_ in curves.values())]
            lines += ["", title, "", f"| | folds | {' | '.join(map(str, shown))} |"]
            lines.append("| --- " * (2 + len(shown)) + "|")
            for method, (iterations, objective, score, error) in curves.items():
                folds = len(folds_of(found, f"{shown_set}, {method}"))
                record[f"{shown_set}, {method}"] = {
                    "folds": folds, "iterations": iterations.tolist(), "objective": objective.tolist(),
                    "score": score.tolist(), "error": error.tolist(),
                }  # fmt: skip
                by = METHODS[method].title
                for what, values, digits in (("objective", objective, 1), ("score", score, 3), ("error", error, 3)):
                    texts = " | ".join(f"{value:.{digits}f}" for value in values)
                    lines.append(f"| {by}, {what} | {folds} | {texts} |" + " |" * (len(shown) - len(values)))
        lines.append(
            f"\n{NOTE} By iteration: the objective, the average negative log likelihood of held-out points, and their "
            "errors, averages over folds. Bounds of VI are not comparable with log Z_q."
        )
        return record, "\n".join(lines)

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Objectives and scores of Waveform, and scores of Vowel beside the printed ones, averages over folds."""
        tables = {}
        for name, asked in ON_THE_PAGE.items():
            rows: list[tuple[str, ...]] = []
            for method, percent, kind in asked:
                runs = folds_of(found, f"{name}, M {percent} %, {method}")
                if runs:
                    iterations, objective, score, _ = average(runs)
                    values, digits = (score, 3) if kind == "held out" else (objective, 1)
                    by_iteration = dict(zip(iterations.tolist(), values, strict=True))
                    size = f"M = {percent} %" if name == "vowel" else kind
                    row = [f"{by_iteration[at]:.{digits}f}" if at in by_iteration else "" for at in COLUMNS]
                    last = [f"{TABLE2[name, percent, method][0]:.2f}"] if name == "vowel" else []
                    rows.append((f"{METHODS[method].title}, {size}", str(len(runs)), *row, *last))
            if rows:
                columns = ("iterations", "folds", *map(str, COLUMNS), *(["printed"] if name == "vowel" else []))
                tables[TITLES[name]] = Table(f"{TITLES[name]} by iteration", columns, ("",) * len(columns), rows)
        return tables

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not (sets := _sets(found)):
            return None
        figure = Figure(figsize=(3.6 * len(sets) + 0.6, 3.8), layout="constrained")
        panels = figure.subplots(1, len(sets), squeeze=False)[0]
        for ax, (shown_set, title) in zip(panels, sets.items(), strict=True):
            for method, colour, style in zip(PAPERS, colours(len(PAPERS)), LINE_STYLES, strict=False):
                if runs := folds_of(found, f"{shown_set}, {method}"):
                    iterations, _, score, _ = average(runs)
                    ax.plot(iterations, score, color=colour, linestyle=style, marker=".", label=METHODS[method].title)
            ax.set(xscale="log", title=title, xlabel="iterations", ylim=(0, None))
            ax.xaxis.set_major_formatter(ScalarFormatter())
        panels[0].set_ylabel("negative log likelihood, held out")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PAPERS))
        return figure


def _cell(
    data: str, name: str, percent: int, method: str, number: int, iterations: int, size: list[int] | None
) -> Cell:
    settings = {"name": name, "percent": percent, "method": method, "number": number, "iterations": iterations}
    return Cell(f"{name}, M {percent} %, {method}, fold {number}", follow, {"data": data, **settings, "size": size})


def _sets(found: Mapping[str, Arrays]) -> dict[str, str]:
    """Data sets with their numbers of inducing inputs, as pieces name them, and titles."""
    pairs = dict.fromkeys(tuple(piece.split(", ")[:2]) for piece in found)
    return {f"{name}, {inducing}": f"{TITLES[name]}, {inducing}" for name, inducing in pairs}


def average(runs: Sequence[Arrays]) -> tuple[np.ndarray, ...]:
    """Iterations at which all folds were scored, and averages of objective, score and error there."""
    shortest = min(len(run["scores"]) for run in runs)
    iterations = runs[0]["iterations"][:shortest]
    objective = np.mean([-run["loss"][iterations - 1] for run in runs], axis=0)
    _, score, error = np.mean([run["scores"][:shortest] for run in runs], axis=0).T
    return iterations, objective, score, error


EXPERIMENT = Overfitting()
