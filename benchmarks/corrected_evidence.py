"""Corrected evidence of EP against annealed importance sampling, on data sets of the paper and iris.

Prints a Markdown table. Annealing treats the noise as variables: all g = f_y − f_j + u are jointly normal, and the
likelihood is a product of Φ(g), which takes a fiftieth of the time of the integral over u. Annealing starts from EP's
posterior, whose moments and normaliser come from the dense algebra of the tests. All seeds are fixed.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from common import Table
from paper.data import whole
from scipy.special import log_ndtr
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the references in tests

from pymc_gpep.approximations import NestedEP
from pymc_gpep.checks.annealed_evidence import Base, anneal, importance_weights
from pymc_gpep.checks.corrected_evidence import corrected_evidence
from pymc_gpep.hyper.weights import Estimate, importance_estimate
from tests.reference.data import iris, squared_exponential
from tests.reference.flat_ep import flat_model, gaussian

Array = np.ndarray
JITTER = 1e-8

# data set, log σ², log ℓ, and numbers of runs and temperatures
SETTINGS = (
    ("wine", 0.0, 2.0, 3000, 50),
    ("wine", 1.0, 1.0, 1000, 60),
    ("wine", 4.0, 2.0, 1000, 60),
    ("iris", 2.0, 1.0, 1000, 60),
    ("iris", 4.0, 2.0, 1000, 60),
    ("iris", 6.0, 2.0, 1000, 60),
    ("iris", 10.0, 3.0, 600, 80),
    ("iris", 8.0, 1.0, 600, 200),
    ("new-thyroid", 2.0, 1.0, 1000, 60),
    ("new-thyroid", 2.0, 2.0, 3000, 50),
    ("new-thyroid", 4.0, 2.0, 1000, 60),
    ("new-thyroid", 4.0, 1.0, 1000, 60),
    ("new-thyroid", 8.0, 2.0, 600, 80),
    ("glass", 0.0, 1.0, 800, 80),
    ("glass", 0.0, 2.0, 800, 80),
    ("glass", 2.0, 2.0, 800, 80),
)
SWEEPS = 3


def annealed(K: Array, y: Array, alpha: Array, beta: Array, runs: int, temperatures: int) -> Estimate:
    """Log evidence by annealing from the Gaussian with sites α and β (n(c − 1),)."""
    model = flat_model(K, y)
    mean, covariance, log_normaliser = gaussian(model, alpha, beta)
    m, A = model.functionals @ mean, model.functionals
    values, vectors = np.linalg.eigh(A @ covariance @ A.T)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    slope = beta - alpha * m
    base = Base(
        mean=m,
        draw=lambda rng, count: rng.standard_normal((count, m.size)) @ root.T,
        log_sites=lambda x: float(x @ (slope - 0.5 * alpha * x)),
        log_normaliser=log_normaliser - float(m @ (beta - 0.5 * alpha * m)),
    )
    path = np.linspace(0.0, 1.0, temperatures)
    rng = np.random.default_rng(1)
    u, _ = anneal(base, lambda g: float(log_ndtr(g).sum()), path, runs, SWEEPS, rng)
    estimate, _ = importance_estimate(base.log_normaliser + importance_weights(u, path))
    return estimate


def row(name: str, log_variance: float, log_lengthscale: float, runs: int, temperatures: int, data: str) -> tuple:
    X, y = iris() if name == "iris" else whole(name, data)
    K = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    K += JITTER * np.eye(y.size)
    method = NestedEP(tolerance=1e-9)
    solution = method.solve(K, np.zeros((y.max() + 1, y.size)), y)
    began = time.perf_counter()
    corrected = corrected_evidence(method, solution)
    seconds = time.perf_counter() - began
    alpha, beta = solution.start.reshape(2, -1)
    truth = annealed(K, y, alpha, beta, runs, temperatures)
    return (
        name, log_variance, log_lengthscale, solution.evidence, corrected.evidence, corrected.error,
        "yes" if corrected.reliable else "no", truth.value, truth.error, corrected.evidence - truth.value, seconds,
    )  # fmt: skip


def main(data: str, quick: bool, path: Path | None) -> None:
    settings = [(*setting[:3], 50, 20) for setting in SETTINGS[:2]] if quick else SETTINGS
    rows = []
    for setting in settings:
        with threadpool_limits(1):
            rows.append(row(*setting, data))
        table = Table(
            "Evidence by EP, corrected, and by annealing",
            (
                "data", "log σ²", "log ℓ", "EP", "corrected", "error", "reliable", "annealed", "its error",
                "difference", "seconds",
            ),
            ("", ".0f", ".0f", ".3f", ".3f", ".3f", "", ".3f", ".3f", "+.3f", ".2f"),
            rows,
        )  # fmt: skip
        print(f"\n{table}", flush=True)
        if path:
            path.write_text(json.dumps(asdict(table), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="folder of the data sets, see benchmarks/paper/data.py")
    parser.add_argument("--quick", action="store_true", help="two settings and few runs: seconds, large errors")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the unrounded figures to this file")
    arguments = parser.parse_args()
    main(arguments.data, arguments.quick, arguments.json)
