"""Settings for MNIST and flights: each is tried without 10 000 of the training rows, and scored on these rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from benchmarks.experiment import Arrays, Cell
from benchmarks.scalable_paper.airline import EXPERIMENT as AIRLINE
from benchmarks.scalable_paper.batch_methods import METHODS
from benchmarks.scalable_paper.batches import Batched, batches, load_and_learn
from benchmarks.scalable_paper.large_data import HELD_OUT
from benchmarks.scalable_paper.mnist import EXPERIMENT as MNIST

PAPERS = "ep-sites", "sep-step", "vi-step"
STARTS = "", "-centres", "-held"
EPOCHS = {MNIST: 6, AIRLINE: 4}


class KeptBack(Batched):
    title = "Settings for MNIST and flights, scored on training rows that are held out"
    source = "few drawn"
    rows = 1000
    epochs = 1
    note = ""

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        if quick:
            return super().cells(data, quick)
        cells = []
        for large, epochs in EPOCHS.items():
            rows = large.rows - HELD_OUT
            for name in (f"{method}{start}" for method in PAPERS for start in STARTS):
                steps = epochs * batches(rows, METHODS[name].batch)
                settings = large.settings(name, rows) | {"steps": steps, "scored": [steps]}
                given = {"data": data, "source": f"{large.source}, kept back", "points": None, "held_out": None}
                cells.append(
                    Cell(f"{large.source}, {name}", load_and_learn, {**given, "method": name, **settings}, resumes=True)
                )
        return cells

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = ["| data, method | processor, s | error | negative log likelihood | with label noise |",
                 "| --- " * 5 + "|"]  # fmt: skip
        record = {}
        for name, result in found.items():
            seconds, _, score, error, noisy = record[name] = result["scores"][-1].tolist()
            lines.append(f"| {name} | {seconds:.0f} | {error:.4f} | {score:.4f} | {noisy:.4f} |")
        return record, "\n".join(lines)

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        return None


EXPERIMENT = KeptBack()
