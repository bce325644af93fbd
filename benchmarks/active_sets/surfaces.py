"""Section 6.2, figures 3 and 4 of Girolami and Rogers: predictive likelihood over magnitude and relevance.

The toy of section 6.1 has three classes, or two with the outer ring and the middle merged. There are 240 training
points, and the covariance is s exp{−φ ‖x − x'‖²} with log s and log φ from −1 to 5. With all ten inputs even nearest
neighbours are so distant that predictions are poor in most of this range. There are additional surfaces for the two
relevant inputs. Gibbs sampling has 2000 sweeps of burn-in and 1000 further sweeps, as in the paper. With two classes
the multinomial probit equals a probit of one function with covariance s exp{−φ ‖x − x'‖²}, the scaled difference of
both functions: covariance and noise are both doubled.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.active_sets.known import GIBBS, METHODS, approximated, prior_of, sampled, scores
from benchmarks.active_sets.toy import INPUTS, RELEVANT, draw_data
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split

Array = np.ndarray

PROBLEMS = {
    "two classes, two inputs": (2, RELEVANT),
    "three classes, two inputs": (3, RELEVANT),
    "two classes, ten inputs": (2, INPUTS),
    "three classes, ten inputs": (3, INPUTS),
}
COLUMNS = (GIBBS, *METHODS)
GRID = np.linspace(-1.0, 5.0, 7)
"""Values of log s, and of log φ."""
QUICK = 0.0, 3.0
TRAIN, TEST = 240, 1000


def load(problem: str, train: int, test: int, seed: int = 0) -> Split:
    """Training and test points."""
    classes, inputs = PROBLEMS[problem]
    rng = np.random.default_rng(seed)
    (X, y), (Xnew, ynew) = draw_data(train, rng), draw_data(test, rng)
    return Split(X[:, :inputs], np.minimum(y, classes - 1), Xnew[:, :inputs], np.minimum(ynew, classes - 1))


def at(
    problem: str, log_s: float, log_phi: float, train: int, test: int, burn: int, draws: int, used: int
) -> Arrays:  # fmt: skip
    """Error and mean log predictive density by each method at one pair of hyperparameters."""
    split = load(problem, train, test)
    s, phi = float(np.exp(log_s)), np.full(split.X.shape[1], np.exp(log_phi))
    prior = prior_of(split, phi, s)
    p = {method: approximated(method, prior, split.y, split.classes) for method in METHODS}
    p[GIBBS] = sampled(split, phi, s, burn=burn, draws=draws, used=used, seed=0)
    return {"scores": np.array([scores(p[method], split.ynew) for method in COLUMNS]) / [1.0, test]}


def name_of(problem: str, log_s: float, log_phi: float) -> str:
    return f"{problem}, log s = {log_s:g}, log phi = {log_phi:g}"


class Surfaces(Experiment):
    title = "Figures 3 and 4 of Girolami and Rogers (2006): predictive likelihood over s and φ"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"train": TRAIN, "test": TEST, "burn": 2000, "draws": 1000, "used": 200}
        if quick:
            size = {"train": 60, "test": 100, "burn": 100, "draws": 100, "used": 50}
        return [
            Cell(name_of(problem, log_s, log_phi), at,
                 {"problem": problem, "log_s": log_s, "log_phi": log_phi, **size})
            for problem in (list(PROBLEMS)[1:2] if quick else PROBLEMS)
            for log_s, log_phi in product(QUICK if quick else GRID.tolist(), repeat=2)
        ]  # fmt: skip

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {}
        lines: list[str] = []
        for problem in PROBLEMS:
            values = surface(problem, found)
            if values is None:
                lines += [f"{problem}: not computed.", ""]
                continue
            grid, error, density = values
            record[problem] = {"grid": grid.tolist(), "error": error.tolist(), "density": density.tolist()}
            gap = density[1:] - density[0]
            there = np.isfinite(density[0]).any(axis=1)
            lines += [
                f"## {problem}: {np.isfinite(density[0]).sum()} points", "",
                f"| method | size of the difference, mean and largest (log s, log φ) "
                f"| {' | '.join(f'log s = {s:g}' for s in grid[there])} | highest (log s, log φ) | lowest error |",
                "| --- " * (4 + there.sum()) + "|",
                f"| {GIBBS} | | {' | '.join(f'{x:.3f}' for x in np.nanmean(density[0, there], axis=1))} "
                f"| {_extreme(grid, density[0])} | {100 * np.nanmin(error[0]):.1f} % |",
            ]  # fmt: skip
            for method, of_method, own, wrong in zip(METHODS, gap, density[1:], error[1:], strict=True):
                size = np.abs(of_method)
                lines.append(
                    f"| {method} | {np.nanmean(size):.3f}, {_extreme(grid, size)} "
                    f"| {' | '.join(f'{x:+.3f}' for x in np.nanmean(of_method[there], axis=1))} "
                    f"| {_extreme(grid, own)} | {100 * np.nanmin(wrong):.1f} % |"
                )
            lines.append("")
        lines.append(
            "Mean log densities of held-out labels. Columns of log s are means over φ: of densities in the row of "
            f"{GIBBS}, and of differences from these densities in other rows."
        )
        return record, "\n".join(lines)

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Means over φ: densities of Gibbs sampling, and differences of approximations from them."""
        found = {}
        for problem in list(PROBLEMS)[:2]:
            classes = problem.partition(",")[0]
            if (values := surface(problem, pictured)) is None:
                continue
            grid, _, density = values
            rows: list[tuple[Any, ...]] = [(GIBBS, *density[0].mean(axis=1), "")]
            for method, gap in zip(METHODS, density[1:] - density[0], strict=True):
                size = np.abs(gap)
                rows.append((method, *gap.mean(axis=1), f"{size.mean():.3f}, {size.max():.3f}"))
            columns = (f"{classes}, {len(grid)} × {len(grid)} pairs",
                       *(f"{'log s = ' if s == grid[0] else ''}{s:g}".replace("-", "−") for s in grid),
                       "size of the difference")  # fmt: skip
            found[classes] = Table(problem, columns, ("", *["z.3f"] * len(grid), ""), rows)
        return found

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        shown = {problem: values for problem in PROBLEMS if (values := surface(problem, found)) is not None}
        shown = {problem: values for problem, values in shown.items() if np.isfinite(values[2][0]).all()}
        if not shown:
            return None
        figure = Figure(figsize=(3.0 * len(COLUMNS), 2.9 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), len(COLUMNS), squeeze=False, sharex=True, sharey=True)
        for row, (problem, (grid, _, density)) in zip(axes, shown.items(), strict=True):
            levels = np.linspace(np.nanmin(density), np.nanmax(density) + 1e-9, 13)
            for ax, method, values in zip(row, COLUMNS, density, strict=True):
                drawn = ax.contourf(grid, grid, values, levels=levels)
                ax.set_title(f"{method}\n{problem}", fontsize=8)
            figure.colorbar(drawn, ax=row, shrink=0.9, format="%.3g")
            row[0].set_ylabel("log s")
        for ax in axes[-1]:
            ax.set_xlabel("log φ")
        return figure


def surface(problem: str, found: Mapping[str, Arrays]) -> tuple[Array, Array, Array] | None:
    """Available grid, and errors and mean log densities (methods, log s, log φ), NaN where results are missing."""
    pairs = [pair for pair in product(GRID, repeat=2) if name_of(problem, *pair) in found]
    if not pairs:
        return None
    grid = np.unique(pairs)
    values = np.full((2, len(COLUMNS), len(grid), len(grid)), np.nan)
    for log_s, log_phi in pairs:
        at = np.searchsorted(grid, [log_s, log_phi])
        values[:, :, at[0], at[1]] = found[name_of(problem, log_s, log_phi)]["scores"].T
    return grid, values[0], values[1]


def _extreme(grid: Array, values: Array) -> str:
    """The largest value and its place."""
    i, j = np.unravel_index(np.nanargmax(values), values.shape)
    return f"{values[i, j]:.3f} ({grid[i]:g}, {grid[j]:g})"


EXPERIMENT = Surfaces()
