"""Figures 9 to 11: evidence, Jensen's bound, information and errors over length scale and magnitude."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from benchmarks.binary_paper.data import NOTE, TITLES, USPS
from benchmarks.binary_paper.methods import GAUSSIAN, LINKS
from benchmarks.binary_paper.sweep import COORDINATES, gathered, nested, peak, shown, sweep
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.plots import plot_evidence_grid

COVARIANCE = "squared exponential"
SWEPT = (*GAUSSIAN, "FV")
SHIFT = float(np.log(np.sqrt(2.0 * np.pi) / 4.0))
"""log σ_f of a logit minus log σ_f of a probit with the same slope at 0, with the opposite sign: −0.467."""
REACH = 200.0  # nats below the largest evidence or bound, at which the picture clips lower values
FAR = 1.0  # nats by which one evidence counts as larger than another


class Panel(NamedTuple):
    """A row of the picture."""

    figure: str
    data: str
    likelihood: str
    methods: tuple[str, ...]


PANELS = (
    Panel("Figure 9", USPS, "logit", GAUSSIAN),
    Panel("Figure 10", USPS, "probit", ("FV",)),
    Panel("Figure 11", "sonar", "probit", GAUSSIAN),
)
QUANTITIES = ("evidence", "bound", "information", "errors")
PRINTED = (2.0, 4.0)
AT_PRINTED = {
    "evidence": ("log evidence", 2),
    "bound": ("Jensen's bound", 1),
    "information": ("information, bits", 3),
    "errors": ("errors of 773", 0),
}
"""Rows of the table of this point."""
OF_FV = ("evidence", "printed", "information", "errors")
"""Quantities of FV. The second column of figure 10 is the bound as printed in the paper."""

PAPER = (
    "The paper prints contours, and in the text: LA makes 16 errors at (2, 4) for USPS and a logit, and has 0.25 bit "
    "of information there; the evidence of EP is largest at (2.25, 4.25); the information of KL is 0.01 bit above that "
    "of EP at its peak."
)


class Figures9To11(Experiment):
    """Both likelihoods on both data sets, since the paper compares them. Alternate points of the grid come first."""

    title = "Figures 9 to 11: evidence, bound, information and errors over hyperparameters"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        parts, size = (nested(3, 5), [60, 60]) if quick else (nested(21, 25), None)
        return [
            Cell(
                f"{name}.{likelihood}.{part}.{i}",
                sweep,
                {
                    "data": data, "name": name, "number": 0, "likelihood": likelihood, "covariance": COVARIANCE,
                    "points": points, "methods": list(SWEPT), "size": size,
                },
            )
            for part, whole in zip(("coarse", "rest"), parts, strict=True)
            for name, likelihood in ((USPS, "logit"), ("sonar", "probit"), ("sonar", "logit"), (USPS, "probit"))
            for i, points in enumerate(_pieces(whole, 50))
        ]  # fmt: skip

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        grids = dict(_grids(found))
        record: dict[str, Any] = {}
        lines = [PAPER, "", NOTE, ""]
        for (name, likelihood), by_method in grids.items():
            computed = int(by_method["EP"]["computed"].sum())
            lines += [
                f"## {TITLES[name]}, {likelihood}: {computed} of {by_method['EP']['computed'].size} points", "",
                "| method | evidence: largest, at | bound: largest, at | information: largest, at "
                "| information where the evidence is largest | where the bound is | fewest errors | not converged |",
                "| --- " * 8 + "|",
            ]  # fmt: skip
            own = {method: _peaks(grid) for method, grid in by_method.items()}
            record[f"{name}.{likelihood}"] = own | {"points": computed, "claims": _claims(by_method)}
            for method, x in own.items():
                places = [f"{x[of]:.3f}, {shown(x[f'{of} at'])}" for of in ("evidence", "bound", "information")]
                lines.append(
                    f"| {method} | {' | '.join(places)} | {x['information at evidence']:.3f} "
                    f"| {x['information at bound']:.3f} | {x['errors']:.0f} | {x['failed']} |"
                )
            lines += ["", *(f"- {name}: {_rounded(value)}" for name, value in _claims(by_method).items()), ""]
        for name in dict.fromkeys(name for name, _ in grids):
            if all((name, link) in grids for link in LINKS):
                shifted = _shift(grids[name, "logit"], grids[name, "probit"])
                record[f"{name}, shift"] = shifted
                lines += [
                    f"## {TITLES[name]}: probit at a log σ_f that is smaller by {-SHIFT:.3f}, against logit", "",
                    "Median absolute difference of information, and, in brackets, without the shift.", "",
                    *(f"- {method}: {a:.4f} ({b:.4f})" for method, (a, b) in shifted.items()), "",
                ]  # fmt: skip
        return record, "\n".join(lines)

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of the point for which the paper prints LA's information and errors."""
        for cell, part in found.items():
            at = np.flatnonzero((np.asarray(part["points"]) == PRINTED).all(axis=1))
            if cell.startswith(f"{USPS}.logit.") and at.size:
                rows = [
                    (title, *(f"{value:.{digits}f}" for value in part[measure][:, at[0]]))
                    for measure, (title, digits) in AT_PRINTED.items()
                ]
                columns = ("", *part["methods"].tolist())
                return {"at (2, 4)": Table("At (2, 4), USPS, logit", columns, ("",) * len(columns), rows)}
        return {}

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        grids, chosen = dict(_grids(found)), {}
        for panel in PANELS:
            for method in panel.methods if (panel.data, panel.likelihood) in grids else ():
                grid = _complete(grids[panel.data, panel.likelihood][method])
                names = (*COORDINATES, *_quantities(method), "converged")
                chosen[_row(panel, method)] = {name: grid[name].values for name in names}
        return chosen

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        rows = [(panel, method) for panel in PANELS for method in panel.methods if _row(panel, method) in found]
        if not rows:
            return None
        # Margins are fixed, since matplotlib's layout of these axes takes longer than their drawing.
        figure = Figure(figsize=(13.5, 2.7 * len(rows)))
        figure.subplots_adjust(left=0.06, right=0.99, bottom=0.025, top=0.98, wspace=0.15, hspace=0.25)
        axes = figure.subplots(len(rows), len(QUANTITIES), squeeze=False, sharex=True, sharey=True)
        for row, (panel, method) in zip(axes, rows, strict=True):
            own = found[_row(panel, method)]
            data = {name: (COORDINATES, values) for name, values in own.items() if name not in COORDINATES}
            grid = xr.Dataset(data, coords={name: own[name] for name in COORDINATES})
            for quantity in _quantities(method)[:2]:
                grid[quantity] = grid[quantity].clip(min=float(grid[quantity].max()) - REACH)
            plot_evidence_grid({method: grid}, _quantities(method), axes=row[:, None])
            row[0].set_ylabel(f"{panel.figure}, {TITLES[panel.data]}, {panel.likelihood}: {method}\nlog magnitude")
            for ax in row[1:]:
                ax.set_ylabel("")
        return figure


