"""Maximum likelihood of mixed models by Laplace's method, against lme4, glmmTMB, ordinal and survival.

    python -m benchmarks.mixed --data FOLDER
    python -m benchmarks.mixed --data FOLDER --only cbpp

FOLDER has the data sets of R's packages (`cbpp.csv`, `epil.csv`, `sleepstudy.csv`, `lung.csv`, `wine.csv`,
`VerbAgg.csv.gz`), with groups and factors numbered from 0. Its `estimates.json` has the results of R's functions by
data set, function and setting. The table has for each model the log likelihood by Laplace's method at its maximum minus
R's, and the largest difference of a coefficient in standard errors. At R's estimates by quadrature it has the log
evidence of EP and of corrected EP, minus the log likelihood by quadrature with 120 points.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt

import pymc_gpep  # noqa: F401  registers the methods of pm.fit

_CROSSED = [("u", 316), ("v", 24)]
_MOST = 3000  # largest number of rows for a corrected evidence


@dataclass(frozen=True)
class Mixed:
    """Mixed model with R's estimates.

    Attributes
    ----------
    model : pm.Model
        With flat priors of coefficients `b` and of the logarithm of a standard deviation, `log_sd`.
    laplace, quadrature : dict
        Values of hyperparameters at the maxima of R's log likelihoods, by Laplace's method and by quadrature.
    errors : array
        Standard errors of `b`.
    likelihood : float
        R's log likelihood by Laplace's method.
    exact : float
        Log likelihood at `quadrature`.
    constant : float
        A number that the evidence leaves out.
    """

    model: pm.Model
    laplace: dict[str, Any]
    quadrature: dict[str, Any]
    errors: np.ndarray
    likelihood: float
    exact: float
    constant: float = 0.0


def _values(fit: dict[str, Any], group: str) -> dict[str, Any]:
    """Return the hyperparameters of a fit of lme4 or glmmTMB."""
    return {"b": np.array(list(fit["fixef"].values())), "log_sd": np.log(fit["sd"][group]["(Intercept)"])}


def cbpp(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Ill cattle of fifteen herds (binomial)."""
    d = pd.read_csv(folder / "cbpp.csv")
    x = np.eye(4)[d.period.to_numpy()]
    x[:, 0] = 1.0
    with pm.Model() as model:
        b, log_sd = pm.Flat("b", shape=4), pm.Flat("log_sd")
        u = pm.Normal("u", 0, pm.math.exp(log_sd), shape=15)
        pm.Binomial("y", n=d.n.to_numpy(), logit_p=x @ b + u[d.herd.to_numpy()], observed=d.y.to_numpy())
    one, many = estimates["cbpp"]["glmer"]["nAGQ1"], estimates["cbpp"]["glmer"]["nAGQ25"]
    errors = np.array(list(one["se"].values()))
    return Mixed(model, _values(one, "herd"), _values(many, "herd"), errors, one["logLik"], -91.98336933)


def _epil(folder: Path, fit: dict[str, Any], exact: float) -> Mixed:
    """Seizures of 59 subjects in four periods, with one of glmmTMB's fits."""
    d = pd.read_csv(folder / "epil.csv")
    columns = {"(Intercept)": np.ones(len(d)), "lb:T": d["lb"] * d["T"], **{k: d[k] for k in ("lb", "T", "la", "V4")}}
    x = np.column_stack([columns[name] for name in fit["fixef"]])
    found = _values(fit, "subject")
    with pm.Model() as model:
        b, log_sd = pm.Flat("b", shape=x.shape[1]), pm.Flat("log_sd")
        u = pm.Normal("u", 0, pm.math.exp(log_sd), shape=59)
        mu = pm.math.exp(x @ b + u[d.subject.to_numpy()])
        if fit["disp"] == 1:
            pm.Poisson("y", mu=mu, observed=d.y.to_numpy())
        else:
            found["log_size"] = np.log(fit["disp"])
            size = pm.math.exp(pm.Flat("log_size"))
            pm.NegativeBinomial("y", mu=mu, alpha=size, observed=d.y.to_numpy())
    return Mixed(model, found, found, np.array(list(fit["se"].values())), fit["logLik"], exact)


