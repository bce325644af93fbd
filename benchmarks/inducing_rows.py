"""Inducing inputs or neighbours for counts, ordered classes, numbers and times, against fits of all rows.

`accuracy` fits rows of a smooth function of two inputs with their covariance matrix and with inducing inputs. It prints
differences of means at new inputs in standard deviations, relative differences of standard deviations, and differences
of hyperparameters in standard deviations of their Gaussian at the maximum. `speed` fits counts, and prints processor
seconds and peak memory. With `--neighbours` both fit a Matérn process by nearest neighbours instead of inducing inputs.

    python -m benchmarks.inducing_rows accuracy --rows 2000 --inducing 200
    python -m benchmarks.inducing_rows speed --rows 100000 --inducing 200
    python -m benchmarks.inducing_rows speed --rows 10000 --neighbours 20
"""

import argparse
import resource
import time
from typing import Any

import numpy as np
import pymc as pm

import pymc_gpep  # noqa: F401 - it lets pm.fit know its methods

KINDS = ("counts", "student", "ordered", "censored")
CUTPOINTS = np.array([-0.7, 0.0, 0.7])
STEP = 0.02  # step in hyperparameters for the curvature at the maximum


def surface(x: np.ndarray) -> np.ndarray:
    """Return the function (n,) at inputs (n, 2)."""
    return np.asarray(np.sin(1.5 * x[:, 0]) * np.cos(x[:, 1]) + 0.4 * x[:, 1])


def model_of(kind: str, x: np.ndarray, rough: bool) -> pm.Model:
    """Return a model of observations that are drawn from the function at inputs (n, 2)."""
    kernel = pm.gp.cov.Matern32 if rough else pm.gp.cov.ExpQuad
    f, n, rng = surface(x), len(x), np.random.default_rng(4)
    with pm.Model() as model:
        ls, eta = pm.InverseGamma("ls", 3, 3), pm.HalfNormal("eta", 2)
        g = pm.gp.Latent(cov_func=eta**2 * kernel(2, ls=ls)).prior("f", X=pm.Data("x", x))
        if kind == "counts":
            pm.Poisson("y", mu=pm.math.exp(g), observed=rng.poisson(np.exp(f)))
        elif kind == "ordered":
            y = np.searchsorted(CUTPOINTS, f + rng.normal(size=n))
            pm.OrderedProbit("y", eta=g, cutpoints=CUTPOINTS, observed=y)
        elif kind == "student":
            sigma = pm.HalfNormal("sigma", 1)
            pm.StudentT("y", nu=4, mu=g, sigma=sigma, observed=f + 0.4 * rng.standard_t(4, size=n))
        else:
            alpha = pm.HalfNormal("alpha", 3, initval=1.5)
            life, end = rng.weibull(1.5, size=n) * np.exp(f), rng.exponential(2.0, size=n) + 0.2
            seen = np.minimum(life, end)
            upper = np.where(life <= end, np.inf, end)
            times = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(g))
            pm.Censored("y", times, lower=None, upper=upper, observed=seen)
    return model


def deviations(fit: Any) -> np.ndarray:
    """Return standard deviations of the hyperparameters by differences of the gradient at the maximum."""
    best, slopes = fit.trace.best, []
    for unit in np.eye(best.theta.size):
        ends = [fit.log_posterior(best.theta + sign * STEP * unit, best.start).gradient for sign in (1.0, -1.0)]
        slopes.append((ends[0] - ends[1]) / (2.0 * STEP))
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(-np.array(slopes)))))


def accuracy(rows: int, form: dict[str, int]) -> None:
    """Print a line for each kind of observations."""
    rng = np.random.default_rng(3)
    x, new = rng.uniform(-2.5, 2.5, size=(rows, 2)), rng.uniform(-2.4, 2.4, size=(150, 2))
    print("| observations | means, in sd | sds | hyperparameters, in sd |")
    print("|---|---|---|---|")
    for kind in KINDS:
        with model_of(kind, x, "neighbours" in form):
            few = pm.fit(method="ep", **form, hyper="map", progressbar=False)
            # from there the search over all rows is short
            start = {str(name): value for name, value in few.hyperparameters.items()}
            whole = pm.fit(method="ep", hyper="map", start=start, progressbar=False)
        exact, found = whole.predict(new), few.predict(new)
        sd = np.sqrt(exact["variance"].values)
        of_means = np.abs(found["mean"].values - exact["mean"].values) / sd
        of_sds = np.abs(np.sqrt(found["variance"].values) / sd - 1.0)
        moved = np.abs(few.trace.best.theta - whole.trace.best.theta) / deviations(few)
        print(f"| {kind} | {of_means.max():.4f} | {of_sds.max():.4f} | {moved.max():.4f} |", flush=True)


def speed(rows: int, form: dict[str, int]) -> None:
    """Print processor seconds and memory of a fit of counts."""
    x = np.random.default_rng(0).uniform(-2.5, 2.5, size=(rows, 2))
    method = "laplace" if "neighbours" in form else "ep"
    with model_of("counts", x, "neighbours" in form):
        begun = time.process_time()
        fit = pm.fit(method=method, **form, hyper="map", progressbar=False)
        ended = time.process_time()
        fit.predict(x[: rows // 10])
    predicted = time.process_time() - ended
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{rows} rows: fit {ended - begun:.0f} s, {rows // 10} predictions {predicted:.0f} s, {memory:.2f} GB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "speed"))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--inducing", type=int, default=200)
    parser.add_argument("--neighbours", type=int)
    given = parser.parse_args()
    chosen = {"inducing": given.inducing} if given.neighbours is None else {"neighbours": given.neighbours}
    {"accuracy": accuracy, "speed": speed}[given.what](given.rows, chosen)
