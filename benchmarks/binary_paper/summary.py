"""The table of section 12.3: the largest information by each method, in 96 trials."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from benchmarks.binary_paper.covariances import COVARIANCES, JITTER
from benchmarks.binary_paper.data import DRAWN, NOTE, TITLES, USPS
from benchmarks.binary_paper.methods import AUTHORS, EVERY, LINKS, METHODS
from benchmarks.binary_paper.paths import PROGRAMS, RIDGES, STEPPED
from benchmarks.binary_paper.sweep import (
    COORDINATES,
    LOG_LENGTHSCALES,
    LOG_MAGNITUDES,
    beyond,
    every_other,
    gathered,
    nested,
    peak,
    sweep,
)
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.plots.canvas import MARKERS, colours

Array = np.ndarray

PAPER = {
    "mean": dict(zip(METHODS, (31, 0, 0, 6, 34, 92, 31), strict=True)),
    "median": dict(zip(METHODS, (54, 0, 0, 15, 48, 96, 51), strict=True)),
}
PRINTED = "paper"
"""First words of rows with printed counts."""
SWEPT = (*EVERY, *STEPPED, *PROGRAMS)
TRIALS = 96
SPLITS = 3
"""Number of random splits, since the paper's split is not published. The paper's table has one split."""
MIXED = "program, FV of the text where K has full rank: all"
"""Row of the table with the program's FV for `LOW_RANK` alone."""
WITH_RIDGES = ("crabs", "sonar")
RIDGE_PART = "ridges"
"""Part with the program's FV alone, on the coarse grid of these data sets, for other ridges."""
LOW_RANK = ("linear", "polynomial 1", "polynomial 2", "polynomial 3")
"""Covariances whose matrices have fewer large eigenvalues than rows. Means of FV depend on the ridge."""
PROGRAMS_TABLE, PROGRAMS_ON_USPS = "programs", "programs on USPS"
"""Keys of the tables with the program's iterations: on five data sets, and on USPS, which was run later."""
LINEAR, WITH_OFFSET = "linear", "polynomial 1"
"""A linear covariance with an offset of 1 is the polynomial covariance of degree 1."""
Ends = tuple[tuple[float, float], tuple[float, float]]
GRID: Ends = LOG_LENGTHSCALES, LOG_MAGNITUDES
AROUND = "around"
QUARTER = "quarter"
"""Part of the grid with alternate points of the coarse grid in either direction, 4 × 4."""
LARGE = ("breast", "pima", USPS)
"""Data sets with this part: their coarse grids take four times as long."""
MORE = 3
"""Lines and columns of the coarse grid beyond each of its sides, to see the effect of other limits."""
OTHER_ENDS: list[Ends] = [
    (lengthscales, magnitudes)
    for lengthscales in ((0.0, 5.0), (-2.0, 7.0))
    for magnitudes in ((-1.0, 2.5), (-1.0, 4.0), (-1.0, 5.0), (-4.0, 7.5))
]
ALIKE = 1e-3
"""Bits by which a method must be below the mean or the median to be clearly below."""
WHOSE: dict[str, dict[str, str]] = {
    "text": {},
    "code": {name.partition(",")[0]: name for name in AUTHORS},
    "code, few steps": {name.partition(",")[0]: name for name in (*AUTHORS, *STEPPED)},
    "program": {name.partition(",")[0]: name for name in ("LR, code", *PROGRAMS)},
    "program, naive TAP alone": {"TAPnaive": "TAPnaive, program"},
    "program, FV alone": {"FV": "FV, program"},
}
"""Variants that represent methods."""
READING = (
    "A trial is a data set, a likelihood and a covariance function; its result is the information in bits at the best "
    "point of the grid, for each method. The table counts trials in which this information is below the mean, or the "
    "median, of the seven methods. Brackets contain the number of trials in which it is below by more than 0.001 bit. "
    "The authors' code differs from the text in label regression and naive TAP; rows for the code compare the seven "
    "methods of the code. It also ends the factorial method and naive TAP after a hundred steps. The program of May "
    "2007 has other steps. All methods are compared on the same points of the grid. Solves that did not converge are "
    "left out, and solves by the factorial method whose bound has only rounding errors. A method without remaining "
    "solves has 0 bit."
)


