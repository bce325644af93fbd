"""Section 6.4 and figure 6: spoken letters, 26 classes of 617 inputs, by 2000 of 6238 rows.

Scores are the error, the mean log predictive density and the mean probability of the labels: the "predictive
likelihood" in the paper's figure may be either of the latter. Inputs are standardised by the training rows. The
covariance is exp{−φ Σ_d (x_d − x'_d)²} with φ = 0.001. The paper computes scores every 50 inclusions, and this
experiment every 250. Variational Bayes of all rows is computed in addition.
"""

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.spatial.distance import cdist

from benchmarks.active_sets.first_rows import by_first_rows, predicted
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split, read_table, standardised, subset
from pymc_gpep.approximations import VariationalBayes
from pymc_gpep.likelihoods.multinomial_probit import class_probabilities
from pymc_gpep.rivals.ivm import IVM
from pymc_gpep.rivals.selection.row_site_rules import DenseRows

PHI = 0.001
JITTER = 1e-6
ACTIVE, EVERY = 2000, 250
FILES = "isolet_train.csv.gz", "isolet_test.csv.gz"
SCORES = {"probability": "by probability", "random": "at random"}
STARTS = 3
TITLES = {"probability": "by the probability of their labels", "random": "at random"}
SHOWN = (250, 500, 1000, 1500, 2000)
"""Numbers of active rows in the table."""
WHOLE = "all rows, vb"
NAMES = "error, %", "mean log predictive density", "mean probability of the label"
PRINTED = 0.0352


def load(data: str, size: Sequence[int] | None = None) -> Split:
    """Load the split of the data, or the given number of rows of its parts."""
    (X, labels), (Xnew, others) = (read_table(Path(data) / name) for name in FILES)
    X, Xnew = standardised(X, Xnew)
    names, codes = np.unique(np.concatenate([labels, others]), return_inverse=True)
    assert len(names) == 26
    found = Split(X, codes[: len(X)], Xnew, codes[len(X) :])
    return found if size is None else subset(found, *size)


def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Covariance between rows (n, d) and (m, d)."""
    return np.exp(-PHI * cdist(a, b, "sqeuclidean"))


def by_active_rows(data: str, score: str, seed: int, active: int, every: int, size: list[int] | None) -> Arrays:
    """Scores for increasing numbers of first active rows."""
    split = load(data, size)
    n, classes = len(split.y), 26
    k = covariance(split.X, split.X)
    k.flat[:: n + 1] += JITTER
    ivm = IVM(active=active, pool=n, rows=active + 1, sites="utility", criterion=score, polish=False)
    solution = ivm.solve(DenseRows(k, np.zeros((classes, n))), split.y, random_seed=seed)
    cross = covariance(split.Xnew, split.X[solution.selection.rows])
    counts = np.arange(every, active + 1, every)
    scores = [_scores(split, mean, cov) for mean, cov in by_first_rows(ivm, solution, cross, 1.0, counts)]
    return {"counts": counts, "scores": np.array(scores), "MB": _megabytes()}


def by_all_rows(data: str, size: list[int] | None) -> Arrays:
    """Scores by variational Bayes of all rows."""
    split = load(data, size)
    n, classes = len(split.y), 26
    k = covariance(split.X, split.X)
    k.flat[:: n + 1] += JITTER
    solution = VariationalBayes().solve(k, np.zeros((classes, n)), split.y)
    found = _scores(split, *predicted(solution.posterior, covariance(split.Xnew, split.X), 1.0))
    return {"scores": np.array(found), "converged": np.array(solution.convergence.converged), "MB": _megabytes()}


def _scores(split: Split, mean: np.ndarray, cov: np.ndarray) -> tuple[float, float, float]:
    """Fraction of errors, and mean log probability and mean probability of the labels."""
    p, _ = class_probabilities(mean, cov)
    of_labels = p[np.arange(len(p)), split.ynew]
    return float((p.argmax(axis=1) != split.ynew).mean()), float(np.log(of_labels).mean()), float(of_labels.mean())


def _megabytes() -> np.ndarray:
    return np.array(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0)


class Isolet(Experiment):
    title = "Section 6.4 of Girolami and Rogers (2006): Isolet"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        common = {"data": data, "size": [160, 100] if quick else None}
        active = {"active": 40, "every": 20} if quick else {"active": ACTIVE, "every": EVERY}
        return [
            *(
                Cell(f"{score} {seed}", by_active_rows, {"score": score, "seed": seed} | common | active)
                for seed in range(1 if quick else STARTS)
                for score in SCORES
            ),
            Cell(WHOLE, by_all_rows, common),
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| rows | starts | error, log density, probability by the number of active rows | seconds | MB |",
            "| --- " * 5 + "|",
        ]
        record: dict[str, Any] = {}
        for score in SCORES:
            if not (runs := _of_score(score, found)):
                continue
            scores = np.mean([run["scores"] for run in runs], axis=0)
            seconds = np.mean([run["seconds"] for run in runs])
            counts = runs[0]["counts"]
            shown = "; ".join(
                f"{count}: {100 * error:.2f} %, {density:.3f}, {p:.3f}"
                for count, (error, density, p) in zip(counts, scores, strict=True)
            )
            most = max(float(run["MB"]) for run in runs)
            lines.append(f"| {SCORES[score]} | {len(runs)} | {shown} | {seconds:.0f} | {most:.0f} |")
            record[score] = {"counts": counts.tolist(), "scores": scores.tolist(), "starts": len(runs)}
        if (whole := found.get(WHOLE)) is not None:
            error, density, p = whole["scores"]
            shown = f"{100 * error:.2f} %, {density:.3f}, {p:.3f}"
            lines.append(f"| {WHOLE} | 1 | {shown} | {float(whole['seconds']):.0f} | {float(whole['MB']):.0f} |")
            record[WHOLE] = whole["scores"].tolist()
        note = (
            f"The paper prints an error of {100 * PRINTED:.2f} % with 2000 rows, selected by the probability of "
            "their labels."
        )
        return record, "\n".join([*lines, "", note])

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        rows = []
        for score, title in TITLES.items():
            runs = _of_score(score, pictured)
            scores = np.mean([run["scores"] for run in runs], axis=0)
            at = np.searchsorted(runs[0]["counts"], SHOWN)
            rows.append((title, *(f"{100 * error:.2f} %, {density:.3f}" for error, density, _ in scores[at])))
        columns = ("rows", *map(str, SHOWN))
        return {"scores": Table("Errors and mean log densities", columns, ("",) * len(columns), rows)}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        shown = {score: runs for score in SCORES if (runs := _of_score(score, found))}
        if not shown:
            return None
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        axes = figure.subplots(1, len(NAMES))
        for score, runs in shown.items():
            scores = np.mean([run["scores"] for run in runs], axis=0)
            for ax, values in zip(axes, scores.T * [[100.0], [1.0], [1.0]], strict=True):
                ax.plot(runs[0]["counts"], values, ".-", label=SCORES[score])
        if (whole := found.get(WHOLE)) is not None:
            for ax, value in zip(axes, whole["scores"] * [100.0, 1.0, 1.0], strict=True):
                ax.axhline(value, color="black", linewidth=0.8, label=WHOLE)
        for ax, name in zip(axes, NAMES, strict=True):
            ax.set(xlabel="active rows", ylabel=name)
        axes[0].legend()
        return figure


def _of_score(score: str, found: Mapping[str, Arrays]) -> list[Arrays]:
    return [found[name] for seed in range(STARTS) if (name := f"{score} {seed}") in found]


EXPERIMENT = Isolet()
