"""Figure 4: test log likelihood against time, on Satellite."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import subset
from benchmarks.scalable_paper.data import FOLDS, fold, folds_of
from benchmarks.scalable_paper.methods import METHODS, Curve, run
from benchmarks.scalable_paper.models import inducing_rows
from pymc_gpep.plots.canvas import LINE_STYLES, colours

INDUCING = (4, 20, 100)
SHOWN = ("gfitc", "sep", "vi")
SCORED = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 180, 250)
POINTS, HELD_OUT = 1287, 5148
ON_THE_WAY = (5, 12, 30, 80, 250)
"""Iterations of the table of errors."""
LEVELS = (1.0, 0.7, 0.5, 0.4)


def follow(
    data: str, method: str, inducing: int, number: int, points: int, held_out: int, iterations: int, name: str
) -> dict[str, Any]:
    """Held-out scores at some iterations, and at the end."""
    split = subset(fold(name, data, number), points, held_out)
    curve = Curve(split, SCORED)
    first = inducing_rows(split.X, split.classes, inducing, number)
    fitted = run(method, split, first, iterations, [curve])
    return curve.arrays | {"processor_seconds": fitted.seconds, "points": points, "warnings": fitted.warnings}


class Figure4(Experiment):
    title = "Figure 4: test log likelihood against time"
    alone = True
    sizable: ClassVar[bool] = True
    size = POINTS

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        if quick:
            few = {"points": 40, "held_out": 10, "iterations": 3, "name": "wine"}
            return [_cell(data, "sep", 4, 0, **few)]
        full = {"points": self.size, "held_out": min(HELD_OUT, 4 * self.size), "iterations": SCORED[-1]}
        return [
            _cell(data, method, inducing, number, **full, name="satellite")
            for number in range(FOLDS)
            for inducing in INDUCING
            for method in SHOWN
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| method | M | repetitions | negative log likelihood: lowest, at the end | error at the end "
            f"| processor time, s | seconds until below {', '.join(f'{level:g}' for level in LEVELS)} |",
            "| --- " * 7 + "|",
        ]
        record: dict[str, Any] = {"runs": []}
        for inducing in INDUCING:
            for method in SHOWN:
                runs = folds_of(found, _piece(method, inducing))
                if not runs:
                    continue
                at, score, error = average(runs)
                reached = [float(at[score <= level][0]) if (score <= level).any() else None for level in LEVELS]
                record["runs"].append({
                    "method": method, "inducing": inducing, "repetitions": len(runs), "seconds": at.tolist(),
                    "score": score.tolist(), "error": error.tolist(), "reached": reached,
                })  # fmt: skip
                texts = ", ".join("—" if second is None else f"{second:.1f}" for second in reached)
                lines.append(f"| {METHODS[method].title} | {inducing} | {len(runs)} | {score.min():.3f}, "
                             f"{score[-1]:.3f} | {error[-1]:.3f} | {at[-1]:.1f} | {texts} |")  # fmt: skip
        points = sorted({int(run["points"]) for run in found.values()})
        lines += ["", f"{', '.join(map(str, points))} training points. Times are of one processor, including the "
                      "making of graphs and excluding predictions."]  # fmt: skip
        return record, "\n".join(lines)

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Errors and scores at some iterations. The table of seconds was printed before there were records."""
        rows = []
        for inducing in INDUCING:
            for method in SHOWN:
                if runs := folds_of(found, _piece(method, inducing)):
                    _, score, error = average(runs)
                    shown = (SCORED.index(at) for at in ON_THE_WAY)
                    texts = [f"{error[i]:.3f}, {score[i]:.3f}" if i < len(error) else "" for i in shown]
                    rows.append((METHODS[method].title, inducing, len(runs), *texts))
        columns = ("method", "M", "repetitions", *(f"after {at}" for at in ON_THE_WAY))
        formats = ("", "d", "d", *[""] * len(ON_THE_WAY))
        return {"errors": Table("Errors and scores by iteration", columns, formats, rows)} if rows else {}

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        pieces = (_piece(method, inducing) for method in SHOWN for inducing in INDUCING)
        averages = {piece: average(runs) for piece in pieces if (runs := folds_of(found, piece))}
        return {piece: {"at": at, "score": score} for piece, (at, score, _) in averages.items()}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not found:
            return None
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        ax = figure.subplots()
        for method, colour in zip(SHOWN, colours(len(SHOWN)), strict=True):
            for inducing, style in zip(INDUCING, LINE_STYLES, strict=False):
                if curve := found.get(_piece(method, inducing)):
                    label = f"{METHODS[method].title}, M = {inducing}"
                    ax.plot(curve["at"], curve["score"], color=colour, linestyle=style, marker=".", markersize=4,
                            label=label)  # fmt: skip
        ax.set(xscale="log", xlabel="processor time in seconds", ylabel="negative test log likelihood")
        ax.set_ylim(0, 1.8)
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_locator(NullLocator())
        ax.legend(fontsize=8, ncols=3)
        return figure


def _piece(method: str, inducing: int) -> str:
    return f"{method}, M {inducing}"


def _cell(data: str, method: str, inducing: int, number: int, **settings: Any) -> Cell:
    arguments = {"data": data, "method": method, "inducing": inducing, "number": number, **settings}
    return Cell(f"{_piece(method, inducing)}, fold {number}", follow, arguments)


def average(runs: Sequence[Arrays]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average seconds, scores and errors at the iterations that all repetitions have."""
    shortest = min(len(run["scores"]) for run in runs)
    at, score, error = np.mean([run["scores"][:shortest] for run in runs], axis=0).T
    return at, score, error


EXPERIMENT = Figure4()
