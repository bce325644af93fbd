"""Table 1: EPs against Gibbs sampling, at log σ² = 1 and log ℓ = 1.

Mean and largest absolute differences of latent means, latent variances and class probabilities on a random half of
Glass with the other half for testing, and on USPS 3 vs. 5 vs. 7; and relative CPU times of 30 iterations.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper import data as sets
from benchmarks.paper.fixed import covariance
from benchmarks.paper.gibbs import combine, sample
from pymc_gpep.approximations import NestedEP
from pymc_gpep.likelihoods.multinomial_probit import class_probabilities
from pymc_gpep.rivals.class_independent_ep import IEP, QIEP
from pymc_gpep.rivals.qep import QEP

Array = np.ndarray

LOG_VARIANCE, LOG_LENGTHSCALE = 1.0, 1.0
METHODS = {
    "EP": NestedEP,
    "QEP": QEP,
    "IEP": IEP,
    "QIEP": QIEP,
    "truncated QEP": QEP,
}
RULES = {"QEP": "gauss_hermite", "truncated QEP": "truncated"}
DAMPING = 0.8
ITERATIONS = 30
GROUPS = 4
QUANTITIES = ("means", "variances", "probabilities")
PARTS = ("training", "test")

# Riihimäki, Jylänki and Vehtari (2013), table 1: mean and largest differences of EP, QEP, IEP and QIEP.
PAPER = {
    "glass": {
        ("training", "means"): ((0.048, 0.047, 0.058, 0.067), (0.181, 0.186, 0.190, 0.217)),
        ("training", "variances"): ((0.084, 0.085, 0.325, 0.325), (0.553, 0.560, 0.656, 0.667)),
        ("training", "probabilities"): ((0.004, 0.004, 0.004, 0.004), (0.025, 0.026, 0.021, 0.021)),
        ("test", "means"): ((0.043, 0.043, 0.055, 0.058), (0.176, 0.177, 0.193, 0.181)),
        ("test", "variances"): ((0.097, 0.097, 0.314, 0.314), (0.571, 0.572, 0.643, 0.655)),
        ("test", "probabilities"): ((0.003, 0.004, 0.004, 0.004), (0.021, 0.022, 0.024, 0.024)),
    },
    "usps357": {
        ("training", "means"): ((0.065, 0.065, 0.065, 0.065), (0.266, 0.288, 0.266, 0.266)),
        ("training", "variances"): ((0.167, 0.167, 0.167, 0.167), (0.724, 0.724, 0.723, 0.731)),
        ("training", "probabilities"): ((0.008, 0.008, 0.013, 0.013), (0.040, 0.043, 0.059, 0.058)),
        ("test", "means"): ((0.006, 0.006, 0.006, 0.006), (0.203, 0.202, 0.199, 0.199)),
        ("test", "variances"): ((0.215, 0.215, 0.216, 0.215), (1.021, 1.021, 1.021, 1.021)),
        ("test", "probabilities"): ((0.001, 0.001, 0.001, 0.001), (0.022, 0.024, 0.035, 0.035)),
    },
}
PAPER_TIMES = {"glass": (1.245, 132.300, 1.000, 1.175), "usps357": (2.542, 2.602, 1.000, 1.001)}
SWEEPS = {"glass": 60_000, "usps357": 5_000}


def load(name: str, folder: str, size: int) -> tuple[Array, int, Array, int]:
    """Prior covariance of training and test points, number of training points, labels, and number of classes."""
    data = sets.halves(name, folder) if name == "glass" else sets.split(name, folder)
    c = data.classes
    if size:
        data = sets.subset(data, size, size)
    return covariance(np.concatenate([data.X, data.Xnew]), LOG_VARIANCE, LOG_LENGTHSCALE), len(data.X), data.y, c


def gibbs(name: str, folder: str, size: int, sweeps: int, group: int) -> Arrays:
    """Four chains."""
    with threadpool_limits(1):
        return sample(*load(name, folder, size), chains=4, sweeps=sweeps, burn=max(100, sweeps // 20), seed=group)


def approximate(name: str, folder: str, size: int, method: str, order: int, repeats: int) -> Arrays:
    """Moments and probabilities at all points after 30 plain incremental iterations, and their time.

    The result also has the largest changes of each until convergence.
    """
    K, n, y, c = load(name, folder, size)
    options: dict[str, Any] = {"rule": RULES[method], "order": order} if method in RULES else {}
    plain = METHODS[method](
        depth=0, damping=DAMPING, max_iterations=ITERATIONS, ladder=False, tolerance=np.finfo(float).tiny, **options
    )
    prior, mean = np.ascontiguousarray(K[:n, :n]), np.zeros((c, n))
    METHODS[method](max_iterations=1, ladder=False, **options).solve(prior[:9, :9], mean[:, :9], y[:9])  # compiles
    times = []
    with threadpool_limits(1):
        for _ in range(repeats):
            began = time.process_time()
            solution = plain.solve(prior, mean, y)
            times.append(time.process_time() - began)
        after = METHODS[method](**options).solve(prior, mean, y)
        found, limit = (at_all_points(x, K, n) for x in (solution, after))
    return {
        **found,
        "training": n,
        **{f"{key} left": np.abs(found[key] - limit[key]).max() for key in QUANTITIES},
        "residual": solution.convergence.residual[-1],
        "iterations": solution.convergence.iterations,
        "converged": after.convergence.converged,
        "cpu": min(times),
    }


def at_all_points(solution: Any, K: Array, n: int) -> Arrays:
    """Means, variances and class probabilities (c, points)."""
    c = len(solution.mean)
    mean, cov = solution.posterior.predict(K[None, n:, :n], np.diagonal(K)[None, n:], np.zeros((c, len(K) - n)))
    mean, cov = np.concatenate([solution.mean, mean], axis=1), np.concatenate([solution.cov, cov])
    p, _ = class_probabilities(mean.T, cov)
    return {"means": mean, "variances": np.einsum("iaa->ai", cov), "probabilities": p.T}


def of_pixels(folder: str, size: int) -> Arrays:
    """Correlation of nearest points and mean sizes of latent means, with pixels unscaled and standardised."""
    raw, scaled = sets.pixels(folder), sets.split("usps357", folder)
    found = {}
    for name, data in (("raw", raw), ("standardised", scaled)):
        data = sets.subset(data, size, size) if size else data
        K = covariance(np.concatenate([data.X, data.Xnew]), LOG_VARIANCE, LOG_LENGTHSCALE)
        n = len(data.X)
        with threadpool_limits(1):
            solution = NestedEP().solve(np.ascontiguousarray(K[:n, :n]), np.zeros((3, n)), data.y)
            mean, _ = solution.posterior.predict(K[None, n:, :n], np.diagonal(K)[None, n:], np.zeros((3, len(K) - n)))
        nearest = (K[:n, :n] - np.diag(np.diag(K[:n, :n]))).max(axis=1) / np.exp(LOG_VARIANCE)
        found[name] = np.array([np.median(nearest), np.abs(solution.mean).mean(), np.abs(mean).mean()])
    return found


class Table1(Experiment):
    title = "Table 1: EPs against Gibbs sampling at log σ² = 1, log ℓ = 1"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        cells = []
        for name in PAPER:
            common = {"name": name, "folder": data, "size": 40 if quick else 0}
            for group in range(2 if quick else GROUPS):
                sweeps = {"sweeps": 200 if quick else SWEEPS[name], "group": group}
                cells.append(Cell(f"{name} Gibbs {group}", gibbs, common | sweeps))
            for method in METHODS:
                slow = name == "usps357" or method in RULES
                work = {"method": method, "order": 4 if quick else 10, "repeats": 1 if quick else 2 if slow else 9}
                cells.append(Cell(f"{name} {method}", approximate, common | work))
        return [*cells, Cell("usps357 pixels", of_pixels, {"folder": data, "size": 40 if quick else 0})]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record, texts = {}, []
        for name in PAPER:
            record[name], text = _data_set(name, found)
            texts.append(f"## {sets.TITLES[name]}\n\n{text}")
        record["pixels"], text = _pixels(found)
        return record, "\n\n".join([*texts, text])


def _data_set(name: str, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
    groups = [x for key, x in found.items() if key.startswith(f"{name} Gibbs")]
    methods = {method: found[f"{name} {method}"] for method in METHODS if f"{name} {method}" in found}
    lines = [sets.NOTES[name], ""] if name in sets.NOTES else []
    if missing := [method for method in METHODS if method not in methods]:
        lines += [f"Not computed: {', '.join(missing)}.", ""]
    record: dict[str, Any] = {"rows": []}
    if groups and methods:
        exact = combine(groups)
        record |= {"chains": exact.chains, "sweeps": exact.sweeps, "r_hat": exact.r_hat, "effective": exact.effective}
        record["rows"], table = _differences(name, exact, methods)
        lines += [str(exact), "", *table, ""]
    elif methods:
        lines += ["Gibbs sampling: not computed.", ""]
    if methods:
        record["times"], table = _times(name, methods)
        lines += [*table, "", *_rest(methods)]
    return record, "\n".join(lines)


def _differences(name: str, exact: Any, methods: Mapping[str, Arrays]) -> tuple[list[dict[str, Any]], list[str]]:
    """Mean and largest absolute differences from Gibbs sampling, with the paper's in parentheses."""
    lines = [
        f"| points | quantity | difference | error of Gibbs sampling | {' | '.join(methods)} |",
        "| --- " * (4 + len(methods)) + "|",
    ]
    rows = []
    n = int(next(iter(methods.values()))["training"])
    for part, points in zip(PARTS, (slice(0, n), slice(n, None)), strict=True):
        for quantity in QUANTITIES:
            errors = {method: np.abs(x[quantity] - exact.values[quantity])[:, points] for method, x in methods.items()}
            noise = exact.errors[quantity][:, points]
            for how, reduce, paper in zip(("mean", "max"), (np.mean, np.max), PAPER[name][part, quantity], strict=True):
                theirs = dict(zip(METHODS, paper, strict=False))
                row = {method: float(reduce(x)) for method, x in errors.items()}
                cells = [f"{x:.4f}" + (f" ({theirs[m]:.3f})" if m in theirs else "") for m, x in row.items()]
                lines.append(f"| {part} | {quantity} | {how} | {reduce(noise):.4f} | {' | '.join(cells)} |")
                rows.append(
                    {"points": part, "of": quantity, "difference": how, "gibbs_error": float(reduce(noise))} | row
                )
    return rows, lines


