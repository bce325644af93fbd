"""Figures of the results page: evidence, moments and class probabilities against references, and times of fits.

Prints Markdown tables. All seeds are fixed, BLAS has one thread, and each time is the best of several runs.
"""

import argparse
import json
import logging
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pymc as pm
from common import Table, best_time
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from pymc_gpep.approximations import NestedEP
from pymc_gpep.likelihoods.multinomial_probit import class_probabilities

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the references in tests

import pymc_gpep as gpep
from tests.reference.binary_ep import binary_ep
from tests.reference.data import Problem, iris, random_problem, squared_exponential, wine
from tests.reference.dense_nested_ep import nested_ep as dense_nested_ep
from tests.reference.flat_ep import flat_ep
from tests.reference.gibbs import gibbs

Array = np.ndarray
JITTER = 1e-8
TIGHT = NestedEP(tolerance=1e-11)

# Log σ², log ℓ, and the evidence of the reference that the tests expect.
SETTINGS = (
    ("wine", wine, 1.0, 1.0, -51.02102765),
    ("wine", wine, 4.0, 2.0, -32.51897958),
    ("iris", iris, 8.0, 2.5, -27.22167737),
)


def standardised(data: Callable[[], tuple[Array, Array]], log_variance: float, log_lengthscale: float) -> Problem:
    X, y = data()
    K = squared_exponential(X, variance=np.exp(log_variance), lengthscale=np.exp(log_lengthscale))
    return Problem(X, K + JITTER * np.eye(y.size), np.zeros((y.max() + 1, y.size)), y)


def known_evidences(quick: bool) -> Table:
    rows = []
    for name, data, log_variance, log_lengthscale, recorded in SETTINGS:
        problem = standardised(data, log_variance, log_lengthscale)
        solution = NestedEP().solve(problem.K, problem.m, problem.y)
        reference = recorded if quick else dense_nested_ep(problem.K, problem.y).evidence
        difference = abs(solution.evidence - reference)
        sweeps = solution.convergence.iterations
        seconds = best_time(lambda p=problem: NestedEP().solve(p.K, p.m, p.y), 5)
        rows.append(
            (name, log_variance, log_lengthscale, solution.evidence, reference, difference, sweeps, 1e3 * seconds)
        )
    return Table(
        "Evidence on wine and iris",
        ("data", "log σ²", "log ℓ", "evidence", "reference", "difference", "sweeps", "ms"),
        ("", ".0f", ".1f", ".8f", ".8f", ".0e", "d", ".0f"),
        rows,
    )


def relative(found: Array, expected: Array) -> float:
    """Largest difference, relative to the largest expected number."""
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))


def references(quick: bool) -> Table:
    seeds = range(2 if quick else 5)
    binary = []
    for seed in seeds:
        for variance in (1.0, 30.0, 1000.0):
            problem = random_problem(seed, 25, 2, variance=variance, per_class=True)
            solution = TIGHT.solve(problem.K, problem.m, problem.y)
            expected = binary_ep(problem.K.mean(0), 2 * problem.y - 1)
            variances = np.einsum("iab,a,b->i", solution.cov, [-1.0, 1.0], [-1.0, 1.0]) / 2
            found = np.array([solution.evidence]), (solution.mean[1] - solution.mean[0]) / np.sqrt(2), variances
            wanted = np.array([expected.evidence]), expected.mean, expected.covariance.diagonal()
            binary.append([relative(a, b) for a, b in zip(found, wanted, strict=True)])
    rows = [("binary EP", "2", "two", len(binary), *np.max(binary, axis=0))]
    for name, reference in (("dense nested EP", dense_nested_ep), ("flat EP", flat_ep)):
        for per_class in (False, True):
            errors = []
            for seed in seeds:
                for n, c, variance in ((12, 3, 1.0), (10, 4, 30.0), (10, 6, 5.0)):
                    problem = random_problem(
                        seed, n, c, variance=variance, per_class=per_class, with_mean=bool(seed % 2)
                    )
                    solution = TIGHT.solve(problem.K, problem.m, problem.y)
                    expected = reference(problem.K, problem.y, problem.m, c=c)
                    covariance = np.einsum("aibi->iab", expected.covariance.reshape(c, n, c, n))
                    found = np.array([solution.evidence]), solution.mean, solution.cov
                    wanted = np.array([expected.evidence]), expected.mean, covariance
                    errors.append([relative(a, b) for a, b in zip(found, wanted, strict=True)])
            kind = "one for each class" if per_class else "shared"
            rows.append((name, "3, 4, 6", kind, len(errors), *np.max(errors, axis=0)))
    return Table(
        "Random problems: largest relative differences",
        ("reference", "classes", "covariance", "problems", "evidence", "means", "covariances"),
        ("", "", "", "d", ".0e", ".0e", ".0e"),
        rows,
    )


