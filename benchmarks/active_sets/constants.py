"""Marginal likelihoods of table 1 of Girolami and Rogers with constants that they may include, and the toy's size.

The numbers of Laplace and VB in the table depend on constants. Relevances are those of table 1 here, by the mean field
with the authors' weights. The toy's number of training points is not printed: for relevances as in all runs of section
6.1, the error of VB is a function of this number.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.active_sets.known import METHODS, approximated, prior_of, scores
from benchmarks.active_sets.relevances import learn
from benchmarks.active_sets.table1 import FILES, TOY, load
from benchmarks.active_sets.toy import RELEVANT, draw_data
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS

PRINTED = {
    "toy": ((-169.27, 4.27), (-232.00, 17.13)),
    "iris": ((-143.87, 1.04), (-202.98, 1.37)),
    "thyroid": ((-158.18, 1.94), (-246.24, 1.63)),
    "wine": ((-152.22, 1.29), (-253.90, 1.52)),
    "glass": ((-275.11, 2.87), (-776.79, 5.75)),
}
"""Means and standard deviations of the log marginal likelihood by Laplace, and of the bound by VB."""
SPLITS = 3
SIZES = (40, 80, 120, 160, 200, 240)
PHI = np.array([10.0] * RELEVANT + [0.004] * 8)


def evidences(data: str, name: str, seed: int, draws: int, steps: int) -> dict[str, Any]:
    """Log evidence of Laplace with a softmax, and bound of VB, at the relevances of one split."""
    split = load(data, name, seed)
    prior = prior_of(split, learn(split, "authors", ard=True, draws=draws, steps=steps, seed=seed).phi)
    found = []
    with threadpool_limits(1):
        for method in ("Laplace, softmax", "VB"):
            approximator, called = METHODS[method]
            likelihood = next(each for each in LIKELIHOODS if each.name == called)
            zero = np.zeros((split.classes, len(split.y)))
            found.append(approximator.solve(prior.k, zero, split.y, likelihood=likelihood).evidence)
    return {"evidence": found, "points": len(split.y), "classes": split.classes}


def errors(points: int, seeds: int, test: int) -> dict[str, Any]:
    """Errors of VB on toys of this size."""
    wrong = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, points])
        split = Split(*draw_data(points, rng), *draw_data(test, rng))
        wrong.append(scores(approximated("VB", prior_of(split, PHI), split.y, split.classes), split.ynew)[0])
    return {"error": np.array(wrong)}


class Constants(Experiment):
    title = "Marginal likelihoods of table 1 of Girolami and Rogers (2006), and the size of the toy"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"draws": 100, "steps": 3} if quick else {"draws": 500, "steps": 50}
        names = [TOY, *(name for name, file in FILES.items() if (Path(data) / file).exists())]
        return [
            *(
                Cell(f"{name}, split {seed}", evidences, {"data": data, "name": name, "seed": seed, **size})
                for name in names[: 1 if quick else None]
                for seed in range(1 if quick else SPLITS)
            ),
            *(
                Cell(f"toy of {points}", errors, {"points": points, "seeds": 2 if quick else 10, "test": 1000})
                for points in SIZES[: 1 if quick else None]
            ),
        ]

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        evidence, size = [], []
        for name, ((laplace, _), (vb, _)) in PRINTED.items():
            splits = [cell for called, cell in found.items() if called.startswith(f"{name}, split")]
            if splits:
                points, classes = int(splits[0]["points"]), int(splits[0]["classes"])
                own = np.mean([cell["evidence"] for cell in splits], axis=0)
                half = points / 2 * np.log(2 * np.pi)
                evidence.append((name, points, len(splits), laplace, own[0], own[0] - half,
                                 vb, own[1], own[1] - half * (classes - 1)))  # fmt: skip
        for points in SIZES:
            if (cell := found.get(f"toy of {points}")) is not None:
                wrong = 100 * cell["error"]
                size.append((points, wrong.mean(), wrong.std(ddof=1)))
        columns = ("data", "n", "splits", "Laplace: printed", "ours", "ours − n/2 log 2π",
                   "VB: printed", "ours", "ours − (K − 1) n/2 log 2π")  # fmt: skip
        formats = "", "d", "d", ".1f", ".1f", ".1f", ".1f", ".1f", ".1f"
        return {
            "evidences": Table("Marginal likelihoods", columns, formats, evidence),
            "size of the toy": Table(
                "Error of VB on the toy, %", ("points", "mean", "sd of data sets"), ("d", ".1f", ".1f"), size
            ),
        }

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record = {name: {key: values.tolist() for key, values in cell.items()} for name, cell in found.items()}
        return record, "\n\n".join(map(str, self.tables(found).values()))


EXPERIMENT = Constants()
