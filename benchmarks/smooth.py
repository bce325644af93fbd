"""Smooth terms by cubic regression splines, against mgcv.

    python -m benchmarks.smooth --data FOLDER
    python -m benchmarks.smooth --data FOLDER --only poisson

FOLDER has `smooth.csv`, four covariates with a normal, a binary and a Poisson response; `smooth_basis.json.gz`, mgcv's
columns of each covariate; and `estimates.json` with the REML fits of its `gam`. For each response at mgcv's smoothing
parameters, the table has minus the log evidence of Laplace's method minus mgcv's REML score, with mgcv's columns and
with the columns of `gpep.spline`, and the largest difference of a fitted term at a row. At the maximum of `pm.fit` it
has the same difference of scores, the largest difference of a log standard deviation, and the seconds. For mgcv the
fourth term is linear, with a standard deviation near 0: it is left out of the differences of standard deviations.

Levels and slopes have flat priors, like mgcv's null spaces.
"""

import argparse
import gzip
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

import pymc_gpep as gpep

_TERMS = ("x0", "x1", "x2", "x3")
_RESPONSES = {"normal": "y", "binary": "yb", "poisson": "yp"}


@dataclass(frozen=True)
class Smooth:
    """A sum of four smooth terms.

    Attributes
    ----------
    model : pm.Model
        With flat priors of `free`, the level and the slopes, of the logarithms of standard deviations, `log_sd`, and
        of that of the noise, `log_sigma`, where the response is normal.
    free, bends : arrays (n, 5) and (4, n, 8)
        The columns.
    """

    model: pm.Model
    free: np.ndarray
    bends: np.ndarray

    def fit(self, n: int | None, start: dict[str, Any]) -> Any:
        """Return the fit by Laplace's method, after a search, or at the start with n = 0."""
        with self.model, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a search without steps does not converge
            limit = {} if n is None else {"n": n}
            return pm.fit(**limit, method="laplace", hyper="map", start=start, progressbar=False)

    def terms(self, fit: Any) -> np.ndarray:
        """Return the terms at the rows, (n, 4)."""
        slopes, bend = fit.mean_data["free"].values[1:], fit.mean_data["bend"].values
        return self.free[:, 1:] * slopes + np.einsum("jnk,jk->nj", self.bends, bend)


def declare(columns: list[tuple[np.ndarray, np.ndarray]], response: str, y: np.ndarray) -> Smooth:
    """Declare the model with the linear and the bending columns of each term."""
    free = np.column_stack([np.ones(y.size), *(line for line, _ in columns)])
    bends = np.stack([bends for _, bends in columns])
    with pm.Model() as model:
        log_sd = pm.Flat("log_sd", shape=len(columns))
        bend = pm.Normal("bend", 0, pm.math.exp(log_sd)[:, None], shape=(len(columns), bends.shape[2]))
        f = free @ pm.Flat("free", shape=free.shape[1])
        for j, each in enumerate(bends):
            f = f + each @ bend[j]
        if response == "normal":
            pm.Normal("y", f, pm.math.exp(pm.Flat("log_sigma")), observed=y)
        elif response == "binary":
            pm.Bernoulli("y", logit_p=f, observed=y)
        else:
            pm.Poisson("y", mu=pm.math.exp(f), observed=y)
    return Smooth(model, free, bends)


def run(response: str, folder: Path) -> dict[str, float]:
    """Return differences from mgcv."""
    data = pd.read_csv(folder / "smooth.csv")
    with gzip.open(folder / "smooth_basis.json.gz") as file:
        stored = json.load(file)
    known = json.loads((folder / "estimates.json").read_text())["smooth"]["gam"][f"{response}_REML"]
    y = data[_RESPONSES[response]].to_numpy()
    theirs = [(np.array(stored[name]["Xf"])[:, 0], np.array(stored[name]["Z"])) for name in _TERMS]
    ours = [gpep.spline(data[name]) for name in _TERMS]
    # The slope of mgcv's column is the slope of our column times the ratio of column lengths, which also scales the
    # flat density. Bending columns are compared after projection onto the complement of the linear column.
    ratios = np.array([np.linalg.norm(a) / np.linalg.norm(b) for (a, _), (b, _) in zip(theirs, ours, strict=True)])
    size = np.array([np.linalg.norm(z - np.outer(a, a @ z) / (a @ a)) / np.linalg.norm(b)
                     for (a, z), (_, b) in zip(theirs, ours, strict=True)])  # fmt: skip
    log_sd, noise = 0.5 * np.log(known["scale"] / np.array(known["sp"])), {}
    if response == "normal":
        noise = {"log_sigma": np.array(0.5 * np.log(known["scale"]))}
    same, own = (declare(columns, response, y) for columns in (theirs, ours))
    at_theirs = same.fit(0, {"log_sd": log_sd, **noise})
    at_ours = own.fit(0, {"log_sd": log_sd + np.log(size), **noise})
    shift = -float(np.log(ratios).sum())
    found = own.fit(None, {"log_sd": np.zeros(len(_TERMS))})
    bent = slice(3)
    return {
        "score": -at_theirs.log_evidence - known["score"],
        "by gpep.spline": -(at_ours.log_evidence + shift) - known["score"],
        "terms": float(np.abs(own.terms(at_ours) - np.array(known["terms"])).max()),
        "score at the maximum": -(found.log_evidence + shift) - known["score"],
        "log sd": float(np.abs(found.hyperparameters["log_sd"].values - log_sd - np.log(size))[bent].max()),
        "seconds": found.seconds,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data, columns and estimates")
    parser.add_argument("--only", nargs="+", choices=list(_RESPONSES), default=list(_RESPONSES), help="responses")
    given = parser.parse_args()
    for response in given.only:
        row = run(response, given.data)
        print(f"{response:8s}", "  ".join(f"{k} {v:.2g}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
