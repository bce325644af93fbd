"""Sums of effects by EP and Laplace's method, against long chains of NUTS for the same models.

    python -m benchmarks.sums --draws 1000
    python -m benchmarks.sums --only binary areas
    python -m benchmarks.sums --draws 2500 --chains tests/benchmarks/long_chains_of_sums.json
    python -m benchmarks.sums --stored tests/benchmarks/long_chains_of_sums.json

The table has for each model the largest error of a mean of an integrated variable in standard deviations of the chains,
the root mean square of these errors, the range of ratios of standard deviations, and seconds after compiling. Chains
and fits integrate over hyperparameters. The third command stores the moments of chains, with which a test compares
fits. The last command compares every method with the stored moments, and prints a table.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

import pymc_gpep as gpep
from pymc_gpep.reading import read_classifier


def binary() -> None:
    """Binary responses of forty groups with three rows each."""
    rng = np.random.default_rng(1)
    group, x = np.repeat(np.arange(40), 3), rng.normal(size=120)
    eta = 0.8 + 1.0 * rng.normal(size=40)[group] - 0.8 * x
    level, beta = pm.Normal("level", 0, 2), pm.Normal("beta", 0, 1)
    s = pm.HalfNormal("s", 1.5)
    u = pm.Normal("u", 0, 1, shape=40)
    observed = (rng.random(120) < 1 / (1 + np.exp(-eta))).astype(int)
    pm.Bernoulli("y", logit_p=level + beta * x + s * u[group], observed=observed)


def crossed() -> None:
    """Persons and items. Their effects sum to zero or not."""
    rng = np.random.default_rng(2)
    person, item = np.repeat(np.arange(30), 8), np.tile(np.arange(8), 30)
    eta = rng.normal(size=30)[person] - np.linspace(-1.5, 1.5, 8)[item]
    s_person, s_item = pm.HalfNormal("s_person", 1), pm.HalfNormal("s_item", 1)
    mean = pm.Normal("mean", 0, 2)
    ability = pm.Normal("ability", 0, 1, shape=30)
    difficulty = pm.ZeroSumNormal("difficulty", 1, shape=8)
    observed = (rng.random(240) < 1 / (1 + np.exp(-eta))).astype(int)
    pm.Bernoulli("y", logit_p=mean + s_person * ability[person] - s_item * difficulty[item], observed=observed)


def slopes() -> None:
    """Counts of forty subjects with a level, a slope and an exposure each."""
    rng = np.random.default_rng(3)
    subject, day, hours = np.repeat(np.arange(40), 5), np.tile(np.linspace(-1, 1, 5), 40), rng.uniform(0.5, 2, 200)
    eta = 0.3 + 0.6 * rng.normal(size=40)[subject] + (0.4 + 0.5 * rng.normal(size=40)[subject]) * day
    mean, sd = pm.Normal("mean", 0, 1, shape=2), pm.HalfNormal("sd", 1, shape=2)
    z = pm.Normal("z", 0, 1, shape=(40, 2))
    u = mean + z * sd
    observed = rng.poisson(hours * np.exp(eta))
    pm.Poisson("y", mu=hours * pm.math.exp(u[subject, 0] + u[subject, 1] * day), observed=observed)


def areas() -> None:
    """Counts of 64 areas (BYM2)."""
    rng = np.random.default_rng(4)
    side, n = 8, 64
    w = np.zeros((n, n), int)
    for i in range(n):
        for j in ([i + 1] if (i + 1) % side else []) + ([i + side] if i + side < n else []):
            w[i, j] = w[j, i] = 1
    x, expected = rng.normal(size=n), rng.uniform(2, 5, size=n)
    level, beta = pm.Normal("level", 0, 2), pm.Normal("beta", 0, 1)
    sigma, rho = pm.HalfNormal("sigma", 1), pm.Beta("rho", 2, 2)
    phi, theta = pm.ICAR("phi", W=w), pm.Normal("theta", 0, 1, shape=n)
    b = sigma * (pm.math.sqrt(1 - rho) * theta + pm.math.sqrt(rho / 0.605) * phi)
    observed = rng.poisson(expected * np.exp(0.3 * x + 0.6 * np.sin(np.arange(n) // side)))
    pm.Poisson("y", mu=expected * pm.math.exp(level + beta * x + b), observed=observed)


def ordered() -> None:
    """Ratings by judges."""
    rng = np.random.default_rng(5)
    judge, warm = np.repeat(np.arange(12), 8), np.tile(np.arange(8) % 2, 12)
    eta = 1.2 * warm + 0.8 * rng.normal(size=12)[judge] + rng.normal(size=96)
    beta, s = pm.Normal("beta", 0, 2), pm.HalfNormal("s", 1)
    u = pm.Normal("u", 0, 1, shape=12)
    start, ascending = [-1.0, 0.5, 2.0], pm.distributions.transforms.ordered
    cut = pm.Normal("cut", 0, 3, shape=3, initval=start, transform=ascending)
    pm.OrderedProbit("y", eta=beta * warm + s * u[judge], cutpoints=cut, observed=np.digitize(eta, [-0.5, 0.5, 1.5]))


def basis() -> None:
    """An HSGP field and a linear term."""
    rng = np.random.default_rng(6)
    xy, x = rng.uniform(-1, 1, size=(250, 2)), rng.normal(size=250)
    eta = pm.HalfNormal("eta", 1)
    ls = pm.InverseGamma("ls", 4, 2)
    gp = pm.gp.HSGP(m=[6, 6], c=1.5, cov_func=eta**2 * pm.gp.cov.Matern52(2, ls=ls))
    field = gp.prior("field", X=xy)
    beta, level = pm.Normal("beta", 0, 1), pm.Normal("level", 0, 2)
    observed = (rng.random(250) < 1 / (1 + np.exp(-(1.5 * np.sin(3 * xy[:, 0]) + 0.7 * x)))).astype(int)
    pm.Bernoulli("y", logit_p=level + beta * x + field, observed=observed)


def walk() -> None:
    """Overdispersed counts along a random walk."""
    rng = np.random.default_rng(9)
    eta = 1.0 + np.cumsum(0.25 * rng.normal(size=80))
    drift, size = pm.HalfNormal("drift", 0.5), pm.Gamma("size", 2, 0.5)
    level = pm.Normal("level", 0, 2)
    path = pm.GaussianRandomWalk("path", sigma=drift, init_dist=pm.Normal.dist(0, 0.1), steps=79)
    observed = rng.poisson(np.exp(eta) * rng.gamma(3, 1 / 3, 80))
    pm.NegativeBinomial("y", mu=pm.math.exp(level + path), alpha=size, observed=observed)


def lifetimes() -> None:
    """Times of patients in fifteen clinics. A third is censored."""
    rng = np.random.default_rng(10)
    clinic, x = rng.integers(0, 15, 150), rng.normal(size=150)
    time = np.exp(1.0 + 0.5 * x + 0.5 * rng.normal(size=15)[clinic]) * rng.weibull(1.4, 150)
    seen_until = rng.uniform(1.0, 8.0, 150)
    shape, s = pm.Gamma("shape", 2, 1), pm.HalfNormal("s", 1)
    level, beta = pm.Normal("level", 0, 2), pm.Normal("beta", 0, 1)
    u = pm.Normal("u", 0, 1, shape=15)
    survival = pm.Weibull.dist(alpha=shape, beta=pm.math.exp(level + beta * x + s * u[clinic]))
    upper = np.where(time < seen_until, np.inf, seen_until)
    pm.Censored("y", survival, lower=None, upper=upper, observed=np.minimum(time, seen_until))


def classes() -> None:
    """Three classes by Gaussian processes with a linear trend."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(60, 2))
    ls, eta = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 1)
    gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(2, ls=ls))
    f = gp.prior("f", X=x, n_outputs=3)
    s = pm.HalfNormal("s", 1)
    trend = pm.Normal("trend", 0, s, shape=(2, 3))
    eta_true = x @ rng.normal(size=(2, 3)) + 1.5 * np.sin(2 * x[:, :1]) * [1, 0, -1]
    observed = np.argmax(eta_true + rng.normal(size=(60, 3)), axis=1)
    gpep.MultinomialProbit("y", f.T + x @ trend, observed=observed)


