"""Tables 1 and 2: test log likelihoods on eight data sets, with few and with more inducing inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import Table
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import subset
from benchmarks.scalable_paper.data import FOLDS, NOTE, TITLES, fold, folds_of
from benchmarks.scalable_paper.methods import METHODS, run, score
from benchmarks.scalable_paper.models import EPSILON, inducing_rows, sizes
from benchmarks.scalable_paper.printed import TABLE2, TIMES

PERCENTS = (5, 10, 20)
ITERATIONS = 250
JOINT = ("vi-joint", "vi-gpflow")
"""VI by L-BFGS of all parameters, from the other methods' and from GPflow's initial values."""
SMALLEST_FIRST = (
    "new-thyroid",
    "wine",
    "glass",
    "waveform",
    "svmguide2",
    "vowel",
    "vowel-features",
    "vehicle",
    "satellite",
)


def fit_fold(
    data: str, name: str, number: int, method: str, percent: int, iterations: int, size: list[int] | None
) -> dict[str, Any]:
    """Held-out log probabilities and errors of one fit, and its convergence."""
    split = fold(name, data, number)
    split = split if size is None else subset(split, *size)
    inducing = inducing_rows(split.X, split.classes, sizes(split.y.size, [percent])[percent], number)
    fitted = run(method, split, inducing, iterations)
    log_p, wrong = score(fitted.fit, split)
    return {
        "log_p": log_p,
        "wrong": wrong,
        "classes": split.classes,
        "inducing": inducing.shape[1],
        "processor_seconds": fitted.seconds,
        "loss": np.asarray(fitted.fit.hist),
        "message": str(fitted.fit),
        "warnings": fitted.warnings,
    }


class Table2(Experiment):
    title = "Table 2: test log likelihood on UCI data"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        if quick:
            size = {"iterations": 3, "size": [40, 10]}
            return [_cell(data, "wine", 10, method, 0, **size) for method in ("ep",)]
        # folds come last, so that the first folds are complete before others start
        full = {"iterations": ITERATIONS, "size": None}
        return [
            _cell(data, name, percent, method, number, **full)
            for number in range(FOLDS)
            for percent in PERCENTS
            for name in SMALLEST_FIRST
            for method in METHODS
            if METHODS[method].sparse or percent == PERCENTS[0]
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        record: dict[str, Any] = {"rows": [], "times": []}
        names = [name for name in TITLES if any(key.startswith(f"{name},") for key in found)]
        lines: list[str] = []
        for percent in PERCENTS:
            shown = [method for method in METHODS if any(f", M {percent} %, {method}, fold " in key for key in found)]
            if not shown:
                continue
            titles = " | ".join(METHODS[method].title for method in shown)
            lines += ["", f"M = {percent} %", "", f"| data | folds | {titles} |", "| --- " * (2 + len(shown)) + "|"]
            for name in names:
                cells = {method: folds_of(found, f"{name}, M {percent} %, {method}") for method in shown}
                if not any(cells.values()):
                    continue
                texts = []
                for method, runs in cells.items():
                    printed = TABLE2.get((name, percent, method))
                    row = compared(runs, printed) if runs else {"paper": printed}
                    record["rows"].append({"data": name, "percent": percent, "method": method, **row})
                    texts.append(written(row))
                folds = {len(runs) for runs in cells.values()}
                lines.append(f"| {TITLES[name]} | {'–'.join(map(str, sorted({min(folds), max(folds)})))} "
                             f"| {' | '.join(texts)} |")  # fmt: skip
            lines.append(f"| processor time of a fit, s | | {' | '.join(self._times(found, percent, shown, record))} |")
            printed_times = [TIMES.get((percent, method)) for method in shown]
            if any(printed_times):
                texts = ["" if seconds is None else f"{seconds:g}" for seconds in printed_times]
                lines.append(f"| paper: time, all eight sets | | {' | '.join(texts)} |")
        notes = (
            f"{NOTE} Average negative log likelihood of held-out points ± standard error over folds; with a single "
            "fold, marked by a star, the standard error is over its points and does not describe other folds. "
            "Brackets contain the paper's value and, with several folds, the difference from it in combined standard "
            f"errors. {ITERATIONS} iterations; label noise {EPSILON} in VI, and in the probabilities of all methods of "
            "the step likelihood. Times are averages over all runs, and include the making of graphs."
        )
        warned = sorted({f"{key}: {text}" for key, x in found.items() if (text := str(x["warnings"]))})
        record["warnings"] = warned
        return record, "\n".join([*lines, "", notes, *(f"\n{line}" for line in warned)])

    def tables(self, found: Mapping[str, Arrays]) -> Mapping[str, Table]:
        """Tables of VI by L-BFGS from two starts. Other tables were printed before there were records.

        Satellite, whose fits take minutes, has a table and runs of its own.
        """
        tables: dict[str, list[tuple[Any, ...]]] = {}
        for name in SMALLEST_FIRST:
            for percent in PERCENTS:
                runs = [folds_of(found, f"{name}, M {percent} %, {method}") for method in JOINT]
                count = min(map(len, runs))
                if count:
                    texts = [f"{_mean_bound(own[:count]):.0f}, {_mean_score(own[:count]):.2f}" for own in runs]
                    printed = TABLE2[(name, percent, "vi")][0]
                    key = f"GPflow's start{', Satellite' * (name == 'satellite')}"
                    row = (f"{TITLES[name]}, {percent} %", count, *texts, f"{printed:.2f}")
                    tables.setdefault(key, []).append(row)
        columns = ("data, M", "folds", "from the start of all methods", "from GPflow's start", "printed")
        return {key: Table("VI by L-BFGS", columns, ("", "d", "", "", ""), rows) for key, rows in tables.items()}

    @staticmethod
    def _times(found: Mapping[str, Arrays], percent: int, shown: Sequence[str], record: dict[str, Any]) -> list[str]:
        texts = []
        for method in shown:
            runs = [x for key, x in found.items() if f", M {percent} %, {method}, fold " in key]
            seconds = float(np.mean([x["processor_seconds"] for x in runs]))
            record["times"].append({"percent": percent, "method": method, "seconds": seconds, "fits": len(runs)})
            texts.append(f"{seconds:.1f}")
        return texts


def _cell(data: str, name: str, percent: int, method: str, number: int, **settings: Any) -> Cell:
    arguments = {"data": data, "name": name, "number": number, "method": method, "percent": percent, **settings}
    return Cell(f"{name}, M {percent} %, {method}, fold {number}", fit_fold, arguments)


def _mean_bound(runs: Sequence[Arrays]) -> float:
    """Highest bound of each fold, averaged."""
    return -float(np.mean([run["loss"].min() for run in runs]))


def _mean_score(runs: Sequence[Arrays]) -> float:
    """Negative log likelihood of held-out points, averaged over folds."""
    return -float(np.mean([run["log_p"].mean() for run in runs]))


def compared(runs: Sequence[Arrays], printed: tuple[float, float] | None) -> dict[str, Any]:
    """Averages over folds with standard errors, and the paper's numbers."""
    scores = np.array([-run["log_p"].mean() for run in runs])
    many = len(runs) > 1
    spread = scores if many else -runs[0]["log_p"]
    error = float(spread.std(ddof=1) / np.sqrt(spread.size))
    row: dict[str, Any] = {
        "folds": len(runs),
        "score": float(scores.mean()),
        "se": error,
        "se_is_over": "folds" if many else "points",
        "error_rate": float(np.mean([run["wrong"].mean() for run in runs])),
        "paper": printed,
    }
    if printed is not None and many:
        row["above_paper"] = float((row["score"] - printed[0]) / np.hypot(error, max(printed[1], 0.005)))
    return row


def written(row: Mapping[str, Any]) -> str:
    """A cell of the table."""
    paper = row["paper"]
    if "score" not in row:
        return "" if paper is None else f"({paper[0]:.2f})"
    ours = f"{row['score']:.2f} ± {row['se']:.2f}{'*' if row['folds'] == 1 else ''}"
    if paper is None:
        return ours
    above = f", {row['above_paper']:+.1f}" if "above_paper" in row else ""
    return f"{ours} ({paper[0]:.2f} ± {paper[1]:.2f}{above})"


EXPERIMENT = Table2()
