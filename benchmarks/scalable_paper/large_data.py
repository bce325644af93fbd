"""MNIST, flights as a substitute for the paper's Airline data, and rows drawn from a model."""

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.paper.data import Split, read_table, standardised
from benchmarks.scalable_paper.drawn import drawn

Array = np.ndarray

HELD_OUT = 10_000


def mnist(folder: str) -> Split:
    """60 000 training and 10 000 test digits, pixels from 0 to 1, without pixels constant in training."""
    X, Xnew = (_idx(Path(folder) / f"mnist_{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    y, ynew = (_idx(Path(folder) / f"mnist_{part}-labels-idx1-ubyte.gz") for part in ("train", "t10k"))
    X, Xnew = X.reshape(len(X), -1), Xnew.reshape(len(Xnew), -1)
    varies = X.min(axis=0) < X.max(axis=0)
    return Split(X[:, varies] / 255.0, y.astype(np.int64), Xnew[:, varies] / 255.0, ynew.astype(np.int64))


def flights(folder: str) -> Split:
    """Flights from New York in 2017: a substitute with the same eight attributes and three classes."""
    X, labels = read_table(Path(folder) / "nycflights2017.csv.gz")
    y = np.unique(labels, return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(y.size)
    test, train = order[:HELD_OUT], order[HELD_OUT:]
    own, others = standardised(X[train], X[test])
    return Split(own, y[train], others, y[test])


def kept_back(load: Callable[[str], Split], folder: str) -> Split:
    """The training rows, 10 000 of which replace the held-out rows."""
    split = load(folder)
    order = np.random.default_rng(1).permutation(split.y.size)
    judged, train = np.sort(order[:HELD_OUT]), np.sort(order[HELD_OUT:])
    return Split(split.X[train], split.y[train], split.X[judged], split.y[judged])


SOURCES: dict[str, Callable[[str], Split]] = {"mnist": mnist, "flights": flights, "drawn": drawn,
                                               "few drawn": partial(drawn, rows=1000, held_out=100)}  # fmt: skip
SOURCES |= {f"{name}, kept back": partial(kept_back, SOURCES[name]) for name in ("mnist", "flights")}


def _idx(file: Path) -> Array:
    """Array of a file of MNIST: a magic number, whose fourth byte is the number of axes, the shape, and the numbers."""
    with gzip.open(file) as stored:
        raw = stored.read()
    dims = raw[3]
    shape = np.frombuffer(raw, ">u4", dims, 4).astype(int)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)
