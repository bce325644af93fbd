"""Figure 7: evidence, test density and accuracy over a grid of hyperparameters, USPS 3 vs. 5 vs. 7."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import NOTES, pixels
from benchmarks.paper.fixed import at_held_out, distances, of_labels, probabilities, squared_exponential
from pymc_gpep.approximations import Laplace, NestedEP, VariationalBayes
from pymc_gpep.plots import plot_evidence_grid
from pymc_gpep.rivals.class_independent_ep import IEP

METHODS = {"EP": NestedEP(), "IEP": IEP(), "VB": VariationalBayes(), "LA": Laplace()}
QUANTITIES = ("evidence", "mlpd", "accuracy")
FINER, FINER_OF = (2.0, 2.5, 3.0), ("EP", "IEP")
"""Length scales of the table of rows, and its methods."""
FINER_COLUMNS = ("log evidence", "at log σ² = 8", "mean log test density")
PAPERS_LARGEST = 12.0
"""Largest log variance of the paper's grid. The grid here goes on to 16."""
NAMES = {"evidence": "evidence", "mlpd": "test density"}

PAPER = (
    "The paper (section 5.3): EP's evidence is largest where its test density is; the contours of IEP's evidence "
    "(the highest is labelled −166) and of its test density (−76.5 in all, a mean of −0.065) do not coincide; VB and "
    "LA have small densities at a large log σ², and evidences that favour a small one."
)


def row(
    data: str, method: str, log_lengthscale: float, log_variances: Sequence[float], size: Sequence[int] | None
) -> dict[str, Any]:
    """All log variances at one log length scale, each started at the sites of the previous one."""
    points = pixels(data, size)
    squared, solver = distances(points), METHODS[method]
    nothing = np.zeros((points.classes, points.y.size))
    found: dict[str, list[float]] = {name: [] for name in (*QUANTITIES, "converged", "iterations")}
    start = None
    for log_variance in log_variances:
        prior = squared_exponential(squared, log_variance, log_lengthscale)
        solution = solver.solve(prior.k, nothing, points.y, start=start)
        if not solution.convergence.converged and start is not None:
            solution = solver.solve(prior.k, nothing, points.y)
        start = solution.start if solution.convergence.converged else None
        p = probabilities(solver.first_likelihood().name, *at_held_out(solution, prior))
        found["evidence"].append(solution.evidence)
        found["mlpd"].append(np.log(of_labels(p, points.ynew)).mean())
        found["accuracy"].append((p.argmax(axis=1) == points.ynew).mean())
        found["converged"].append(solution.convergence.converged)
        found["iterations"].append(solution.convergence.iterations)
    return {"log_lengthscale": log_lengthscale, "log_variance": log_variances} | found


