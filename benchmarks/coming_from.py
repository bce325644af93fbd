"""The same analyses with lme4, mgcv, bambi, scikit-learn and this package.

    python -m benchmarks.coming_from --data FOLDER
    python -m benchmarks.coming_from --data FOLDER --only cattle

FOLDER has `cbpp.csv`, `smooth.csv` and `estimates.json`, the estimates of lme4 and mgcv with their seconds on another
machine: R is not run here. All other packages are run. Seconds are of a second run in the process. NUTS is run once,
and its seconds include compiling.

`cattle`: ill cattle of fifteen herds in four periods, a binomial response with a level of each herd. The table has the
level of the first period and the coefficient of the last period, each with its standard deviation or error, and the
standard deviation of herds. `curves`: a normal response and a smooth term of each of four covariates. The table has the
root mean squared error of the fitted function at the rows, which were simulated from a known function, and the standard
deviation of the noise.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

import pymc_gpep as gpep
from benchmarks.common import Table


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a second call, and its seconds."""
    function()
    began = time.perf_counter()
    found = function()
    return found, time.perf_counter() - began


def cattle(folder: Path, estimates: dict[str, Any]) -> Table:
    """Return the table of ill cattle."""
    import bambi as bmb

    data = pd.read_csv(folder / "cbpp.csv")
    rows: list[tuple[Any, ...]] = []
    for name, key in (("lme4, Laplace", "nAGQ1"), ("lme4, quadrature of 25 points", "nAGQ25")):
        known = estimates["cbpp"]["glmer"][key]
        b, errors = (list(known[part].values()) for part in ("fixef", "se"))
        rows.append((name, b[0], errors[0], b[3], errors[3], known["sd"]["herd"]["(Intercept)"], known["seconds"]))

    x = np.eye(4)[data.period.to_numpy()]
    x[:, 0] = 1.0
    with pm.Model() as flat:
        b, log_s = pm.Flat("b", shape=4), pm.Flat("log_s")
        u = pm.Normal("u", 0, pm.math.exp(log_s), shape=15)
        pm.Binomial("y", n=data.n.to_numpy(), logit_p=x @ b + u[data.herd.to_numpy()], observed=data.y.to_numpy())
    fit, seconds = timed(
        lambda: pm.fit(model=flat, method="laplace", hyper="map", hyperparameters=["b"], progressbar=False)
    )
    b, s = fit.hyperparameters["b"].values, float(np.exp(fit.hyperparameters["log_s"]))
    rows.append(("here, Laplace, flat priors", b[0], None, b[3], None, s, seconds))

    wide = bmb.Prior("Normal", mu=0, sigma=2)
    herds = bmb.Prior("Normal", mu=0, sigma=bmb.Prior("HalfNormal", sigma=2))
    priors = {"Intercept": wide, "period": wide, "1|herd": herds}
    frame = data.assign(period=data.period.astype(str), herd=data.herd.astype(str))
    model = bmb.Model("p(y, n) ~ period + (1 | herd)", frame, family="binomial", priors=priors, center_predictors=False)
    model.build()
    began = time.perf_counter()
    draws = model.fit(draws=1000, tune=1000, chains=2, cores=1, random_seed=1, progressbar=False)["posterior"]
    sampled = time.perf_counter() - began
    fit, seconds = timed(lambda: pm.fit(model=model.backend.model, method="ep", progressbar=False))
    ours = fit.sample(4000, random_seed=1)["posterior"]
    for name, posterior, took in (("bambi, NUTS", draws, sampled), ("here, EP of bambi's model", ours, seconds)):
        level, last = posterior["Intercept"], posterior["period"].isel(period_dim=2)
        moments = [float(each) for v in (level, last) for each in (v.mean(), v.std())]
        rows.append((name, *moments, float(posterior["1|herd_sigma"].mean()), took))
    columns = ("by", "level", "its sd", "period 4", "its sd", "sd of herds", "seconds")
    return Table("Ill cattle", columns, ("s", ".2f", ".2f", ".2f", ".2f", ".2f", ".2f"), rows)


def curves(folder: Path, estimates: dict[str, Any]) -> Table:
    """Return the table of smooth terms."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer

    data = pd.read_csv(folder / "smooth.csv")
    X, y = data[["x0", "x1", "x2", "x3"]].to_numpy(), data.y.to_numpy()
    a, b, c, _ = X.T
    two_bumps = 0.2 * c**11 * (10 * (1 - c)) ** 6 + 10 * (10 * c) ** 3 * (1 - c) ** 10
    true = 2 * np.sin(np.pi * a) + np.exp(2 * b) + two_bumps  # function of Gu and Wahba, as in mgcv's gamSim

    def error(fitted: np.ndarray) -> float:
        return float(np.sqrt(np.mean((fitted - true) ** 2)))

    known = estimates["smooth"]["gam"]["normal_REML"]
    fitted = known["intercept"] + np.array(known["terms"]).sum(axis=1)
    rows: list[tuple[Any, ...]] = [("mgcv, REML", error(fitted), np.sqrt(known["scale"]), known["seconds"])]

    def smooth(flat: bool) -> pm.Model:
        with pm.Model() as model:
            sigma = pm.math.exp(pm.Flat("log_sigma")) if flat else pm.HalfNormal("sigma", 5)
            s = pm.math.exp(pm.Flat("log_s", shape=4)) if flat else pm.HalfNormal("s", 2, shape=4)
            free = pm.Flat("free", shape=5) if flat else pm.Normal("free", 0, 10, shape=5)
            bend = pm.Normal("bend", 0, s[:, None], shape=(4, 8))
            f = free[0]
            for j, column in enumerate(X.T):
                line, bends = gpep.spline(column, k=10)
                f = f + line * free[j + 1] + bends @ bend[j]
            pm.Normal("y", pm.Deterministic("f", f), sigma, observed=y)
        return model

    for name, flat, hyper in (("here, REML", True, "map"), ("here, EP, averaged", False, "ccd")):
        model = smooth(flat)
        fit, seconds = timed(
            lambda model=model, hyper=hyper: pm.fit(model=model, method="ep", hyper=hyper, progressbar=False)
        )
        theta = fit.hyperparameters
        sigma = float(np.exp(theta["log_sigma"]) if flat else theta["sigma"])
        rows.append((name, error(fit.effects("f")["f"].sel(moment="mean").values), sigma, seconds))

    ridge = make_pipeline(SplineTransformer(n_knots=8), RidgeCV(np.logspace(-4, 4, 41)))
    fitted, seconds = timed(lambda: ridge.fit(X, y).predict(X))
    rows.append(("scikit-learn, splines and a ridge", error(fitted), None, seconds))
    kernel = ConstantKernel(50.0) * RBF(np.ones(4)) + WhiteKernel(4.0, (1e-3, 1e2))
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    fitted, seconds = timed(lambda: process.fit(X, y).predict(X))
    noise = float(np.sqrt(process.kernel_.k2.noise_level) * y.std())
    rows.append(("scikit-learn, Gaussian process", error(fitted), noise, seconds))
    return Table("Four curves", ("by", "error of the function", "noise", "seconds"), ("s", ".3f", ".3f", ".2f"), rows)


TABLES: dict[str, Callable[[Path, dict[str, Any]], Table]] = {"cattle": cattle, "curves": curves}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets and estimates")
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES), help="analyses")
    given = parser.parse_args()
    estimates = json.loads((given.data / "estimates.json").read_text())
    for name in given.only:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from bambi's own code, and from flat likelihoods
            print(TABLES[name](given.data, estimates), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
