"""Loss of active rows against all rows, at the same hyperparameters: segmentation, satellite and digits, probit.

All classes share one squared exponential. Its magnitude and length scale are near the maximum of nested EP's evidence
on 300 random training rows. Separate cells find this maximum again. The training part of satellite is a random 2000 of
its 4435 rows. Nested EP of all 4649 digits would take hours, and is not run. Random active rows, whose sites are also
iterated, are equivalent to nested EP of a random subset of rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from benchmarks.active_sets.first_rows import by_first_rows
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split, read_table, split, standardised, subset
from benchmarks.paper.fixed import at_held_out, distances, of_labels, probabilities, squared_exponential
from benchmarks.paper.predictive import classifier
from pymc_gpep.approximations import NestedEP
from pymc_gpep.rivals.ivm import IVM
from pymc_gpep.rivals.selection.row_site_rules import DenseRows

Array = np.ndarray

SATELLITE_TRAIN = 4435
FILES = {
    "segmentation, 2100 rows": ("segmentation_test.csv", "segmentation_train.csv"),
    "segmentation, 210 rows": ("segmentation_train.csv", "segmentation_test.csv"),
    "satellite, 2000 rows": ("satellite.csv.gz",),
}
DIGITS = "ten digits, 4649 rows"
NAMES = (*FILES, DIGITS)
SIZES: dict[str, tuple[int, int]] = {"satellite, 2000 rows": (2000, 2000)}
AT = {
    "segmentation, 2100 rows": (4.9, 1.6),
    "segmentation, 210 rows": (4.0, 1.6),
    "satellite, 2000 rows": (3.2, 2.0),
    DIGITS: (4.9, 3.2),
}
"""Log σ² and log length scale of the predictions."""
COUNTS, MORE = (50, 100, 200, 500), (1000,)
"""Numbers of active rows. `MORE` is for the digits alone."""
SCORES = ("expected", "information", "random")
WHOLE, MAXIMUM = "all rows", "maximum"
WINDOW = "window"
"""First word of pieces that compare sites which are updated once with sites of the latest rows that move."""
LIQUID = (1, 25)
"""Numbers of latest rows whose sites move while rows are chosen. 25 is the paper's."""
WINDOWED = {"segmentation, 2100 rows": [1000, 210], "satellite, 2000 rows": [1500, 2000]}
"""Data sets of these pieces, with the numbers of rows to learn from and to predict."""
CHOICES, WINDOWED_COUNTS = 2, (50, 150)
"""Number of choices of rows for each piece, and numbers of active rows."""


def load(data: str, name: str, size: Sequence[int] | None) -> Split:
    """Training part and test part, standardised by the training part. `size` limits both."""
    if name == DIGITS:
        digits = split("usps10", data)
        return subset(digits, *size) if size else digits
    tables = [read_table(Path(data) / file) for file in FILES[name]]
    if len(tables) == 1:
        [(inputs, labels)] = tables
        tables = [(inputs[part], labels[part]) for part in (slice(SATELLITE_TRAIN), slice(SATELLITE_TRAIN, None))]
    (X, y), (Xnew, ynew) = tables
    X, Xnew = standardised(X, Xnew)
    names = np.unique(y)
    whole = Split(X, np.searchsorted(names, y), Xnew, np.searchsorted(names, ynew))
    size = size or SIZES.get(name)
    return subset(whole, *size) if size else whole


def learned(data: str, name: str, learn_from: int) -> Arrays:
    """The maximum of nested EP's posterior of both hyperparameters, on some of the rows."""
    part = subset(load(data, name, None), learn_from, 1)
    model, _ = classifier(part, ard=False)
    fit = pm.fit(method="nested_ep", model=model, hyper="map", progressbar=False)
    return {"hyper": np.log([fit.hyperparameters[key].item() for key in ("magnitude", "length_scale")])}


