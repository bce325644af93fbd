"""Figure 1: updates of hyperparameters after each sweep of EP, and after convergence of EP, on Vehicle."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import subset
from benchmarks.scalable_paper.data import fold
from benchmarks.scalable_paper.methods import Curve, run
from benchmarks.scalable_paper.models import inducing_rows
from pymc_gpep.log_posteriors.sparse_log_posterior import SparseLogPosterior
from pymc_gpep.plots.canvas import LINE_STYLES, colours

UPDATES = {
    "inner": {"update": "inner"},
    "solved": {"update": "inner"},
    "outer": {"update": "outer"},
}
TITLES = {
    "inner": "EP-inner: signed steps",
    "solved": "EP-outer: signed steps",
    "outer": "EP-outer: L-BFGS",
}
SCHEMES = {
    "inner": "after each sweep (inner), by signed steps",
    "solved": "after EP converged (outer), by signed steps",
    "outer": "after EP converged (outer), by L-BFGS",
}
WITHIN = (10.0, 3.0, 1.0)  # distances (nats) from the best objective of both runs
POINTS = 761


def follow(data: str, update: str, points: int, iterations: int, name: str) -> Arrays:
    """Objective and processor time at each iteration. With "solved", EP converges before each signed step."""
    split = subset(fold(name, data, 0), points, 1)
    curve = Curve(split)
    inducing = inducing_rows(split.X, split.classes, max(1, split.y.size // 5), 0)
    solves = patch.object(SparseLogPosterior, "after_one_sweep", SparseLogPosterior.__call__)
    with solves if update == "solved" else nullcontext():
        fitted = run("ep", split, inducing, iterations, [curve], **UPDATES[update])
    ends = {"processor_seconds": np.array(fitted.seconds), "objective": np.array(fitted.fit.objective)}
    return curve.arrays | ends | {"points": np.array(split.y.size)}


class Figure1(Experiment):
    title = "Figure 1: inner and outer updates of hyperparameters"
    alone = True
    sizable: ClassVar[bool] = True
    size = POINTS

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        points, iterations, name = (40, 3, "wine") if quick else (self.size, 250, "vehicle")
        settings = {"data": data, "points": points, "iterations": iterations, "name": name}
        return [Cell(update, follow, {"update": update, **settings}) for update in (["inner"] if quick else UPDATES)]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        best = max(-run["loss"].min() for run in found.values())
        lines = [
            "| updates | iterations | processor time, s | log Z_q at the end "
            f"| seconds until within {', '.join(f'{nats:g}' for nats in WITHIN)} of the best |",
            "| --- " * 5 + "|",
        ]
        record: dict[str, Any] = {"best": best}
        for update in UPDATES:
            if update not in found:
                lines.append(f"| {TITLES[update]} | not computed | | | |")
                continue
            each = found[update]
            reached = [first_within(each, best, nats) for nats in WITHIN]
            record[update] = {
                "seconds": each["at"].tolist(),
                "objective": (-each["loss"]).tolist(),
                "reached": reached,
                "final": float(each["objective"]),
            }
            texts = ", ".join("—" if second is None else f"{second:.1f}" for second in reached)
            lines.append(f"| {TITLES[update]} | {each['loss'].size} | {each['at'][-1]:.1f} "
                         f"| {float(each['objective']):.2f} | {texts} |")  # fmt: skip
        points = {int(each["points"]) for each in found.values()}
        lines += ["", f"{', '.join(map(str, points))} points. A fifth of the points are inducing inputs of each class, "
                      "and priors are flat. Times are of one processor, including the making of graphs."]  # fmt: skip
        return record, "\n".join(lines)

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        best = max(-run["loss"].min() for run in pictured.values())
        rows = []
        for update, title in SCHEMES.items():
            each = pictured[update]
            reached = [first_within(each, best, nats) for nats in WITHIN]
            texts = ", ".join("–" if second is None else f"{second:.3g}" for second in reached)
            rows.append((title, f"{each['at'][-1]:.3g}", float(each["objective"]), texts))
        columns = ("hyperparameters move", "processor time, s", "log Z_q at the end",
                   "s until within 10, 3 and 1 of the best")  # fmt: skip
        return {"schemes": Table("Inner and outer updates", columns, ("", "", ".1f", ""), rows)}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not found:
            return None
        figure = Figure(figsize=(6.5, 4.2), layout="constrained")
        ax = figure.subplots()
        for (update, title), colour, style in zip(TITLES.items(), colours(len(TITLES)), LINE_STYLES, strict=False):
            if update in found:
                ax.plot(found[update]["at"], -found[update]["loss"], color=colour, linestyle=style, label=title)
        ax.set(xlabel="processor time in seconds", ylabel="log Z_q")
        ax.legend()
        return figure


def first_within(curve: Arrays, best: float, nats: float) -> float | None:
    """Seconds until the objective is this close to the best."""
    there = np.flatnonzero(-curve["loss"] >= best - nats)
    return float(curve["at"][there[0]]) if there.size else None


EXPERIMENT = Figure1()
