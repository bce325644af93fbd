"""The eight data sets of the paper's table 1, one of them in two forms, in the folds of its first author."""

import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from benchmarks.experiment import Arrays
from benchmarks.paper.data import Split, read_table, standardised

Array = np.ndarray

FILE = "villacampa_multiclass_folds.tgz"
TITLES = {
    "glass": "Glass",
    "new-thyroid": "New-thyroid",
    "satellite": "Satellite",
    "svmguide2": "Svmguide2",
    "vehicle": "Vehicle",
    "vowel": "Vowel",
    "vowel-features": "Vowel, its ten features",
    "waveform": "Waveform",
    "wine": "Wine",
}
FOLDS = 20
NOTE = (
    "Folds are from the first author's repository. They have the sizes of the paper's folds, and are probably the "
    "same. Inputs are standardised by the training points. Vowel has the columns of that repository: the number of "
    "the speaker, and nine of the ten features. Vowel with ten features has the same rows in the same folds."
)
_OTHER_INPUTS = {"vowel-features": "vowel"}
"""Data sets with the rows and folds of another data set."""


def fold(name: str, folder: str, number: int) -> Split:
    """A data set in one of its 20 folds, with classes 0…c−1."""
    stored = _OTHER_INPUTS.get(name, name)
    with tarfile.open(Path(folder) / FILE) as archive:
        X, labels = _arrays(archive, f"{stored}/data.npz")
        train, test = (rows[number] for rows in _arrays(archive, f"{stored}/folds.npz"))
    if stored != name:
        X = _ten_features(folder, X)
    y = np.unique(labels, return_inverse=True)[1]
    own, others = standardised(X[train], X[test])
    return Split(own, y[train], others, y[test])


def _ten_features(folder: str, stored: Array) -> Array:
    """Ten features of the first six vowels. The second feature has the number of the speaker."""
    X, labels = read_table(Path(folder) / "vowel.csv")
    X = X[labels.astype(int) <= 6]
    if X.shape != stored.shape or not np.array_equal(np.delete(X, 1, axis=1), stored[:, 1:]):
        raise ValueError(f"vowel.csv does not have the rows of {FILE} in the same order.")
    return X


def _arrays(archive: tarfile.TarFile, name: str) -> tuple[Array, Array]:
    """Both arrays of a member of the file: inputs and labels, or training and held-out rows."""
    member = archive.extractfile(name)
    if member is None:
        raise FileNotFoundError(f"{FILE} has no {name}.")
    with np.load(BytesIO(member.read())) as stored:
        return stored["arr_0"], stored["arr_1"]


def folds_of(found: Mapping[str, Arrays], piece: str) -> list[Arrays]:
    """Available folds of a piece of work. `piece` is its name without the number of the fold."""
    return [found[key] for number in range(FOLDS) if (key := f"{piece}, fold {number}") in found]
