"""The eight data sets of the paper's table 1, in the folds that its first author published."""

import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np

from benchmarks.paper.data import Split, standardised

Array = np.ndarray

FILE = "villacampa_multiclass_folds.tgz"
TITLES = {
    "glass": "Glass",
    "new-thyroid": "New-thyroid",
    "satellite": "Satellite",
    "svmguide2": "Svmguide2",
    "vehicle": "Vehicle",
    "vowel": "Vowel",
    "waveform": "Waveform",
    "wine": "Wine",
}
FOLDS = 20
NOTE = (
    "Folds are those of the first author's repository, which have the sizes of the paper's and are in all likelihood "
    "the same; inputs are standardised by the points to learn from. Vowel has the columns of that repository: the "
    "number of the speaker, and nine of the ten features."
)


def fold(name: str, folder: str, number: int) -> Split:
    """A data set in one of its 20 folds, with classes 0…c−1."""
    with tarfile.open(Path(folder) / FILE) as archive:
        X, labels = _arrays(archive, f"{name}/data.npz")
        train, test = (rows[number] for rows in _arrays(archive, f"{name}/folds.npz"))
    y = np.unique(labels, return_inverse=True)[1]
    own, others = standardised(X[train], X[test])
    return Split(own, y[train], others, y[test])


def _arrays(archive: tarfile.TarFile, name: str) -> tuple[Array, Array]:
    """The two arrays of a member, as they were saved: inputs and labels, or rows to learn from and held out."""
    member = archive.extractfile(name)
    if member is None:
        raise FileNotFoundError(f"{FILE} has no {name}.")
    with np.load(BytesIO(member.read())) as stored:
        return stored["arr_0"], stored["arr_1"]
