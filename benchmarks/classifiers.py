"""Comparison of classifiers on small and larger data sets: log loss and seconds.

`python -m benchmarks.classifiers --data FOLDER`: ten folds of the small sets, one split of the larger sets. Finished
folds are stored, and the same command continues. `--jobs 0` prints the table of finished folds. `--only` takes patterns
of names, such as `"iris, *, fold 0"`. `--gpflow PYTHON` and `--gpytorch PYTHON` name environments in which these
packages are installed.
"""

import argparse
import csv
import gzip
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Data sets with ten folds, `StratifiedKFold(10, shuffle=True, random_state=0)`."""
SPLIT: Mapping[str, tuple[Sequence[str], int | None]] = {
    "segmentation": (("segmentation_train.csv", "segmentation_test.csv"), None),
    "letters": (("letter_abe.csv",), 1000),
    "dna": (("dna.csv.gz",), 2000),
    "satellite": (("satellite.csv.gz",), 4435),
    "usps": (("usps_train.csv.gz", "usps_test.csv.gz"), None),
}
"""Data sets with one split: files of training and test rows, or one file and its number of training rows.

The rows of `letters` and `dna` are first permuted with seed 0.
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
SMALLEST = 1e-15  # smallest probability of a label: forests return zeros
FOLDS = 10
NOT_RUN = "–"


