"""Sums of effects against GPBoost and against factorisations by LAPACK and CHOLMOD: processor seconds of whole fits.

    python -m benchmarks.beside_sums
    python -m benchmarks.beside_sums --only crossed binary --size 10000
    python -m benchmarks.beside_sums --only ratings --data FOLDER

Each model runs in its own process, which fits simulated data, and then a new model of new data of the same shape.
"first" and "second" are the processor seconds of these fits. "summary", "effects" and "predict" are the times of three
calls after the second fit: four variables, all levels of one variable, and ten rows. "floor" is the time of one factor
of the posterior precision and the entries of its inverse, for each solve and sweep of the fit. Memory is the peak of
the process. Peers that are not installed are left out. `ratings` is R's InstEval, `InstEval.csv.gz` in FOLDER.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pymc as pm
import scipy.linalg
import scipy.sparse as sp

import pymc_gpep as gpep  # registers the methods of pm.fit
from benchmarks.common import best_time

_FLAT = ("b", "b0", "b1", "log_su", "log_sv", "log_sd")
_REPEATS = 3
_LME4 = -118865.307680  # maximum of lme4's log likelihood for the ratings
ROOT = Path(__file__).parents[1]


class Row(NamedTuple):
    """A row of the table."""

    declare: Callable[[int, np.random.Generator, Path | None], Any]
    """Add the variables to a model. Return the arrays for a peer, or None."""
    size: int
    method: str
    hyper: str
    names: tuple[str, ...]
    """Variables of the summary."""
    effects: str
    """Variable for which the effects of all levels are computed."""


def _binary(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    return (rng.random(eta.size) < 1.0 / (1.0 + np.exp(-eta))).astype(int)


def _crossed(size: int, rng: np.random.Generator, levels: tuple[int, int], flat: bool) -> Any:
    x, groups = rng.normal(size=size), [rng.integers(0, count, size) for count in levels]
    eta = -0.4 + 0.4 * x + (0.8 * rng.normal(size=levels[0]))[groups[0]] + (0.6 * rng.normal(size=levels[1]))[groups[1]]
    y = _binary(rng, eta)
    if flat:
        b0, b1 = pm.Flat("b0", initval=0.0), pm.Flat("b1", initval=0.0)
        su, sv = (pm.Deterministic(n, pm.math.exp(pm.Flat(f"log_{n}", initval=-0.5))) for n in ("su", "sv"))
    else:
        b0, b1 = pm.Normal("b0", 0, 2), pm.Normal("b1", 0, 1)
        su, sv = pm.HalfNormal("su", 1), pm.HalfNormal("sv", 1)
    u, v = pm.Normal("u", 0, su, shape=levels[0]), pm.Normal("v", 0, sv, shape=levels[1])
    where = pm.Data("x", x), pm.Data("g", groups[0]), pm.Data("h", groups[1])
    pm.Bernoulli("y", logit_p=b0 + b1 * where[0] + u[where[1]] + v[where[2]], observed=y)
    return {"y": y, "x": x, "groups": groups, "likelihood": "bernoulli_logit"}


def crossed(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """Binary rows with crossed groups of 200 and 100 levels."""
    return _crossed(size, rng, (200, 100), False)


def likelihood(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """As `crossed`, with flat priors for maximum likelihood."""
    return _crossed(size, rng, (200, 100), True)


def many_levels(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """Binary rows with crossed groups of 8000 and 2000 levels, and flat priors."""
    return _crossed(size, rng, (8000, 2000), True)


def ratings(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """Ratings of lecturers by students: crossed groups and flat priors."""
    if folder is None:
        raise SystemExit("ratings are in a folder: --data FOLDER")
    d = pd.read_csv(folder / "InstEval.csv.gz")
    levels, groups = zip(*(np.unique(d[name], return_inverse=True) for name in ("s", "d")), strict=True)
    b = pm.Flat("b", shape=2, initval=[0.0, 0.0])
    log_sd = pm.Flat("log_sd", shape=3, initval=[-1.0, -0.5, 0.0])
    u = pm.Normal("u", 0, pm.math.exp(log_sd[0]), shape=len(levels[0]))
    v = pm.Normal("v", 0, pm.math.exp(log_sd[1]), shape=len(levels[1]))
    x, y = d.service.to_numpy(float), d.y.to_numpy(float) + 1e-9 * rng.normal(size=len(d))
    mu = b[0] + b[1] * pm.Data("x", x) + u[pm.Data("g", groups[0])] + v[pm.Data("h", groups[1])]
    pm.Normal("y", mu=mu, sigma=pm.math.exp(log_sd[2]), observed=y)
    return {"y": y, "x": x, "groups": groups, "likelihood": "gaussian"}


def _lattice(size: int) -> sp.csc_matrix:
    along = sp.diags([np.ones(size - 1)], [1])
    edges = sp.kron(sp.eye(size), along) + sp.kron(along, sp.eye(size))
    return sp.csc_matrix(edges + edges.T)


def areas(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """Counts on a lattice of `size` cells a side, BYM2 by a sparse Laplacian."""
    return _areas(size, rng, False)


def dense_areas(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """As `areas`, with the dense `W` of `pm.ICAR`."""
    return _areas(size, rng, True)


def _areas(size: int, rng: np.random.Generator, dense: bool) -> Any:
    n, W = size**2, _lattice(size)
    grid = np.linspace(0, 3, size)
    x, exposure = rng.normal(size=n), rng.uniform(2, 6, n)
    eta = 0.3 * x + 0.5 * np.outer(np.sin(2 * grid), np.cos(2 * grid)).ravel() + 0.1 * rng.normal(size=n)
    y = rng.poisson(exposure * np.exp(eta))
    b0, b1 = pm.Normal("b0", 0, 2), pm.Normal("b1", 0, 1)
    s, rho = pm.HalfNormal("s", 1), pm.Beta("rho", 1, 1)
    if dense:
        phi = pm.ICAR("phi", W=W.toarray().astype(int))
    else:
        laplacian = sp.csc_matrix(sp.diags(np.asarray(W.sum(axis=0)).ravel()) - W)
        phi = gpep.SparseNormal("phi", 0.0, laplacian + 1e-6 * sp.eye(n, format="csc"))
    own = s * (pm.math.sqrt(1 - rho) * pm.Normal("theta", shape=n) + pm.math.sqrt(rho) * phi)
    eta = b0 + b1 * pm.Data("x", x) + own[pm.Data("g", np.arange(n))]
    pm.Poisson("y", mu=pm.Data("exposure", exposure) * pm.math.exp(eta), observed=y)


def series(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """A binary autoregressive series."""
    noise, eta = 1.3 * np.sqrt(1 - 0.95**2) * rng.normal(size=size), np.zeros(size)
    for t in range(1, size):
        eta[t] = 0.95 * eta[t - 1] + noise[t]
    rho, s = pm.Uniform("rho", 0, 1), pm.HalfNormal("s", 1)
    walk = pm.AR("walk", [rho], sigma=s, init_dist=pm.Normal.dist(0, 2), shape=size)
    pm.Bernoulli("y", logit_p=pm.Normal("b0", 0, 2) + walk[pm.Data("g", np.arange(size))], observed=_binary(rng, eta))


def second_order(size: int, rng: np.random.Generator, folder: Path | None) -> Any:
    """Counts along a random walk of second order: a sum of a random walk."""
    s, b0 = pm.HalfNormal("s", 0.1), pm.Normal("b0", 0, 2)
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 0.1), shape=size)
    y = rng.poisson(np.exp(1.0 + np.sin(np.arange(size) / (size / 12))))
    pm.Poisson("y", mu=pm.math.exp(b0 + pm.math.cumsum(walk)[pm.Data("g", np.arange(size))]), observed=y)


ROWS: dict[str, Row] = {
    "crossed": Row(crossed, 1000, "ep", "grid", ("b0", "b1", "su", "sv"), "u"),
    "likelihood": Row(likelihood, 1000, "laplace", "map", ("b0", "b1"), "u"),
    "many rows": Row(crossed, 100_000, "ep", "grid", ("b0", "b1", "su", "sv"), "u"),
    "many levels": Row(many_levels, 100_000, "laplace", "map", ("b0", "b1"), "u"),
    "ratings": Row(ratings, 0, "laplace", "map", ("b",), "u"),
    "areas": Row(areas, 100, "ep", "grid", ("b0", "b1", "s", "rho"), "phi"),
    "dense areas": Row(dense_areas, 100, "ep", "grid", ("b0", "b1", "s", "rho"), "phi"),
    "series": Row(series, 10_000, "ep", "grid", ("b0", "s", "rho"), "walk"),
    "second order": Row(second_order, 10_000, "ep", "grid", ("b0", "s"), "walk"),
}


def _seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its processor seconds."""
    began = time.process_time()
    found = call()
    return found, time.process_time() - began


