"""What the experiments on the Glass data have in common: the data, and the setting of the nested EP paper."""

from pathlib import Path

import numpy as np

from tests.reference.data import squared_exponential

__all__ = ["LOG_LENGTHSCALE", "LOG_VARIANCE", "covariance", "glass"]

Array = np.ndarray

LOG_VARIANCE = 1.0
LOG_LENGTHSCALE = 1.0
_JITTER = 1e-8


def glass(folder: Path) -> tuple[Array, Array]:
    """Standardised inputs (214, 9) and labels 0…5 from `glass.csv`: a header row, the label in the last column."""
    table = np.loadtxt(folder / "glass.csv", delimiter=",", skiprows=1)
    X = table[:, :-1]
    return (X - X.mean(axis=0)) / X.std(axis=0), np.unique(table[:, -1], return_inverse=True)[1].astype(np.int64)


def covariance(X: Array) -> Array:
    K = squared_exponential(X, variance=np.exp(LOG_VARIANCE), lengthscale=np.exp(LOG_LENGTHSCALE))
    return K + _JITTER * np.eye(len(X))