class Trial(NamedTuple):
    """A data set, its split, a likelihood and a covariance function."""

    data: str
    split: int
    likelihood: str
    covariance: str

    @property
    def name(self) -> str:
        return ".".join(map(str, self)).replace("/", "_").replace(" ", "-")


def trials(splits: int = SPLITS) -> list[Trial]:
    """Trials of the first split of all data sets, small data sets first, and then of the other splits."""
    return [
        Trial(data, split, likelihood, covariance)
        for split in range(splits)
        for data in (*sorted(DRAWN, key=lambda name: DRAWN[name].n), USPS)
        if split == 0 or data != USPS
        for likelihood in LINKS
        for covariance in COVARIANCES
    ]


Grids = dict[Trial, dict[str, xr.Dataset]]


class Summary(Experiment):
    """Alternate points of the 16 × 16 grid come first, so that an interrupted run has a complete coarse grid."""

    title = "The table of section 12.3: best information in 96 trials"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        if quick:
            chosen = [
                Trial(name, 0, likelihood, covariance)
                for name in ("crabs", "sonar")
                for likelihood in LINKS
                for covariance in ("linear", "squared exponential")
            ]
            parts, size = nested(4, 4), [40, 40]
        else:
            chosen, parts, size = trials(), nested(16, 16), None
        return [
            Cell(
                f"{trial.name}.{part}",
                sweep,
                {
                    "data": data, "name": trial.data, "number": trial.split, "likelihood": trial.likelihood,
                    "covariance": trial.covariance, "points": points, "methods": list(SWEPT), "size": size,
                    "rough": True,
                },
            )
            for part, points, which in _order(chosen, parts, 1 if quick else MORE)
            for trial in which
        ] + [
            Cell(
                f"{trial.name}.{RIDGE_PART}",
                sweep,
                {
                    "data": data, "name": trial.data, "number": 0, "likelihood": trial.likelihood,
                    "covariance": trial.covariance, "points": parts[0], "methods": list(RIDGES), "size": size,
                    "rough": True,
                },
            )
            for trial in chosen
            if trial.split == 0 and trial.data in WITH_RIDGES and not quick
        ]  # fmt: skip

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        pieces, found = found, {name: part for name, part in found.items() if not name.endswith(RIDGE_PART)}
        best = best_information(grids_of(found))
        lines = [READING, "", NOTE, ""]
        record: dict[str, Any] = {"best": {}, "counts": {}}
        for trial, (values, points) in best.items():
            record["best"][trial.name] = dict(values) | {"points": points}
        for split in sorted({trial.split for trial in best}):
            own = {trial: values for trial, (values, _) in best.items() if trial.split == split}
            points = [count for trial, (_, count) in best.items() if trial.split == split]
            lines += [
                f"## Split {split}: {len(own)} trials, {min(points)} to {max(points)} points of the grid", "",
                f"| below | whose | {' | '.join(METHODS)} |", "| --- " * (2 + len(METHODS)) + "|",
            ]  # fmt: skip
            for measure, paper in PAPER.items():
                lines.append(f"| {measure} | paper, of {TRIALS} | {' | '.join(map(str, paper.values()))} |")
                for whose in WHOSE:
                    counts = below(list(own.values()), measure, whose)
                    record["counts"][f"split {split}, {measure}, {whose}"] = counts
                    shown = " | ".join(f"{all_} ({clear})" for all_, clear in counts.values())
                    lines.append(f"| {measure} | ours, {whose}, of {len(own)} | {shown} |")
            lines.append("")
        chosen, table = _chosen(found)
        failed = _failed(found)
        shown = ", ".join(f"{method} {count} of {of}" for method, (count, of) in failed.items())
        record |= {"chosen": chosen, "not converged": failed}
        return record, "\n".join(
            [*lines, *_averages(best), "", *_other_ends(found), *table, "", f"Not converged: {shown}.",
             *(f"\n{each}" for each in self.tables(pieces).values())]
        )  # fmt: skip

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table with the program's iterations, by data set. Other tables were stored before there were records."""
        chosen = {name: part for name, part in found.items() if name.endswith((".coarse", f".{QUARTER}"))}
        best = best_information(grids_of(chosen))
        by_data: dict[str, list[dict[str, float]]] = {}
        for trial, (values, points) in best.items():
            if trial.split == 0:
                by_data.setdefault(f"{TITLES[trial.data]}, {points} points", []).append(values)
        if not by_data:
            return {}
        first = {trial: values for trial, (values, _) in best.items() if trial.split == 0}
        mixed = [
            values if trial.covariance in LOW_RANK else values | {"FV, program": values["FV"]}
            for trial, values in first.items()
        ]
        by_data = by_data | {"all": [values for own in by_data.values() for values in own]}
        rows: list[tuple[Any, ...]] = []
        for measure, paper in PAPER.items():
            rows.append((measure, PRINTED, TRIALS, *map(str, paper.values())))
            for whose in ("text", "program", "program, naive TAP alone", "program, FV alone"):
                for data, own in by_data.items():
                    if data == "all" or whose in ("text", "program"):
                        counts = [str(count) for count, _ in below(own, measure, whose).values()]
                        rows.append((measure, f"{whose}: {data}", len(own), *counts))
            rows.append((measure, MIXED, len(first), *_counts(mixed, measure)))
        if {trial.data for trial in first} == {USPS}:
            return {PROGRAMS_ON_USPS: _counted("Trials below the middle", rows)}
        return {
            PROGRAMS_TABLE: _counted("Trials below the middle", rows),
            "ridges": _counted("Other ridges and offsets", _other_priors(found, first)),
        }

    def joined_tables(self, stored: Mapping[str, Sequence[Sequence[str]]]) -> Mapping[str, tuple[set[str], Table]]:
        """Table of all trials, whose counts are the sums over the data sets."""
        sources = {PROGRAMS_TABLE, PROGRAMS_ON_USPS}
        if not sources <= stored.keys():
            return {}
        counts = [
            {(row[0], row[1]): np.array(row[2:], int) for row in stored[key] if row[1] != PRINTED} for key in sources
        ]
        rows: list[tuple[Any, ...]] = []
        for measure, paper in PAPER.items():
            rows.append((measure, PRINTED, TRIALS, *map(str, paper.values())))
            for of, whose in counts[0]:
                if of == measure and whose.endswith(": all"):
                    trials_of, *total = sum(own[of, whose] for own in counts).tolist()
                    rows.append((measure, whose.removesuffix(": all"), trials_of, *map(str, total)))
        return {"programs, all": (sources, _counted("Trials below the middle, all data sets", rows))}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        """Best information of each trial minus EP's."""
        found = {name: part for name, part in found.items() if not name.endswith(RIDGE_PART)}
        best = {trial: values for trial, (values, _) in best_information(grids_of(found)).items() if trial.split == 0}
        if not best:
            return None
        figure = Figure(figsize=(14, 9), layout="constrained")
        axes = figure.subplots(len(LINKS), 1, squeeze=False)[:, 0]
        for ax, likelihood in zip(axes, LINKS, strict=True):
            own = {trial: values for trial, values in best.items() if trial.likelihood == likelihood}
            for i, (method, colour) in enumerate(zip(METHODS, colours(len(METHODS)), strict=True)):
                ax.plot(
                    [values[method] - values["EP"] for values in own.values()], MARKERS[i], color=colour, label=method,
                    fillstyle="none",
                )  # fmt: skip
            names = [f"{TITLES[trial.data]}, {trial.covariance}" for trial in own]
            ax.set_xticks(range(len(own)), names, rotation=90, fontsize=6)
            ax.set(ylabel="best information minus EP's, bits", title=likelihood)
            ax.axhline(0.0, color="black", linewidth=0.6)
        axes[0].legend(ncols=len(METHODS))
        return figure


