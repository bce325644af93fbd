"""Figure 5, top: MNIST by batch fits."""

from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.common import Table
from benchmarks.experiment import Arrays
from benchmarks.scalable_paper.batch_methods import LONGER, METHODS
from benchmarks.scalable_paper.batches import Batched, batches

FIRST = 4
"""Epochs from which the table of the longer fit has its scores."""


class MNIST(Batched):
    title = "Figure 5, top: MNIST"
    source = "mnist"
    rivals = ("logistic",)
    rows = 60_000
    methods = tuple(METHODS)
    epochs = 60
    # Inducing inputs are learned in units of the standard deviation of a column, which for pixels is 0.01 to 0.5. With
    # Adam's default, 15 000 steps are not enough.
    rate = 1e-2
    falls = True
    quick_method = "exact"  # one covariance: graphs of ten covariances would take most of the time
    printed: ClassVar = {"sep": "0.0208, 0.0725", "vi": "0.0202, 0.0686"}
    note = "Pixels from 0 to 1, 60 000 training images and 10 000 held-out images, or fewer as in the table."

    def settings(self, name: str, rows: int) -> dict[str, Any]:
        # at the full rate, the first steps of hyperparameters would undo the progress of the first epoch
        return super().settings(name, rows) | {"rise": 2}

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Scores of the longer fit while it runs. Other tables were printed before there were records."""
        if LONGER not in found:
            return {}
        epoch = batches(self.rows, METHODS[LONGER].batch)
        rows = [
            (f"{steps / epoch:.1f}", int(steps), seconds, error, score, noisy)
            for seconds, steps, score, error, noisy in found[LONGER]["scores"]
            if steps >= FIRST * epoch
        ]
        columns = ("epochs", "steps", "processor, s", "error", "negative log likelihood", "with label noise")
        return {"more epochs": Table(METHODS[LONGER].title, columns, ("", "d", ".0f", ".4f", ".4f", ".4f"), rows)}


EXPERIMENT = MNIST()
