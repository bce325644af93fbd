"""Figure 11: densities and accuracies of held-out labels, all ten USPS digits, hyperparameters estimated."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell
from benchmarks.paper import data, predictive, scores
from benchmarks.paper.scores import ScoreExperiment, Statement

STATEMENTS = (
    Statement("EP is significantly better than VB", "mlpd", "VB", "EP"),
    Statement("EP is significantly better than LA", "mlpd", "LA", "EP"),
    Statement("IEP is significantly better than VB", "mlpd", "VB", "IEP"),
    Statement("IEP is significantly better than LA", "mlpd", "LA", "IEP"),
    Statement("EP is slightly better than IEP, not significantly", "mlpd", "IEP", "EP"),
    Statement("EP is significantly better than VB", "accuracy", "VB", "EP"),
    Statement("EP is significantly better than LA", "accuracy", "LA", "EP"),
    Statement("IEP is significantly better than VB", "accuracy", "VB", "IEP"),
    Statement("IEP is significantly better than LA", "accuracy", "LA", "IEP"),
    Statement("IEP is slightly better than EP, not significantly", "accuracy", "IEP", "EP"),
)
"""Statements of RJV section 5.5 about figure 11."""


class TenDigits(ScoreExperiment):
    """One data set and four methods.

    `size = 4649` has all training points of the paper, and takes hours for each of EP and IEP. An interrupted
    optimisation continues from its best hyperparameters.
    """

    title = "Figure 11: USPS, ten classes, with estimated hyperparameters"
    order = ("EP", "IEP", "VB", "LA")
    sizable = True
    size = 1000

    def cells(self, folder: str, quick: bool) -> Sequence[Cell]:
        size = [60, 60] if quick else [self.size, 4649]
        return [
            Cell(
                f"usps10-{size[0]}.0.{method}.0",
                predictive.approximate,
                {"folder": folder, "name": "usps10", "number": 0, "method": method, "size": size},
                resumes=True,
            )
            for method in reversed(self.order)  # fastest methods first
        ]

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        (own,) = pictured.values()
        columns = ("method", "mean log predictive density", "− EP", "accuracy", "− EP")
        return {"1000 points": Table("Scores", columns, ("",) * len(columns), scores.rows_of(own))}

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        note = (
            f"{data.NOTES['usps10']} The number is the number of training points, a random subset. The paper has 4649 "
            "training points."
        )
        return scores.report(found, self.order, STATEMENTS, {name.split(".")[0]: note for name in found})


EXPERIMENT = TenDigits()
