"""Batch fits with default settings, against other settings and boosted trees: errors and log losses.

`python -m benchmarks.batch_settings --data FOLDER`: a pilot fit measures how many steps use the processor seconds of a
fit. Finished pieces are stored, and the same command continues. `--jobs 0` prints the table of finished pieces.
`--only` takes patterns of names, such as `"usps, *"`. With `--kept-back` fits are scored on a fifth of the training
rows, which they are not trained on. Defaults are chosen with this option, and judged without it.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.classifiers import scores, splits
from benchmarks.command import run
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.scalable_paper.large_data import flights
from pymc_gpep.streaming.step import FallingAdam

JUDGED = "usps", "flights", "segmentation", "dna"
"""Data sets that were not used to choose defaults."""
OTHERS = "letters", "satellite", "pima"
AS_IT_COMES, ARD, TREES = "as it comes", "a length scale for each column", "gradient boosting"
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    AS_IT_COMES: {},
    "75 inducing": {"inducing": 75},
    "300 inducing": {"inducing": 300},
    "pairwise": {"sites": "pairwise"},
    "rate 0.01": {"rate": 0.01},
    "rate 0.1": {"rate": 0.1},
    "fixed inputs": {"learn_inducing": False},
    "batches of 500": {"batch_size": 500},
    ARD: {"ard": True},
}
"""Options of `pm.fit`. `rate` is Adam's. `ard` selects another model."""
SECONDS, PILOT = 10.0, 30  # processor seconds of a fit, and steps of the pilot fit
FEWEST, MOST = 50, 20_000  # steps
NEAR = 0.01  # largest relative distance from the best setting


def rows_of(folder: str, name: str, kept_back: bool) -> tuple[np.ndarray, ...]:
    """Standardised inputs and labels of training rows, and the same of scored rows."""
    split = flights(folder) if name == "flights" else splits(Path(folder), name)[0]
    X, y, Xnew, ynew = split
    if kept_back:
        X, Xnew, y, ynew = train_test_split(X, y, test_size=0.2, random_state=0, stratify=y)
    scaler, classes = StandardScaler().fit(X), np.unique(y)
    return scaler.transform(X), np.searchsorted(classes, y), scaler.transform(Xnew), np.searchsorted(classes, ynew)


def work(folder: str, name: str, setting: str, seconds: float, kept_back: bool) -> dict[str, Any]:
    """Log probabilities of labels, errors, steps and processor seconds of a fit with one covariance for all classes."""
    import pymc as pm

    import pymc_gpep as gpep

    X, y, Xnew, ynew = rows_of(folder, name, kept_back)
    options = {"batch_size": 200} | SETTINGS[setting]
    rate, ard = options.pop("rate", None), options.pop("ard", False)
    if "inducing" in options:
        options["inducing"] = min(options["inducing"], len(X))
    columns, c = X.shape[1], int(y.max()) + 1
    first = np.concatenate([np.flatnonzero(y == k)[:2] for k in range(c)])  # a few rows suffice to declare the model

    def fitted(steps: int) -> tuple[Any, np.ndarray]:
        """A fit, and the processor seconds up to each step."""
        with pm.Model():
            ls = pm.LogNormal("ls", 0.5 * np.log(columns), 1.0, shape=columns if ard else ())
            eta = pm.HalfNormal("eta", 5.0)
            gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(columns, ls=ls))
            gpep.MultinomialProbit("y", gp.prior("f", X=X[first], n_outputs=c).T, observed=y[first])
            more = {} if rate is None else {"obj_optimizer": FallingAdam(steps, rate)}
            times = [time.process_time()]
            fit = pm.fit(
                steps, method="sparse_ep", gp=gp, data=(X, y), progressbar=False, random_seed=1,
                callbacks=[lambda fit, losses, step: times.append(time.process_time())], **options, **more,
            )  # fmt: skip
        return fit, np.diff(times)

    fitted(PILOT)  # compiles
    before, *taken = fitted(PILOT)[1]
    steps = int(np.clip((seconds - before) / np.median(taken), FEWEST, MOST))
    fit, spent = fitted(steps)
    p = fit.predict(Xnew, covariances=False)["p"].values
    return scores(p, ynew) | {"steps": steps, "spent": spent.sum()}


