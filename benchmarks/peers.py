"""Binary classification with scikit-learn's and GPy's Gaussian processes: seconds to learn the hyperparameters.

Data, squared exponential covariance with a magnitude and a length scale, and initial values are equal, with one BLAS
thread. scikit-learn has Laplace's method for the logit, and GPy has EP for the probit. Each is compared with the method
here that approximates the same model in the same way. GPy may be in another environment, whose Python is an argument.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
SIZES = (500, 1000, 2000)
DIMENSION = 4


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, d), and labels from a smooth function and noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, DIMENSION))
    f = 3.0 * np.sin(X[:, 0]) + 2.0 * X[:, 1] * X[:, 2]
    return X, (f + rng.normal(size=n) > 0).astype(np.int64)


def ours(n: int, method: str) -> dict[str, float]:
    """Fit by `pm.fit`. The priors of the log hyperparameters are flat, so the search maximises the evidence."""
    import pymc as pm

    import pymc_gpep as gpep

    def fit(size: int):
        X, y = data(size)
        with pm.Model():
            # flat priors of the logarithms
            log_magnitude, log_lengthscale = (pm.Flat(name, initval=0.0) for name in ("log_eta", "log_ls"))
            covariance = pm.math.exp(2.0 * log_magnitude) * pm.gp.cov.ExpQuad(
                DIMENSION, ls=pm.math.exp(log_lengthscale)
            )
            f = pm.gp.Latent(cov_func=covariance).prior("f", X=X)
            if method == "laplace":
                pm.Bernoulli("y", logit_p=f, observed=y)
            else:
                gpep.Probit("y", f, observed=y)
            began = time.perf_counter()
            found = pm.fit(method=method, hyper="map", progressbar=False)
            return found, time.perf_counter() - began

    fit(50)  # compiles
    found, seconds = fit(n)
    return {
        "seconds": seconds,
        "log evidence": found.log_evidence,
        "magnitude": float(np.exp(found.hyperparameters["log_eta"])),
        "length scale": float(np.exp(found.hyperparameters["log_ls"])),
    }


def scikit_learn(n: int) -> dict[str, float]:
    """`GaussianProcessClassifier`, one start."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    X, y = data(n)
    bounds = (1e-5, 1e5)
    classifier = GaussianProcessClassifier(ConstantKernel(1.0, bounds) * RBF(1.0, bounds))
    began = time.perf_counter()
    classifier.fit(X, y)
    seconds = time.perf_counter() - began
    theta = np.exp(classifier.kernel_.theta)
    return {
        "seconds": seconds,
        "log evidence": float(classifier.log_marginal_likelihood_value_),
        "magnitude": float(np.sqrt(theta[0])),
        "length scale": float(theta[1]),
    }


def gpy(n: int, nested: bool) -> dict[str, float]:
    """`GPy.models.GPClassification`, EP and a probit.

    By default its optimiser keeps EP's sites fixed during a search, and ends at a lower evidence. `nested` runs EP at
    each evaluation, as all methods here do.
    """
    import GPy
    from GPy.inference.latent_function_inference.expectation_propagation import EP

    X, y = data(n)
    began = time.perf_counter()
    kernel = GPy.kern.RBF(DIMENSION, variance=1.0, lengthscale=1.0)
    how = {"inference_method": EP(ep_mode="nested")} if nested else {}
    model = GPy.core.GP(X, y[:, None], kernel, GPy.likelihoods.Bernoulli(), **how)
    model.optimize()
    return {
        "seconds": time.perf_counter() - began,
        "log evidence": float(model.log_likelihood()),
        "magnitude": float(np.sqrt(model.kern.variance[0])),
        "length scale": float(model.kern.lengthscale[0]),
    }


PEERS = {
    "laplace, logit: here": lambda n: ours(n, "laplace"),
    "laplace, logit: scikit-learn": scikit_learn,
    "ep, probit: here": lambda n: ours(n, "ep"),
    "ep, probit: GPy": lambda n: gpy(n, nested=False),
    "ep, probit: GPy, nested": lambda n: gpy(n, nested=True),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--gpy", metavar="PYTHON", help="the Python of an environment that has GPy")
    parser.add_argument("--seconds", type=float, default=150.0, help="seconds that one fit may take")
    parser.add_argument(
        "--only", help="one of " + ", ".join(map(repr, PEERS)) + ": only this fit, with its figures as JSON"
    )
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(PEERS[arguments.only](arguments.sizes[0])))
        return
    for n in arguments.sizes:
        for name in PEERS:
            if "GPy" in name and not arguments.gpy:
                continue
            python = arguments.gpy if "GPy" in name else sys.executable
            command = [python, __file__, "--only", name, "--sizes", str(n)]
            environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=arguments.seconds,
                    env=environment,
                    check=True,
                )
            except subprocess.TimeoutExpired:
                print(f"n = {n:5}  {name:30} more than {arguments.seconds:g} s", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            print(f"n = {n:5}  {name:30}" + "".join(f"  {key} {value:.4g}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
