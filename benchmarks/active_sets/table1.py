"""Section 6.2 and table 1 of Girolami and Rogers: the toy and four UCI data sets by Laplace, VB and Gibbs sampling.

A random 60 % of the rows are for training. All rows are standardised by the training rows. The toy, whose numbers of
points are not printed, has 80 random training points and 150 test points. Relevances exp{−Σ_d φ_d (x_d − x'_d)²} come
from 50 steps of the mean field with the authors' weights or with weights of the utilities, and are then the same for
all methods. In addition to the paper, relevances and a magnitude are at the maximum of the evidence of VB or nested EP.
Gibbs sampling has 2000 sweeps of burn-in and 1000 further sweeps, as in the paper's figures.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.active_sets.known import GIBBS, METHODS, approximated, prior_of, sampled, scores
from benchmarks.active_sets.printed import TABLE_1
from benchmarks.active_sets.relevances import RELEVANCES, learn
from benchmarks.active_sets.toy import draw_data
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split, read_table, standardised

TOY, TOY_POINTS = "toy", (80, 150)
FILES = {"iris": "iris.csv", "thyroid": "new_thyroid.csv", "wine": "wine.csv", "glass": "glass.csv"}
NAMES = (TOY, *FILES)
SPLITS = 50
PART = 0.6
COLUMNS = (*METHODS, GIBBS)


def load(data: str, name: str, seed: int, part: float = PART) -> Split:
    """A random split, or new points of the toy."""
    if name == TOY:
        rng = np.random.default_rng(seed)
        return Split(*draw_data(TOY_POINTS[0], rng), *draw_data(TOY_POINTS[1], rng))
    X, labels = read_table(Path(data) / FILES[name])
    y = np.unique(labels, return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.split(order, [round(part * len(y))])
    X, Xnew = standardised(X[train], X[test])
    return Split(X, y[train], Xnew, y[test])


def compare(data: str, name: str, weights: str, seed: int, draws: int, steps: int, burn: int, kept: int) -> Arrays:
    """Error and sum of log probabilities of labels by each method, at the relevances of one split."""
    split = load(data, name, seed)
    learned = learn(split, weights, ard=True, draws=draws, steps=steps, seed=seed)
    prior = prior_of(split, learned.phi, learned.magnitude)
    found = {method: approximated(method, prior, split.y, split.classes) for method in METHODS}
    found[GIBBS] = sampled(split, learned.phi, learned.magnitude, burn=burn, draws=kept, used=kept, seed=seed)
    return {
        "scores": np.array([scores(found[method], split.ynew) for method in COLUMNS]),
        **{key: np.array(value) for key, value in learned._asdict().items()},
    }


class Table1(Experiment):
    title = "Table 1 of Girolami and Rogers (2006): Laplace, VB and Gibbs sampling on UCI data"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"draws": 500, "steps": 50, "burn": 2000, "kept": 1000}
        if quick:
            size = {"draws": 100, "steps": 3, "burn": 50, "kept": 50}
        return [
            Cell(f"{name}, {weights}, split {seed}", compare,
                 {"data": data, "name": name, "weights": weights, "seed": seed, **size})
            for seed in range(1 if quick else SPLITS)
            for name in (("iris",) if quick else NAMES)
            for weights in RELEVANCES
        ]  # fmt: skip

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {}
        lines: list[str] = []
        for weights in RELEVANCES:
            lines += [
                f"## Relevances: {weights}", "",
                f"| data, splits | | printed: Laplace, VB, Gibbs | {' | '.join(COLUMNS)} |",
                "| --- " * (3 + len(COLUMNS)) + "|",
            ]  # fmt: skip
            for name in NAMES:
                runs = of_data(name, weights, found)
                if not runs:
                    lines.append(f"| {name}, 0 |{' not computed |' * (2 + len(COLUMNS))}")
                    continue
                record[f"{name}, {weights}"], own = _rows(name, runs)
                lines += own
            lines.append("")
        notes = (
            "Means ± standard deviations over splits: error in %, and the sum of log probabilities of held-out "
            "labels. Differences are means over splits with their standard errors."
        )
        return record, "\n".join([*lines, notes])


def _rows(name: str, runs: Sequence[Arrays]) -> tuple[dict[str, Any], list[str]]:
    """Rows of one data set."""
    of_all = np.array([run["scores"] for run in runs]) * [100.0, 1.0]
    lines = []
    for i, quantity in enumerate(("error", "density")):
        values = of_all[:, :, i]
        printed = "; ".join(f"{mean} ± {sd}" for mean, sd in TABLE_1[name][quantity])
        shown = " | ".join(
            f"{mean:.2f} ± {sd:.2f}" for mean, sd in zip(values.mean(axis=0), values.std(axis=0), strict=True)
        )
        title = f"{name}, {len(runs)}" if i == 0 else ""
        lines.append(f"| {title} | {'error, %' if i == 0 else 'log density'} | {printed} | {shown} |")
    density = of_all[:, :, 1]
    pairs = [("VB", GIBBS), ("Laplace, softmax", GIBBS), ("Laplace, probit", GIBBS), ("nested EP", GIBBS)]
    differences = {}
    for one, other in pairs:
        gap = density[:, COLUMNS.index(one)] - density[:, COLUMNS.index(other)]
        differences[f"{one} − {other}"] = (float(gap.mean()), float(gap.std() / np.sqrt(len(gap))))
    shown = ", ".join(f"{pair}: {mean:.2f} ± {error:.2f}" for pair, (mean, error) in differences.items())
    lines.append(f"| | differences | | {shown} |" + " |" * (len(COLUMNS) - 1))
    record = {
        "splits": len(runs),
        "mean": of_all.mean(axis=0).tolist(),
        "sd": of_all.std(axis=0).tolist(),
        "differences": differences,
        "steps": float(np.median([run["steps"] for run in runs])),
        "effective": float(np.median([run["effective"] for run in runs])),
        "bound": float(np.mean([run["bound"] for run in runs])),
    }
    return record, lines


def of_data(name: str, weights: str, found: Mapping[str, Arrays]) -> list[Arrays]:
    """Results of a data set in the order of splits."""
    return [found[key] for seed in range(SPLITS) if (key := f"{name}, {weights}, split {seed}") in found]


EXPERIMENT = Table1()
