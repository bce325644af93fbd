"""LA-TKP by equation (23), without and with division by its sum over classes, in the folds of figure 9.

Equation (23) is the ratio of Laplace's normalisers with and without the new point. The ratios of a point need not sum
to one. Hyperparameters are those of Laplace's method with a softmax, as in figure 9.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

from benchmarks.active_sets.toy import covariance
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper import data, predictive
from benchmarks.paper.fixed import JITTER, of_labels
from pymc_gpep.approximations import Laplace
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS

FOLDS = 10


def ratios(folder: str, name: str, number: int, size: list[int] | None = None) -> dict[str, Any]:
    """Ratios of normalisers of held-out points (m, c), their labels, and the probabilities of LA."""
    split = predictive.load(folder, name, number, size)
    model, gp = predictive.classifier(split, ard=True, softmax=True)
    fit = pm.fit(method="laplace", model=model, hyper="map", progressbar=False)
    magnitude = float(fit.hyperparameters["magnitude"].item())
    phi = 0.5 / np.broadcast_to(fit.hyperparameters["length_scale"].values, split.X.shape[1]) ** 2
    X = np.vstack([split.X, split.Xnew])
    k = magnitude * covariance(X, X, phi) + JITTER * np.eye(len(X))
    n, softmax = len(split.y), next(each for each in LIKELIHOODS if each.name == "softmax")

    def evidence(rows: list[int], y: np.ndarray) -> float:
        block = np.ascontiguousarray(k[np.ix_(rows, rows)])
        return Laplace().solve(block, np.zeros((split.classes, len(rows))), y, likelihood=softmax).evidence

    learned = list(range(n))
    with threadpool_limits(1):
        before = evidence(learned, split.y)
        after = [
            [evidence([*learned, n + i], np.append(split.y, label)) for label in range(split.classes)]
            for i in range(len(split.ynew))
        ]
    return {"ratios": np.exp(np.array(after) - before), "y": split.ynew, "p": fit.predict(gp, split.Xnew)["p"].values}


class TkpSums(Experiment):
    title = "LA-TKP with and without division by its sum over classes"

    def cells(self, folder: str, quick: bool) -> Sequence[Cell]:
        names = [name for name, file in data.CROSS_VALIDATED.items() if (Path(folder) / file).exists()]
        return [
            Cell(f"{name}.{number}", ratios,
                 {"folder": folder, "name": name, "number": number, "size": [40, 5] if quick else None})
            for name in (("wine",) if quick else names)
            for number in range(1 if quick else FOLDS)
        ]  # fmt: skip

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        rows = []
        for name in data.CROSS_VALIDATED:
            folds = [cell for called, cell in found.items() if called.split(".")[0] == name]
            if folds:
                sums = np.concatenate([cell["ratios"].sum(axis=1) for cell in folds])
                ratio, la = (
                    np.log(np.concatenate([of_labels(cell[key], cell["y"]) for cell in folds]))
                    for key in ("ratios", "p")
                )
                rows.append((data.TITLES[name], len(folds), la.mean(), ratio.mean(), (ratio - np.log(sums)).mean(),
                             sums.mean(), sums.min(), sums.max()))  # fmt: skip
        columns = (
            "data",
            "folds",
            "density: LA",
            "LA-TKP as (23)",
            "LA-TKP divided",
            "mean sum",
            "smallest",
            "largest",
        )
        return {"densities": Table(self.title, columns, ("", "d", *[".3f"] * 6), rows)}

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record = {name: {key: values.tolist() for key, values in cell.items()} for name, cell in found.items()}
        return record, str(self.tables(found)["densities"])


EXPERIMENT = TkpSums()