class Figure7(Experiment):
    title = "Figure 7: evidence and test predictions over hyperparameters, USPS 3 vs. 5 vs. 7"

    def cells(self, data: str, quick: bool) -> list[Cell]:
        if quick:
            size, log_variances, log_lengthscales = [150, 150], [0.0, 4.0, 8.0], [1.5, 2.5]
        else:
            size, log_variances = None, np.arange(0.0, 16.1, 1.0)
            # Alternate rows come first, so that an interrupted run has a complete grid.
            log_lengthscales = [*np.arange(1.0, 5.1, 1.0), *np.arange(1.5, 5.0, 1.0)]
        return [
            Cell(
                f"{method}-{log_lengthscale}",
                row,
                {
                    "data": data,
                    "method": method,
                    "log_lengthscale": float(log_lengthscale),
                    "log_variances": [float(x) for x in log_variances],
                    "size": size,
                },
            )
            for log_lengthscale in log_lengthscales
            for method in METHODS
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| method | evidence: largest | at (log ℓ, log σ²) | test density: largest mean | at | distance "
            "| density at the evidence's peak | lost | accuracy there (best) | points not converged |",
            "| --- " * 10 + "|",
        ]
        record: dict[str, Any] = {}
        at_edge: dict[str, list[str]] = {}
        for method, grid in grids(found).items():
            where = grid.where(grid["converged"])
            peaks = {name: peak(where[name]) for name in ("evidence", "mlpd")}
            apart = [peaks["evidence"][axis] - peaks["mlpd"][axis] for axis in ("log_lengthscale", "log_variance")]
            there = where.sel(peaks["evidence"])
            best = float(where["mlpd"].max())
            failed = int((~grid["converged"]).sum())
            record[method] = {
                "grid": {name: grid[name].values.tolist() for name in (*QUANTITIES, "converged", "iterations")},
                "log_lengthscale": grid["log_lengthscale"].values.tolist(),
                "log_variance": grid["log_variance"].values.tolist(),
                "peaks": peaks,
                "lost": best - float(there["mlpd"]),
            }
            for name, at in peaks.items():
                if on_edge(at, grid):
                    at_edge.setdefault(NAMES[name], []).append(method)
            lines.append(
                f"| {method} | {float(where['evidence'].max()):.1f} | {shown(peaks['evidence'])} | {best:.4f} "
                f"| {shown(peaks['mlpd'])} | {np.hypot(*apart):.1f} | {float(there['mlpd']):.4f} "
                f"| {best - float(there['mlpd']):.4f} "
                f"| {float(there['accuracy']):.3f} ({float(where['accuracy'].max()):.3f}) "
                f"| {failed} of {grid['evidence'].size} |"
            )
        if at_edge:
            which = "; ".join(f"{name} of {', '.join(methods)}" for name, methods in at_edge.items())
            lines += ["", f"Largest at the edge of the grid, and perhaps larger outside: {which}."]
        notes = (
            f"{PAPER}\n\n{NOTES['usps357']} Inputs are the pixels as they are, from −1 to 1, and not standardised: the "
            "evidence then nearly agrees with the paper's contours. Test density is the log predictive density of the "
            "held-out labels. Stars in the picture mark the largest value on the grid; in a tie, the first. Peaks are "
            "points of the grid. Evidences of LA are of another likelihood than those of other methods. Evidences of "
            "VB are lower bounds. Points of the grid that did not converge are left out, and rows that were not "
            "computed."
        )
        return record, "\n".join([*lines, "", notes])

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of the largest values of EP and IEP at some length scales, for all magnitudes."""
        rows = []
        for log_lengthscale in FINER:
            cells = [found.get(f"{method}-{log_lengthscale}") for method in FINER_OF]
            if all(cell is not None for cell in cells):
                texts = []
                for cell in cells:
                    at_8 = cell["evidence"][cell["log_variance"].tolist().index(8.0)]
                    texts += [f"{cell['evidence'].max():.1f}", f"{at_8:.1f}", f"{cell['mlpd'].max():.4f}"]
                rows.append((f"{log_lengthscale:g}", *texts))
        heads = [head for method in FINER_OF for head in (f"{method}: {FINER_COLUMNS[0]}", *FINER_COLUMNS[1:])]
        columns = ("log ℓ", *heads)
        return {"rows": Table("Largest values by length scale", columns, ("",) * len(columns), rows)} if rows else {}

    def drawn_tables(self, pictured: Mapping[str, Arrays]) -> Mapping[str, Table]:
        rows = []
        for method, grid in grids(pictured).items():
            grid = grid.sel(log_variance=slice(None, PAPERS_LARGEST))
            # Stored digits have ties along the magnitude, where values rise to the edge.
            where = grid.where(grid["converged"]).isel(log_variance=slice(None, None, -1))
            peaks = {name: peak(where[name]) for name in ("evidence", "mlpd")}
            there = float(where["mlpd"].sel(peaks["evidence"]))
            texts = [
                part
                for name, digits in (("evidence", 1), ("mlpd", 3))
                for part in (f"{float(where[name].max()):.{digits}f}", shown(peaks[name]))
            ]
            rows.append((method, *texts, f"{there:.3f}"))
        columns = (
            "method", "largest log evidence", "at (log ℓ, log σ²)", "largest mean log test density", "at",
            "density where the evidence peaks",
        )  # fmt: skip
        return {"largest": Table("Largest values", columns, ("",) * len(columns), rows)}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        panels = grids(found)
        if not panels or min(min(grid["evidence"].shape) for grid in panels.values()) < 2:
            return None
        return plot_evidence_grid(panels, QUANTITIES)[0, 0].figure


def grids(found: Mapping[str, Arrays]) -> dict[str, xr.Dataset]:
    """The computed rows of each method, combined."""
    grids = {}
    for method in METHODS:
        rows = [arrays for name, arrays in found.items() if name.startswith(f"{method}-")]
        if rows:
            over = ("log_lengthscale", "log_variance")
            rows.sort(key=lambda arrays: float(arrays["log_lengthscale"]))
            grids[method] = xr.Dataset(
                {
                    name: (over, np.stack([arrays[name] for arrays in rows]))
                    for name in (*QUANTITIES, "converged", "iterations")
                },
                coords={
                    "log_lengthscale": [float(arrays["log_lengthscale"]) for arrays in rows],
                    "log_variance": rows[0]["log_variance"],
                },
            )
    return grids


def peak(values: xr.DataArray) -> dict[str, float]:
    """Coordinates of the largest of values (log_lengthscale, log_variance)."""
    indices = np.unravel_index(np.nanargmax(values.values), values.shape)
    return {str(dim): float(values[dim].values[i]) for dim, i in zip(values.dims, indices, strict=True)}


def on_edge(at: Mapping[str, float], grid: xr.Dataset) -> bool:
    return any(x in (grid[dim].min(), grid[dim].max()) for dim, x in at.items())


def shown(at: Mapping[str, float]) -> str:
    return f"({at['log_lengthscale']:g}, {at['log_variance']:g})"


EXPERIMENT = Figure7()