def _times(name: str, methods: Mapping[str, Arrays]) -> tuple[dict[str, float], list[str]]:
    times = {method: float(x["cpu"]) for method, x in methods.items()}
    theirs = dict(zip(METHODS, PAPER_TIMES[name], strict=False))
    unit = times.get("IEP", np.nan)
    cells = [f"{x / unit:.3f}" + (f" ({theirs[m]:.3f})" if m in theirs else "") for m, x in times.items()]
    lines = [
        f"| {ITERATIONS} iterations | {' | '.join(times)} |",
        "| --- " * (1 + len(times)) + "|",
        f"| CPU time relative to IEP | {' | '.join(cells)} |",
        f"| CPU seconds | {' | '.join(f'{x:.3g}' for x in times.values())} |",
    ]
    return times, lines


def _rest(methods: Mapping[str, Arrays]) -> list[str]:
    """Distance from convergence after the paper's 30 iterations."""
    left = {key: max(float(x[f"{key} left"]) for x in methods.values()) for key in QUANTITIES}
    worst = max(left.values())
    changes = ", ".join(f"{key} {value:.0e}" for key, value in left.items())
    same = "the same to the digits shown" if worst < 5e-5 else "not the same to the digits shown"
    lines = [f"With further iterations until convergence, the largest changes are {changes}: {same}."]
    if failed := [method for method, x in methods.items() if not x["converged"]]:
        lines.append(f"Did not converge: {', '.join(failed)}.")
    return lines


def _pixels(found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
    if "usps357 pixels" not in found:
        return {}, "Raw and standardised pixels: not computed."
    columns = ("correlation with the nearest point, median", "mean size of latent means, training", "the same, test")
    record, lines = {}, [f"| pixels | {' | '.join(columns)} |", "| --- " * (1 + len(columns)) + "|"]
    for name in ("raw", "standardised"):
        values = [float(x) for x in found["usps357 pixels"][name]]
        record[name] = dict(zip(columns, values, strict=True))
        lines.append(f"| {name} | {' | '.join(f'{x:.3f}' for x in values)} |")
    return record, "## Pixels, raw or standardised\n\nUSPS, nested EP.\n\n" + "\n".join(lines)


EXPERIMENT = Table1()
