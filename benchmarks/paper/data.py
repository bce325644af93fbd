"""The paper's data sets (RJV table 3), standardised, from CSV files with a header row and labels in the last column."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter

Array = np.ndarray

CROSS_VALIDATED = {
    "new-thyroid": "new_thyroid.csv",
    "teaching": "teaching.csv",
    "glass": "glass.csv",
    "wine": "wine.csv",
}
SPLIT = {
    "segmentation": ("segmentation_train.csv", "segmentation_test.csv"),
    "usps357": ("usps357_approx_train.csv.gz", "usps357_approx_test.csv.gz"),
}
TITLES = {
    "new-thyroid": "New-thyroid",
    "teaching": "Teaching",
    "glass": "Glass",
    "wine": "Wine",
    "segmentation": "Image segmentation",
    "usps357": "USPS 3 vs. 5 vs. 7",
    "usps10": "USPS, ten classes",
}
NOTES = {
    "usps357": (
        "Digits 3 and 5 are split as in the paper; the training images of digit 7 are a random draw of the same "
        "number, because the paper's partition is not available."
    ),
    "usps10": (
        "Digits 3 and 5 are split as in the paper; the training images of other digits are random draws of the same "
        "numbers, because the paper's partition is not available."
    ),
}  # fmt: skip


class Split(NamedTuple):
    """Training points and held-out points."""

    X: Array
    y: Array
    Xnew: Array
    ynew: Array

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1


def whole(name: str, folder: str) -> tuple[Array, Array]:
    """Standardised inputs (n, d) and labels 0…c−1 of a data set that the paper cross-validates."""
    X, labels = read_table(Path(folder) / CROSS_VALIDATED[name])
    return standardised(X)[0], np.unique(labels, return_inverse=True)[1]


def folds(n: int, count: int = 10, seed: int = 1) -> list[Array]:
    """Held-out points of each fold, a random partition."""
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(n), count)]


def fold(name: str, folder: str, number: int) -> Split:
    """One of ten folds of a cross-validated data set, standardised as a whole."""
    X, y = whole(name, folder)
    held_out = np.zeros(y.size, dtype=bool)
    held_out[folds(y.size)[number]] = True
    return Split(X[~held_out], y[~held_out], X[held_out], y[held_out])


def halves(name: str, folder: str, seed: int = 1) -> Split:
    """A random half for training, and the other half for testing."""
    X, y = whole(name, folder)
    order = np.random.default_rng(seed).permutation(y.size)
    train, test = order[: y.size // 2], order[y.size // 2 :]
    return Split(X[train], y[train], X[test], y[test])


def pixels(folder: str, size: Sequence[int] | None = None) -> Split:
    """USPS 3 vs. 5 vs. 7 without standardisation. `size` limits the numbers of training and held-out points."""
    found = split("usps357", folder, standardise=False)
    return found if size is None else subset(found, *size)


def split(name: str, folder: str, standardise: bool = True) -> Split:
    """A data set with its own test set, optionally standardised by its training points without constant inputs."""
    if name == "usps10":
        X, y, Xnew, ynew = _usps10(Path(folder))
    else:
        (X, y), (Xnew, ynew) = (read_table(Path(folder) / file) for file in SPLIT[name])
    if standardise:
        X, Xnew = standardised(X, Xnew)
    labels = np.unique(y)
    return Split(X, np.searchsorted(labels, y), Xnew, np.searchsorted(labels, ynew))


def subset(data: Split, n: int, m: int, seed: int = 1) -> Split:
    """At most `n` random training points and `m` held-out points."""
    rng = np.random.default_rng(seed)
    train, test = (np.sort(rng.permutation(len(y))[:size]) for y, size in ((data.y, n), (data.ynew, m)))
    return Split(data.X[train], data.y[train], data.Xnew[test], data.ynew[test])


def read_table(file: Path) -> tuple[Array, Array]:
    """Unscaled inputs (n, d) and labels (n,) of a CSV file with a header row."""
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        inputs = next(lines).count(",")
        table = np.loadtxt(lines, delimiter=",", dtype=[("X", float, (inputs,)), ("label", object)], ndmin=1)
    return table["X"].copy(), table["label"].astype(str)


def standardised(X: Array, *others: Array) -> tuple[Array, ...]:
    """Inputs X and other inputs, standardised by mean and standard deviation of X, without columns constant in X."""
    spread = X.std(axis=0)
    varies = spread > 0
    return tuple((x[:, varies] - X[:, varies].mean(axis=0)) / spread[varies] for x in (X, *others))


def _usps10(folder: Path) -> tuple[Array, Array, Array, Array]:
    """The digits, smoothed by 0.75 pixel on a background of −1, as in Rasmussen and Williams (2006)."""
    files = {name: read_table(folder / f"{name}.csv.gz") for name in ("usps_train", "usps_test")}
    index = np.loadtxt(folder / "usps_split.csv", delimiter=",", skiprows=1, dtype=str)
    parts = {}
    for side in ("train", "test"):
        pixels, labels = zip(
            *((X[rows], y[rows]) for name, (X, y) in files.items()
              for rows in [index[(index[:, 0] == name) & (index[:, 3] == side), 1].astype(int)]),
            strict=True,
        )  # fmt: skip
        images = np.concatenate(pixels).reshape(-1, 16, 16)
        smooth = gaussian_filter(images, sigma=0.75, radius=3, axes=(1, 2), mode="constant", cval=-1.0)
        parts[side] = smooth.reshape(len(images), -1), np.concatenate(labels)
    return *parts["train"], *parts["test"]