def _floor(fit: Any) -> float | None:
    """Return processor seconds of one factor and the entries of its inverse, times the number of sweeps of the fit."""
    prior = fit.solution.posterior.prior
    sites = fit.solution.posterior.sites
    sweeps = int(fit.history["iterations"].sum())
    if hasattr(prior, "structure"):
        once = best_time(lambda: prior.posterior_precision(sites).selected, _REPEATS, time.process_time)
        return sweeps * once
    r = min(prior.shape[1], getattr(prior, "n_normals", prior.shape[1]))
    matrix = np.eye(r) * (r + 1.0) + 1.0
    once = best_time(
        lambda: scipy.linalg.lapack.dpotri(np.linalg.cholesky(matrix), lower=1), _REPEATS, time.process_time
    )
    return sweeps * once


def measure(name: str, size: int, hyper: str, folder: Path | None) -> dict[str, Any]:
    """Return a row of the table."""
    row = ROWS[name]
    found: dict[str, Any] = {}
    for seed, label in ((1, "first"), (2, "second")):
        with pm.Model() as model, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _, found[f"declare {label}"] = _seconds(lambda s=seed: row.declare(size, np.random.default_rng(s), folder))
            flat = [rv.name for rv in model.free_RVs if rv.name in _FLAT and row.hyper == "map"]
            options: dict[str, Any] = {"hyperparameters": flat} if flat else {}
            fit, found[label] = _seconds(
                lambda o=options: pm.fit(method=row.method, hyper=hyper, progressbar=False, **o)
            )
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        table, found["summary"] = _seconds(lambda f=fit: f.summary(list(row.names)))
        _, found["effects"] = _seconds(lambda f=fit: f.effects(row.effects))
        data = {key: np.asarray(model[key].get_value()[:10]) for key in ("x", "g", "h", "exposure") if key in model}
        _, found["predict"] = _seconds(lambda f=fit, d=data: f.predict(data=d, progressbar=False))
    found["memory after"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    found["floor"] = _floor(fit)
    found |= {"converged": bool(fit.converged), "warnings": [str(each.message)[:100] for each in caught]}
    found |= {"evaluations": len(fit.history["iteration"]), "nodes": len(fit.hyper_posterior)}
    found["answers"] = {key: [round(v, 5) for v in row] for key, *row in table[["mean", "sd"]].itertuples()}
    if row.hyper == "map":
        found["log likelihood"] = float(fit.log_posterior(fit.theta, fit.solution.start).log_posterior)
    if name == "ratings":
        found["less lme4"] = found["log likelihood"] - _LME4
    return found


def of_gpboost(name: str, size: int, folder: Path | None) -> dict[str, Any]:
    """Return processor seconds of two GPBoost fits that maximise the same likelihood, and the estimates."""
    import gpboost

    found: dict[str, Any] = {}
    for seed, label in ((1, "first"), (2, "second")):
        with pm.Model():
            arrays = ROWS[name].declare(size, np.random.default_rng(seed), folder)
        X = np.column_stack([np.ones(arrays["y"].size), arrays["x"]])
        model = gpboost.GPModel(group_data=np.column_stack(arrays["groups"]), likelihood=arrays["likelihood"])
        _, found[label] = _seconds(lambda m=model, a=arrays, x=X: m.fit(y=a["y"].astype(float), X=x))
    found["answers"] = np.concatenate([np.ravel(model.get_coef()), np.ravel(model.get_cov_pars())]).tolist()
    found["log likelihood"] = -float(model.get_current_neg_log_likelihood())
    return found


def main() -> None:
    """Print a line for each model and system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=[n for n in ROWS if n != "ratings"])
    parser.add_argument("--size", type=int, help="number of rows, of cells along a side, or of times")
    parser.add_argument("--hyper", help="treatment of hyperparameters instead of the default")
    parser.add_argument("--data", type=Path, help="folder with InstEval.csv.gz")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SYSTEM"), help="print one row as JSON")
    given = parser.parse_args()
    if given.one:
        name, system = given.one
        size, hyper = given.size or ROWS[name].size, given.hyper or ROWS[name].hyper
        found = measure(name, size, hyper, given.data) if system == "pymc_gpep" else of_gpboost(name, size, given.data)
        print(json.dumps(found))
        return
    passed = [f"--{key}={value}" for key, value in vars(given).items() if key in ("size", "hyper", "data") and value]
    peer = [name for name in ("crossed", "likelihood", "many rows", "many levels", "ratings") if find_spec("gpboost")]
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    for name in given.only:
        for system in ["pymc_gpep", *(["gpboost"] if name in peer else [])]:
            command = [sys.executable, "-m", "benchmarks.beside_sums", "--one", name, system, *passed]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | threads)
            if done.returncode:
                print(f"{name:12s} {system:9s} {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            figures = json.loads(done.stdout.splitlines()[-1])
            words = [
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
            ]
            print(f"{name:12s} {system:9s}", "  ".join(words), flush=True)


if __name__ == "__main__":
    main()
