"""Table 2: measured growth of the cost of an iteration with the numbers of points and classes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from threadpoolctl import threadpool_limits

from benchmarks.common import Table, best_time
from benchmarks.experiment import Arrays, Cell, Experiment, returned
from benchmarks.paper import gibbs
from benchmarks.solver import floor, problem
from pymc_gpep.approximations import Approximator, Laplace, LaplaceProbit, NestedEP, VariationalBayes
from pymc_gpep.kernels.likelihoods.multinomial_probit import bound_terms
from pymc_gpep.kernels.likelihoods.softmax import softmax
from pymc_gpep.kernels.moments.inner_ep import inner_ep_update
from pymc_gpep.kernels.sampling import draw_in_cone
from pymc_gpep.plots.canvas import LINE_STYLES, MARKERS, colours
from pymc_gpep.rivals.class_independent_ep import IEP, QIEP
from pymc_gpep.rivals.kernels.class_independent import iep_update, qiep_update
from pymc_gpep.rivals.kernels.quadrature_ep import qep_update
from pymc_gpep.rivals.qep import QEP, quadrature_rule

# Early ends and changes of the scheme are switched off: a fixed number of iterations is timed.
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
SWEEPS = 100  # iterations that are timed together
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
CLASSES, POINTS = 3, 600  # Numbers of classes and of points while the other number grows.
MOST_CLASSES = {"QEP": 5, "LA, probit": 5}
MOST_POINTS = {"LA, probit": 800}
LARGE = 800  # Smallest n for the slope, if two such sizes were timed: at smaller n, terms linear in n are noticeable.
LARGE_CLASSES = 6
SMALL = 400  # with fewer points, factorisations do not dominate the time of an iteration


def time_all(method: str, sizes: Sequence[Sequence[int]], repeats: int) -> dict[str, Any]:
    """Seconds of an iteration after the first, of the first iteration, and of the floor, at each n and c."""
    rows = [time_one(method, n, c, repeats) for n, c in sizes]
    return {name: [row[name] for row in rows] for name in rows[0]}


def time_one(method: str, n: int, c: int, repeats: int) -> dict[str, float]:
    clock = time.process_time  # unaffected by other work on the machine
    k, mean, labels = problem(n, c)

    def run(iterations: int) -> int:
        """Run a number of iterations, or fewer if they end, for any tolerance."""
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


LIKELIHOODS = {
    "EP": "n n_in (c − 1)³",
    "IEP": "n n_in (c − 1)³",
    "QEP": "n n_q^(c − 1)",
    "QIEP": "n ((2c − 1) n_q + 2 n_q²)",
    "VB": "2 n (c − 1) n_q",
    "LA": "n c",
    GIBBS: "n c n_s",
}
"""The paper's column for likelihood computations, without means and covariances."""
MANY_CLASSES = (2, 3, 4, 5, 6, 10, 20, 40)
OF_LIKELIHOOD = "likelihood"


def time_likelihood(method: str, n: int, classes: Sequence[int], repeats: int) -> dict[str, Any]:
    """Seconds of the compiled likelihood computations for n points. EP and IEP have one inner sweep."""
    rng = np.random.default_rng(1)
    seconds = []
    for c in classes:
        f, y = rng.normal(size=(c, n)), rng.integers(c, size=n)
        root = rng.normal(size=(n, c, c)) / np.sqrt(c)
        seconds.append(_time_points(method, f, root @ root.swapaxes(1, 2) + 0.1 * np.eye(c), y, repeats))
    return {"classes": list(classes), "points": n, "likelihood": seconds}


