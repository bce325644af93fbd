"""Speed and memory of the solvers, in units of the factorisations that nested EP cannot avoid.

The unit is F(n, c): the time of c + 1 Cholesky factorisations and inverses (LAPACK's dpotrf and dpotri) of n × n
matrices, on the same machine in the same run.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri

from pymc_gpep.approximations import Laplace, NestedEP, VariationalBayes
from pymc_gpep.rivals.class_independent_ep import IEP, QIEP

sys.path.insert(0, str(Path(__file__).parents[1]))  # for code that benchmarks share

from benchmarks.common import best_time
from pymc_gpep.approximations import EP, KL, Approximator, QuadraticVB, ScalarLaplace
from pymc_gpep.kernels.moments.inner_ep import inner_ep_update
from pymc_gpep.likelihoods.all_likelihoods import LIKELIHOODS
from pymc_gpep.rivals.factorial_variational import FactorialVariational
from pymc_gpep.rivals.label_regression import LabelRegression
from pymc_gpep.rivals.naive_tap import NaiveTAP

SMALL = [(178, 3), (400, 3)]
LARGE = [(178, 3), (1157, 3), (2000, 10)]


def problem(n: int, c: int, log_variance: float = 4.0, log_lengthscale: float = 2.0, seed: int = 0):
    """Prior covariance, mean and labels of a problem drawn from the model, with inputs of dimension 16."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 16))
    squared = (X**2).sum(1)
    distance = np.maximum(squared[:, None] + squared - 2 * X @ X.T, 0.0)
    k = np.exp(log_variance - 0.5 * distance / np.exp(2 * log_lengthscale))
    truth = np.exp(4.0 - 0.5 * distance / np.exp(4.0)) + 1e-6 * np.eye(n)
    f = np.linalg.cholesky(truth) @ rng.normal(size=(n, c))
    labels = (f + rng.normal(size=(n, c))).argmax(axis=1)
    k[np.diag_indices(n)] += 1e-6
    return k, np.zeros((c, n)), labels


def floor(n: int, c: int, repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """F(n, c) in seconds."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(n, n))
    a = np.asfortranarray(a @ a.T + n * np.eye(n))

    def one():
        factor, _ = dpotrf(a, lower=1, overwrite_a=0)
        dpotri(factor, lower=1, overwrite_c=1)

    return (c + 1) * best_time(one, max(repeats, 5), clock)  # short, and the unit of all times


def peak_memory(n: int, c: int) -> float:
    """Peak memory that a solve with one shared covariance adds, in n² doubles, measured in its own process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory, (n, c))


def _peak_memory(n: int, c: int) -> float:
    solver = NestedEP(max_iterations=2, ladder=False)
    k, mean, labels = problem(n, c)
    solver.solve(k[:50, :50], mean[:, :50], labels[:50] % c)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which includes the compiler's memory
    before = _memory("VmRSS")
    solver.run(k[None], mean, labels, np.zeros(2 * n * (c - 1)), gradient=True)
    return (_memory("VmHWM") - before) / (8 * n * n)


def _memory(field: str) -> int:
    """Memory in bytes, by Linux."""
    return 1024 * int(re.search(rf"{field}:\s*(\d+)", Path("/proc/self/status").read_text())[1])


def measure(n: int, c: int, repeats: int) -> dict[str, float]:
    """One row of the table."""
    unit = floor(n, c, repeats)
    k, mean, labels = problem(n, c)
    near = problem(n, c, log_variance=4.1, log_lengthscale=2.03)[0]
    solver = NestedEP()
    cold = solver.solve(k, mean, labels)
    warm = solver.solve(near, mean, labels, start=cold.start)
    nothing = np.zeros_like(cold.start)
    cold_time = best_time(lambda: solver.run(k[None], mean, labels, nothing), repeats)
    # Start at the solution: there is little other work, and the time of a sweep dominates.
    alone = best_time(lambda: solver.run(k[None], mean, labels, cold.start), repeats)
    both = best_time(lambda: solver.run(k[None], mean, labels, cold.start, gradient=True), repeats)
    warm_time = best_time(lambda: solver.run(near[None], mean, labels, cold.start), repeats)
    iteration = cold_time / cold.convergence.iterations
    return {
        "n": n,
        "c": c,
        "F (ms)": 1e3 * unit,
        "iteration (F)": iteration / unit,
        "sweeps cold": cold.convergence.iterations,
        "cold (F)": cold_time / unit,
        "cold (ms)": 1e3 * cold_time,
        "sweeps warm": warm.convergence.iterations,
        "warm (F)": warm_time / unit,
        "inner EP (iterations)": inner_time(n, c, repeats) / iteration,
        "gradient (iterations)": (both - alone) / iteration,
        "memory (n² doubles)": peak_memory(n, c),
        "allowed, 2c + 4": 2 * c + 4,
    }


