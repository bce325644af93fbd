"""USPS, all ten digits, 4649 points: nested EP with inducing inputs and other methods, against dense nested EP."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper import data, predictive

Array = np.ndarray

POINTS = 4649  # training points, and as many test points
INDUCING = (100, 200, 500)
GIVEN = {"magnitude": 130.0, "length_scale": 25.0}
"""Hyperparameters of a fit with 100 inducing inputs, after 30 sweeps from the start of figure 11."""
NEAR = {"magnitude": 629.0, "length_scale": 25.3}
"""Hyperparameters at the maximum of a fit with 100 centres as inducing inputs."""
ITERATIONS = 10
"""Number of iterations of L-BFGS from `NEAR`, each with one solve or more."""
LEARNED = {"magnitude": 503.0, "length_scale": 21.6}
"""Hyperparameters after these iterations of L-BFGS, with nested EP of all points."""
COMPARED = "EP", "IEP", "VB", "LA"
"""Methods of figure 11, all at these hyperparameters."""


def fit_digits(
    folder: str, size: list[int], inducing: int | None, centres: bool, iterations: int,
    hyperparameters: dict[str, float], method: str = "EP", checkpoint: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Scores, evidence and times of one fit, of all points if there are no inducing inputs.

    Inducing inputs are points far from each other, or k-means centres of the classes. All functions share them, and
    they are fixed. The checkpoint has the best hyperparameters of an interrupted fit.
    """
    callbacks = []
    if checkpoint is not None:
        hyperparameters = dict(np.load(checkpoint)) if checkpoint.exists() else hyperparameters
        callbacks = [lambda fit, *_: predictive.keep_hyperparameters(fit, checkpoint)]
    split = data.subset(data.split("usps10", folder), *size)
    model, gp = predictive.classifier(split, ard=False, softmax=method == "LA")
    options: dict[str, Any] = {"method": predictive.METHODS[method]}
    if inducing is not None:
        z = gpep.class_centres((split.X, split.y), inducing, shared=True) if centres else inducing
        options = {"method": "sparse_ep", "gp": gp, "sites": "nested", "inducing": z, "shared_inducing": True,
                   "learn_inducing": False}  # fmt: skip
    own, clock = time.process_time(), time.perf_counter()
    with threadpool_limits(1), model:
        fit = pm.fit(iterations, start=hyperparameters, callbacks=callbacks, progressbar=False, **options)
        taken = time.process_time() - own, time.perf_counter() - clock
        p = fit.predict(gp, split.Xnew)["p"].values
    return {
        "log_p": np.log(p[np.arange(split.ynew.size), split.ynew]),
        "wrong": p.argmax(axis=1) != split.ynew,
        "points": split.y.size,
        "log_evidence": fit.log_evidence,
        "steps": len(fit.hist) - 1,
        "magnitude": fit.hyperparameters["magnitude"].values,
        "length_scale": fit.hyperparameters["length_scale"].values,
        "processor_seconds": taken[0],
        "clock_seconds": taken[1],
        "message": str(fit),
    }


class Digits(Experiment):
    title = "USPS, ten digits: inducing inputs compared with all points"

    def cells(self, folder: str, quick: bool) -> Sequence[Cell]:
        shared = {"folder": folder, "size": [60, 20] if quick else [POINTS, POINTS]}
        given = {"inducing": None, "centres": False, "iterations": 0, "hyperparameters": LEARNED}
        compared = [
            Cell(f"all points, {method}", fit_digits, shared | given | {"method": method}) for method in COMPARED
        ]
        if quick:
            return [_cell(5, True, 2, shared), compared[-1]]
        cells = [
            _cell(inducing, centres, iterations, shared)
            for iterations in (0, ITERATIONS)
            for inducing in (*INDUCING, None)
            for centres in ((False, True) if inducing else (False,))
        ]
        return cells + compared

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| inducing inputs | magnitude | length scale | log evidence | mean log predictive density | accuracy "
            "| processor, s | clock, s |",
            "| --- " * 8 + "|",
        ]
        record = {}
        for name, run in found.items():
            row = {
                "magnitude": float(run["magnitude"]),
                "length_scale": float(run["length_scale"]),
                "log_evidence": float(run["log_evidence"]),
                "density": float(run["log_p"].mean()),
                "accuracy": float(1.0 - run["wrong"].mean()),
                "processor": float(run["processor_seconds"]),
                "clock": float(run["clock_seconds"]),
            }
            record[name] = row | {"points": int(run["points"]), "message": str(run["message"])}
            forms = ".1f", ".2f", ".1f", ".4f", ".4f", ".0f", ".0f"
            lines.append(f"| {name} | {' | '.join(map(format, row.values(), forms))} |")
        lines += ["", "One covariance for all classes, squared exponential with one length scale. Inducing inputs are "
                      "shared and fixed. Their evidences are of the model with the FITC prior."]  # fmt: skip
        return record, "\n".join(lines)


def _cell(inducing: int | None, centres: bool, iterations: int, settings: Mapping[str, Any]) -> Cell:
    of = "all points" if inducing is None else f"{inducing} {'centres' if centres else 'points'}"
    arguments = {"inducing": inducing, "centres": centres, "iterations": iterations}
    arguments |= settings | {"hyperparameters": NEAR if iterations else GIVEN}
    return Cell(f"{of}, {'learned' if iterations else 'given'}", fit_digits, arguments, resumes=inducing is None)


EXPERIMENT = Digits()
