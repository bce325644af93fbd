"""Sums of effects by a sparse precision: seconds and memory against the necessary work of a sweep.

    python -m benchmarks.sums_by_precision
    python -m benchmarks.sums_by_precision --only lattice --size 200
    python -m benchmarks.sums_by_precision --only ratings --data FOLDER

Seconds are of a second fit at the maximum of the hyperparameters (`hyper="map"`), including graph and search, in wall
time and processor time, and of one evaluation of the log posterior with its gradient, started at a nearby solution. The
floor is a factor of the precision and the entries of its inverse, for each sweep of the search. Memory is the peak of
the process so far.

`ratings` is R's InstEval, `InstEval.csv.gz` in FOLDER: 73 421 ratings of 1128 lecturers by 2972 students. The model is
normal, with flat priors of coefficients and log standard deviations. The log evidence at its maximum is printed minus
lme4's log likelihood.
"""

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

import pymc_gpep  # noqa: F401  registers the methods of pm.fit
from pymc_gpep.kernels.status import CONVERGED

_LME4 = -118865.307680  # log likelihood at lme4's estimates


def lattice(size: int, folder: Path | None) -> None:
    """Counts on a square lattice, with effects of neighbouring areas and independent effects."""
    rng = np.random.default_rng(1)
    along = np.eye(size, k=1, dtype=np.int8)
    edges = np.kron(np.eye(size, dtype=np.int8), along) + np.kron(along, np.eye(size, dtype=np.int8))
    x = np.linspace(0, 3, size)
    eta = 1.0 + np.outer(np.sin(x), np.cos(x)).ravel() + 0.3 * rng.normal(size=size**2)
    level, s = pm.Normal("level", 0, 2), pm.HalfNormal("s", 1, shape=2)
    phi, theta = pm.ICAR("phi", W=edges + edges.T), pm.Normal("theta", shape=size**2)
    pm.Poisson("y", mu=pm.math.exp(level + s[0] * phi + s[1] * theta), observed=rng.poisson(np.exp(eta)))


def series(size: int, folder: Path | None) -> None:
    """A binary autoregressive series with effects of weekdays."""
    rng = np.random.default_rng(2)
    noise, eta = rng.normal(size=size), np.zeros(size)
    for t in range(1, size):
        eta[t] = 0.95 * eta[t - 1] + 0.4 * noise[t]
    rho, s = pm.Uniform("rho", 0, 1), pm.HalfNormal("s", 1)
    walk, day = pm.AR("walk", [rho], sigma=s, init_dist=pm.Normal.dist(0, 2), shape=size), pm.Normal("day", shape=7)
    observed = (rng.random(size) < 1 / (1 + np.exp(-eta))).astype(int)
    pm.Bernoulli("y", logit_p=walk + day[np.arange(size) % 7], observed=observed)


def ratings(size: int, folder: Path | None) -> None:
    """Ratings of lecturers by students, crossed."""
    if folder is None:
        raise SystemExit("ratings are in a folder: --data FOLDER")
    d = pd.read_csv(folder / "InstEval.csv.gz")
    (students, student), (lecturers, lecturer) = (np.unique(d[name], return_inverse=True) for name in ("s", "d"))
    b = pm.Flat("b", shape=2, initval=[0.0, 0.0])
    log_sd = pm.Flat("log_sd", shape=3, initval=[-1.0, -0.5, 0.0])
    u = pm.Normal("u", 0, pm.math.exp(log_sd[0]), shape=len(students))
    v = pm.Normal("v", 0, pm.math.exp(log_sd[1]), shape=len(lecturers))
    mu = b[0] + b[1] * d.service.to_numpy(float) + u[student] + v[lecturer]
    pm.Normal("y", mu=mu, sigma=pm.math.exp(log_sd[2]), observed=d.y.to_numpy(float))


MODELS: dict[str, tuple[Callable[[int, Path | None], None], int, str]] = {
    "lattice": (lattice, 100, "ep"),
    "series": (series, 5000, "ep"),
    "ratings": (ratings, 0, "laplace"),
}


def maximum(log_posterior: Callable[..., Any], theta: np.ndarray, start: np.ndarray) -> float:
    """Return the maximum by two Newton steps, since a search ends within its tolerance of the maximum."""
    for _ in range(2):
        slope = log_posterior(theta, start).gradient
        along = 1e-3 * np.eye(theta.size)
        curvature = np.array([(log_posterior(theta + own, start).gradient - slope) / 1e-3 for own in along])
        theta = theta - np.linalg.solve(0.5 * (curvature + curvature.T), slope)
    return float(log_posterior(theta, start).log_posterior)


def run(name: str, size: int, folder: Path | None) -> dict[str, float]:
    """Return a row of the table."""
    declare, _, method = MODELS[name]
    with pm.Model():
        declare(size, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the search makes no step
            held = ["b"] if name == "ratings" else []
            _ = pm.fit(0, method=method, hyper="map", hyperparameters=held, progressbar=False)  # compiles
        began, busy = time.perf_counter(), time.process_time()
        fit = pm.fit(method=method, hyper="map", hyperparameters=held, progressbar=False)
        seconds, processor = time.perf_counter() - began, time.process_time() - busy
    if not fit.converged or fit.solution.convergence.status != CONVERGED:
        raise RuntimeError(f"{name}: {fit.message}")
    prior, sites = fit.solution.posterior.prior, fit.solution.posterior.sites
    sweeps = int(fit.history["iterations"].sum())
    began = time.perf_counter()
    fit.log_posterior(fit.theta + 1e-3, fit.solution.start)
    evaluation = time.perf_counter() - began
    began = time.perf_counter()
    _ = prior.posterior_precision(sites).selected
    floor = sweeps * (time.perf_counter() - began)
    row = {
        "rows": prior.shape[1], "numbers": prior.n_normals, "entries": prior.structure.posterior.entries,
        "seconds": seconds, "processor": processor, "evaluation": evaluation, "sweeps": sweeps, "floor": floor,
        "GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }  # fmt: skip
    if name != "ratings":
        return row
    return row | {"less lme4": maximum(fit.log_posterior, fit.theta, fit.solution.start) - _LME4}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=["lattice", "series"], help="models")
    parser.add_argument("--size", type=int, help="side of the lattice, length of the series")
    parser.add_argument("--data", type=Path, help="folder with InstEval.csv.gz")
    given = parser.parse_args()
    for name in given.only:
        row = run(name, given.size or MODELS[name][1], given.data)
        print(f"{name:8s}", "  ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