def tree_work(folder: str, name: str, kept_back: bool) -> dict[str, Any]:
    """As `work`, for scikit-learn's gradient boosting with its defaults."""
    X, y, Xnew, ynew = rows_of(folder, name, kept_back)
    began = time.process_time()
    fitted = HistGradientBoostingClassifier(random_state=0).fit(X, y)
    spent = time.process_time() - began
    return scores(fitted.predict_proba(Xnew), ynew) | {"steps": fitted.n_iter_, "spent": spent}


class BatchSettings(Experiment):
    """Every setting on every judged data set, and trees against default settings on further sets."""

    title = "Settings of fits by batches"
    kept_back = False
    seconds = SECONDS

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        """See `Experiment`."""
        place = {"folder": data, "kept_back": self.kept_back}
        timed = place | {"seconds": 0.1 if quick else self.seconds}
        tried = [
            *((name, setting) for name in (*JUDGED, *OTHERS) for setting in (AS_IT_COMES, ARD, TREES)),
            *((name, setting) for name in JUDGED for setting in SETTINGS if setting not in (AS_IT_COMES, ARD)),
        ]
        if quick:
            tried = [each for each in tried if each in [("segmentation", AS_IT_COMES), ("segmentation", TREES)]]
        return [
            Cell(f"{name}, {setting}", tree_work, place | {"name": name})
            if setting == TREES
            else Cell(f"{name}, {setting}", work, timed | {"name": name, "setting": setting})
            for name, setting in tried
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        """Errors and log losses, and distances of default settings from the best setting."""
        record: dict[str, Any] = {}
        columns = (*SETTINGS, TREES)
        lines = [f"| set | {' | '.join(columns)} |", "| --- " * (1 + len(columns)) + "|"]
        verdicts = []
        for name in (*JUDGED, *OTHERS):
            here = {each: summary(found[f"{name}, {each}"]) for each in columns if f"{name}, {each}" in found}
            record[name] = here
            cells = [f"{here[each]['error']:.3f}, {here[each]['loss']:.3f}" if each in here else "" for each in columns]
            lines.append(f"| {name} | {' | '.join(cells)} |")
            tried = {each: values for each, values in here.items() if each not in (ARD, TREES)}
            if AS_IT_COMES in tried and len(tried) > 1:
                behind = {
                    of: tried[AS_IT_COMES][of] - min(values[of] for values in tried.values())
                    for of in ("error", "loss")
                }
                record[name]["behind"] = behind
                verdicts.append(
                    f"{name}: {behind['error']:.3f} and {behind['loss']:.3f} behind the best of other options, "
                    + ("near" if max(behind.values()) <= NEAR else "not near")
                )
        text = "Error and log loss of held-out rows.\n\n" + "\n".join(lines)
        return record, text + "\n\n" + "\n".join(f"- {each}" for each in verdicts)


def summary(result: Arrays) -> dict[str, float]:
    """Error, log loss, steps and seconds of a fit."""
    return {
        "error": float(result["wrong"].mean()),
        "loss": float(-result["log_p"].mean()),
        "steps": int(result["steps"]),
        "seconds": float(result["spent"]),
    }


EXPERIMENT = BatchSettings()


def main() -> None:
    """Compute missing pieces, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_settings", description=__doc__)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--quick", action="store_true", help="one data set and a short time for each fit")
    parser.add_argument("--kept-back", action="store_true", help="score rows of the training sets")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="processor seconds of each fit")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="compute only pieces with these names"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes; 0 only reports stored results")
    parser.add_argument("--output", type=Path, default=Path("output/batch_settings"), metavar="FOLDER")
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    experiment = import_module("benchmarks.batch_settings").EXPERIMENT  # Other processes can import it by this name.
    experiment.kept_back, experiment.seconds = given.kept_back, given.seconds
    run("batch_settings", experiment, given)


if __name__ == "__main__":
    main()
