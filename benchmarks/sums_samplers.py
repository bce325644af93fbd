"""Samplers on sums of effects, against stored long chains: errors of means, and effective draws per second.

    python -m benchmarks.sums_samplers --chains tests/benchmarks/long_chains_of_sums.json --only binary slopes

The table has for each model and sampler the largest error of a mean, in standard errors of both chains together; the
smallest effective sample size of integrated variables and of hyperparameters; processor seconds with tuning and
compiling; and effective draws per second. "NUTS" is the default of pm.sample, nutpie if it is installed.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

import pymc_gpep as gpep
from benchmarks.sums import MODELS, Moments
from pymc_gpep.reading import read_classifier


def _by_step(make: Callable[[], Any]) -> Callable[[int, int], xr.DataTree]:
    def sample(draws: int, seed: int) -> xr.DataTree:
        return pm.sample(draws, tune=draws // 2, chains=2, cores=1, step=make(), random_seed=seed, progressbar=False)

    return sample


def _marginal(draws: int, seed: int) -> xr.DataTree:
    marginal = gpep.marginalize(pm.modelcontext(None), warm=True)
    with marginal:
        chains = pm.sample(
            draws, tune=draws // 2, chains=2, cores=1, random_seed=seed, progressbar=False, nuts_sampler="pymc"
        )
    return gpep.recover_latent(chains, marginal, random_seed=seed, progressbar=False)


SAMPLERS: dict[str, Callable[[int, int], xr.DataTree]] = {
    "GuidedHMC": _by_step(gpep.samplers.GuidedHMC),
    "EllipticalSlice": _by_step(gpep.samplers.EllipticalSlice),
    "PseudoMarginal": _by_step(gpep.samplers.PseudoMarginal),
    "ProbitGibbs": _by_step(gpep.samplers.ProbitGibbs),
    "marginal NUTS": _marginal,
    "NUTS": _by_step(lambda: None),
}


def worst_error(posterior: xr.Dataset, chains: Moments, names: list[str]) -> float:
    """Return the largest error of a mean, in standard errors of both together."""
    worst = 0.0
    for name in names:
        own = posterior[[name]]
        error = np.ravel(az.mcse(own, method="mean")[name])
        difference = np.ravel(own[name].mean(("chain", "draw"))) - np.array(chains[name]["mean"])
        worst = max(worst, float((np.abs(difference) / np.hypot(error, chains[name]["error of mean"])).max()))
    return worst


def run(model: str, sampler: str, draws: int, chains: Moments, seed: int = 1) -> dict[str, float]:
    """Return the figures of one sampler on one model."""
    with pm.Model() as declared, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MODELS[model]()
        classifier = read_classifier(declared)
        began = time.process_time()
        posterior = SAMPLERS[sampler](draws, seed)["posterior"].to_dataset()
        seconds = time.process_time() - began
    integrated = [rv.name for rv in classifier.prior.integrated if rv.name in posterior and rv.name in chains]
    every = [*integrated, *(rv.name for rv in classifier.hyperparameters)]
    effective = az.ess(posterior[every])
    least = min(float(effective[name].min()) for name in every)
    error = worst_error(posterior, chains, every)
    return {"worst error": error, "effective": least, "seconds": seconds, "a second": least / seconds}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=Path, required=True, help="moments of chains, by `python -m benchmarks.sums`")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), help="models")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS))
    parser.add_argument("--draws", type=int, default=1000, help="draws of each of two chains")
    given = parser.parse_args()
    stored = json.loads(given.chains.read_text())
    for model in given.only:
        for sampler in given.samplers:
            try:
                row = run(model, sampler, given.draws, stored[model])
            except ValueError as error:  # a sampler that needs utilities refuses other likelihoods
                print(f"{model:10s} {sampler:15s} {str(error).splitlines()[0][:80]}", flush=True)
                continue
            print(f"{model:10s} {sampler:15s}", "  ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
