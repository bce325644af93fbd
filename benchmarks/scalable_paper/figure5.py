"""Figure 5: errors and scores against time on MNIST and on flights, by the paper's three methods, for a few epochs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.scalable_paper.airline import Airline
from benchmarks.scalable_paper.batch_methods import BATCH
from benchmarks.scalable_paper.batches import (
    Batched,
    batches,
    draw_curves,
    load_and_compare,
    load_and_learn,
    titles,
)
from benchmarks.scalable_paper.mnist import MNIST

SHOWN = ("ep-sites", "sep-step", "vi-step")
"""EP, SEP and VI of the paper. EP has the product of probits instead of the step."""
LINEAR = "logistic"
EPOCHS = {"mnist": 4, "flights": 2}
"""Number of epochs. The paper's runs last up to 10⁵ seconds."""
NAMES = {"mnist": "MNIST", "flights": "flights"}
SCORED = 10
"""Number of steps after which held-out rows are scored."""


class Figure5(Experiment):
    title = "Figure 5: errors and scores against time, MNIST and flights"
    alone = True

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        if quick:
            (cell,) = Airline().cells(data, quick=True)
            return [Cell(f"flights, {cell.name}", cell.function, cell.arguments, resumes=True)]
        cells = []
        experiments: tuple[Batched, ...] = (Airline(), MNIST())
        for experiment in experiments:
            source = experiment.source
            given = {"data": data, "source": source, "points": None, "held_out": None}
            steps = EPOCHS[source] * batches(experiment.rows, BATCH)
            few = {"steps": steps, "scored": sorted({round(at) for at in np.geomspace(50, steps, SCORED)})}
            cells.append(Cell(f"{source}, {LINEAR}", load_and_compare, {**given, "method": LINEAR}))
            for method in SHOWN:
                settings = experiment.settings(method, experiment.rows) | few
                settings |= {"rise": 1} if "rise" in settings else {}
                cells.append(
                    Cell(f"{source}, {method}", load_and_learn, {**given, "method": method, **settings}, resumes=True)
                )
        return cells

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record = {name: run["scores"].tolist() for name, run in found.items()}
        return record, "\n\n".join(map(str, self.tables(found).values()))

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        rows = []
        for source, runs in by_source(found).items():
            for method, run in runs.items():
                middle, last = run["scores"][len(run["scores"]) // 2], run["scores"][-1]
                texts = [f"{error:.4f}, {score:.4f}" for _, _, score, error, _ in (middle, last)]
                if method == LINEAR:
                    texts[0] = ""
                epochs = "" if method == LINEAR else f"{EPOCHS[source]}"
                rows.append((NAMES[source], titles()[method], epochs, *texts, last[0]))
        columns = ("data", "method", "epochs", "error, score on the way", "at the end", "processor, s")
        return {"ends": Table("Errors and scores", columns, ("", "", "", "", "", ".0f"), rows)} if rows else {}

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        return {name: {"scores": run["scores"]} for name, run in found.items()}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        sources = by_source(found)
        if not sources:
            return None
        figure = Figure(figsize=(10, 0.8 + 3.2 * len(sources)), layout="constrained")
        axes = figure.subplots(len(sources), 2, squeeze=False)
        for row, (source, runs) in zip(axes, sources.items(), strict=True):
            draw_curves(row, runs)
            row[0].set_title(NAMES[source])
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
        return figure


def by_source(found: Mapping[str, Arrays]) -> dict[str, dict[str, Arrays]]:
    """Runs by method, for each data set with results."""
    parts: dict[str, dict[str, Arrays]] = {}
    for source in NAMES:
        of_source = {name.split(", ")[1]: run for name, run in found.items() if name.startswith(f"{source}, ")}
        if runs := {method: of_source[method] for method in (LINEAR, *SHOWN) if method in of_source}:
            parts[source] = runs
    return parts


EXPERIMENT = Figure5()
