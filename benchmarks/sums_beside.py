"""Sums of effects by this package and by other approximations, against stored long chains of NUTS.

    python -m benchmarks.sums_beside --chains tests/benchmarks/long_chains_of_sums.json
    python -m benchmarks.sums_beside --chains ... --extras PYTHON --only binary slopes

PYTHON belongs to an environment with this package and pymc-extras. The table has for each model and method the largest
error of a mean of an integrated variable in standard deviations of the chains, the range of ratios of standard
deviations, and seconds with compiling. pymc-extras' INLA integrates one Gaussian vector with a given precision, and
returns hyperparameters alone: this is the model `binary`, whose other variables it samples by NUTS.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.sums import MODELS, methods
from pymc_gpep.reading import read_classifier

_DRAWS = 4000


def _of_draws(posterior: Any) -> dict[str, Any]:
    """Return means and standard deviations by variable, flattened."""
    return {
        name: {"mean": np.ravel(v.mean(("chain", "draw"))).tolist(), "sd": np.ravel(v.std(("chain", "draw"))).tolist()}
        for name, v in posterior.data_vars.items()
    }


def _ours(name: str, which: int) -> dict[str, Any]:
    fit = pm.fit(method=methods(name)[which], progressbar=False)
    effects = fit.effects([rv.name for rv in fit.classifier.prior.integrated])
    return {
        key: {moment: np.ravel(values.sel(moment=moment)).tolist() for moment in ("mean", "sd")}
        for key, values in effects.data_vars.items()
    }


def _advi(name: str) -> dict[str, Any]:
    approximation = pm.fit(30_000, method="advi", progressbar=False, random_seed=1)
    return _of_draws(approximation.sample(_DRAWS, random_seed=1)["posterior"])


def _nuts(name: str) -> dict[str, Any]:
    chains = pm.sample(1000, tune=1000, chains=4, cores=1, random_seed=1, progressbar=False)
    return _of_draws(chains["posterior"])


def _pathfinder(name: str) -> dict[str, Any]:
    import pymc_extras as pmx

    draws = pmx.fit_pathfinder(num_draws=_DRAWS, cores=1, parallel=False, progressbar=False, random_seed=1)
    return _of_draws(draws["posterior"])


def _laplace_of_all(name: str) -> dict[str, Any]:
    import pymc_extras as pmx

    draws = pmx.fit_laplace(draws=_DRAWS, progressbar=False, random_seed=1)
    return _of_draws(draws["posterior"])


def _inla(name: str) -> dict[str, Any]:
    """The model `binary` with the groups as a vector of precision 1/s², as INLA requires."""
    import pymc_extras as pmx

    data = pm.modelcontext(None)
    observed = data.rvs_to_values[data["y"]].eval()
    rng = np.random.default_rng(1)
    group, x = np.repeat(np.arange(40), 3), rng.normal(size=120)
    with pm.Model(model=None):
        level, beta, s = pm.Normal("level", 0, 2), pm.Normal("beta", 0, 1), pm.HalfNormal("s", 1.5)
        precision = np.eye(40) / s**2
        u = pm.MvNormal("u", mu=np.zeros(40), tau=precision)
        pm.Bernoulli("y", logit_p=level + beta * x + u[group], observed=observed)
        draws = pmx.fit(
            method="INLA", x=u, Q=precision, chains=2, draws=500, tune=500, cores=1, random_seed=1, progressbar=False
        )
    return _of_draws(draws["posterior"])


METHODS: dict[str, Callable[[str], dict[str, Any]]] = {
    "EP": lambda name: _ours(name, 0),
    "Laplace": lambda name: _ours(name, 1),
    "NUTS": _nuts,
    "ADVI": _advi,
}
EXTRAS: dict[str, Callable[[str], dict[str, Any]]] = {
    "Pathfinder": _pathfinder,
    "Laplace of all": _laplace_of_all,
    "INLA": _inla,
}


def measure(model: str, method: str) -> dict[str, Any]:
    """Return moments by one method, and its seconds."""
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MODELS[model]()
        began = time.perf_counter()
        found = (METHODS | EXTRAS)[method](model)
        return {"moments": found, "seconds": time.perf_counter() - began}


def errors(found: dict[str, Any], chains: dict[str, Any], names: list[str]) -> dict[str, float]:
    """Return errors of means in standard deviations of chains, and ratios of standard deviations."""
    names = [name for name in names if name in found["moments"] and name in chains]
    error, ratio = [], []
    for name in names:
        mean, sd = np.array(chains[name]["mean"]), np.array(chains[name]["sd"])
        error.append(np.abs(np.array(found["moments"][name]["mean"]) - mean) / sd)
        ratio.append(np.array(found["moments"][name]["sd"]) / sd)
    every = np.concatenate(ratio)
    return {
        "largest": float(np.concatenate(error).max()),
        "least ratio": float(every.min()),
        "greatest ratio": float(every.max()),
        "seconds": found["seconds"],
    }


def elsewhere(python: str, model: str, method: str, seconds: float) -> dict[str, Any] | str:
    """Return the result of `measure` in another environment, or the reason why it is missing."""
    command = [python, "-m", "benchmarks.sums_beside", "--one", model, method]
    root = str(Path(__file__).parents[1])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=root, env=os.environ | {"PYTHONPATH": root}
        )
    except subprocess.TimeoutExpired:
        return f"not within {seconds:g} s"
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=Path, help="the moments of long chains, by `python -m benchmarks.sums`")
    parser.add_argument("--extras", metavar="PYTHON", help="the Python of an environment that has pymc-extras")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), help="models")
    parser.add_argument("--seconds", type=float, default=300.0, help="seconds that one fit may take")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "METHOD"), help="only this fit, with its figures as JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one)))
        return
    if given.chains is None:
        parser.error("give --chains, a file of moments of long chains")
    stored = json.loads(given.chains.read_text())
    for model in given.only:
        with pm.Model() as declared:
            MODELS[model]()
        names = [rv.name for rv in read_classifier(declared).prior.integrated]
        extras = [] if given.extras is None else [each for each in EXTRAS if each != "INLA" or model == "binary"]
        for method in [*METHODS, *extras]:
            python = given.extras if method in EXTRAS else sys.executable
            found = elsewhere(python, model, method, given.seconds)
            if isinstance(found, dict):
                found = "  ".join(f"{k} {v:.3g}" for k, v in errors(found, stored[model], names).items())
            print(f"{model:10s} {method:15s} {found}", flush=True)


if __name__ == "__main__":
    main()
