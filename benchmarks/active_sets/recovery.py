"""Hyperparameters by the bound of active rows, against nested EP of all rows, on data drawn from the model.

Six standard normal inputs, three of them relevant, three classes, and a multinomial probit. All functions share eta²
times a squared exponential. Length scales and eta maximise the posterior.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split

Array = np.ndarray

INPUTS, CLASSES = 6, 3
LENGTHS, ETA = np.array([1.0, 1.5, 2.0]), 3.0
TRUE = np.log([*LENGTHS, ETA])
ROWS, TEST, ACTIVE = 1000, 1000, 300
SEEDS = 3
WHOLE = "all rows"
METHODS: dict[str, dict[str, Any]] = {
    WHOLE: {"method": "nested_ep"},
    "active rows, expected": {"method": "ivm", "criterion": "expected"},
    "active rows, information": {"method": "ivm", "criterion": "information"},
    "active rows, random": {"method": "ivm", "criterion": "random"},
}


def draw_data(seed: int, rows: int, test: int) -> Split:
    """Draw inputs and labels from the model with the true hyperparameters."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows + test, INPUTS))
    scaled = X[:, : len(LENGTHS)] / LENGTHS
    k = ETA**2 * np.exp(-0.5 * cdist(scaled, scaled, "sqeuclidean"))
    k.flat[:: len(k) + 1] += 1e-6 * ETA**2
    f = np.linalg.cholesky(k) @ rng.standard_normal((len(k), CLASSES))
    y = (f + rng.standard_normal(f.shape)).argmax(axis=1)
    return Split(X[:rows], y[:rows], X[rows:], y[rows:])


def model_of(split: Split) -> tuple[pm.Model, pm.gp.Latent]:
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 5.0)
        ls = pm.LogNormal("ls", np.log(3.0), 1.5, shape=INPUTS)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(INPUTS, ls=ls))
        gpep.MultinomialProbit("y", gp.prior("f", X=split.X, n_outputs=CLASSES).T, observed=split.y)
    return model, gp


def fit_and_predict(seed: int, method: str, rows: int, test: int, active: int) -> Arrays:
    """Log length scales and log eta at the maximum, and log densities of held-out labels."""
    split = draw_data(seed, rows, test)
    model, gp = model_of(split)
    options = dict(METHODS[method])
    if options["method"] == "ivm":
        options["active"] = active
    with threadpool_limits(1):
        fit = pm.fit(model=model, hyper="map", random_seed=seed, progressbar=False, **options)
        p = fit.predict(gp, split.Xnew)["p"].values
    values = [*fit.hyperparameters["ls"].values, float(fit.hyperparameters["eta"])]
    density = np.log(p[np.arange(len(p)), split.ynew])
    return {"hyper": np.log(values), "density": density, "right": p.argmax(axis=1) == split.ynew,
            "converged": np.array(fit.converged)}  # fmt: skip


class Recovery(Experiment):
    title = "Hyperparameters by active rows and by all rows, on draws from the model"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"rows": 60, "test": 50, "active": 30} if quick else {"rows": ROWS, "test": TEST, "active": ACTIVE}
        return [
            Cell(f"{method} {seed}", fit_and_predict, {"seed": seed, "method": method, **size})
            for seed in range(1 if quick else SEEDS)
            for method in (list(METHODS)[:2] if quick else METHODS)
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| data set | method | log ls of relevant inputs | of irrelevant inputs | log eta | largest difference "
            "from all rows | mean log density | − all rows | accuracy | seconds |",
            "| --- " * 10 + "|",
            f"| | truth | {_shown(TRUE[:-1])} | | {TRUE[-1]:.2f} | | | | | |",
        ]
        record: dict[str, Any] = {}
        for seed in range(SEEDS):
            whole = found.get(f"{WHOLE} {seed}")
            for method in METHODS:
                if (run := found.get(f"{method} {seed}")) is None:
                    continue
                at, density = run["hyper"], run["density"]
                row = {"hyper": at.tolist(), "density": float(density.mean()), "accuracy": float(run["right"].mean())}
                row["ranked"] = bool(at[: len(LENGTHS)].max() < at[len(LENGTHS) : -1].min())
                far = gap = ""
                if whole is not None and method != WHOLE:
                    apart = np.abs(at - whole["hyper"])[[*range(len(LENGTHS)), -1]]
                    row["apart"], row["gap"] = float(apart.max()), float((density - whole["density"]).mean())
                    far, gap = f"{row['apart']:.2f}", f"{row['gap']:+.4f}"
                record[f"{method} {seed}"] = row
                unfinished = "" if run["converged"] else " (not converged)"
                lines.append(
                    f"| {seed} | {method}{unfinished} | {_shown(at[: len(LENGTHS)])} | {_shown(at[len(LENGTHS) : -1])} "
                    f"| {at[-1]:.2f} | {far} | {row['density']:.4f} | {gap} | {row['accuracy']:.4f} "
                    f"| {float(run['seconds']):.0f} |"
                )
        note = "Largest differences are of log length scales of relevant inputs, and of log eta."
        return record, "\n".join([*lines, "", note])


def _shown(values: Array) -> str:
    return ", ".join(f"{x:.2f}" for x in values)


EXPERIMENT = Recovery()