def by_all_rows(data: str, name: str, size: list[int] | None) -> Arrays:
    """Log densities of held-out labels, and whether predictions are right, by nested EP of all rows."""
    parts = load(data, name, size)
    prior = squared_exponential(distances(parts), *AT[name])
    with threadpool_limits(1):
        solution = NestedEP().solve(prior.k, np.zeros((parts.classes, len(parts.y))), parts.y)
        p = probabilities("multinomial_probit", *at_held_out(solution, prior))
    found = np.stack([np.log(of_labels(p, parts.ynew)), p.argmax(axis=1) == parts.ynew])
    whole = {"found": found[None], "counts": np.array([len(parts.y)])}
    return whole | {"converged": np.array(solution.convergence.converged)}


def by_active_rows(
    data: str, name: str, score: str, counts: Sequence[int], size: list[int] | None
) -> Arrays:  # fmt: skip
    """As `by_all_rows`, by increasing numbers of first active rows, up to all rows."""
    parts = load(data, name, size)
    prior = squared_exponential(distances(parts), *AT[name])
    n, classes = len(parts.y), parts.classes
    counts = [count for count in counts if count < n]
    ivm = IVM(active=counts[-1], criterion=score, rows=counts[-1] + 1, sites="coupled")
    with threadpool_limits(1):
        solution = ivm.solve(DenseRows(prior.k, np.zeros((classes, n))), parts.y, random_seed=1)
        found = []
        for mean, cov in by_first_rows(ivm, solution, prior.cross[:, solution.selection.rows], prior.variance, counts):
            p = probabilities("multinomial_probit", mean, cov)
            found.append([np.log(of_labels(p, parts.ynew)), p.argmax(axis=1) == parts.ynew])
    return {"found": np.array(found), "counts": np.array(counts), "converged": np.array(solution.converged)}


def by_window(data: str, name: str, score: str, active: int, liquid: int, choices: int, size: list[int]) -> Arrays:
    """Mean log densities (choices, 2) of held-out labels: by sites as chosen, and after all sites were iterated."""
    parts = load(data, name, size)
    prior = squared_exponential(distances(parts), *AT[name])
    nothing = np.zeros((parts.classes, len(parts.y)))
    found = np.empty((choices, 2))
    options: dict[str, Any] = {
        "active": active,
        "criterion": score,
        "rows": active + 1,
        "sites": "coupled",
        "passes": 3,
    }
    for seed in range(choices):
        for i, polish in enumerate((False, True)):
            ivm = IVM(liquid=min(liquid, active), polish=polish, **options)
            with threadpool_limits(1):
                solution = ivm.solve(DenseRows(prior.k, nothing), parts.y, random_seed=seed)
                cross = prior.cross[:, solution.selection.rows]
                ((mean, cov),) = by_first_rows(ivm, solution, cross, prior.variance, (active,))
                p = probabilities("multinomial_probit", mean, cov)
            found[seed, i] = np.log(of_labels(p, parts.ynew)).mean()
    return {"found": found}