def _time_points(method: str, f: np.ndarray, cov: np.ndarray, y: np.ndarray, repeats: int) -> float:
    c, n = f.shape
    square, column = np.empty((n, c, c)), np.empty((c, n))
    pairs, singles = np.zeros((2, n, c - 1)), np.zeros((2, n, 2 * c - 1))
    variance = np.ascontiguousarray(np.diagonal(cov, axis1=1, axis2=2).T)
    independent = f, variance, np.zeros((c, n)), np.zeros((c, n)), y, singles, np.zeros_like(singles)
    scale = np.empty((n, 2 * c - 1))
    rng = np.random.default_rng(2)
    nodes = False, quadrature_rule("truncated", QEP().order), np.full((n, c - 1), -1)

    def work() -> None:
        if method == "EP":
            inner_ep_update(f, cov, y, *pairs, 1, 0.0, np.empty((n, c - 1)), np.empty((n, c - 1)), scale[:, : c - 1])
        elif method == "IEP":
            iep_update(1, 0.0, *independent, scale)
        elif method == "QIEP":
            qiep_update(*independent, scale)
        elif method == "QEP":
            qep_update(*nodes, f, cov, y, pairs, np.zeros_like(pairs), scale[:, : c - 1])
        elif method == "VB":
            bound_terms(y, f, column, f, np.empty((c, n)), square)
        elif method == "LA":
            softmax(f, y, column, np.empty((c, n)))
        else:
            draw_in_cone(rng, f, y, column)

    with threadpool_limits(1):
        work()  # compiles
        return best_time(work, repeats, time.process_time)


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
        ] + [
            Cell(
                f"{OF_LIKELIHOOD}, {method}",
                time_likelihood,
                {
                    "method": method, "n": 100 if quick else 2000, "repeats": 2 if quick else 5,
                    "classes": [c for c in MANY_CLASSES if c <= MOST_CLASSES.get(method, 3 if quick else c)],
                },
            )
            for method in LIKELIHOODS
        ]  # fmt: skip

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Table of the likelihood's share. The other table was stored before there were records."""
        rows = []
        for method, paper in LIKELIHOODS.items():
            if (cell := found.get(f"{OF_LIKELIHOOD}, {method}")) is not None:
                each = 1e6 * cell["likelihood"] / cell["points"]
                large = cell["classes"] >= LARGE_CLASSES
                growth = (
                    np.polyfit(np.log(cell["classes"][large]), np.log(each[large]), 1)[0] if large.sum() > 1 else None
                )
                shown = dict(zip(cell["classes"].tolist(), each.tolist(), strict=True))
                rows.append((method, paper, *(shown.get(c) for c in MANY_CLASSES), growth))
        if not rows:
            return {}
        columns = ("method, µs a point", "paper", *(f"c = {c}" for c in MANY_CLASSES), "slope in c, from 6")
        return {
            "likelihood": Table("Likelihood computations", columns, ("", "", *[".3g"] * len(MANY_CLASSES), ".2f"), rows)
        }

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
                f"| {last['iteration']:.3g} (n = {last['n']:.0f}) | {over_floor([last], 'first')} |"
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
                lines += ["", f"**All n are below {SMALL}: times of such small problems are not meaningful.**"]
        notes = (
            "One thread, and its CPU time; the problems are drawn from the model, with one covariance for all "
            f"classes; c = {CLASSES} where n grows, and n = {fixed:.0f} where c does. F(n, c) is the time of c + 1 "
            "Cholesky factorisations and inverses of LAPACK of the same size in the same process, the least that EP "
            "with all couplings needs. “Over F” is the time of an iteration divided by F, at each n or c of the "
            "header. The list is shorter if a method was not timed at the largest sizes. As c grows, a cost of (c + "
            "1) n³ keeps its ratio, one of c n³ rises as c / (c + 1), and one that does not depend on c falls as 1 / "
            "(c + 1). A pure n³ has the slope 3; slopes below are usual at these sizes: factorisations get more "
            "efficient as they grow. Our IEP and QIEP factorise c + 1 matrices and not c, because they solve for the "
            "level that all classes have in common, which is what makes the plain iteration drift (figure 8); they "
            "invert c of them. VB's one factorisation is in its first iteration, for a whole fit; each one after that "
            "solves for a Newton step by products with matrices, whose number varies, which are n² each. Times of an "
            "iteration after the first are those of up to four less that of one."
        )
        return record, "\n".join([*lines, "", notes])

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not all_times(found):
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
    """Measured times of a method, by n and c."""
    arrays = returned(found.get(method, {}))
    return [dict(zip(arrays, map(float, row), strict=True)) for row in zip(*arrays.values(), strict=True)]


def over_points(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [row for row in rows if row["c"] == CLASSES]


def over_classes(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Times for the n with the most numbers of classes, by c."""
    sizes = [row["n"] for row in rows]
    return [row for row in rows if row["n"] == max(sizes, key=sizes.count)] if sizes else []


def listed(sizes: Sequence[float]) -> str:
    return ", ".join(f"{size:.0f}" for size in sizes) or "—"


def over_floor(rows: list[dict[str, float]], what: str = "iteration") -> str:
    """Times in units of the floor; a dash where a coarse clock measured a floor of 0."""
    return ", ".join(f"{row[what] / row['floor']:.2f}" if row["floor"] > 0 else "—" for row in rows) or "—"


def slope_of(rows: list[dict[str, float]]) -> tuple[float, str]:
    """Slope of log time over log n, and the sizes it is computed from."""
    large = [row for row in rows if row["n"] >= LARGE]
    used = [row for row in (large if len(large) > 1 else rows) if row["iteration"] > 0]
    if len(used) < 2:
        return float("nan"), "—"
    n, time = (np.log([row[key] for row in used]) for key in ("n", "iteration"))
    return float(np.polyfit(n, time, 1)[0]), f"{used[0]['n']:.0f}–{used[-1]['n']:.0f}"


EXPERIMENT = Table2()
