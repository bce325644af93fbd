"""Seeger and Jordan (2004), section 7: even digits of MNIST by 150 active rows of 800, with a softmax.

200 images of each even digit at random, 200 of the 1000 to predict. One covariance for all functions,
v exp{−w ‖x − x'‖² / (2 · 784)}, pixels from 0 to 1, which the paper does not say; sites that couple the functions, and
rows by the information that they give. Sites are iterated to their fixed point at the end, where the paper goes on with
those of the last 25 rows as it includes them. Its candidates are 32 at a time, of which half stay.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.spatial.distance import cdist

import pymc_gpep as gpep
from benchmarks.active_sets.first_rows import by_first_rows
from benchmarks.active_sets.printed import EVEN_DIGITS
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split
from benchmarks.scalable_paper.large_data import mnist
from pymc_gpep.likelihoods.softmax.likelihood import SoftmaxLikelihood

DIGITS = (0, 2, 4, 6, 8)
EACH, HELD_OUT, ACTIVE, POOL = 200, 200, 150, 32
COUNTS = (25, 50, 75, 100, 125, 150)
PIXELS = 784
JITTER = 1e-6
SPLITS = 3
COLUMNS = ("error", "probability", "lowest entropy", "highest entropy")


def load(data: str, seed: int, each: int, held_out: int) -> Split:
    """So many images of each even digit, at random."""
    whole = mnist(data)
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.permutation(np.flatnonzero(whole.y == digit))[:each] for digit in DIGITS])
    rows = rng.permutation(rows)
    X, y = whole.X[rows], np.searchsorted(DIGITS, whole.y[rows])
    return Split(X[held_out:], y[held_out:], X[:held_out], y[:held_out])


def predictions(
    data: str, v: float, w: float, seed: int, each: int, held_out: int, active: int, counts: Sequence[int]
) -> Arrays:
    """`COLUMNS` by the first active rows, more and more of them."""
    split = load(data, seed, each, held_out)
    n, m, classes = len(split.y), len(split.ynew), len(DIGITS)

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return v * np.exp(-w * cdist(a, b, "sqeuclidean") / (2.0 * PIXELS))

    k = covariance(split.X, split.X)
    k.flat[:: n + 1] += JITTER * v
    likelihood = SoftmaxLikelihood()
    ivm = gpep.IVM(active=active, pool=POOL, rows=active + 1, score="information").named(likelihood)
    prior = gpep.DenseRows(k, np.zeros((classes, n)))
    solution = ivm.solve(prior, split.y, likelihood=likelihood, random_seed=seed)
    cross = covariance(split.Xnew, split.X[solution.selection.rows])
    found = []
    for mean, cov in by_first_rows(ivm, solution, cross, v, counts):
        p, _ = likelihood.probabilities(mean, cov, tolerance=1e-3)
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
        found.append(
            [
                (p.argmax(axis=1) != split.ynew).mean(),
                p[np.arange(m), split.ynew].mean(),
                entropy.min(),
                entropy.max(),
            ]
        )
    return {"counts": np.array(counts), "found": np.array(found), "converged": np.array(solution.converged)}


def name_of(v: float, w: float, seed: int) -> str:
    return f"v = {v:g}, w = {w:g}, split {seed}"


class EvenDigits(Experiment):
    title = "Section 7 of Seeger and Jordan (2004): even digits"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"each": 200, "held_out": 200, "active": ACTIVE, "counts": COUNTS}
        if quick:
            size = {"each": 30, "held_out": 50, "active": 30, "counts": (15, 30)}
        settings = [(v, w) for v, w in EVEN_DIGITS if not quick or (v, w) in ((0.5, 40), (5, 40))]
        return [
            Cell(name_of(v, w, seed), predictions, {"data": data, "v": v, "w": w, "seed": seed, **size})
            for seed in range(1 if quick else SPLITS)
            for v, w in settings
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [f"| v, w | splits | {' | '.join(f'{name}: printed, here' for name in COLUMNS)} |", "| --- " * 6 + "|"]
        record: dict[str, Any] = {}
        for (v, w), printed in EVEN_DIGITS.items():
            if not (runs := of_setting(v, w, found)):
                continue
            last = np.array([run["found"][-1] for run in runs])
            mean, low, high = last.mean(axis=0), last.min(axis=0), last.max(axis=0)
            shown = " | ".join(
                f"{was:.3f}, {own:.3f} ({least:.3f} to {most:.3f})"
                for was, own, least, most in zip(printed, mean, low, high, strict=True)
            )
            lines.append(f"| {v:g}, {w:g} | {len(runs)} | {shown} |")
            record[f"{v:g}, {w:g}"] = {"mean": mean.tolist(), "splits": len(runs)}
        notes = [
            "Probability is the mean of that of the label, entropies are those of the predictions, and in brackets are "
            "the smallest and the largest of the splits.",
            f"Orders: {orders(record)}.",
        ]
        lines += ["", *notes]
        straight = [
            np.corrcoef(run["counts"], run["found"][:, 1])[0, 1] ** 2
            for v, w in EVEN_DIGITS
            for run in of_setting(v, w, found)
        ]
        if straight:
            lines.append(f"Lines through the probability against the number of rows: R² at least {min(straight):.3f}.")
        return record, "\n".join(lines)

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        axes, drawn = figure.subplots(1, 2), False
        for v, w in ((0.5, 40), (2, 40), (5, 40), (5, 20)):
            if runs := of_setting(v, w, found):
                drawn = True
                mean = np.mean([run["found"] for run in runs], axis=0)
                for ax, values in zip(axes, (100.0 * mean[:, 0], mean[:, 1]), strict=True):
                    ax.plot(runs[0]["counts"], values, ".-", label=f"v = {v:g}, w = {w:g}")
        for ax, label in zip(axes, ("error, %", "mean probability of the label"), strict=True):
            ax.set(xlabel="active rows", ylabel=label)
        if not drawn:
            return None
        axes[0].legend()
        return figure


def of_setting(v: float, w: float, found: Mapping[str, Arrays]) -> list[Arrays]:
    """What there is of a setting, in the order of splits."""
    return [found[name] for seed in range(SPLITS) if (name := name_of(v, w, seed)) in found]


def orders(record: Mapping[str, Mapping[str, Any]]) -> str:
    """How many neighbouring pairs of settings are as the paper's: the probability falls with w and rises with v."""
    probability = {name: values["mean"][1] for name, values in record.items()}
    settings = [(v, w) for v, w in EVEN_DIGITS if f"{v:g}, {w:g}" in probability]
    right = of = 0
    for fixed, other, sign in ((0, 1, -1.0), (1, 0, 1.0)):
        for value in {setting[fixed] for setting in settings}:
            line = sorted((setting for setting in settings if setting[fixed] == value), key=lambda each: each[other])
            values = [probability[f"{v:g}, {w:g}"] for v, w in line]
            right += int((sign * np.diff(values) > 0.0).sum())
            of += len(values) - 1
    return f"{right} of {of} pairs of neighbours are as in the paper"


EXPERIMENT = EvenDigits()