_MODELS = (binary, crossed, slopes, areas, walk, lifetimes, ordered, basis, classes)
MODELS: dict[str, Callable[[], None]] = {f.__name__: f for f in _MODELS}


def methods(name: str) -> tuple[str, str]:
    """Return the methods that support a model: EP, and Laplace's method."""
    return ("nested_ep", "laplace") if name == "classes" else ("ep", "laplace")


type Moments = dict[str, dict[str, list[float]]]
"""Mean, standard deviation, and the Monte Carlo errors of both, by name of value variable, each flat."""


def moments(chains: xr.DataTree) -> Moments:
    """Return moments of the value variables of a model by stored chains."""
    found = {}
    draws = {**chains["posterior"].data_vars, **chains["unconstrained_posterior"].data_vars}
    for name, values in draws.items():
        own = values.to_dataset(name=name)
        each = {"mean": values.mean(("chain", "draw")), "sd": values.std(("chain", "draw"))}
        each |= {f"error of {key}": az.mcse(own, method=key)[name] for key in ("mean", "sd")}
        found[name] = {key: [float(f"{v:.5g}") for v in np.ravel(value)] for key, value in each.items()}
    return found


def compared(fit: gpep.Fit, chains: xr.DataTree, names: list[str]) -> dict[str, float]:
    """Return errors of means and ratios of standard deviations of some variables against chains."""
    found, posterior = fit.effects(names), chains["posterior"]
    errors, ratios = [], []
    for name in names:
        draws = posterior[name]
        mean, sd = draws.mean(("chain", "draw")).values, draws.std(("chain", "draw")).values
        errors.append(np.ravel((found[name].sel(moment="mean").values - mean) / sd))
        ratios.append(np.ravel(found[name].sel(moment="sd").values / sd))
    error, ratio = np.concatenate(errors), np.concatenate(ratios)
    return {
        "largest": float(np.abs(error).max()),
        "rms": float(np.sqrt((error**2).mean())),
        "least ratio": float(ratio.min()),
        "greatest ratio": float(ratio.max()),
    }


