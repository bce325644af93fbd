"""Few rows with sites that couple classes, and with sites that do not: log losses for a hundred to three hundred rows.

`python -m benchmarks.few_rows --data FOLDER`: each random draw of rows is fitted at once with one covariance for all
classes, by nested EP, by `"quadrature"` and by `"pairwise"` sites. Other rows of the same set are scored. Defaults are
chosen on these data sets, and judged on the data sets of `python -m benchmarks.batch_settings`.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.classifiers import read_labelled, scores, splits
from benchmarks.scalable_paper.large_data import mnist

DRAWS = ((100, 10), (100, 11), (210, 0), (210, 1), (210, 2), (300, 10))  # numbers of rows, and seeds
SCORED = 600  # largest number of scored rows
QUADRATURE, PAIRWISE, NESTED = "quadrature", "pairwise", "nested"
KINDS = QUADRATURE, PAIRWISE, NESTED
DIGITS = 14_000  # number of MNIST's first training rows

Labelled = tuple[np.ndarray, np.ndarray]


def drawn(classes: int, magnitude: float) -> Labelled:
    """Rows (6000, 10), and labels from functions with a squared exponential of length scale 4 and unit noise."""
    rng, n, d, features = np.random.default_rng(3), 6000, 10, 2000
    X = rng.normal(size=(n, d))
    slopes, shifts = rng.normal(size=(d, features)) / 4.0, rng.uniform(0, 2 * np.pi, features)
    f = magnitude * np.sqrt(2 / features) * np.cos(X @ slopes + shifts) @ rng.normal(size=(features, classes))
    f -= f.mean(0)
    return X, (f + rng.normal(size=f.shape)).argmax(1)


def digits(folder: str) -> Labelled:
    """The first training rows of MNIST."""
    split = mnist(folder)
    return split.X[:DIGITS], split.y[:DIGITS]


def training(folder: str, name: str) -> Labelled:
    """The training rows of a set of one split."""
    X, y, *_ = splits(Path(folder), name)[0]
    return X, y


def whole(folder: str, name: str) -> Labelled:
    """All rows of a set that has folds."""
    X, y, others, labels = splits(Path(folder), name)[0]
    return np.concatenate([X, others]), np.concatenate([y, labels])


SETS: Mapping[str, Callable[[str], Labelled]] = {
    "drawn, 4, overlapping much": lambda folder: drawn(4, 2.0),
    "drawn, 8": lambda folder: drawn(8, 8.0),
    "letters, 3": lambda folder: training(folder, "letters"),
    "vehicle, 4": lambda folder: whole(folder, "vehicle"),
    "satellite, 6": lambda folder: training(folder, "satellite"),
    "MNIST, 10": digits,
    "vowel, 11": lambda folder: read_labelled(Path(folder) / "vowel.csv"),
}


def draw(X: np.ndarray, labels: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, ...]:
    """Standardised training rows and labels, and the same of scored rows. Columns vary in the training rows."""
    y = np.unique(labels, return_inverse=True)[1]
    own, others = train_test_split(
        np.arange(y.size), train_size=rows, random_state=seed, stratify=y if np.bincount(y).min() > 5 else None
    )
    others = np.random.default_rng(100 + seed).permutation(others)[:SCORED]
    varies = X[own].std(axis=0) > 0.0
    scaler = StandardScaler().fit(X[own][:, varies])
    return scaler.transform(X[own][:, varies]), y[own], scaler.transform(X[others][:, varies]), y[others]


def log_loss(split: tuple[np.ndarray, ...], kind: str) -> float:
    """Average log loss of the scored rows."""
    import pymc as pm

    import pymc_gpep as gpep

    X, y, Xnew, ynew = split
    columns, c = X.shape[1], int(y.max()) + 1
    options: dict[str, Any] = {"method": "nested_ep"}
    if kind != NESTED:
        options = {"method": "sparse_ep", "inducing": X, "shared_inducing": True, "sites": kind}
    with pm.Model():
        ls, eta = pm.LogNormal("ls", 0.5 * np.log(columns), 1.0), pm.HalfNormal("eta", 5.0)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(columns, ls=ls))
        gpep.MultinomialProbit("y", gp.prior("f", X=X, n_outputs=c).T, observed=y)
        fit = pm.fit(hyper="map", progressbar=False, **options)
    return float(-scores(fit.predict(Xnew, covariances=False)["p"].values, ynew)["log_p"].mean())


def main() -> None:
    """Print a line for each data set after its draws."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_rows", description=__doc__)
    parser.add_argument("--data", required=True, metavar="FOLDER", help="folder of the data sets, as CSV")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--draws", type=int, default=len(DRAWS), help="number of draws")
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    print(
        f"| set, classes | {' | '.join(KINDS)} | draws where {NESTED} is better than {QUADRATURE} |\n"
        + "| --- " * 5
        + "|"
    )
    for name in given.sets:
        data = SETS[name](given.data)
        losses = np.array([[log_loss(draw(*data, *each), kind) for kind in KINDS] for each in DRAWS[: given.draws]])
        apart = losses[:, 1:] - losses[:, :1]
        errors = apart.std(axis=0, ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else np.full(2, np.nan)
        cells = [f"{mean:+.3f} ± {error:.3f}" for mean, error in zip(apart.mean(axis=0), errors, strict=True)]
        print(f"| {name} | {losses[:, 0].mean():.3f} | {' | '.join(cells)} | {(apart[:, 1] < 0).sum()} |", flush=True)


if __name__ == "__main__":
    main()
