"""Seeger and Jordan (2004), section 7: even digits of MNIST by 150 active rows of 800, with a softmax.

Training rows are 200 random images of each even digit. 200 of 1000 test rows are of each digit. All functions share the
covariance v exp{−w ‖x − x'‖² / (2 · 784)}. The paper does not state the range of pixels, which is 0 to 1 here. Sites
couple the functions, and rows are selected by their information. There are 32 candidates, half of which are replaced.
Sites of the last 25 rows are updated three times after each inclusion. Pieces without these updates iterate all sites
to their fixed point at the end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.spatial.distance import cdist

from benchmarks.active_sets.first_rows import by_first_rows
from benchmarks.active_sets.printed import EVEN_DIGITS
from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split
from benchmarks.scalable_paper.large_data import mnist
from pymc_gpep.likelihoods.softmax import SoftmaxLikelihood
from pymc_gpep.plots.canvas import LINE_STYLES, colours
from pymc_gpep.rivals.ivm import IVM
from pymc_gpep.rivals.selection.row_site_rules import DenseRows

DIGITS = (0, 2, 4, 6, 8)
EACH, HELD_OUT, ACTIVE, POOL = 200, 200, 150, 32
COUNTS = (25, 50, 75, 100, 125, 150)
PIXELS = 784
JITTER = 1e-6
SPLITS = 3
MANY, DRAWN_OFTEN = 20, (5.0, 40.0)
"""Number of random subsets of the images for one setting, and this setting."""
PAIRS = (((5, 50), (5, 25)), ((1, 40), (5, 20)))
"""Settings of figures 1 and 2, and of figures 3 and 4."""
SMALL = ((1, 2), (1, 5), (5, 2), (5, 5))
"""Settings of much smaller w. The paper reports an error of about 0.10 for them."""
WAYS: dict[str, dict[str, Any]] = {
    "paper's": {"sites": "coupled", "liquid": 25, "passes": 3, "polish": False},
    "weighed": {"sites": "coupled", "liquid": 25, "passes": 3, "polish": False, "weights": (0.5, 0.05, 10)},
    "iterated": {"sites": "coupled", "liquid": 1, "passes": 2, "polish": True},
    "independent": {"sites": "independent", "liquid": 1, "passes": 2, "polish": False},
    "separate": {"sites": "separate", "liquid": 1, "passes": 2, "polish": False},
}
"""Methods to select rows and sites: "weighed" is in appendix D.5, the last two in section 6 of the paper."""
COLUMNS = ("error", "probability", "lowest entropy", "highest entropy")


def load(data: str, seed: int, each: int, held_out: int) -> Split:
    """Load the given number of random images of each even digit."""
    whole = mnist(data)
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.permutation(np.flatnonzero(whole.y == digit))[:each] for digit in DIGITS])
    rows = rng.permutation(rows)
    X, y = whole.X[rows], np.searchsorted(DIGITS, whole.y[rows])
    return Split(X[held_out:], y[held_out:], X[:held_out], y[:held_out])


def predictions(
    data: str, v: float, w: float, seed: int, way: str, each: int, held_out: int, active: int, counts: Sequence[int]
) -> Arrays:
    """`COLUMNS` for increasing numbers of first active rows."""
    split = load(data, seed, each, held_out)
    n, m, classes = len(split.y), len(split.ynew), len(DIGITS)

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return v * np.exp(-w * cdist(a, b, "sqeuclidean") / (2.0 * PIXELS))

    k = covariance(split.X, split.X)
    k.flat[:: n + 1] += JITTER * v
    likelihood = SoftmaxLikelihood()
    options = WAYS[way] | {"liquid": min(WAYS[way]["liquid"], active)}
    # This limit gives each function the same number of sites for any selection of rows.
    ivm = IVM(active=active, pool=POOL, rows=len(DIGITS) * active + 1, criterion="information", **options)
    prior = DenseRows(k, np.zeros((classes, n)))
    solution = ivm.solve(prior, split.y, likelihood=likelihood, random_seed=seed)
    cross = covariance(split.Xnew, split.X[solution.selection.rows])
    found = []
    if way == "separate":  # A longer run does not begin with the rows of a shorter run.
        counts = (len(solution.selection.rows),)
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


def name_of(v: float, w: float, seed: int, way: str = "paper's") -> str:
    return f"{way}, v = {v:g}, w = {w:g}, split {seed}"


class EvenDigits(Experiment):
    title = "Section 7 of Seeger and Jordan (2004): even digits"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        size = {"each": 200, "held_out": 200, "active": ACTIVE, "counts": COUNTS}
        if quick:
            size = {"each": 20, "held_out": 50, "active": 16, "counts": (8, 16)}
        others = ("weighed", "independent", "separate")
        asked = [("paper's", setting) for pair in PAIRS for setting in pair]
        asked += [(way, setting) for way in others for setting in PAIRS[0]]
        asked += [("paper's", setting) for setting in (*SMALL, *EVEN_DIGITS)]
        asked += [("iterated", setting) for setting in EVEN_DIGITS]
        if quick:
            asked = [("paper's", (0.5, 40)), ("paper's", (5, 40)), *((way, (5, 50)) for way in others)]
        named = [(seed, way, setting) for seed in range(1 if quick else SPLITS) for way, setting in asked]
        named += [(seed, "paper's", DRAWN_OFTEN) for seed in range(0 if quick else MANY)]
        return [
            Cell(
                name_of(v, w, seed, way), predictions, {"data": data, "v": v, "w": w, "seed": seed, "way": way, **size}
            )
            for seed, way, (v, w) in dict.fromkeys(named)
        ]

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of many random subsets at one setting. The other tables were stored before there were records."""
        runs = of_setting(*DRAWN_OFTEN, found, splits=MANY)
        if not runs:
            return {}
        last = np.array([run["found"][-1] for run in runs])
        rows = [
            (
                column,
                len(runs),
                was,
                values.mean(),
                values.std(ddof=1),
                values.min(),
                values.max(),
                (was > values).sum(),
            )
            for column, was, values in zip(COLUMNS, EVEN_DIGITS[DRAWN_OFTEN], last.T, strict=True)
        ]  # fmt: skip
        columns = ("v, w = 5, 40", "draws", "printed", "mean", "sd", "smallest", "largest", "draws below the printed")
        formats = ("", "d", ".3f", ".4f", ".4f", ".3f", ".3f", "d")
        return {"draws": Table("Draws of the images at one setting", columns, formats, rows)}

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
            "Probability is the mean probability of the label. Entropies are of the predictions. Brackets contain the "
            "smallest and the largest value over splits.",
            f"Orders: {orders(record)}.",
        ]
        lines += ["", *notes, "", *_of_other_ways(found)]
        straight = [
            np.corrcoef(run["counts"], run["found"][:, 1])[0, 1] ** 2
            for v, w in EVEN_DIGITS
            for run in of_setting(v, w, found)
        ]
        if straight:
            lines.append(f"Lines through the probability against the number of rows: R² at least {min(straight):.3f}.")
        return record, "\n".join(lines)

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        return {
            name: {"counts": runs[0]["counts"], "found": np.mean([run["found"] for run in runs], axis=0)}
            for pair in PAIRS
            for v, w in pair
            if (runs := of_setting(v, w, found)) and (name := f"v = {v:g}, w = {w:g}")
        }

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        drawn = [pair for pair in PAIRS if all(f"v = {v:g}, w = {w:g}" in found for v, w in pair)]
        if not drawn:
            return None
        figure = Figure(figsize=(8, 3.2 * len(drawn)), layout="constrained")
        axes = figure.subplots(len(drawn), 2, squeeze=False)
        for pair, row in zip(drawn, axes, strict=True):
            for (v, w), colour, style in zip(pair, colours(2), LINE_STYLES, strict=False):
                name = f"v = {v:g}, w = {w:g}"
                for ax, values in zip(row, found[name]["found"].T, strict=False):
                    ax.plot(found[name]["counts"], values, color=colour, linestyle=style, marker=".", label=name)
            for ax, label in zip(row, ("error", "mean probability of the label"), strict=True):
                ax.set(xlabel="active rows", ylabel=label, ylim=(0.0, None))
            row[0].legend()
        return figure