def run(name: str, draws: int) -> tuple[dict[str, dict[str, float]], Moments]:
    """Return a row for each method, a row for the chains, and the moments of the chains."""
    with pm.Model() as model:
        MODELS[name]()
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chains = pm.sample(
            draws, tune=1000, chains=4, cores=1, model=model, random_seed=1, progressbar=False,
            target_accept=0.95, idata_kwargs={"include_transformed": True},
        )  # fmt: skip
    rows = {"nuts": {"seconds": time.perf_counter() - began}}
    names = [rv.name for rv in read_classifier(model).prior.integrated]
    summary = az.summary(chains, var_names=names, round_to="none")
    rows["nuts"] |= {"r_hat": float(summary["r_hat"].max()), "ess": float(summary["ess_bulk"].min())}
    for method in methods(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ = pm.fit(method=method, model=model, progressbar=False)  # compiles
            fit = pm.fit(method=method, model=model, progressbar=False)
        rows[method] = compared(fit, chains, names) | {"seconds": fit.seconds}
    return rows, moments(chains)


_TABLE = ("largest", "rms", "sd ratios", "hyperparameters", "seconds")


def beside_stored(name: str, chains: Moments) -> dict[str, dict[str, str]]:
    """Return a row for each method, compared with stored moments of value variables."""
    with pm.Model() as model:
        MODELS[name]()
    integrated = {rv.name for rv in read_classifier(model).prior.integrated}
    rows = {}
    of_one = {"ep": {}, "kl": {}, "laplace": {}, "laplace with smoothed_mean": {"smoothed_mean": True}}
    every: dict[str, dict[str, bool]] = {"nested_ep": {}, "qep": {}, "laplace": {}} if name == "classes" else of_one
    for called, options in every.items():
        method = called.split()[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ = pm.fit(method=method, model=model, progressbar=False, **options)  # compiles
            fit = pm.fit(method=method, model=model, progressbar=False, **options)
        means, sds = fit.mean_data, fit.std_data
        errors: dict[bool, list[np.ndarray]] = {True: [], False: []}
        ratios = []
        for variable, of_chains in chains.items():
            if variable not in means:  # a Deterministic
                continue
            own = variable in integrated or variable.endswith("_zerosum__")
            errors[own].append((np.ravel(means[variable]) - of_chains["mean"]) / of_chains["sd"])
            if own:
                ratios.append(np.ravel(sds[variable]) / of_chains["sd"])
        error, others, ratio = (np.concatenate(each) for each in (errors[True], errors[False], ratios))
        figures = (
            f"{np.abs(error).max():.2f}",
            f"{np.sqrt((error**2).mean()):.3f}",
            f"{ratio.min():.2f} to {ratio.max():.2f}",
            f"{np.abs(others).max():.2f}",
            f"{fit.seconds:.1f}",
        )
        rows[called] = dict(zip(_TABLE, figures, strict=True))
    return rows


def main() -> None:
    """Print a table, and optionally write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), help="models")
    parser.add_argument("--draws", type=int, default=1000, help="draws of each of four chains")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    parser.add_argument("--chains", type=Path, help="a JSON file for the moments of chains")
    parser.add_argument("--stored", type=Path, help="a JSON file of moments by --chains, instead of new chains")
    given = parser.parse_args()
    if given.stored:
        stored = json.loads(given.stored.read_text())
        print("| model | method |", " | ".join(_TABLE), "|")
        print("| --- " * (2 + len(_TABLE)) + "|")
        for name in given.only:
            for method, figures in beside_stored(name, stored[name]).items():
                print(f"| {name} | {method} |", " | ".join(figures.values()), "|", flush=True)
        return
    found, of_chains = {}, {}
    for name in given.only:
        found[name], of_chains[name] = run(name, given.draws)
        for method, row in found[name].items():
            print(f"{name:8s} {method:8s}", "  ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)
    if given.output:
        given.output.write_text(json.dumps(found, indent=1) + "\n")
    if given.chains:
        lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in of_chains.items()]
        given.chains.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