def epil(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Seizures, Poisson."""
    return _epil(folder, estimates["epil"]["glmmTMB"]["poisson"], -665.43180794)


def epil_negative_binomial(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Seizures, negative binomial."""
    return _epil(folder, estimates["epil"]["glmmTMB"]["nbinom2"], -624.825151)


def sleepstudy(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Reaction times of eighteen subjects over ten days, with correlated slopes (normal: all methods are exact)."""
    d = pd.read_csv(folder / "sleepstudy.csv")
    fit = estimates["sleepstudy"]["lmer"]["ML"]
    days, subject = d.days.to_numpy(float), d.subject.to_numpy()
    factor = np.linalg.cholesky(np.array(fit["vcomp"]))
    with pm.Model() as model:
        b, log_sd, below = pm.Flat("b", shape=2), pm.Flat("log_sd", shape=2, initval=[3.0, 1.5]), pm.Flat("below")
        log_sigma = pm.Flat("log_sigma", initval=3.0)
        root = pt.stacklists([[pm.math.exp(log_sd[0]), 0.0], [below, pm.math.exp(log_sd[1])]])
        u = pm.MvNormal("u", mu=np.zeros(2), chol=root, shape=(18, 2))
        mu = b[0] + u[subject, 0] + (b[1] + u[subject, 1]) * days
        pm.Normal("y", mu, pm.math.exp(log_sigma), observed=d.y.to_numpy())
    found = {
        "b": np.array(list(fit["fixef"].values())),
        "log_sd": np.log(np.diag(factor)),
        "below": factor[1, 0],
        "log_sigma": np.log(fit["sigma"]),
    }
    return Mixed(model, found, found, np.array(list(fit["se"].values())), fit["logLik"], fit["logLik"])


def sleepstudy_reml(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Reaction times with integrated coefficients: restricted likelihood."""
    d = pd.read_csv(folder / "sleepstudy.csv")
    fit = estimates["sleepstudy"]["lmer"]["REML"]
    days, subject = d.days.to_numpy(float), d.subject.to_numpy()
    factor = np.linalg.cholesky(np.array(fit["vcomp"]))
    with pm.Model() as model:
        log_sd, below = pm.Flat("log_sd", shape=2, initval=[3.0, 1.5]), pm.Flat("below")
        log_sigma = pm.Flat("log_sigma", initval=3.0)
        b = pm.Flat("b", shape=2)
        root = pt.stacklists([[pm.math.exp(log_sd[0]), 0.0], [below, pm.math.exp(log_sd[1])]])
        u = pm.MvNormal("u", mu=np.zeros(2), chol=root, shape=(18, 2))
        mu = b[0] + u[subject, 0] + (b[1] + u[subject, 1]) * days
        pm.Normal("y", mu, pm.math.exp(log_sigma), observed=d.y.to_numpy())
    found = {"log_sd": np.log(np.diag(factor)), "below": factor[1, 0], "log_sigma": np.log(fit["sigma"])}
    coefficients = np.array(list(fit["fixef"].values()))
    errors = np.array(list(fit["se"].values()))
    return Mixed(model, {"b": coefficients, **found}, found, errors, fit["logLik"], fit["logLik"])


def _lung(folder: Path, fit: dict[str, Any], declare: Callable[[Any, Any], Any], jacobian: bool) -> Mixed:
    """Survival of 227 patients, a third of them censored. `declare(eta, scale)` is a distribution.

    There are no groups: the integrated normals have a standard deviation of 1e-6.
    """
    d = pd.read_csv(folder / "lung.csv")
    x = np.column_stack([np.ones(len(d)), d.age, d.sex, d.ecog])
    time, seen = d.time.to_numpy(float), d.event.to_numpy() == 1
    y = np.log(time) if jacobian else time
    found = {"b": np.array(list(fit["coef"].values())), "log_sd": np.log(fit["scale"])}
    with pm.Model() as model:
        b, log_sd = pm.Flat("b", shape=4, initval=[6.0, 0.0, 0.0, 0.0]), pm.Flat("log_sd")
        eta = x @ b + pm.Normal("u", 0, 1e-6)
        upper = np.where(seen, np.inf, y)
        pm.Censored("y", declare(eta, pm.math.exp(log_sd)), lower=None, upper=upper, observed=y)
    constant = -float(np.log(time)[seen].sum()) if jacobian else 0.0
    errors = np.array([0.2, 0.07, 0.12, 0.08])  # approximate standard errors of survreg
    return Mixed(model, found, found, errors, fit["logLik"], fit["logLik"], constant)


def lung_weibull(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Survival, Weibull."""

    def declare(eta: Any, scale: Any) -> Any:
        return pm.Weibull.dist(alpha=1.0 / scale, beta=pm.math.exp(eta))

    return _lung(folder, estimates["lung"]["survreg"]["weibull"], declare, False)


def lung_log_logistic(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Survival, logistic of the logarithm of time."""

    def declare(eta: Any, scale: Any) -> Any:
        return pm.Logistic.dist(mu=eta, s=scale)

    return _lung(folder, estimates["lung"]["survreg"]["loglogistic"], declare, True)


def _wine(folder: Path, estimates: dict[str, Any], link: str, exact: float) -> Mixed:
    """Ratings of wine by nine judges (ordered)."""
    d = pd.read_csv(folder / "wine.csv")
    x = d[["temp", "contact"]].to_numpy(float)
    with pm.Model() as model:
        b, log_sd = pm.Flat("b", shape=2), pm.Flat("log_sd")
        u = pm.Normal("u", 0, pm.math.exp(log_sd), shape=9)
        first, steps = pm.Flat("first", initval=-1.5), pm.Flat("steps", shape=3)
        cut = first + pt.concatenate([[0.0], pt.cumsum(pt.exp(steps))])
        eta = x @ b + u[d.judge.to_numpy()]
        ordered = {"logit": pm.OrderedLogistic, "probit": pm.OrderedProbit}[link]
        ordered("y", eta=eta, cutpoints=cut, observed=d.y.to_numpy())
    fits = estimates["wine"]["clmm"]

    def values(fit: dict[str, Any]) -> dict[str, Any]:
        alpha = np.array(list(fit["alpha"].values()))
        b = np.array(list(fit["beta"].values()))
        return {"b": b, "log_sd": np.log(fit["sd"]), "first": alpha[0], "steps": np.log(np.diff(alpha))}

    one, many = fits[f"{link}_nAGQ1"], fits[f"{link}_nAGQ10"]
    # clmm's standard errors are missing: a sixth of the smaller coefficient replaces one
    errors = np.array(list(one["beta"].values())) / 6
    return Mixed(model, values(one), values(many), errors, one["logLik"], exact)


def wine_logit(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Ratings of wine, logit."""
    return _wine(folder, estimates, "logit", -81.5324607117)


def wine_probit(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Ratings of wine, probit."""
    return _wine(folder, estimates, "probit", -80.9312946159)


def verbal(folder: Path, estimates: dict[str, Any]) -> Mixed:
    """Answers of 316 persons to 24 items, crossed (7584 rows). There is no reference by quadrature."""
    d = pd.read_csv(folder / "VerbAgg.csv.gz")
    columns = [np.ones(len(d)), d.Anger, d.Gender, d.btype == 1, d.btype == 2, d.situ]
    x = np.column_stack([np.asarray(each, float) for each in columns])
    with pm.Model() as model:
        b, log_sd = pm.Flat("b", shape=6), pm.Flat("log_sd", shape=2)
        u, v = (pm.Normal(name, 0, pm.math.exp(log_sd[i]), shape=j) for i, (name, j) in enumerate(_CROSSED))
        pm.Bernoulli("y", logit_p=x @ b + u[d.id.to_numpy()] + v[d.item.to_numpy()], observed=d.y.to_numpy())
    fit = estimates["VerbAgg"]["glmer"]["nAGQ1"]
    sds = np.log([fit["sd"][name]["(Intercept)"] for name in ("id", "item")])
    found = {"b": np.array(list(fit["fixef"].values())), "log_sd": sds}
    return Mixed(model, found, found, np.array(list(fit["se"].values())), fit["logLik"], np.nan)


MODELS: dict[str, Callable[[Path, dict[str, Any]], Mixed]] = {
    f.__name__: f
    for f in (
        cbpp,
        epil,
        epil_negative_binomial,
        sleepstudy,
        sleepstudy_reml,
        lung_weibull,
        lung_log_logistic,
        wine_logit,
        wine_probit,
        verbal,
    )
}


def run(mixed: Mixed) -> dict[str, float]:
    """Return differences from R."""
    with mixed.model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = [name for name in mixed.quadrature if name == "b"]  # `b` without integration
        fit = pm.fit(method="laplace", hyper="map", hyperparameters=held, progressbar=False)
        there = pm.fit(0, method="ep", hyper="map", hyperparameters=held, start=mixed.quadrature, progressbar=False)
        few = there.classifier.n_points <= _MOST
        corrected = there.corrected_evidence().evidence if few else np.nan
    found = fit.hyperparameters
    b = found["b"] if "b" in found else fit.mean_data["b"]
    return {
        "likelihood": fit.log_evidence + mixed.constant - mixed.likelihood,
        "coefficients": float(np.abs((b.values - mixed.laplace["b"]) / mixed.errors).max()),
        "log sd": float(np.abs(found["log_sd"].values - mixed.laplace["log_sd"]).max()),
        "EP": there.log_evidence + mixed.constant - mixed.exact,
        "corrected EP": corrected + mixed.constant - mixed.exact,
        "seconds": fit.seconds,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets and estimates")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), help="models")
    given = parser.parse_args()
    estimates = json.loads((given.data / "estimates.json").read_text())
    for name in given.only:
        row = run(MODELS[name](given.data, estimates))
        print(f"{name:12s}", "  ".join(f"{k} {v:.2g}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
