"""Sums of effects with many rows: seconds and memory against the necessary work of a sweep.

    python -m benchmarks.sums_by_rows
    python -m benchmarks.sums_by_rows --only groups --rows 1000000

Seconds are of a second fit at the maximum of the hyperparameters (`hyper="map"`), including graph and search. The floor
is a Gram matrix of the rows, a Cholesky factor, its inverse and the covariances of all rows, for each sweep of the
search. Memory is the peak of the process so far.
"""

import argparse
import resource
import time
import warnings
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_gpep as gpep  # registers the methods of pm.fit
from pymc_gpep.gaussians.row_prior import precision_factor
from pymc_gpep.kernels.status import CONVERGED


def items(n: int) -> None:
    """Persons, items and six columns."""
    rng = np.random.default_rng(1)
    persons, x = n // 24, rng.normal(size=(n, 5))
    person, item = np.arange(n) % persons, np.arange(n) // persons % 24
    eta = 1.3 * rng.normal(size=persons)[person] + 0.5 * rng.normal(size=24)[item] + 0.3 * x[:, 0]
    b, s = pm.Normal("b", 0, 3, shape=6), pm.HalfNormal("s", 2, shape=2)
    u, v = pm.Normal("u", 0, s[0], shape=persons), pm.Normal("v", 0, s[1], shape=24)
    columns = np.column_stack([np.ones(n), x])
    observed = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
    pm.Bernoulli("y", logit_p=columns @ b + u[person] + v[item], observed=observed)


def groups(n: int) -> None:
    """280 groups and 20 columns, probit."""
    rng = np.random.default_rng(2)
    group, x = rng.integers(0, 280, size=n), rng.normal(size=(n, 20))
    eta = 0.3 + rng.normal(size=280)[group] + x @ (0.3 * rng.normal(size=20))
    a, b, s = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=20), pm.HalfNormal("s", 1)
    u = pm.Normal("u", 0, s, shape=280)
    observed = (eta + rng.normal(size=n) > 0).astype(int)
    pm.Bernoulli("y", p=pm.math.invprobit(a + x @ b + u[group]), observed=observed)


def field(n: int) -> None:
    """A field by 225 basis functions, and a linear term."""
    rng = np.random.default_rng(3)
    xy, x = rng.uniform(-1, 1, size=(n, 2)), rng.normal(size=n)
    eta, ls = pm.HalfNormal("eta", 1), pm.InverseGamma("ls", 3, 1, shape=2)
    gp = pm.gp.HSGP(m=[15, 15], c=1.5, cov_func=eta**2 * pm.gp.cov.Matern52(2, ls=ls))
    beta, level = pm.Normal("beta", 0, 1), pm.Normal("level", 0, 2)
    truth = np.sin(3 * xy[:, 0]) + np.cos(2 * xy[:, 1]) + 0.5 * x
    observed = (rng.random(n) < 1 / (1 + np.exp(-truth))).astype(int)
    pm.Bernoulli("y", logit_p=level + beta * x + gp.prior("field", X=xy), observed=observed)


def _kinds(n: int) -> tuple[pt.TensorVariable, np.ndarray]:
    """Argument and labels of four classes with 40 groups and 5 columns each."""
    rng = np.random.default_rng(4)
    group, x = rng.integers(0, 40, size=n), rng.normal(size=(n, 5))
    eta = rng.normal(size=(40, 4))[group] + x @ (0.5 * rng.normal(size=(5, 4)))
    b, s = pm.Normal("b", 0, 1, shape=(5, 4)), pm.HalfNormal("s", 1)
    u = pm.Normal("u", 0, s, shape=(40, 4))
    return x @ b + u[group], (eta + rng.gumbel(size=eta.shape)).argmax(axis=1)


def softmax(n: int) -> None:
    """Four classes by a softmax."""
    eta, observed = _kinds(n)
    pm.Categorical("y", logit_p=eta, observed=observed)


def probit(n: int) -> None:
    """Four classes by a multinomial probit."""
    eta, observed = _kinds(n)
    gpep.MultinomialProbit("y", eta, observed=observed)


MODELS: dict[str, tuple[Callable[[int], None], int, str]] = {
    "items": (items, 7584, "ep"),
    "groups": (groups, 100_000, "ep"),
    "field": (field, 20_000, "ep"),
    "softmax": (softmax, 100_000, "laplace"),
    "probit": (probit, 100_000, "nested_ep"),
}


def run(name: str, n: int) -> dict[str, float]:
    """Return a row of the table."""
    declare, _, method = MODELS[name]
    with pm.Model():
        declare(n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the search makes no step
            _ = pm.fit(0, method=method, hyper="map", progressbar=False)  # compiles
        began = time.perf_counter()
        fit = pm.fit(method=method, hyper="map", progressbar=False)
        seconds = time.perf_counter() - began
    if not fit.converged or fit.solution.convergence.status != CONVERGED:
        raise RuntimeError(f"{name}: {fit.message}")
    posterior, sweeps = fit.solution.posterior, int(fit.history["iterations"].sum())
    began = time.perf_counter()
    factor = precision_factor(posterior.prior.rows, posterior.sites)
    posterior.prior.rows.covariances(np.linalg.inv(factor))
    floor = sweeps * (time.perf_counter() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    normals = posterior.prior.n_normals
    return {"rows": n, "normals": normals, "seconds": seconds, "sweeps": sweeps, "floor": floor, "GB": memory}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), help="models")
    parser.add_argument("--rows", type=int, help="number of rows of each model, instead of its default")
    given = parser.parse_args()
    for name in given.only:
        row = run(name, given.rows or MODELS[name][1])
        print(f"{name:8s}", "  ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