def _of_other_ways(found: Mapping[str, Arrays]) -> list[str]:
    """Lines of a table of settings that are not in the paper's table, and of other methods."""
    lines = []
    for way in WAYS:
        for v, w in (*SMALL, *EVEN_DIGITS):
            runs = of_setting(v, w, found, way)
            if not runs or (way == "paper's" and (v, w) in EVEN_DIGITS):
                continue
            error, probability, *_ = np.mean([run["found"][-1] for run in runs], axis=0)
            rows = np.mean([run["counts"][-1] for run in runs])
            lines.append(f"| {way} | {v:g}, {w:g} | {len(runs)} | {rows:.0f} | {error:.3f} | {probability:.3f} |")
    head = ["| way | v, w | splits | rows | error | probability of the label |", "| --- " * 6 + "|"]
    return [*head, *lines, ""] if lines else []


def of_setting(
    v: float, w: float, found: Mapping[str, Arrays], way: str = "paper's", splits: int = SPLITS
) -> list[Arrays]:
    """Results of a setting in the order of splits."""
    return [found[name] for seed in range(splits) if (name := name_of(v, w, seed, way)) in found]


def orders(record: Mapping[str, Mapping[str, Any]]) -> str:
    """Number of neighbouring pairs of settings in the paper's order: the probability falls with w and rises with v."""
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
