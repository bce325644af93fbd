"""Scores of held-out points with their uncertainty, and the paper's statements about them: figures 9 to 11."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import beta

import pymc_gpep as gpep
from benchmarks.experiment import Arrays, Experiment
from benchmarks.paper.data import TITLES
from benchmarks.paper.predictive import chains_agree

Array = np.ndarray

SEED = 1  # seed of the intervals, so that reports are reproducible
INTERVAL = (0.025, 0.975)
R_HAT, ESS = 1.05, 100.0  # chains beyond one of these limits are called bad
READING = (
    "mlpd is the mean log predictive density of the held-out labels, accuracy the share of labels with the largest "
    "probability. Columns “− EP” are differences from EP on the same points. Brackets contain 95 % intervals. "
    "Intervals of the mlpd and its differences are from the Bayesian bootstrap. Intervals of an accuracy are from a "
    "Beta posterior of right and wrong predictions with a uniform prior. Intervals of differences of accuracies are "
    "from a Dirichlet posterior of worse, equal and better predictions with a uniform prior, as in the paper; if all "
    "points are equal, they have no width. A difference is bold if its interval excludes 0, except with bad chains, "
    "which have a †."
)


class Estimate(NamedTuple):
    """A mean and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether 0 is outside of the interval."""
        return not self.low <= 0 <= self.high

    def __format__(self, form: str) -> str:
        return f"{self.mean:{form}} ({self.low:{form}}, {self.high:{form}})"


@dataclass
class Scored:
    """Predictions of a method for one data set."""

    points: pd.DataFrame
    """`mlpd`, the log predictive density of the label, and `accuracy`, 0 or 1, by fold and point."""
    remarks: list[str]
    """Problems of the fits, and quality of the chains."""
    evidence: float
    """Log evidence, averaged over folds, NaN for chains."""
    bad: bool = False
    """Whether there are chains that have not mixed."""


class Statement(NamedTuple):
    """A sentence of the paper, and the difference of a score between two methods that it states.

    `only` has the names of its data sets, if not all.
    """

    text: str
    score: str
    method: str
    reference: str
    only: tuple[str, ...] = ()


def collect(found: Mapping[str, Arrays]) -> dict[str, dict[str, Scored]]:
    """Scores by data set and method, from cells with names `data set.fold.method.part`."""
    cells: dict[str, dict[str, dict[int, list[Arrays]]]] = {}
    for name, result in found.items():
        label, number, method, _ = name.split(".")
        cells.setdefault(label, {}).setdefault(method, {}).setdefault(int(number), []).append(result)
    return {
        label: {
            method: _chains(folds) if method == "MCMC" else _fits(folds)
            for method, folds in by_method.items()
        }
        for label, by_method in cells.items()
    }  # fmt: skip


def estimate(values: Array) -> Estimate:
    """Mean of one measurement for each point, with an interval by the Bayesian bootstrap."""
    draws = gpep.diagnostics.bayesian_bootstrap(values, random_seed=SEED)
    return Estimate(float(values.mean()), *map(float, np.quantile(draws, INTERVAL)))


def accuracy(right: Array) -> Estimate:
    """Fraction of right predictions, with an interval by its Beta posterior under a uniform prior."""
    count = np.count_nonzero(right)
    return _around(float(right.mean()), beta.ppf(INTERVAL, count + 1, right.size - count + 1))


def difference(score: str, method: Scored, reference: Scored) -> Estimate:
    """Difference of a score, on the points that both methods predicted.

    Each point has a worse, equal or better accuracy: multinomial, with a uniform Dirichlet prior. As in the paper there
    is no interval if all points are equal.
    """
    own, other = method.points[score].align(reference.points[score], join="inner")
    values = (own - other).to_numpy()
    if score == "mlpd" or not values.any():
        return estimate(values)
    counts = [np.count_nonzero(values == sign) for sign in (-1, 0, 1)]
    draws = np.random.default_rng(SEED).dirichlet(np.add(counts, 1.0), size=20_000)
    return _around(float(values.mean()), np.quantile(draws[:, 2] - draws[:, 0], INTERVAL))


def table(methods: Mapping[str, Scored]) -> pd.DataFrame:
    """Columns of `gpep.compare_methods` with EP as the reference. `order` of the rows is the paper's."""
    rows = {}
    for name, scored in methods.items():
        row = {"log_evidence": scored.evidence}
        for score in ("mlpd", "accuracy"):
            own = estimate if score == "mlpd" else accuracy
            both = {"": own(scored.points[score].to_numpy())}
            if "EP" in methods:
                both["_difference"] = difference(score, scored, methods["EP"])
            for of, x in both.items():
                row |= {f"{score}{of}": x.mean, f"{score}{of}_low": x.low, f"{score}{of}_high": x.high}
        rows[name] = row | {"points": len(scored.points)}
    return pd.DataFrame.from_dict(rows, orient="index")