def _order(chosen: list[Trial], parts: Sequence[Any], more: int) -> list[tuple[str, Any, list[Trial]]]:
    """Parts in their order: the coarse grid of all splits, then all other points for the first split.

    For large data sets, alternate points of the coarse grid come first.
    """
    coarse, rest = parts
    first = [trial for trial in chosen if trial.split == 0]
    large = [trial for trial in first if trial.data in LARGE]
    return [
        (QUARTER, every_other(coarse), large),
        ("coarse", coarse, chosen),
        ("rest", rest, first),
        (AROUND, beyond(coarse, more), first),
    ]


def grids_of(found: Mapping[str, Arrays], ends: Ends = GRID) -> Grids:
    """Grids by trial and method of all computed parts, between limits of log ℓ and log σ_f."""
    by_name: dict[str, list[Arrays]] = {}
    for name, part in found.items():
        by_name.setdefault(name.rpartition(".")[0], []).append(part)
    known = {trial.name: trial for trial in trials()}
    return between({known[name]: gathered(parts) for name, parts in by_name.items()}, ends)


def between(grids: Grids, ends: Ends) -> Grids:
    """Parts of grids between limits of log ℓ and log σ_f."""
    within = {name: slice(*axis) for name, axis in zip(COORDINATES, ends, strict=True)}
    return {trial: {method: grid.sel(within) for method, grid in each.items()} for trial, each in grids.items()}