class AllRows(Experiment):
    title = "Loss by active rows compared with all rows, at the same hyperparameters"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        common: dict[str, Any] = {"data": data, "size": [60, 60] if quick else None}
        names = NAMES[1:2] if quick else NAMES

        def counts_of(name: str) -> Sequence[int]:
            return (10, 20) if quick else (*COUNTS, *MORE) if name == DIGITS else COUNTS

        return [
            *(Cell(f"{name}, {WHOLE}", by_all_rows, {"name": name, **common}) for name in names if name != DIGITS),
            *(
                Cell(f"{name}, {score}", by_active_rows,
                     {"name": name, "score": score, "counts": counts_of(name), **common})
                for score in (SCORES[:1] if quick else SCORES)
                for name in names
            ),
            *(
                Cell(f"{name}, {MAXIMUM}", learned, {"data": data, "name": name, "learn_from": 30 if quick else 300})
                for name in names
            ),
            *(
                Cell(f"{WINDOW}, {name}, {score}, {active}, liquid {liquid}", by_window,
                     {"data": data, "name": name, "score": score, "active": active, "liquid": liquid,
                      "choices": 1 if quick else CHOICES, "size": [60, 60] if quick else size})
                for name, size in WINDOWED.items() if name in names
                for score in SCORES[:2]
                for active in ((20,) if quick else WINDOWED_COUNTS)
                for liquid in LIQUID
            ),
        ]  # fmt: skip

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| data | rows | chosen by | mean log density | loss compared with all rows | accuracy | seconds |",
            "| --- " * 7 + "|",
        ]
        record: dict[str, Any] = {}
        for name in NAMES:
            whole = found.get(f"{name}, {WHOLE}")
            for title in (WHOLE, *SCORES):
                if (run := found.get(f"{name}, {title}")) is None:
                    continue
                rows = []
                for count, (density, right) in zip(run["counts"], run["found"], strict=True):
                    row = {"rows": int(count), "density": float(density.mean()), "accuracy": float(right.mean())}
                    shown = ""
                    if whole is not None and title != WHOLE:
                        gap = whole["found"][0, 0] - density
                        row["gap"], row["error"] = float(gap.mean()), float(gap.std() / np.sqrt(len(gap)))
                        shown = f"{row['gap']:.4f} ± {row['error']:.4f}"
                    rows.append(row)
                    lines.append(
                        f"| {name} | {count} | {title if title != WHOLE else ''} | {row['density']:.4f} | {shown} "
                        f"| {row['accuracy']:.4f} | {float(run['seconds']):.0f} |"
                    )
                record[f"{name}, {title}"] = {"found": rows, "converged": bool(run["converged"])}
        maxima = "; ".join(
            f"{name}: {run['hyper'][0]:.2f}, {run['hyper'][1]:.2f} ({at[0]:.2f}, {at[1]:.2f})"
            for name, at in AT.items()
            if (run := found.get(f"{name}, {MAXIMUM}")) is not None
        )
        notes = (
            "Seconds are for one selection of rows with the predictions by all numbers of rows. Standard errors are "
            "over held-out points. log σ² and log ℓ with the highest evidence of some rows, and in brackets the "
            f"values used: {maxima}."
        )
        return record, "\n".join([*lines, "", notes, *(f"\n{each}" for each in self.tables(found).values())])

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of sites that move. The other tables were printed before there were records."""
        rows = []
        for name, (size, _) in WINDOWED.items():
            for score in SCORES[:2]:
                for active in WINDOWED_COUNTS:
                    runs = [found.get(f"{WINDOW}, {name}, {score}, {active}, liquid {liquid}") for liquid in LIQUID]
                    if all(run is not None for run in runs):
                        texts = [" → ".join(f"{x:.3f}" for x in run["found"].mean(axis=0)) for run in runs]
                        rows.append((f"{name.partition(',')[0]}, {size} rows", score, active, *texts))
        columns = ("data", "chosen by", "active rows", *(f"`liquid={liquid}`" for liquid in LIQUID))
        return {WINDOW: Table("Sites that move", columns, ("", "", "d", "", ""), rows)} if rows else {}

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        names = [name for name in NAMES if any(f"{name}, {score}" in found for score in SCORES)]
        if not names:
            return None
        figure = Figure(figsize=(4.0 * len(names), 3.5), layout="constrained")
        for ax, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            for score in SCORES:
                if (run := found.get(f"{name}, {score}")) is not None:
                    ax.plot(run["counts"], run["found"][:, 0].mean(axis=1), ".-", label=score)
            if (whole := found.get(f"{name}, {WHOLE}")) is not None:
                ax.axhline(whole["found"][0, 0].mean(), color="black", linewidth=0.8, label=WHOLE)
            ax.set(title=name, xlabel="active rows", ylabel="mean log density")
            ax.legend(fontsize=8)
        return figure


EXPERIMENT = AllRows()