def inner_time(n: int, c: int, repeats: int) -> float:
    """Seconds of the inner EP updates of one outer iteration."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(n, c, c))
    arrays = [np.empty((n, c - 1)) for _ in range(3)]
    sites = np.full((n, c - 1), 0.1), np.full((n, c - 1), 0.3)
    mean, cov, labels = rng.normal(size=(c, n)), a @ a.swapaxes(1, 2), rng.integers(c, size=n)
    return best_time(lambda: inner_ep_update(mean, cov, labels, *sites, 1, 1e-6, *arrays), max(3, repeats))


def iteration_time(solver: Approximator, n: int, c: int, repeats: int) -> float:
    """Seconds of one iteration after the first, without work that is done once."""
    k, mean, labels = problem(n, c)
    nothing = np.zeros(solver.start_size(c, n))
    last = solver.run(k[None], mean, labels, nothing).iterations
    first = type(solver)(max_iterations=1)
    whole = best_time(lambda: solver.run(k[None], mean, labels, nothing), repeats)
    once = best_time(lambda: first.run(k[None], mean, labels, nothing), repeats)
    return (whole - once) / (last - 1)


def measure_others(n: int, c: int, repeats: int) -> dict[str, float]:
    """Cost of an iteration of the other approximations."""
    unit = floor(n, c, repeats)
    solvers = (NestedEP(), IEP(), QIEP(), Laplace(), VariationalBayes())
    times = {solver.name: iteration_time(solver, n, c, repeats) / unit for solver in solvers}
    return {"n": n, "c": c} | {f"{name} (F)": time for name, time in times.items()}


def measure_one_function(n: int, repeats: int) -> list[dict[str, float | str]]:
    """Cost of an iteration, and of a solve from a cold start, for the approximations of one latent function."""
    unit = floor(n, 0, repeats)
    k, mean, labels = problem(n, 2)
    rows: list[dict[str, float | str]] = []
    for likelihood in (each for each in LIKELIHOODS if not each.function_axis and each.n_classes(1) == 2):
        for kind in (EP, KL, ScalarLaplace, QuadraticVB, FactorialVariational, NaiveTAP, LabelRegression):
            start = np.zeros(kind().start_size(1, n))

            def solve(solver: Approximator, start=start, likelihood=likelihood):
                return solver.run(k[None], mean[:1], labels, start, likelihood=likelihood)

            sweeps = solve(kind()).iterations
            whole, once = (best_time(lambda s=s: solve(s), repeats) for s in (kind(), kind(max_iterations=1)))
            iteration = (whole - once) / max(sweeps - 1, 1)
            rows.append({
                "": f"{kind.name}, {likelihood.name}", "n": n, "sweeps": sweeps,
                "iteration (F)": iteration / unit, "cold (F)": whole / unit,
            })  # fmt: skip
    return rows


def measure_large(n: int = 4649, c: int = 10) -> dict[str, float]:
    """Share of inner EP in one iteration, for the number of points in the full USPS data."""
    k, mean, labels = problem(n, c)
    solver = NestedEP(max_iterations=1, ladder=False)
    small = np.full(2 * n * (c - 1), 1e-3)  # sites of 0 would cost nothing
    whole = best_time(lambda: solver.run(k[None], mean, labels, small), 1)
    inner = inner_time(n, c, 1)
    return {"n": n, "c": c, "iteration (s)": whole, "inner EP (s)": inner, "inner EP (%)": 100 * inner / whole}


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows as columns."""
    for name in rows[0]:
        cells = (row[name] if isinstance(row[name], str) else f"{row[name]:.4g}" for row in rows)
        print(f"{name:24}" + "".join(f"{cell:>16}" for cell in cells))
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small problems only")
    parser.add_argument(
        "--sizes", nargs="*", metavar="N,C", help="only problems with these numbers of points and classes"
    )
    parser.add_argument("--repeats", type=int, default=3, help="number of repeats; the fastest counts")
    parser.add_argument("--json", help="file to write the figures to")
    arguments = parser.parse_args()
    sizes = SMALL if arguments.quick else LARGE
    if arguments.sizes:
        sizes = [tuple(map(int, size.split(","))) for size in arguments.sizes]
    results = {"nested EP": [measure(n, c, arguments.repeats) for n, c in sizes]}
    results["an iteration of each"] = [measure_others(n, c, arguments.repeats) for n, c in sizes[:2]]
    for n, _ in sizes[:2]:
        results[f"one latent function, {n} points"] = measure_one_function(n, arguments.repeats)
    if not (arguments.quick or arguments.sizes):
        results["one iteration on many points"] = [measure_large()]
    for title, rows in results.items():
        print(title)
        show(rows)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
