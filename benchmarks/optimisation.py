"""Time of a whole fit with hyperparameters at their maximum: wine with 13 length scales, against scikit-learn.

scikit-learn's GaussianProcessClassifier fits one binary Laplace approximation for each class, with its own
hyperparameters. Both optimise by L-BFGS from unit hyperparameters, with one BLAS thread. "fit" is all of `pm.fit` when
everything has been compiled on disk. "optimiser" excludes reading the compiled code.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from common import Table
from sklearn.datasets import load_wine
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from pymc_gpep.hyper.optimum import maximise
from pymc_gpep.log_posteriors.dense_log_posterior import DenseLogPosterior
from pymc_gpep.log_posteriors.evaluation import Evaluation


def wine() -> tuple[np.ndarray, np.ndarray]:
    """Standardised inputs (178, 13) and labels."""
    data = load_wine()
    return (data.data - data.data.mean(0)) / data.data.std(0), data.target


def ours(X: np.ndarray, y: np.ndarray, method: str, priors: bool) -> dict[str, Any]:
    """Fit by a method of this package."""
    d = X.shape[1]
    with pm.Model():
        if priors:
            eta, ls = pm.HalfNormal("eta", 5, initval=1.0), pm.InverseGamma("ls", 3, 3, shape=d, initval=np.ones(d))
        else:
            # as in scikit-learn: bounds and flat priors
            eta = pm.math.exp(pm.Uniform("log_eta", np.log(1e-5) / 2, np.log(1e5) / 2, initval=0.0))
            ls = pm.math.exp(pm.Uniform("log_ls", np.log(1e-5), np.log(1e5), shape=d, initval=np.zeros(d)))
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(d, ls=ls))
        f = gp.prior("f", X=X, n_outputs=3)
        if method == "laplace":
            pm.Categorical("y", logit_p=f.T, observed=y)
        else:
            gpep.MultinomialProbit("y", f.T, observed=y)
        pm.fit(1, method=method, hyper="map", progressbar=False)  # afterwards everything is compiled on disk
        began = time.perf_counter()
        fit = pm.fit(method=method, hyper="map", progressbar=False)
        whole = time.perf_counter() - began
    log_posterior = Counted(fit.classifier, fit.log_posterior.approximator)
    theta = log_posterior.space.initial_point()
    began = time.perf_counter()
    optimum = maximise(log_posterior, theta, 10_000)
    return {
        "name": f"{method}, {'priors' if priors else 'bounds'}", "fit": whole, "optimiser": time.perf_counter() - began,
        "iterations": len(optimum.history) - 1, "evaluations": len(log_posterior.seen),
        "sweeps": sum(each.iterations for each in log_posterior.seen), "evidence": optimum.best.evidence,
    }  # fmt: skip


class Counted(DenseLogPosterior):
    """Stores all evaluations, also those of its copies with a wider tolerance."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[Evaluation] = []

    def __call__(self, theta: np.ndarray, start: Any = None) -> Evaluation:
        """Evaluate and store."""
        self.seen.append(super().__call__(theta, start))
        return self.seen[-1]


def peer(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Fit by scikit-learn."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * RBF(np.ones(X.shape[1]), (1e-5, 1e5))
    began = time.perf_counter()
    GaussianProcessClassifier(kernel).fit(X, y)
    seconds = time.perf_counter() - began
    return {
        "name": "scikit-learn, one-vs-rest", "fit": seconds, "optimiser": None, "iterations": None, "evaluations": None,
        "sweeps": None, "evidence": None,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=["nested_ep", "laplace", "vb"])
    parser.add_argument("--no-peer", action="store_true", help="without scikit-learn")
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    X, y = wine()
    warnings.simplefilter("ignore")  # scikit-learn warns about length scales at their bounds
    with threadpool_limits(1):
        rows = [ours(X, y, method, priors) for method in arguments.methods for priors in (True, False)]
        if not arguments.no_peer:
            rows.append(peer(X, y))
    columns = ("name", "fit", "optimiser", "iterations", "evaluations", "sweeps", "evidence")
    cells = [tuple(row[column] for column in columns) for row in rows]
    print(
        Table(
            "Type-II MAP on wine, 13 length scales (seconds)", columns, ("", ".2f", ".2f", "d", "d", "d", ".3f"), cells
        )
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
