"""Figures 9 and 10: densities and accuracies of held-out labels, with estimated hyperparameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.experiment import Arrays, Cell
from benchmarks.paper import data, predictive, scores
from benchmarks.paper.scores import ScoreExperiment, Statement

TKP_PARTS = {"segmentation": 3, "usps357": 12}
"""Number of parts of LA-TKP, which finds a mode for each held-out point and label and takes minutes."""

CHAINS = {
    "wine": (2, 400, 1200, 12),
    "new-thyroid": (2, 400, 1200, 6),
    "teaching": (2, 400, 1200, 6),
    "glass": (2, 250, 500, 12),
    "segmentation": (2, 300, 700, 6),
    "usps357": (2, 80, 160, 3),
}
"""Number of chains, tuning draws, draws, and proposals of hyperparameters, smaller where proposals are expensive."""

STATEMENTS = (
    Statement("Only in Teaching and Image segmentation MCMC is significantly better than EP", "mlpd", "MCMC", "EP"),
    Statement("IEP performs worse than EP in all the data sets except Teaching and Glass", "mlpd", "IEP", "EP"),
    Statement("VB is overall worse than EP, IEP or MCMC", "mlpd", "VB", "EP"),
    Statement("VB is overall worse than EP, IEP or MCMC", "mlpd", "VB", "IEP"),
    Statement("VB is overall worse than EP, IEP or MCMC", "mlpd", "VB", "MCMC"),
    Statement("LA is overall worse than EP, IEP or MCMC", "mlpd", "LA", "EP"),
    Statement("LA is overall worse than EP, IEP or MCMC", "mlpd", "LA", "IEP"),
    Statement("LA is overall worse than EP, IEP or MCMC", "mlpd", "LA", "MCMC"),
    Statement("LA-TKP improves the performance of LA with all the data sets except Teaching", "mlpd", "LA-TKP", "LA"),
    *(
        Statement("In Teaching MCMC is significantly better than any other method", "accuracy", "MCMC", method,
                  ("teaching",))
        for method in predictive.METHODS
    ),
    Statement(
        "No significant difference; IEP slightly better in Wine, EP in Glass and Image segmentation",
        "accuracy", "IEP", "EP",
    ),
    Statement("LA performs better than EP in Image segmentation", "accuracy", "LA", "EP", ("segmentation",)),
    Statement("The LA-TKP correction seems unnecessary", "accuracy", "LA-TKP", "LA"),
    Statement(
        "VB is significantly worse in Image segmentation and USPS 3 vs. 5 vs. 7",
        "accuracy", "VB", "EP", ("segmentation", "usps357"),
    ),
)  # fmt: skip
"""Statements of RJV section 5.5 about figures 9 and 10."""


class Prediction(ScoreExperiment):
    """Six data sets, six methods."""

    title = "Figures 9 and 10: predictive performance with estimated hyperparameters"
    order = (*predictive.METHODS, "MCMC")

    def cells(self, folder: str, quick: bool) -> Sequence[Cell]:
        """All approximations of all data sets, then the chains, then LA-TKP on many points."""
        if quick:
            sets: dict[str, tuple[int, list[int] | None]] = {"wine": (1, [60, 40])}
        else:
            sets = {name: (10 if name in data.CROSS_VALIDATED else 1, None) for name in CHAINS}
        fits, parts, chains = [], [], []
        for name, (count, size) in sets.items():
            for number in range(count):
                where = {"folder": folder, "name": name, "number": number, "size": size}
                for method in predictive.METHODS:
                    split = 1 if quick or method != "LA-TKP" else TKP_PARTS.get(name, 1)
                    fits_or_parts = fits if split == 1 else parts
                    for part in range(split):
                        arguments = where | {"method": method, "part": part, "parts": split}
                        called = f"{name}.{number}.{method}.{part}"
                        fits_or_parts.append(Cell(called, predictive.approximate, arguments))
                several, tune, draws, moves = (2, 15, 20, 2) if quick else CHAINS[name]
                for seed in range(several):
                    arguments = where | {"tune": tune, "draws": draws, "seed": seed, "hyper_moves": moves}
                    chains.append(Cell(f"{name}.{number}.MCMC.{seed}", predictive.chain, arguments))
        return [*fits, *chains, *parts]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        return scores.report(found, self.order, STATEMENTS, data.NOTES)


EXPERIMENT = Prediction()