def about_class_mean(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Means and variances (c, n) of the latent values minus their mean over classes."""
    centring = np.eye(len(mean)) - 1.0 / len(mean)
    return centring @ mean, np.einsum("ab,ibd,da->ai", centring, cov, centring)


def against_gibbs(quick: bool) -> Table:
    chains, sweeps, burn = (8, 200, 100) if quick else (16, 10_000, 1_000)
    rows = []
    for name, data, log_variance, log_lengthscale, _ in SETTINGS[: 1 if quick else 2]:
        problem = standardised(data, log_variance, log_lengthscale)
        solution = NestedEP().solve(problem.K, problem.m, problem.y)
        approximate = about_class_mean(solution.mean, solution.cov)
        runs = []
        for seed in (1, 2):
            run = gibbs(problem.K, problem.y, sweeps=sweeps, burn=burn, chains=chains, seed=seed)
            runs.append(about_class_mean(run.mean, run.covariance))
        for quantity, ep, first, second in zip(("mean", "variance"), approximate, *runs, strict=True):
            exact = (first + second) / 2
            error = np.abs(ep - exact)
            noise = np.abs(first - second).mean() / 2
            size = np.abs(exact).mean()
            bias = None if quantity == "mean" else (ep - exact).mean()  # the average of the means is 0 by construction
            problem_of = name, log_variance, log_lengthscale
            rows.append((*problem_of, quantity, error.mean(), noise, error.max(), bias, size))
    return Table(
        f"Latent values against two Gibbs runs of {chains} × {sweeps} sweeps",
        (
            "data",
            "log σ²",
            "log ℓ",
            "of",
            "mean error",
            "of it Gibbs's",
            "largest error",
            "mean difference",
            "mean size",
        ),
        ("", ".0f", ".0f", "", ".4f", ".4f", ".3f", "+.4f", ".3f"),
        rows,
    )


def predicted(c: int, points: int, seed: int, log_lengthscale: float = 1.0) -> tuple[Array, Array]:
    """Means and covariances of latent values at test images of the digits 0…c−1, from thirty images of each."""
    digits = load_digits(n_class=c)
    order = np.random.default_rng([seed, c]).permutation(digits.target.size)
    X, y = digits.data[order] / 16, digits.target[order].astype(np.int64)
    n = 30 * c
    new = slice(n, min(n + points, y.size))
    kernel = {"variance": np.exp(4.0), "lengthscale": np.exp(log_lengthscale)}
    K = squared_exponential(X[:n], **kernel) + JITTER * np.eye(n)
    posterior = NestedEP().solve(K, np.zeros((c, n)), y[:n]).posterior
    cross = squared_exponential(X[new], X[:n], **kernel)
    m = len(cross)
    mean, cov = posterior.predict(cross[None], np.full((1, m), kernel["variance"]), np.zeros((c, m)))
    return np.ascontiguousarray(mean.T), cov


def undecided(c: int, points: int, seed: int) -> tuple[Array, Array]:
    """As `predicted`, with such a short length scale that all classes remain plausible almost everywhere."""
    return predicted(c, points, seed, log_lengthscale=0.2)


def independent(c: int, points: int, seed: int) -> tuple[Array, Array]:
    """As `predicted`, without covariances between classes: latent values are independent given the labels."""
    mean, cov = undecided(c, points, seed)
    return mean, cov * np.eye(c)


def random_posteriors(c: int, points: int, seed: int) -> tuple[Array, Array]:
    """Random posteriors of latent values with any correlation. Standard deviations and means are of size 3."""
    rng = np.random.default_rng([seed, c])
    root = 3.0 * rng.standard_normal((points, c, c)) / np.sqrt(c)
    return 3.0 * rng.standard_normal((points, c)), root @ root.swapaxes(1, 2)


KINDS = (
    ("predicted", predicted),
    ("undecided", undecided),
    ("independent", independent),
    ("random", random_posteriors),
)  # fmt: skip


def genz(mean: Array, cov: Array) -> Array:
    """Class probabilities at one point by SciPy's integration of the multivariate normal distribution."""
    c = len(mean)
    p = np.empty(c)
    for k in range(c):
        contrasts = np.delete(np.eye(c) - np.eye(c)[k], k, axis=0)
        law = multivariate_normal(contrasts @ mean, contrasts @ (cov + np.eye(c)) @ contrasts.T, seed=0)
        law.abseps = law.releps = 1e-6
        law.maxpts = 10**6
        p[k] = law.cdf(np.zeros(c - 1))
    return p


def probabilities(quick: bool) -> tuple[Table, Table]:
    points, checked, repeats = (20, 2, 1) if quick else (200, 25, 3)
    accuracy, times = [], []
    for c in (2, 3, 4, 5, 6, 10):
        seconds = []
        for name, make in KINDS:
            mean, cov = make(c, points, 0)
            p, error = class_probabilities(mean, cov)
            inner, lacking = class_probabilities(mean, cov, method="inner_ep")
            # Points with several plausible classes are more informative than probabilities near 0 or 1.
            hardest = np.argsort(p.max(axis=1))[:checked]
            exact = np.array([genz(mean[i], cov[i]) for i in hardest])
            of_orthant, of_inner = np.abs(p[hardest] - exact), np.abs(inner - p)
            accuracy.append(
                (
                    c, name, of_orthant.mean(), of_orthant.max(), error.max(), np.abs(exact.sum(axis=1) - 1).max(),
                    of_inner.mean(), of_inner.max(), lacking.max(),
                )
            )  # fmt: skip
            for method in ("orthant", "inner_ep"):
                run = best_time(lambda m=mean, v=cov, how=method: class_probabilities(m, v, method=how), repeats)
                seconds.append(run * 1000 / len(mean))
        times.append((c, *seconds[::2], seconds[1]))
    return (
        Table(
            f"Class probabilities: errors ({points} points, orthant checked at {checked})",
            (
                "classes", "posteriors", "orthant, mean", "orthant, worst", "orthant's estimate", "reference's own",
                "inner EP, mean", "inner EP, worst", "inner EP, sum − 1",
            ),
            ("d", "", ".0e", ".0e", ".0e", ".0e", ".5f", ".4f", ".4f"),
            accuracy,
        ),
        Table(
            "Class probabilities: seconds for 1000 points",
            ("classes", *(name for name, _ in KINDS), "predicted, inner EP"),
            ("d", *len(KINDS) * (".2g",), ".2g"),
            times,
        ),
    )  # fmt: skip


def fit_wine(times: int) -> list[tuple[float, int, bool, float]]:
    """Evidence, iterations of the optimiser, convergence and seconds of fits in the current process."""
    logging.getLogger("pymc_gpep").setLevel(logging.ERROR)
    X, y = wine()
    fits = []
    with threadpool_limits(1):
        for _ in range(times):
            with pm.Model():
                ls = pm.InverseGamma("ls", 3, 12, shape=13)
                eta = pm.HalfNormal("eta", 5)
                gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(13, ls=ls))
                f = gp.prior("f", X=X, n_outputs=3)
                gpep.MultinomialProbit("y", f.T, observed=y)
                began = time.perf_counter()
                ep = pm.fit(method="nested_ep", progressbar=False, random_seed=1)
                seconds = time.perf_counter() - began
            fits.append((ep.log_evidence, len(ep.hist) - 1, ep.converged, seconds))
    return fits


