"""Table 2: how the cost of an iteration grows with the numbers of points and classes, measured."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from threadpoolctl import threadpool_limits

from benchmarks.common import best_time
from benchmarks.experiment import Arrays, Cell, Experiment, returned
from benchmarks.paper import gibbs
from benchmarks.solver import floor, problem
from pymc_gpep.approximations import Approximator, Laplace, LaplaceProbit, NestedEP, VariationalBayes
from pymc_gpep.plots.canvas import LINE_STYLES, MARKERS, colours
from pymc_gpep.rivals.class_independent_ep import IEP, QIEP
from pymc_gpep.rivals.qep import QEP

# What stops an iteration early, or starts another scheme, is switched off: only so many iterations are timed.
_NEVER = 1e-300
METHODS: dict[str, Approximator] = {
    "EP": NestedEP(tolerance=_NEVER, ladder=False),
    "IEP": IEP(tolerance=_NEVER, ladder=False),
    "QIEP": QIEP(tolerance=_NEVER, ladder=False),
    "QEP": QEP(tolerance=_NEVER, ladder=False, full=False),
    "VB": VariationalBayes(tolerance=_NEVER),
    "LA": Laplace(tolerance=_NEVER),
    "LA, probit": LaplaceProbit(tolerance=_NEVER),
}
GIBBS = "Gibbs sampling"
SWEEPS = 100  # are timed together
PAPER = {
    "EP": "(c + 1) n³",
    "IEP": "c n³",
    "QIEP": "c n³",
    "QEP": "(c + 1) n³",
    "VB": "n³",
    "LA": "(c + 1) n³",
    "LA, probit": "—",
    GIBBS: "c n³",
}
OURS = {
    "EP": "c + 1 matrices",
    "IEP": "c + 1 matrices",
    "QIEP": "c + 1 matrices",
    "QEP": "c + 1 matrices, quadrature of c − 1 dimensions",
    "VB": "products with one matrix, which is factorised once",
    "LA": "c + 1 matrices",
    "LA, probit": "one matrix of size n (c − 1)",
    GIBBS: "a sweep: products of one matrix with c vectors",
}
CLASSES, POINTS = 3, 600  # of which one is held while the other grows
MOST_CLASSES = {"QEP": 5, "LA, probit": 5}
MOST_POINTS = {"LA, probit": 800}
LARGE = 800  # slopes are of these points and more, where there are two: below, what is linear in n still shows
SMALL = 400  # with fewer points than that an iteration is not mostly its factorisations


def time_all(method: str, sizes: Sequence[Sequence[int]], repeats: int) -> dict[str, Any]:
    """Seconds of an iteration after the first, of the first, and of the floor, at each n and c."""
    rows = [time_one(method, n, c, repeats) for n, c in sizes]
    return {name: [row[name] for row in rows] for name in rows[0]}


def time_one(method: str, n: int, c: int, repeats: int) -> dict[str, float]:
    clock = time.process_time  # other work on the machine does not count
    k, mean, labels = problem(n, c)

    def run(iterations: int) -> int:
        """Take so many iterations, or fewer where they come to an end, whatever the tolerance."""
        if method == GIBBS:
            gibbs.sample(k, n, labels, c, chains=1, sweeps=100, burn=iterations - 1, seed=1)
            return iterations
        solver = replace(METHODS[method], max_iterations=iterations)
        return solver.run(k[None], mean, labels, np.zeros(solver.start_size(c, n))).iterations

    more = SWEEPS + 1 if method == GIBBS else 4
    with threadpool_limits(1):
        run(1)  # compiles
        last = run(more)
        first = best_time(lambda: run(1), repeats, clock)
        whole = best_time(lambda: run(more), repeats, clock)
        unit = floor(n, c, repeats, clock)
    return {"iteration": (whole - first) / max(last - 1, 1), "first": first, "floor": unit, "n": n, "c": c}


class Table2(Experiment):
    title = "Table 2: cost of an iteration"
    alone = True

    def cells(self, data: str, quick: bool) -> list[Cell]:
        del data  # problems are drawn from the model
        points = (100, 200) if quick else (200, 400, 600, 800, 1200, 1600)
        classes = (2, 3, 4) if quick else (2, 3, 4, 5, 6, 8, 10)
        fixed = 100 if quick else POINTS
        sizes = sorted({(n, CLASSES) for n in points} | {(fixed, c) for c in classes})
        return [
            Cell(
                method,
                time_all,
                {
                    "method": method,
                    "sizes": [
                        (n, c) for n, c in sizes if c <= MOST_CLASSES.get(method, c) and n <= MOST_POINTS.get(method, n)
                    ],
                    "repeats": 2 if quick else 3,
                },
            )
            for method in PAPER
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        everything = all_times(found)
        points = sorted({row["n"] for row in over_points(everything)})
        most_classes = over_classes(everything)
        fixed = most_classes[0]["n"] if most_classes else POINTS
        classes = sorted({row["c"] for row in most_classes})
        lines = [
            "| method | paper: posterior | ours, an iteration | slope of log time over log n "
            f"| over F, c = {CLASSES}, n = {listed(points)} | over F, n = {fixed:.0f}, c = {listed(classes)} "
            "| at the largest n: seconds | first iteration, over F |",
            "| --- " * 8 + "|",
        ]
        record: dict[str, Any] = {}
        for method, paper in PAPER.items():
            rows = times_of(found, method)
            if not rows:
                lines.append(f"| {method} | {paper} | {OURS[method]} | not computed | | | | |")
                continue
            growth = over_points(rows)
            slope, used = slope_of(growth)
            last = growth[-1] if growth else rows[-1]
            record[method] = {"times": rows, "slope": slope}
            lines.append(
                f"| {method} | {paper} | {OURS[method]} | {slope:.2f} (n = {used}) "
                f"| {over_floor(growth)} | {over_floor([row for row in rows if row['n'] == fixed])} "
                f"| {last['iteration']:.3g} (n = {last['n']:.0f}) | {last['first'] / last['floor']:.2f} |"
            )
        if floors := {(row["n"], row["c"]): row["floor"] for row in everything}:
            growth = [{"n": n, "iteration": t} for (n, c), t in sorted(floors.items()) if c == CLASSES]
            slope, used = slope_of(growth)
            record["floor"] = {"slope": slope}
            lines.append(
                f"| floor F | — | c + 1 of dpotrf and dpotri | {slope:.2f} (n = {used}) | 1 | 1 "
                f"| {floors[max(floors)]:.3g} (n = {max(floors)[0]:.0f}) | |"
            )
            if max(points, default=0) < SMALL:
                lines += ["", f"**All n are below {SMALL}: too small for these times to mean anything.**"]
        notes = (
            "One thread, and its CPU time; the problems are drawn from the model, with one covariance for all classes; "
            f"c = {CLASSES} where n grows, and n = {fixed:.0f} where c does. F(n, c) is the time of c + 1 Cholesky "
            "factorisations and inverses of LAPACK of the same size in the same process, the least that EP with all "
            "couplings needs. “Over F” is an iteration's time divided by F, at each n or c of the header in turn; the "
            "list is shorter where a method was not timed at the largest. As c grows, a cost of (c + 1) n³ keeps its "
            "ratio, one of c n³ rises as c / (c + 1), and one that does not depend on c falls as 1 / (c + 1). A pure "
            "n³ has the slope 3; slopes below are usual at these sizes: factorisations get more efficient as they "
            "grow. Our IEP and QIEP factorise c + 1 matrices and not "
            "c, because they solve for the level that all classes have in common, which is what makes the plain "
            "iteration drift (figure 8); they invert c of them. VB's one factorisation is in its first iteration, for "
            "a whole fit; each one after that solves for a Newton step by products with matrices, whose number varies, "
            "which are n² each. Times of an iteration after the first are those of up to four less that of one."
        )
        return record, "\n".join([*lines, "", notes])

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not found:
            return None
        figure = Figure(figsize=(12, 5), layout="constrained")
        left, right = figure.subplots(1, 2)
        for i, (method, colour) in enumerate(zip(METHODS, colours(len(METHODS)), strict=True)):
            rows = times_of(found, method)
            style = {"color": colour, "marker": MARKERS[i], "linestyle": LINE_STYLES[i % len(LINE_STYLES)]}
            for ax, part, over in ((left, over_points(rows), "n"), (right, over_classes(rows), "c")):
                ax.plot([row[over] for row in part], [row["iteration"] for row in part], label=method, **style)
        left.set(xscale="log", yscale="log", xlabel="n", ylabel="seconds of an iteration", title=f"c = {CLASSES}")
        fixed = over_classes(all_times(found))[0]["n"]
        right.set(xlabel="c", yscale="log", ylabel="seconds of an iteration", title=f"n = {fixed:.0f}")
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.legend()
        return figure


def all_times(found: Mapping[str, Arrays]) -> list[dict[str, float]]:
    return [row for method in METHODS for row in times_of(found, method)]


def times_of(found: Mapping[str, Arrays], method: str) -> list[dict[str, float]]:
    """What was measured of a method, by n and c."""
    arrays = returned(found.get(method, {}))
    return [dict(zip(arrays, map(float, row), strict=True)) for row in zip(*arrays.values(), strict=True)]


def over_points(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [row for row in rows if row["c"] == CLASSES]


def over_classes(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Those of the n that has the most numbers of classes, by c."""
    sizes = [row["n"] for row in rows]
    return [row for row in rows if row["n"] == max(sizes, key=sizes.count)] if sizes else []


def listed(sizes: Sequence[float]) -> str:
    return ", ".join(f"{size:.0f}" for size in sizes) or "—"


def over_floor(rows: list[dict[str, float]]) -> str:
    return ", ".join(f"{row['iteration'] / row['floor']:.2f}" for row in rows) or "—"


def slope_of(rows: list[dict[str, float]]) -> tuple[float, str]:
    """Slope of log time over log n, and the n it is of."""
    large = [row for row in rows if row["n"] >= LARGE]
    used = [row for row in (large if len(large) > 1 else rows) if row["iteration"] > 0]
    if len(used) < 2:
        return float("nan"), "—"
    n, time = (np.log([row[key] for row in used]) for key in ("n", "iteration"))
    return float(np.polyfit(n, time, 1)[0]), f"{used[0]['n']:.0f}–{used[-1]['n']:.0f}"


EXPERIMENT = Table2()
