"""Restricted and plain maximum likelihood for lme4's data sets, against published criteria.

    python -m benchmarks.published_reml --data FOLDER
    python -m benchmarks.published_reml --data FOLDER --only InstEval

FOLDER contains `Dyestuff.csv`, `Penicillin.csv`, `Pastes.csv` and `InstEval.csv` from the collection Rdatasets. The
script prints a table of minus twice the log likelihood at its maximum. Column `published` is from the documentation of
lme4 and the tests of MixedModels.jl (`test/pls.jl`). Column `here` is computed by `pm.fit`. Column `dense` is computed
by a dense Cholesky factor at the maximum of `pm.fit`. InstEval takes a minute and half a gigabyte of memory.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
from scipy.linalg import solve_triangular
from scipy.sparse import csr_array, hstack

import pymc_gpep  # noqa: F401  registers the methods of pm.fit


class Published(NamedTuple):
    """A data set: response, covariates besides the level, groupings, and published criteria."""

    response: str
    covariates: tuple[str, ...]
    groupings: tuple[str, ...]
    restricted: float
    plain: float


MODELS = {
    "Dyestuff": Published("Yield", (), ("Batch",), 319.654276842, 327.327059881),
    "Penicillin": Published("diameter", (), ("plate", "sample"), 330.8606, 332.188348672),
    "Pastes": Published("strength", (), ("sample", "batch"), 246.9907, 247.994465863),
    "InstEval": Published("y", ("service",), ("s", "d", "dept"), np.nan, 237721.768774556),
}


def read(name: str, folder: Path) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the response (n,), columns (n, p) and numbers of groups (n,) of each grouping."""
    d, of = pd.read_csv(folder / f"{name}.csv"), MODELS[name]
    columns = np.column_stack([np.ones(len(d)), *(d[each].to_numpy(float) for each in of.covariates)])
    return d[of.response].to_numpy(float), columns, [pd.factorize(d[each])[0] for each in of.groupings]


def dense(
    y: np.ndarray, columns: np.ndarray, groups: list[np.ndarray], ratios: list[float], noise: float
) -> tuple[float, float]:
    """Return restricted and plain criteria, given standard deviations of groups in units of the noise."""
    n, p = columns.shape
    every = [csr_array((np.full(n, r), (np.arange(n), g))) for r, g in zip(ratios, groups, strict=True)]
    z = csr_array(hstack(every))
    root = np.linalg.cholesky((z.T @ z).toarray() + np.eye(z.shape[1]))
    both = np.column_stack([columns, y])
    along = solve_triangular(root, z.T @ both, lower=True)
    rest = both.T @ both - along.T @ along
    squares = rest[p, p] - rest[p, :p] @ np.linalg.solve(rest[:p, :p], rest[:p, p])
    plain = n * np.log(2 * np.pi * noise**2) + 2 * np.log(root.diagonal()).sum() + squares / noise**2
    restricted = plain - p * np.log(2 * np.pi * noise**2) + np.linalg.slogdet(rest[:p, :p])[1]
    return float(restricted), float(plain)


def main() -> None:
    """Print a row for each data set and criterion."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--only", choices=MODELS, help="a single data set")
    arguments = parser.parse_args()
    rows = []
    for name in [arguments.only] if arguments.only else MODELS:
        y, columns, groups = read(name, arguments.data)
        with pm.Model() as model:
            f = columns @ pm.Flat("b", shape=columns.shape[1])
            for i, each in enumerate(groups):
                f += pm.Normal(f"u{i}", 0, pm.math.exp(pm.Flat(f"log{i}")), shape=int(each.max()) + 1)[each]
            pm.Normal("y", f, pm.math.exp(pm.Flat("noise")), observed=y)
        for kept, published in ((None, MODELS[name].restricted), (["b"], MODELS[name].plain)):
            with model:
                fit = pm.fit(method="laplace", hyper="map", hyperparameters=kept or (), progressbar=False)
            sds = [
                float(np.exp(fit.hyperparameters[each])) for each in ["noise", *map("log{}".format, range(len(groups)))]
            ]
            check = dense(y, columns, groups, [s / sds[0] for s in sds[1:]], sds[0])[kept is not None]
            criterion = "maximum likelihood" if kept else "restricted"
            row = {"data": name, "criterion": criterion, "published": published, "here": -2.0 * fit.log_evidence}
            rows.append(row | {"dense": check})
    print(pd.DataFrame(rows).to_string(index=False, float_format="%.6f"))


if __name__ == "__main__":
    main()