def fits(quick: bool) -> Table:
    processes, later = (1, 1) if quick else (3, 3)
    firsts, others = [], []
    for _ in range(processes):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            first, *rest = fresh.submit(fit_wine, 1 + later).result()
        firsts.append(first)
        others.extend(rest)
    evidence, iterations, converged, _ = firsts[0]
    seconds = min(fit[-1] for fit in firsts), min(fit[-1] for fit in others)
    return Table(
        "A fit of wine with 14 hyperparameters",
        ("evidence", "iterations", "converged", "first in a process (s)", "later (s)"),
        (".5f", "d", "", ".1f", ".1f"),
        [(evidence, iterations, "yes" if converged else "no", *seconds)],
    )


def setting() -> str:
    packages = " ".join(f"{name} {version(name)}" for name in ("pymc", "pytensor", "numba", "numpy", "scipy"))
    return f"Python {platform.python_version()}, {packages}; {os.cpu_count()} cores, BLAS on one thread"


def main(quick: bool, path: Path | None) -> None:
    print(setting(), flush=True)
    tables: list[Table] = []
    for part in (known_evidences, references, against_gibbs, probabilities, fits):
        with threadpool_limits(1):
            made = part(quick)
        for table in made if isinstance(made, tuple) else (made,):
            tables.append(table)
            print(f"\n{table}", flush=True)
    if path:
        figures = {"setting": setting(), "tables": [asdict(table) for table in tables]}
        path.write_text(json.dumps(figures, indent=1, ensure_ascii=False, default=lambda number: number.item()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer points and repeats, and stored references for wine and iris: under a minute, rough figures",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the unrounded figures to this file")
    arguments = parser.parse_args()
    main(arguments.quick, arguments.json)