def best_information(grids: Grids) -> dict[Trial, tuple[dict[str, float], int]]:
    """The largest information of each method over the grid, and the number of computed points."""
    best = {}
    for trial, by_method in grids.items():
        values = {method: _most(grid) for method, grid in by_method.items()}
        best[trial] = values, int(by_method["EP"]["computed"].sum())
    return best


def _most(grid: xr.Dataset) -> float:
    """Largest information over a grid, 0 if no solve converged."""
    return float(grid["information"].where(grid["converged"]).max().fillna(0.0))


def below(best: Sequence[Mapping[str, float]], measure: str, whose: str) -> dict[str, tuple[int, int]]:
    """Numbers of trials in which each of the seven methods is below their mean or median, and clearly below."""
    names = {method: method for method in METHODS} | WHOSE[whose]
    values = np.array([[own[name] for name in names.values()] for own in best])
    middle = (np.mean if measure == "mean" else np.median)(values, axis=1)[:, None]
    less, clear = values < middle, values < middle - ALIKE
    return {method: (int(less[:, i].sum()), int(clear[:, i].sum())) for i, method in enumerate(METHODS)}


def _other_priors(
    found: Mapping[str, Arrays], best: Mapping[Trial, dict[str, float]]
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Counts with the program: trials with other ridges of FV, and trials with an offset of the linear covariance."""
    grids = grids_of({name: part for name, part in found.items() if name.endswith(RIDGE_PART)})
    own = {trial: best[trial] for trial in grids if trial in best}
    rows: list[tuple[Any, ...]] = []
    for measure in PAPER:
        if own:
            rows.append((measure, f"ridge {JITTER:g}", len(own), *_counts(own.values(), measure)))
        for name, ridge in RIDGES.items():
            changed = [values | {"FV, program": _most(grids[trial][name])} for trial, values in own.items()]
            if changed:
                rows.append((measure, f"ridge {ridge:g}", len(changed), *_counts(changed, measure)))
        moved = [best.get(trial._replace(covariance=WITH_OFFSET) if trial.covariance == LINEAR else trial, values)
                 for trial, values in best.items()]  # fmt: skip
        rows.append((measure, "linear covariance with an offset", len(moved), *_counts(moved, measure)))
    return rows


def _counted(title: str, rows: list[tuple[Any, ...]]) -> Table:
    columns = ("below", "FV, LR and naive TAP of", "trials", *METHODS)
    return Table(title, columns, ("", "", "d", *[""] * len(METHODS)), rows)


def _counts(best: Iterable[Mapping[str, float]], measure: str) -> list[str]:
    return [str(count) for count, _ in below(list(best), measure, "program").values()]


def _failed(found: Mapping[str, Arrays]) -> dict[str, tuple[int, int]]:
    """Numbers of solves of each method that did not converge, and of all solves."""
    counts: dict[str, tuple[int, int]] = {}
    for part in found.values():
        for method, converged in zip(part["methods"].tolist(), part["converged"], strict=True):
            failed, of = counts.get(method, (0, 0))
            counts[method] = failed + int((converged == 0.0).sum()), of + converged.size
    return counts


def _averages(best: Mapping[Trial, tuple[dict[str, float], int]]) -> list[str]:
    """Best information by data set and likelihood, averaged over covariance functions and splits."""
    lines = [
        "## Best information, averaged over covariance functions and splits", "",
        f"| data | likelihood | {' | '.join(SWEPT)} |", "| --- " * (2 + len(SWEPT)) + "|",
    ]  # fmt: skip
    for data in dict.fromkeys(trial.data for trial in best):
        for likelihood in LINKS:
            own = [
                values for trial, (values, _) in best.items() if (trial.data, trial.likelihood) == (data, likelihood)
            ]
            if own:
                means = " | ".join(f"{np.mean([values[method] for values in own]):.3f}" for method in SWEPT)
                lines.append(f"| {TITLES[data]} | {likelihood} | {means} |")
    return lines


def _other_ends(found: Mapping[str, Arrays]) -> list[str]:
    """Counts with other limits of the grid, for trials computed around it, at its coarse points."""
    names = {name.rpartition(".")[0] for name in found if name.endswith(AROUND)}
    coarse = {
        name: part for name, part in found.items() if name.rpartition(".")[0] in names and not name.endswith(".rest")
    }
    lines = [
        f"## Other ends of the grid: {len(names)} trials of the first split", "",
        f"| log ℓ | log σ_f | below | whose | {' | '.join(METHODS)} |", "| --- " * (4 + len(METHODS)) + "|",
    ]  # fmt: skip
    grids = grids_of(coarse, OTHER_ENDS[-1])  # the widest limits
    for ends in OTHER_ENDS if names else []:
        own = [values for values, _ in best_information(between(grids, ends)).values()]
        for measure in PAPER:
            for whose in WHOSE:
                shown = " | ".join(f"{all_} ({clear})" for all_, clear in below(own, measure, whose).values())
                lines.append(f"| {ends[0]} | {ends[1]} | {measure} | {whose} | {shown} |")
    return [*lines, ""]


def _chosen(found: Mapping[str, Arrays]) -> tuple[dict[str, Any], list[str]]:
    """Information at the points that evidence and bound select, averaged over trials, and the best information."""
    columns: dict[str, dict[str, list[float]]] = {}
    for by_method in grids_of(found).values():
        for method, grid in by_method.items():
            where = grid.where(grid["converged"])
            if method in (*STEPPED, *PROGRAMS) or not bool(grid["converged"].any()):
                continue  # iterations of a few steps have no evidence
            row = columns.setdefault(method, {"evidence": [], "bound": [], "best": []})
            row["best"].append(float(where["information"].max()))
            for of in ("evidence", "bound"):
                row[of].append(float(where["information"].sel(peak(where[of]))))
    record = {method: {of: float(np.mean(x)) for of, x in row.items()} for method, row in columns.items()}
    lines = [
        "## Information where hyperparameters are chosen by evidence or bound, averaged over all trials", "",
        f"| chosen by | {' | '.join(record)} |", "| --- " * (1 + len(record)) + "|",
    ]  # fmt: skip
    for of, name in {"evidence": "the method's evidence", "bound": "Jensen's bound", "best": "held-out labels"}.items():
        lines.append(f"| {name} | {' | '.join(f'{row[of]:.3f}' for row in record.values())} |")
    return record, lines


EXPERIMENT = Summary()
