"""Classifiers beside each other on small and larger data sets: log loss and seconds.

`python -m benchmarks.classifiers --data FOLDER`: ten folds of the small sets, one split of the others. Finished
ones are kept, and the same command goes on; `--jobs 0` prints their table. `--only` takes patterns of names, such as
`"iris, *"`. `--gpflow PYTHON` and `--gpytorch PYTHON` name environments in which these packages are installed.
"""

import argparse
import csv
import gzip
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessClassifier as Laplace
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.classifier_peers import PEERS
from benchmarks.command import run
from benchmarks.experiment import Arrays, Cell, Experiment
from pymc_gpep.sklearn import GaussianProcessClassifier

FOLDED = (
    "iris", "teaching", "wine", "crabs", "new_thyroid", "sonar", "glass", "ionosphere", "pima", "breast_wisconsin",
    "vehicle", "vowel",
)  # fmt: skip
"""Sets of ten folds, `StratifiedKFold(10, shuffle=True, random_state=0)`."""
SPLIT: Mapping[str, tuple[Sequence[str], int | None]] = {
    "segmentation": (("segmentation_train.csv", "segmentation_test.csv"), None),
    "letters": (("letter_abe.csv",), 1000),
    "dna": (("dna.csv.gz",), 2000),
    "satellite": (("satellite.csv.gz",), 4435),
    "usps": (("usps_train.csv.gz", "usps_test.csv.gz"), None),
}
"""Sets of one split: files of training and of test rows, or one file and how many of its rows are for training.

The rows of `letters` and `dna` are permuted first, by the seed 0.
"""
OURS = "here"
CLASSIFIERS: Mapping[str, Callable[[], Any]] = {
    OURS: lambda: GaussianProcessClassifier(random_state=0),
    "Gaussian process, scikit-learn": lambda: Laplace(1.0 * RBF(1.0), random_state=0),
    "logistic regression": lambda: LogisticRegression(max_iter=1000),
    "random forest": lambda: RandomForestClassifier(500, random_state=0),
    "gradient boosting": lambda: GradientBoostingClassifier(random_state=0),
    "calibrated SVC": lambda: CalibratedClassifierCV(SVC(random_state=0)),
}
SMALLEST = 1e-15  # probability that a label is given at the least: forests give some none
FOLDS = 10
NOT_RUN = "–"


def read_labelled(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d) as they are, and labels (n,) as strings."""
    with gzip.open(file, "rt", newline="") if file.suffix == ".gz" else file.open(newline="") as lines:
        _, *rows = csv.reader(lines)
    return np.array([[float(value) for value in row[:-1]] for row in rows]), np.array([row[-1] for row in rows])


def splits(folder: Path, name: str) -> list[tuple[np.ndarray, ...]]:
    """Training inputs and labels, and test inputs and labels, of each fold of a set."""
    if name in FOLDED:
        X, y = read_labelled(folder / f"{name}.csv")
        cut = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(X, y)
        return [(X[train], y[train], X[test], y[test]) for train, test in cut]
    files, size = SPLIT[name]
    parts = [read_labelled(folder / file) for file in files]
    if size is None:
        return [(*parts[0], *parts[1])]
    ((X, y),) = parts
    order = np.arange(len(y)) if name == "satellite" else np.random.default_rng(0).permutation(len(y))
    return [(X[order[:size]], y[order[:size]], X[order[size:]], y[order[size:]])]


def work(folder: str, name: str, classifier: str) -> dict[str, Any]:
    """Log probabilities of the test labels, and errors, of all folds one after the other; seconds of each fold."""
    log_p, wrong, seconds = [], [], []
    for X, y, Xnew, ynew in splits(Path(folder), name):
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of optimisers that stop at a bound or at their limit
            fitted = make_pipeline(StandardScaler(), CLASSIFIERS[classifier]()).fit(X, y)
            p = fitted.predict_proba(Xnew)
        seconds.append(time.process_time() - began)
        place = np.searchsorted(fitted.classes_, ynew)
        log_p.append(log_probability(p, place))
        wrong.append(p.argmax(axis=1) != place)
    return {"log_p": np.concatenate(log_p), "wrong": np.concatenate(wrong), "fold_seconds": seconds}


def log_probability(p: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Log probability (m,) of the class in each place, from probabilities (m, c)."""
    found: np.ndarray = np.log(np.maximum(p[np.arange(len(place)), place], SMALLEST))
    return found