def read_labelled(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Unscaled features (n, d), and labels (n,) as strings."""
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


def work(folder: str, name: str, fold: int, classifier: str) -> dict[str, Any]:
    """Log probabilities (m,) of test labels of a fold, errors, and processor seconds."""
    X, y, Xnew, ynew = splits(Path(folder), name)[fold]
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from optimisers that stop at a bound or at their limit
        fitted = make_pipeline(StandardScaler(), CLASSIFIERS[classifier]()).fit(X, y)
        p = fitted.predict_proba(Xnew)
    took = time.process_time() - began
    return scores(p, np.searchsorted(fitted.classes_, ynew)) | {"fold_seconds": took}


def scores(p: np.ndarray, place: np.ndarray) -> dict[str, Any]:
    """Log probability of each label (m,), and whether another class is more probable. `p` is (m, c)."""
    given = p[np.arange(len(place)), place]
    return {"log_p": np.log(np.maximum(given, SMALLEST)), "wrong": p.argmax(axis=1) != place}


def peer_work(folder: str, name: str, fold: int, classifier: str, python: str) -> dict[str, Any]:
    """As `work`, with a package in the environment of another Python."""
    X, y, Xnew, ynew = splits(Path(folder), name)[fold]
    scaler = StandardScaler().fit(X)
    classes, labels = np.unique(y, return_inverse=True)
    given = {"X": scaler.transform(X), "y": labels, "Xnew": scaler.transform(Xnew), "classes": len(classes)}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "fold.npz"
        np.savez(file, **given)
        script = Path(__file__).with_name("classifier_peers.py")
        environment = {each: value for each, value in os.environ.items() if each != "PYTHONPATH"}
        subprocess.run([python, script, classifier, file], check=True, env=environment)
        with np.load(file) as found:
            return scores(found["p"], np.searchsorted(classes, ynew)) | {"fold_seconds": found["seconds"]}


class Classifiers(Experiment):
    """Every classifier on every data set, with all finished results."""

    title = "Classifiers beside each other"

    def __init__(self) -> None:
        self.peers: dict[str, str] = {}  # Python of each environment

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        sets = FOLDED[:1] if quick else (*FOLDED, *SPLIT)
        runs: dict[str, tuple[Callable[..., Mapping[str, Any]], dict[str, Any]]] = {
            each: (work, {}) for each in CLASSIFIERS
        }
        runs |= {each: (peer_work, {"python": python}) for each, python in self.peers.items()}
        return [
            Cell(
                piece(name, which, fold),
                function,
                {"folder": data, "name": name, "fold": fold, "classifier": which} | more,
            )
            for name in sets
            for which, (function, more) in runs.items()
            for fold in range(folds(name))
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        """Log losses with standard errors of paired differences from this package, and processor seconds."""
        names = (*CLASSIFIERS, *self.peers)
        sets = {
            name: {which: there for which in names if (there := finished(found, name, which))}
            for name in (*FOLDED, *SPLIT)
        }
        record = {
            name: {which: summary(result, there.get(OURS, {}), folds(name)) for which, result in there.items()}
            for name, there in sets.items()
        }
        rows = {name: most_rows(there.values()) for name, there in sets.items()}
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


def folds(name: str) -> int:
    """Number of folds of a set."""
    return FOLDS if name in FOLDED else 1


def piece(name: str, classifier: str, fold: int) -> str:
    """Name of a piece of work."""
    return f"{name}, {classifier}, fold {fold}"


def finished(found: Mapping[str, Arrays], name: str, classifier: str) -> dict[int, Arrays]:
    """Results of the finished folds of a set, by number."""
    return {k: result for k in range(folds(name)) if (result := found.get(piece(name, classifier, k))) is not None}


def most_rows(results: Iterable[Mapping[int, Arrays]]) -> int | str:
    """Largest number of test rows that a classifier predicted."""
    return max((sum(fold["log_p"].size for fold in result.values()) for result in results), default=NOT_RUN)


def summary(result: Mapping[int, Arrays], ours: Mapping[int, Arrays], of: int) -> dict[str, float]:
    """Log loss, paired difference from this package with its standard error, fraction of errors, and seconds."""
    loss = -np.concatenate([fold["log_p"] for fold in result.values()])
    found = {
        "loss": float(loss.mean()),
        "error": float(np.concatenate([fold["wrong"] for fold in result.values()]).mean()),
        "seconds": float(np.median([fold["fold_seconds"] for fold in result.values()])),
        "folds": len(result),
        "of": of,
    }
    if both := sorted(result.keys() & ours.keys()):
        difference = np.concatenate([ours[k]["log_p"] - result[k]["log_p"] for k in both])
        found["difference"] = float(difference.mean())
        found["standard_error"] = float(difference.std(ddof=1) / np.sqrt(difference.size))
    return found


def losses(there: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Cells of one set in the table of log losses. The lowest is bold if this package's result is complete."""
    lowest = min((numbers["loss"] for numbers in there.values() if not part(numbers)), default=0.0)
    cells = {}
    for which, numbers in there.items():
        loss = f"{numbers['loss']:.3f}"
        bold = OURS in there and not part(numbers) and loss == f"{lowest:.3f}"
        error = "" if which == OURS or "standard_error" not in numbers else f" ± {numbers['standard_error']:.3f}"
        cells[which] = (f"**{loss}**" if bold else loss) + error + part(numbers)
    return cells


def seconds(there: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Cells of one set in the table of seconds."""
    return {which: f"{numbers['seconds']:.2g}" + part(numbers) for which, numbers in there.items()}


def part(numbers: Mapping[str, float]) -> str:
    """Text with the number of folds of a result, if it is incomplete."""
    return "" if numbers["folds"] == numbers["of"] else f" ({numbers['folds']} of {numbers['of']} folds)"


EXPERIMENT = Classifiers()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classifiers", description=__doc__)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--quick", action="store_true", help="one data set")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="compute only pieces with these names"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes; 0 only reports stored results")
    parser.add_argument("--output", type=Path, default=Path("output/classifiers"), metavar="FOLDER")
    for name in PEERS:
        parser.add_argument(f"--{name.lower()}", metavar="PYTHON", help=f"Python of an environment that has {name}")
    given = parser.parse_args()
    # `__main__` would be another module in other processes
    experiment = import_module("benchmarks.classifiers").EXPERIMENT
    experiment.peers = {name: python for name in PEERS if (python := getattr(given, name.lower()))}
    run("classifiers", experiment, given)


if __name__ == "__main__":
    main()
