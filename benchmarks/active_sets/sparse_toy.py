"""Section 6.3 and figure 5: error against the number of active rows, selected by label probability or at random.

There are 1000 new rows of the toy of section 6.1, 2385 test rows and 50 active rows, 20 random starts on the same rows,
and 20 starts with their own rows. The relevances are the paper's "posterior means of the previous example", which `toy`
finds with the authors' weights: about φ₁ = φ₂ = 10, and 0.004 for all other inputs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from benchmarks.active_sets.first_rows import by_first_rows
from benchmarks.active_sets.toy import INPUTS, RELEVANT, covariance, draw_data
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.likelihoods.multinomial_probit import class_probabilities
from pymc_gpep.plots.canvas import colours
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

FIGURE_5A = f"utility sites, probability, {SAME}"
SCATTER = "figure 5(a)"
EDGE = 1.1
"""Largest value of an input in figure 5(a)."""


def errors(seed: int, variant: str, rows: int, test: int) -> Arrays:
    """Fraction of test rows predicted wrongly with the first active rows, and r² of these rows."""
    rng = np.random.default_rng(0 if variant.endswith(SAME) else seed)
    (X, y), (Xnew, ynew) = draw_data(rows, rng), draw_data(test, rng)
    chosen, p = predictions(X, y, Xnew, variant, seed, COUNTS)
    wrong = [(each.argmax(axis=1) != ynew).mean() for each in p]
    return {"error": np.array(wrong), "radius": (X[chosen, :RELEVANT] ** 2).sum(axis=1)}


def predictions(
    X: np.ndarray, y: np.ndarray, Xnew: np.ndarray, variant: str, seed: int, counts: Sequence[int]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Active rows in their order, and probabilities (m, 3) of new rows for increasing numbers of them."""
    phi = np.full(INPUTS, OTHERS)
    phi[:RELEVANT] = RELEVANCE
    k = covariance(X, X, phi) + JITTER * np.eye(len(X))
    ivm = IVM(active=ACTIVE, pool=len(X), rows=ACTIVE + 1, **VARIANTS[variant])
    with threadpool_limits(1):
        solution = ivm.solve(DenseRows(k, np.zeros((3, len(X)))), y, random_seed=seed)
        chosen = solution.selection.rows
        moments = by_first_rows(ivm, solution, covariance(Xnew, X[chosen], phi), 1.0, counts)
        return chosen, [class_probabilities(mean, cov, method="inner_ep")[0] for mean, cov in moments]


def scatter(rows: int, points: int) -> Arrays:
    """The rows of the first start in their two relevant inputs, active rows, and probabilities over a grid.

    All other inputs of the grid are 0.
    """
    X, y = draw_data(rows, np.random.default_rng(0))
    axis = np.linspace(-EDGE, EDGE, points)
    grid = np.zeros((points**2, INPUTS))
    grid[:, :RELEVANT] = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    chosen, (p,) = predictions(X, y, grid, FIGURE_5A, 0, (ACTIVE,))
    of_rows = X[:, :RELEVANT].round(3)
    return {"x": of_rows, "y": y, "active": chosen, "axis": axis, "p": p.T.reshape(3, points, points).round(3)}


class SparseToy(Experiment):
    title = "Section 6.3 of Girolami and Rogers (2006): error against the number of active rows"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"rows": 200, "test": 300} if quick else {"rows": ROWS, "test": TEST}
        runs = [
            Cell(f"{variant} {seed}", errors, {"seed": seed, "variant": variant, **size})
            for variant in VARIANTS
            for seed in range(2 if quick else STARTS)
        ]
        return [*runs, Cell(SCATTER, scatter, {"rows": size["rows"], "points": 29})]

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
            near = near_boundary(squared)
            record[variant] = {"error": error.mean(axis=0).tolist(), "near": near, "starts": len(runs)}
            shown = " | ".join(f"{100 * mean:.1f} % ± {100 * sd:.1f}" for mean, sd in zip(*spread(error), strict=True))
            lines.append(f"| {variant} | {len(runs)} | {shown} | {100 * near:.0f} % |")
        notes = (
            "Means and standard deviations over starts. Each start has its own rows or, as in the paper, uses the "
            f"{SAME}. Active rows near a boundary have r² in [0.05, 0.2] or [0.4, 0.7]. The paper prints an error of "
            "less than 1 % after 30 active rows."
        )
        return record, "\n".join([*lines, "", notes])

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        rows = []
        for variant in VARIANTS:
            if runs := of_variant(variant, found):
                error, squared = (
                    np.array([run["error"] for run in runs]),
                    np.concatenate([run["radius"] for run in runs]),
                )
                shown = (f"{100 * mean:.1f} % ± {100 * sd:.1f}" for mean, sd in zip(*spread(error), strict=True))
                rows.append((variant, len(runs), *shown, f"{100 * near_boundary(squared):.0f} %"))
        columns = ("sites, score, rows", "starts", *(f"error at {count}" for count in COUNTS), "near a boundary")
        return {"errors": Table("Errors of active rows", columns, ("", "d", *[""] * (len(COUNTS) + 1)), rows)}

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        return {name: run if name == SCATTER else {"error": run["error"]} for name, run in found.items()}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        shown = {variant: runs for variant in VARIANTS if (runs := of_variant(variant, found))}
        if not shown:
            return None
        figure = Figure(figsize=(11, 4.5), layout="constrained")
        left, ax = figure.subplots(1, 2)
        if SCATTER in found:
            draw_rows(left, found[SCATTER])
        else:
            left.set_axis_off()
        for variant, runs in shown.items():
            mean, sd = spread(np.array([run["error"] for run in runs]))
            ax.errorbar(COUNTS, 100 * mean, 100 * sd, label=variant, capsize=2)
        ax.set_xlabel("active rows")
        ax.set_ylabel("error in %")
        ax.legend(fontsize=8)
        return figure


def draw_rows(ax: Axes, found: Arrays) -> None:
    """Draw rows of three classes, circles around active rows, and contours of probability ⅓."""
    for k, (marker, colour) in enumerate(zip("x+.", colours(3), strict=True)):
        own = found["x"][found["y"] == k]
        ax.plot(*own.T, marker, color=colour, markersize=3, label=f"class {k + 1}")
        ax.contour(found["axis"], found["axis"], found["p"][k], levels=[1 / 3], colors=[colour], linewidths=1)
    ax.plot(*found["x"][found["active"]].T, "o", color="black", fillstyle="none", markersize=7, label="active")
    ax.set(xlabel="input 1", ylabel="input 2", xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal")
    ax.legend(fontsize=8, loc="upper right")


def spread(error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over starts."""
    return error.mean(axis=0), error.std(axis=0)


def near_boundary(squared: np.ndarray) -> float:
    """Fraction of active rows near a boundary between classes, from r² of each."""
    return float((((squared > 0.05) & (squared < 0.2)) | ((squared > 0.4) & (squared < 0.7))).mean())


def of_variant(variant: str, found: Mapping[str, Arrays]) -> list[Arrays]:
    """Results of a variant in the order of starts."""
    return [found[name] for seed in range(STARTS) if (name := f"{variant} {seed}") in found]


EXPERIMENT = SparseToy()
