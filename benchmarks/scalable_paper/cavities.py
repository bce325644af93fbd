"""Cavities of stochastic EP: without 1/(N(C − 1)) of the average sites (section 2.3.1), or by function.

A factor of the product (6) has sites on two of the C functions. So a function has about 2N(C − 1)/C sites, and one of
them is C/2 times the fraction that the paper removes. Both variants are fitted to a part of MNIST in the same steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pymc as pm

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.scalable_paper.batch_methods import CENTRES
from benchmarks.scalable_paper.batches import batch_model, load
from benchmarks.scalable_paper.scoring import scores
from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.streaming.memories import STREAMING_METHODS, Stochastic

Array = np.ndarray

BATCH, SEEDS = 200, 3


class PrintedCavity(Stochastic):
    """Stochastic EP with cavities as printed: all functions lose the fraction 1/n of their sites, n = N(C − 1)."""

    name: ClassVar[str] = "printed"

    def share(self, counts: Array) -> Array:
        return super().share(self._factors(counts))

    def constant(self, q: Any, counts: Array) -> np.float64:
        return super().constant(q, self._factors(counts))

    def _factors(self, counts: Array) -> Array:
        """Number of factors of all rows, for each function: each factor has two sites."""
        return np.full_like(counts, 0.5 * counts.sum())


MEMORIES = {"ours": Stochastic, "printed": PrintedCavity}


def fitted(
    data: str, which: str, points: int, held_out: int, inducing: int, epochs: Sequence[int], seed: int
) -> dict[str, Any]:
    """Errors and negative log likelihoods of held-out labels after some epochs."""
    rng = np.random.default_rng(seed)
    split = load(data, "mnist", None, None)
    train, test = rng.permutation(split.y.size)[:points], rng.permutation(split.ynew.size)[:held_out]
    split = split._replace(X=split.X[train], y=split.y[train], Xnew=split.Xnew[test], ynew=split.ynew[test])
    known, found = STREAMING_METHODS["sparse_sep"], []
    STREAMING_METHODS["sparse_sep"] = (MEMORIES[which],)
    try:
        with batch_model(split, shared=True, relevances=False, start=CENTRES):
            fit = None
            for done, until in zip((0, *epochs), epochs, strict=False):
                fit = pm.fit(
                    (until - done) * (points // BATCH), method="sparse_sep", sites="pairwise", start=fit,
                    inducing=CENTRES.inducing(split, inducing, True), shared_inducing=True, batch_size=BATCH,
                    data=(split.X, split.y), progressbar=False, random_seed=seed,
                    obj_optimizer=pm.adam(learning_rate=1e-2), compile_kwargs={"mode": INTERPRETED},
                )  # fmt: skip
                p = fit.predict(split.Xnew, covariances=False)["p"].values
                found.append(scores(p, split.ynew)[:2])
    finally:
        STREAMING_METHODS["sparse_sep"] = known
    return {"epochs": list(epochs), "scores": found}


class Cavities(Experiment):
    title = "Cavities of stochastic EP as printed and by function, on a part of MNIST"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size: dict[str, Any] = {"points": 3000, "held_out": 2000, "inducing": 100, "epochs": [5, 20]}
        if quick:
            size = {"points": 400, "held_out": 200, "inducing": 10, "epochs": [1]}
        return [
            Cell(f"{which} {seed}", fitted, {"data": data, "which": which, "seed": seed, **size})
            for seed in range(1 if quick else SEEDS)
            for which in MEMORIES
        ]

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        runs = {which: [found.get(f"{which} {seed}") for seed in range(SEEDS)] for which in MEMORIES}
        both = [seed for seed in range(SEEDS) if all(of[seed] is not None for of in runs.values())]
        rows = []
        scores = {which: np.array([of[seed]["scores"] for seed in both]) for which, of in runs.items()}
        for i, epoch in enumerate(runs["ours"][both[0]]["epochs"].tolist() if both else []):
            for which, values in scores.items():
                means = values[:, i].mean(axis=0)
                rows.append((which, epoch, len(both), f"{means[1]:.4f}", f"{means[0]:.4f}"))
            apart = np.abs(scores["ours"] - scores["printed"])[:, i].max(axis=0)
            rows.append(("largest difference of a draw", epoch, len(both), f"{apart[1]:.4f}", f"{apart[0]:.1e}"))
        columns = ("cavity", "epochs", "draws", "error", "score")
        return {"scores": Table(self.title, columns, ("", "d", "d", "", ""), rows)}

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record = {name: run["scores"].tolist() for name, run in found.items()}
        return record, str(self.tables(found)["scores"])


EXPERIMENT = Cavities()
