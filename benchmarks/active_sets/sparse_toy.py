"""Section 6.3 and figure 5: error against the number of active rows, chosen by their labels' probability or at random.

1000 new rows of the toy of section 6.1, 2385 to predict, 50 active rows, 20 random starts on the same rows, and as many
with rows of their own. The relevances are the paper's "posterior means of the previous example", which `toy` finds with
the authors' weights: about φ₁ = φ₂ = 10, and 0.004 for the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from benchmarks.active_sets.first_rows import by_first_rows
from benchmarks.active_sets.toy import INPUTS, RELEVANT, covariance, draw_data
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.likelihoods.multinomial_probit import class_probabilities
from pymc_gpep.rivals.ivm import IVM
from pymc_gpep.rivals.selection.row_site_rules import DenseRows

ROWS, TEST, ACTIVE, STARTS = 1000, 2385, 50, 20
COUNTS = (10, 20, 30, 40, 50)
RELEVANCE, OTHERS = 10.0, 0.004
SAME = "same rows"
JITTER = 1e-6
VARIANTS: dict[str, dict[str, Any]] = {
    f"utility sites, probability, {SAME}": {"sites": "utility", "criterion": "probability", "polish": False},
    f"utility sites, random, {SAME}": {"sites": "utility", "criterion": "random", "polish": False},
    "utility sites, probability": {"sites": "utility", "criterion": "probability", "polish": False},
    "utility sites, random": {"sites": "utility", "criterion": "random", "polish": False},
    "coupled sites, information": {"sites": "coupled", "criterion": "information"},
    "coupled sites, expected": {"sites": "coupled", "criterion": "expected"},
    "coupled sites, probability": {"sites": "coupled", "criterion": "probability"},
    "coupled sites, random": {"sites": "coupled", "criterion": "random"},
}


def errors(seed: int, variant: str, rows: int, test: int) -> Arrays:
    """Part of the test rows that is predicted wrongly with the first active rows, and r² of these."""
    rng = np.random.default_rng(0 if variant.endswith(SAME) else seed)
    (X, y), (Xnew, ynew) = draw_data(rows, rng), draw_data(test, rng)
    phi = np.full(INPUTS, OTHERS)
    phi[:RELEVANT] = RELEVANCE
    k = covariance(X, X, phi) + JITTER * np.eye(rows)
    ivm = IVM(active=ACTIVE, pool=rows, rows=ACTIVE + 1, **VARIANTS[variant])
    with threadpool_limits(1):
        solution = ivm.solve(DenseRows(k, np.zeros((3, rows))), y, random_seed=seed)
        chosen = solution.selection.rows
        wrong = []
        for mean, cov in by_first_rows(ivm, solution, covariance(Xnew, X[chosen], phi), 1.0, COUNTS):
            p, _ = class_probabilities(mean, cov, method="inner_ep")
            wrong.append((p.argmax(axis=1) != ynew).mean())
    return {"error": np.array(wrong), "radius": (X[chosen, :RELEVANT] ** 2).sum(axis=1)}


class SparseToy(Experiment):
    title = "Section 6.3 of Girolami and Rogers (2006): error against the number of active rows"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"rows": 200, "test": 300} if quick else {"rows": ROWS, "test": TEST}
        return [
            Cell(f"{variant} {seed}", errors, {"seed": seed, "variant": variant, **size})
            for variant in VARIANTS
            for seed in range(2 if quick else STARTS)
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            f"| sites, score | starts | {' | '.join(f'error at {count}' for count in COUNTS)} | near a boundary |",
            "| --- " * (3 + len(COUNTS)) + "|",
        ]
        record: dict[str, Any] = {}
        for variant in VARIANTS:
            runs = of_variant(variant, found)
            if not runs:
                lines.append(f"| {variant} | 0 |{' not computed |' * (1 + len(COUNTS))}")
                continue
            error = np.array([run["error"] for run in runs])
            squared = np.concatenate([run["radius"] for run in runs])
            near = (((squared > 0.05) & (squared < 0.2)) | ((squared > 0.4) & (squared < 0.7))).mean()
            record[variant] = {"error": error.mean(axis=0).tolist(), "near": float(near), "starts": len(runs)}
            shown = " | ".join(f"{100 * mean:.1f} % ± {100 * sd:.1f}" for mean, sd in zip(*spread(error), strict=True))
            lines.append(f"| {variant} | {len(runs)} | {shown} | {100 * near:.0f} % |")
        notes = (
            f"Means and standard deviations over starts, each with rows of its own or, as in the paper, on the {SAME}. "
            "Near a boundary are active rows with r² in [0.05, 0.2] or [0.4, 0.7]. The paper prints an error of less "
            "than 1 % after 30 active rows."
        )
        return record, "\n".join([*lines, "", notes])

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        return {name: {"error": run["error"]} for name, run in found.items()}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        shown = {variant: runs for variant in VARIANTS if (runs := of_variant(variant, found))}
        if not shown:
            return None
        figure = Figure(figsize=(6, 4), layout="constrained")
        ax = figure.subplots()
        for variant, runs in shown.items():
            mean, sd = spread(np.array([run["error"] for run in runs]))
            ax.errorbar(COUNTS, 100 * mean, 100 * sd, label=variant, capsize=2)
        ax.set_xlabel("active rows")
        ax.set_ylabel("error in %")
        ax.legend(fontsize=8)
        return figure


def spread(error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over starts."""
    return error.mean(axis=0), error.std(axis=0)


def of_variant(variant: str, found: Mapping[str, Arrays]) -> list[Arrays]:
    """What there is of a variant, in the order of starts."""
    return [found[name] for seed in range(STARTS) if (name := f"{variant} {seed}") in found]


EXPERIMENT = SparseToy()