def _row(panel: Panel, method: str) -> str:
    return f"{panel.figure}, {method}"


def _quantities(method: str) -> tuple[str, ...]:
    return OF_FV if method == "FV" else QUANTITIES


def _pieces(points: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [points[i : i + size] for i in range(0, len(points), size)]


def _grids(found: Mapping[str, Arrays]) -> Iterator[tuple[tuple[str, str], dict[str, xr.Dataset]]]:
    """Grids by method of each data set and likelihood with results."""
    for name, likelihood in ((USPS, "logit"), (USPS, "probit"), ("sonar", "probit"), ("sonar", "logit")):
        parts = [part for cell, part in found.items() if cell.startswith(f"{name}.{likelihood}.")]
        if parts:
            yield (name, likelihood), gathered(parts)


def _complete(grid: xr.Dataset) -> xr.Dataset:
    """The grid, or its computed part in whole rows and columns: the coarse grid."""
    if bool(grid["computed"].all()):
        return grid
    coarse = grid.isel(log_lengthscale=slice(None, None, 2), log_magnitude=slice(None, None, 2))
    return coarse if bool(coarse["computed"].all()) else grid


def _peaks(grid: xr.Dataset) -> dict[str, Any]:
    """Largest values with their places, and the choices of evidence and bound."""
    where = grid.where(grid["converged"])
    x: dict[str, Any] = {"failed": int((grid["computed"] & ~grid["converged"]).sum())}
    for of in ("evidence", "bound", "information"):
        x |= {of: float(where[of].max()), f"{of} at": peak(where[of])}
    x |= {f"information at {of}": float(where["information"].sel(x[f"{of} at"])) for of in ("evidence", "bound")}
    return x | {"errors": float(where["errors"].min())}


def _claims(by_method: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """The paper's statements about the grids, counted over points where all methods in question converged."""
    where = {method: grid.where(grid["converged"]) for method, grid in by_method.items()}
    evidence = {method: where[method]["evidence"] for method in SWEPT}
    both = sum(evidence[method] for method in GAUSSIAN).notnull()
    others = [evidence[method] for method in ("LA", "KL", "VB", "FV")]
    highest = np.fmax.reduce([values.values for values in others])
    ep = evidence["EP"].values
    errors = xr.concat([where[method]["errors"] for method in GAUSSIAN], "method")
    spread = (errors.max("method") - errors.min("method")).where(both)
    claims = {
        "points where EP's evidence is the highest, by at least 0.01": _part(ep > highest - 0.01, both),
        "most by which another is above EP's": float(np.nanmax(highest - ep)),
        "evidence of EP: change over the last unit of log σ_f, smallest and largest": _flat(where["EP"]),
        "the same for LA": _flat(where["LA"]),
        "the same for KL": _flat(where["KL"]),
        "bound of VB's Gaussian above VB's own": _part(
            (where["VB"]["bound"] >= where["VB"]["evidence"]).values, both
        ),
        "bound of KL at least as high as the bounds by the Gaussians of other methods": _part(
            np.all([(where["KL"]["bound"] - where[m]["bound"] >= -1e-6 * (1 + abs(where[m]["bound"]))).values
                    for m in ("LA", "EP", "VB")], axis=0), both,
        ),
        "largest and median difference of errors between LA, EP, KL and VB": [
            float(spread.max()), float(spread.median())
        ],
        "errors of FV minus errors of EP: median, largest": [
            float((where["FV"]["errors"] - where["EP"]["errors"]).median()),
            float((where["FV"]["errors"] - where["EP"]["errors"]).max()),
        ],
        "information of KL minus information of EP: smallest, median, largest": _three(where["KL"], where["EP"]),
        "information of LA minus information of EP: smallest, median, largest": _three(where["LA"], where["EP"]),
        "information of VB minus information of EP: smallest, median, largest": _three(where["VB"], where["EP"]),
    }  # fmt: skip
    return claims


def _rounded(value: Any) -> str:
    """Round numbers to four digits, and leave other values unchanged."""
    if isinstance(value, list):
        return ", ".join(map(_rounded, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _part(true: Any, of: xr.DataArray) -> str:
    return f"{int((true & of.values).sum())} of {int(of.sum())}"


def _three(own: xr.Dataset, other: xr.Dataset) -> list[float]:
    difference = own["information"] - other["information"]
    return [float(getattr(difference, of)()) for of in ("min", "median", "max")]


def _flat(grid: xr.Dataset) -> list[float]:
    """Smallest and largest change of the evidence over the last unit of log σ_f, for log ℓ ≤ 3."""
    evidence = grid["evidence"].sel(log_lengthscale=slice(None, 3.0))
    before = evidence.sel(log_magnitude=float(evidence["log_magnitude"][-1]) - 1.0, method="nearest")
    change = (evidence.isel(log_magnitude=-1) - before).dropna("log_lengthscale")
    return [float(change.min()), float(change.max())] if change.size else []


def _shift(logit: Mapping[str, xr.Dataset], probit: Mapping[str, xr.Dataset]) -> dict[str, list[float]]:
    """Median differences of information with and without the shift, by linear interpolation in log σ_f."""
    differences = {}
    for method in SWEPT:
        whole = [_complete(grids[method]) for grids in (logit, probit)]
        ours, theirs = (grid["information"].where(grid["converged"]) for grid in whole)
        at = ours["log_magnitude"]
        moved = [theirs.interp(log_magnitude=(at + by).values).assign_coords(log_magnitude=at) for by in (SHIFT, 0.0)]
        differences[method] = [float(abs(ours - x).where(moved[0].notnull()).median()) for x in moved]
    return differences


EXPERIMENT = Figures9To11()
