"""The six data sets of section 12.1, with the paper's numbers of training and test points."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.paper.data import Split, read_table, standardised, subset

Array = np.ndarray


class Source(NamedTuple):
    """Origin of a data set."""

    title: str
    file: str
    one: str
    """Label of class 1."""
    n: int
    """Number of random training points. All others are test points."""


DRAWN = {
    "breast": Source("Breast", "breast_wisconsin.csv", "4", 300),
    "crabs": Source("Crabs", "crabs.csv", "M", 100),
    "ionosphere": Source("Ionosphere", "ionosphere.csv", "g", 200),
    "pima": Source("Pima", "pima.csv", "1", 350),
    "sonar": Source("Sonar", "sonar.csv", "M", 108),
}
USPS = "usps35"
TITLES = {name: source.title for name, source in DRAWN.items()} | {USPS: "USPS 3 vs. 5"}
NOTE = (
    "USPS 3 vs. 5 has the paper's split, and unscaled pixels. The splits of the other data sets are not published. "
    "They are random draws of the same sizes here, with inputs standardised by the training points."
)


def load(name: str, folder: str, number: int = 0, size: list[int] | None = None) -> Split:
    """A data set in split `number`, with classes 0 and 1. `size` limits the numbers of training and test points."""
    found = _usps(Path(folder)) if name == USPS else _drawn(DRAWN[name], Path(folder), number)
    return found if size is None else subset(found, *size)


def _usps(folder: Path) -> Split:
    """USPS with digit 3 as class 1, as in the paper's code."""
    (X, y), (Xnew, ynew) = (read_table(folder / f"usps35_{part}.csv.gz") for part in ("train", "test"))
    return Split(X, (y == "3").astype(np.int64), Xnew, (ynew == "3").astype(np.int64))


def _drawn(source: Source, folder: Path, number: int) -> Split:
    X, labels = read_table(folder / source.file)
    y = (labels == source.one).astype(np.int64)
    order = np.random.default_rng(number).permutation(y.size)
    train, test = order[: source.n], order[source.n :]
    own, others = standardised(X[train], X[test])
    return Split(own, y[train], others, y[test])