def report(
    found: Mapping[str, Arrays], order: Sequence[str], statements: Iterable[Statement], notes: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Figures for JSON and Markdown: a table for each data set, then the paper's statements with the results here.

    `order` is the order of methods. `notes` are printed with their data sets.
    """
    scored = _ordered(collect(found), order)
    if not scored:
        return {}, "There are no results."
    record: dict[str, Any] = {"data": {}, "statements": []}
    lines = [READING, ""]
    for label, methods in scored.items():
        figures = table(methods)
        record["data"][label] = {
            "methods": {name: row.dropna().to_dict() for name, row in figures.iterrows()},
            "remarks": {name: x.remarks for name, x in methods.items()},
        }
        lines += [f"## {title_of(label)}", "", *([notes[label], ""] if label in notes else [])]
        if missing := [name for name in order if name not in methods]:
            lines += [f"Without results: {', '.join(missing)}.", ""]
        lines += _markdown(methods, figures)
    lines += [
        "## The paper's statements", "",
        "Differences of the first method from the second, on the data sets of the statement.", "",
        "| paper | score | difference | ours |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for statement in statements:
        ours = {
            label: difference(statement.score, methods[statement.method], methods[statement.reference])
            for label, methods in scored.items()
            if label in (statement.only or scored) and statement.method in methods and statement.reference in methods
        }
        record["statements"].append({**statement._asdict(), "ours": {label: list(x) for label, x in ours.items()}})
        of_two = (statement.method, statement.reference)
        bad = {label for label in ours if any(scored[label][name].bad for name in of_two)}
        shown = "; ".join(
            f"{title_of(label)}{'†' * (label in bad)} {_shown(x, label in bad)}" for label, x in ours.items()
        )
        lines.append(
            f"| {statement.text} | {statement.score} | {statement.method} − {statement.reference} "
            f"| {shown or 'not computed'} |"
        )
    return record, "\n".join(lines)


def pictured(found: Mapping[str, Arrays], order: Sequence[str]) -> dict[str, Arrays]:
    """Tables of the data sets with EP's predictions. A † marks bad chains."""
    shown = {}
    for label, methods in _ordered(collect(found), order).items():
        if "EP" in methods:
            figures = table(methods).drop(columns=["log_evidence", "points"])
            names = np.array([f"{name}{'†' * scored.bad}" for name, scored in methods.items()])
            shown[label] = {"method": names} | {str(column): figures[column].to_numpy() for column in figures}
    return shown


def draw(shown: Mapping[str, Arrays]) -> Figure | None:
    """Figures 9 and 10 in one: a row for each data set with densities, accuracies, and differences from EP."""
    if not shown:
        return None
    heights = [1.1 + 0.28 * len(figures["method"]) for figures in shown.values()]
    figure = Figure(figsize=(14, sum(heights)), layout="constrained")
    rows = figure.subplots(len(shown), 4, squeeze=False, sharey="row", height_ratios=heights)
    for axes, (label, figures) in zip(rows, shown.items(), strict=True):
        gpep.plots.plot_scores(pd.DataFrame(figures).set_index("method").rename_axis(None), axes=axes)
        for ax in axes:
            ax.set_xlabel(ax.get_xlabel().replace("the reference", "EP"))
        axes[0].set_title(title_of(label), loc="left", fontweight="bold")
    return figure


def rows_of(own: Arrays) -> list[tuple[str, ...]]:
    """Rows of methods with both scores and their differences from EP, from the numbers of a picture."""
    rows = []
    for i, method in enumerate(own["method"].tolist()):
        texts = []
        for of in ("mlpd", "mlpd_difference", "accuracy", "accuracy_difference"):
            x = Estimate(*(float(own[f"{of}{end}"][i]) for end in ("", "_low", "_high")))
            mark = "**" if of.endswith("_difference") and x.certain else ""
            texts.append("" if method == "EP" and of.endswith("_difference")
                         else f"{mark}{x.mean:.3f}{mark} ({x.low:.3f}, {x.high:.3f})")  # fmt: skip
        rows.append((method, *texts))
    return rows


class ScoreExperiment(Experiment):
    """An experiment whose picture has the scores of methods in `order`."""

    order: ClassVar[Sequence[str]]

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        return pictured(found, self.order)

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        return draw(found)


def title_of(label: str) -> str:
    """The full name of a data set. `usps10-1000` has 1000 training points."""
    name, _, size = label.rpartition("-")
    return TITLES.get(label) or (f"{TITLES[name]}, n = {size}" if name in TITLES else label)


def _around(mean: float, ends: Array) -> Estimate:
    """An interval that contains its mean: if all points are equal, a posterior's interval may exclude it."""
    low, high = map(float, ends)
    return Estimate(mean, min(low, mean), max(high, mean))


def _shown(of_two: Estimate, bad: bool) -> str:
    text = f"{of_two:+.3f}"
    return f"**{text}**" if of_two.certain and not bad else text


def _ordered(scored: Mapping[str, dict[str, Scored]], order: Sequence[str]) -> dict[str, dict[str, Scored]]:
    return {label: {name: x[name] for name in order if name in x} for label, x in sorted(scored.items())}


def _frame(number: int, result: Arrays, p: Array) -> pd.DataFrame:
    with np.errstate(divide="ignore"):
        density = np.log(p[np.arange(len(p)), result["y"]])
    right = (p.argmax(axis=1) == result["y"]).astype(float)
    index = pd.MultiIndex.from_product([[number], result["point"]])
    return pd.DataFrame({"mlpd": density, "accuracy": right}, index=index)[np.isfinite(p).all(axis=1)]


def _fits(folds: Mapping[int, list[Arrays]]) -> Scored:
    results = [(number, result) for number, parts in folds.items() for result in parts]
    frame = pd.concat([_frame(number, result, result["p"]) for number, result in results])
    remarks = [f"fold {number}: {x['message']}" for number, x in results if not x["converged"]]
    if failed := sum(len(result["y"]) for _, result in results) - len(frame):
        remarks.append(f"no probabilities at {failed} points, which are left out")
    return Scored(frame, remarks, float(np.mean([result["log_evidence"] for _, result in results])))


def _chains(folds: Mapping[int, list[Arrays]]) -> Scored:
    """Averages over chains.

    The Monte Carlo error of the mean log predictive density comes from its linear expansion in the probabilities, and
    the variation between consecutive parts of the chains.
    """
    frames, agreement, squares = [], {}, 0.0
    for number, chains in folds.items():
        batches = np.concatenate([x["p"] for x in chains])
        p = batches.mean(axis=0)
        frames.append(_frame(number, chains[0], p))
        labelled = np.arange(len(p)), chains[0]["y"]
        means = (batches[:, *labelled] / p[labelled]).sum(axis=1)
        squares += means.var(ddof=1) / len(means)
        agreement[number] = chains_agree(chains)
    frame = pd.concat(frames)
    r_hat, ess = np.array(list(agreement.values())).T
    bad = [str(number) for number, (r, e) in agreement.items() if not (r <= R_HAT and e >= ESS)]
    diverging = sum(int(x["diverging"].sum()) for chains in folds.values() for x in chains)
    remarks = [
        f"r-hat of hyperparameters ≤ {r_hat.max():.3f}, effective draws ≥ {ess.min():.0f}",
        f"Monte Carlo error of the mlpd {np.sqrt(squares) / len(frame):.4f}",
    ]
    if bad:
        remarks.append(
            f"BAD chains (r-hat > {R_HAT} or fewer than {ESS:.0f} effective draws) in folds {', '.join(bad)}"
        )
    if diverging:
        remarks.append(f"{diverging} divergences")
    return Scored(frame, remarks, np.nan, bool(bad))


def _markdown(methods: Mapping[str, Scored], figures: pd.DataFrame) -> list[str]:
    lines = [
        "| method | points | log evidence | mlpd | − EP | accuracy | − EP | remarks |",
        "| --- " * 8 + "|",
    ]
    total = int(figures["points"].max())
    for name, row in figures.iterrows():
        own, shown = methods[str(name)], []
        for of in ("mlpd", "mlpd_difference", "accuracy", "accuracy_difference"):
            if of not in row or (of.endswith("_difference") and name == "EP"):
                shown.append("")
                continue
            x = Estimate(row[of], row[f"{of}_low"], row[f"{of}_high"])
            shown.append(_shown(x, own.bad) if of.endswith("_difference") else f"{x:.3f}")
        evidence = "" if np.isnan(row["log_evidence"]) else f"{row['log_evidence']:.2f}"
        points = f"{row['points']:.0f}" + (f" of {total}" if row["points"] < total else "")
        remarks = "; ".join(own.remarks)
        lines.append(f"| {name}{'†' * own.bad} | {points} | {evidence} | {' | '.join(shown)} | {remarks} |")
    return [*lines, ""]