def peer_work(folder: str, name: str, classifier: str, python: str) -> dict[str, Any]:
    """The same by a package in the environment of another Python."""
    given: dict[str, Any] = {}
    places = []
    for k, (X, y, Xnew, ynew) in enumerate(splits(Path(folder), name)):
        scaler = StandardScaler().fit(X)
        classes, labels = np.unique(y, return_inverse=True)
        places.append(np.searchsorted(classes, ynew))
        given |= {f"X{k}": scaler.transform(X), f"y{k}": labels, f"Xnew{k}": scaler.transform(Xnew)}
        given |= {"folds": k + 1, "classes": len(classes)}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "folds.npz"
        np.savez(file, **given)
        script = Path(__file__).with_name("classifier_peers.py")
        environment = {each: value for each, value in os.environ.items() if each != "PYTHONPATH"}
        subprocess.run([python, script, classifier, file], check=True, env=environment)
        with np.load(file) as found:
            p = [found[f"p{k}"] for k in range(len(places))]
            seconds = [float(found[f"seconds{k}"]) for k in range(len(places))]
    return {
        "log_p": np.concatenate([log_probability(*each) for each in zip(p, places, strict=True)]),
        "wrong": np.concatenate([each.argmax(axis=1) != place for each, place in zip(p, places, strict=True)]),
        "fold_seconds": seconds,
    }


class Classifiers(Experiment):
    """Every classifier on every data set, as far as it was run."""

    title = "Classifiers beside each other"

    def __init__(self) -> None:
        self.peers: dict[str, str] = {}  # Python of the environment of each, by name

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        sets = FOLDED[:1] if quick else (*FOLDED, *SPLIT)
        return [
            Cell(f"{name}, {which}", function, {"folder": data, "name": name, "classifier": which} | more)
            for name in sets
            for which, function, more in (
                *((each, work, {}) for each in CLASSIFIERS),
                *((each, peer_work, {"python": python}) for each, python in self.peers.items()),
            )
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        """Log losses, with standard errors of their paired differences from ours, and processor seconds."""
        names = (*CLASSIFIERS, *self.peers)
        sets = {
            name: {which: result for which in names if (result := found.get(f"{name}, {which}")) is not None}
            for name in (*FOLDED, *SPLIT)
        }
        record = {
            name: {which: summary(result, there.get(OURS)) for which, result in there.items()}
            for name, there in sets.items()
        }
        rows = {name: next(iter(there.values()))["log_p"].size if there else NOT_RUN for name, there in sets.items()}
        heading = [f"| set | rows | {' | '.join(names)} |", "| --- " * (2 + len(names)) + "|"]

        def table(cells: Callable[[Mapping[str, Mapping[str, float]]], Mapping[str, str]]) -> str:
            lines = [*heading]
            for name, there in record.items():
                written = cells(there)
                lines.append(
                    f"| {name} | {rows[name]} | {' | '.join(written.get(which, NOT_RUN) for which in names)} |"
                )
            return "\n".join(lines)

        text = (
            f"Log loss of test labels ± the standard error of its paired difference from ours:\n\n{table(losses)}\n\n"
            f"Processor seconds of a fit with its predictions, the median over folds:\n\n{table(seconds)}"
        )
        return record, text


def summary(result: Arrays, ours: Arrays | None) -> dict[str, float]:
    """Log loss, its difference from ours with its standard error, the share of errors, and seconds."""
    loss = -result["log_p"]
    found = {
        "loss": float(loss.mean()),
        "error": float(result["wrong"].mean()),
        "seconds": float(np.median(result["fold_seconds"])),
    }
    if ours is not None:
        difference = loss + ours["log_p"]
        found["difference"] = float(difference.mean())
        found["standard_error"] = float(difference.std(ddof=1) / np.sqrt(difference.size))
    return found


def losses(there: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Cells of one set in the table of log losses; the lowest is in bold type where ours is among them."""
    lowest = min((numbers["loss"] for numbers in there.values()), default=0.0)
    cells = {}
    for which, numbers in there.items():
        loss = f"{numbers['loss']:.3f}"
        bold = OURS in there and loss == f"{lowest:.3f}"
        error = "" if which == OURS or "standard_error" not in numbers else f" ± {numbers['standard_error']:.3f}"
        cells[which] = f"**{loss}**{error}" if bold else loss + error
    return cells


def seconds(there: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Cells of one set in the table of seconds."""
    return {which: f"{numbers['seconds']:.2g}" for which, numbers in there.items()}


EXPERIMENT = Classifiers()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classifiers", description=__doc__)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--quick", action="store_true", help="one data set")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="compute only what is named so")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 0 reports what is there")
    parser.add_argument("--output", type=Path, default=Path("output/classifiers"), metavar="FOLDER")
    for name in PEERS:
        parser.add_argument(f"--{name.lower()}", metavar="PYTHON", help=f"Python of an environment that has {name}")
    given = parser.parse_args()
    # Not as of `__main__`, which is another module in the processes that compute.
    experiment = import_module("benchmarks.classifiers").EXPERIMENT
    experiment.peers = {name: python for name in PEERS if (python := getattr(given, name.lower()))}
    run("classifiers", experiment, given)


if __name__ == "__main__":
    main()
