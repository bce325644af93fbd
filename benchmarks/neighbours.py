"""A process at thousands of places by nearest neighbours: processor seconds of whole fits, and their growth.

    python -m benchmarks.neighbours
    python -m benchmarks.neighbours --sizes 2000 10000 30000 --kinds bernoulli
    python -m benchmarks.neighbours --beside PYTHON

Places are uniform on a square. The field has a Matérn 3/2 covariance with the length scale 0.1 and the variance 1. A
fit learns both by Laplace's method (`hyper="map"`, 20 neighbours). Seconds include imports, the graph, the search,
posterior standard deviations at all places, and predictions at 1000 new places. Each fit runs in a process of its
own, with cached kernels after the first. The exponent of growth is the slope of log seconds between the first and the
last size.

PYTHON is an interpreter with GPBoost, which fits the same data by maximum likelihood with its Cholesky factor. Errors
are root mean square errors of posterior means against the field, at places of the data and at new places.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

type Array = Any
type Found = tuple[Array, Array]


def data(n: int, kind: str) -> tuple[Array, Array, Array, Array, Array]:
    """Return places, observations, field, new places, and the field there."""
    rng = np.random.default_rng(1)
    waves, phases = rng.normal(size=(2000, 2)) / np.sqrt(rng.chisquare(3, size=(2000, 1)) / 3), rng.uniform(size=2000)
    x, new = rng.uniform(size=(n, 2)), rng.uniform(0.02, 0.98, size=(1000, 2))

    def field(at: Array) -> Array:
        parts = np.array_split(at, max(1, len(at) // 1000))
        return np.concatenate([np.cos(p @ waves.T / 0.1 + 2 * np.pi * phases).sum(1) for p in parts]) / np.sqrt(1000)

    f = field(x)
    y = rng.poisson(np.exp(f)) if kind == "poisson" else (rng.random(n) < 1 / (1 + np.exp(-f))).astype(int)
    return x, y, f, new, field(new)


def ours(x: Array, y: Array, kind: str, new: Array) -> tuple[Found, Found]:
    """Fit by this package. Return means and variances at places and at new places."""
    import pymc as pm

    import pymc_gpep  # noqa: F401  registers the methods of pm.fit

    with pm.Model():
        ls, eta = pm.InverseGamma("ls", 2, 0.2), pm.HalfNormal("eta", 1)
        f = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.Matern32(2, ls=ls)).prior("f", X=pm.Data("x", x))
        if kind == "poisson":
            pm.Poisson("y", mu=pm.math.exp(f), observed=y)
        else:
            pm.Bernoulli("y", logit_p=f, observed=y)
        fit = pm.fit(method="laplace", neighbours=20, hyper="map", progressbar=False)
    there = fit.predict(new, progressbar=False)
    own, other = ((each["mean"].values.ravel(), each["variance"].values.ravel()) for each in (fit.latent, there))
    return own, other


def gpboost(x: Array, y: Array, kind: str, new: Array) -> tuple[Found, Found]:
    """Fit by GPBoost."""
    import gpboost as gpb

    model = gpb.GPModel(
        gp_coords=x, cov_function="matern", cov_fct_shape=1.5, gp_approx="vecchia", num_neighbors=20,
        likelihood="poisson" if kind == "poisson" else "bernoulli_logit", matrix_inversion_method="cholesky",
    )  # fmt: skip
    model.fit(y=y.astype(float))
    own = np.asarray(model.predict_training_data_random_effects(predict_var=True))
    there = model.predict(gp_coords_pred=new, predict_var=True, predict_response=False)
    return (own[:, 0], own[:, 1]), (there["mu"], there["var"])


def measured(fit: Callable[..., tuple[Found, Found]], n: int, kind: str) -> None:
    """Print seconds, memory and errors of one fit."""
    x, y, f, new, there = data(n, kind)
    start = time.process_time()
    own, other = fit(x, y, kind, new)
    seconds, memory = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    errors = [np.sqrt(np.mean((found[0] - known) ** 2)) for found, known in ((own, f), (other, there))]
    print(f"{seconds:.2f} {memory:.2f} {errors[0]:.4f} {errors[1]:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 10_000])
    parser.add_argument("--kinds", nargs="+", default=["bernoulli", "poisson"])
    parser.add_argument("--beside", help="interpreter with GPBoost")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measured({"ours": ours, "gpboost": gpboost}[given.one[0]], int(given.one[1]), given.one[2])
        return
    one = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    print(f"{'':8} {'kind':9} {'places':>7} {'seconds':>8} {'GB':>5} {'error':>7} {'at new':>7}")
    for kind in given.kinds:
        for name, python in (("ours", sys.executable), ("gpboost", given.beside)):
            if not python:
                continue
            seconds = []
            for n in given.sizes:
                command = [python, __file__, "--one", name, str(n), kind]
                done = subprocess.run(command, env=one, capture_output=True, text=True, check=True)
                own = [float(each) for each in done.stdout.splitlines()[-1].split()]
                seconds.append(own[0])
                print(f"{name:8} {kind:9} {n:7} {own[0]:8.2f} {own[1]:5.2f} {own[2]:7.4f} {own[3]:7.4f}", flush=True)
            if len(seconds) > 1:
                growth = np.log(seconds[-1] / seconds[0]) / np.log(given.sizes[-1] / given.sizes[0])
                print(f"{name:8} {kind:9} exponent of growth {growth:.2f}", flush=True)


if __name__ == "__main__":
    main()
