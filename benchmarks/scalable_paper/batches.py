"""Batch fits: held-out scores against time, also for classifiers that are not Gaussian processes."""

import resource
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

import pymc_gpep as gpep
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.paper.data import Split
from benchmarks.scalable_paper.batch_methods import BATCH, INDUCING, METHODS, RANDOM, Start
from benchmarks.scalable_paper.drawn import Truth
from benchmarks.scalable_paper.large_data import SOURCES
from benchmarks.scalable_paper.models import typical_distance
from benchmarks.scalable_paper.scoring import EPSILON, scores, with_label_noise
from pymc_gpep.graphs.interpreted import INTERPRETED
from pymc_gpep.plots.canvas import LINE_STYLES, colours
from pymc_gpep.streaming.step import FallingAdam

Array = np.ndarray

PREDICTED = 1000  # held-out points per call of predict
MINUTES = 5.0  # minutes between two stored fits
_KNOWN = "scores.npz"


def learn(
    split: Split, method: str, inducing: int, steps: int, batch: int, scored: Sequence[int], warmup: int, rate: float,
    falls: bool, compiled: bool, checkpoint: Path, rise: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Held-out scores after some steps, and at the end.

    `rise` is the number of epochs of warm-up before the rate falls.
    """
    asked = METHODS[method]
    model = batch_model(split, asked.shared, asked.relevances, asked.start, asked.step)
    optimiser = pm.adam(learning_rate=rate)
    if falls:
        epoch = batches(split.y.size, batch)
        learning = max(1, steps - warmup * epoch)
        optimiser = FallingAdam(learning, rate, min(rise * epoch, learning - 1))
    follow = Follow(split, scored, checkpoint)
    first = asked.start.inducing(split, inducing, asked.shared)
    kwargs: dict[str, Any] = {"compile_kwargs": {"mode": INTERPRETED}}
    if compiled:
        kwargs = {"backend": "jax"} if find_spec("jax") else {}
    with model:
        fit = pm.fit(
            steps - follow.done, start=follow.left_off, inducing=first, shared_inducing=asked.shared, batch_size=batch,
            callbacks=[follow], data=(split.X, split.y), warmup=warmup, progressbar=False,
            obj_optimizer=optimiser, **asked.options, **kwargs,
        )  # fmt: skip
    follow.note(fit, steps)
    return {
        "scores": np.array(follow.scores),
        "losses": fit.hist,
        "rows": split.y.size,
        "message": str(fit),
        "megabytes": most_memory(),
    }


def batch_model(
    split: Split, shared: bool, relevances: bool = True, start: Start = RANDOM, step: bool = False
) -> pm.Model:
    """A multinomial probit with an amplitude, and relevances or one length scale, for each class or for all classes.

    It is declared on a few rows. A fixed amplitude is a number. A `step` has label noise instead of the probit's noise,
    and a noise variance in each covariance that starts at the probit's.
    """
    few = split.X[:5]
    with pm.Model() as model:
        # Inputs are `pm.Data`: columns of a few rows may be equal, and a graph of constants could not distinguish them.
        inputs = pm.Data("X", few)
        c = split.classes
        sets = 1 if shared else c
        distance = np.log(start.length * typical_distance(split.X))
        shape = (sets, few.shape[1] if relevances else 1)
        log_ls = pm.Flat("log_ls", shape=shape, initval=np.full(shape, distance))
        log_amplitude = first = np.full(sets, np.log(start.amplitude))
        if not start.held:
            log_amplitude = pm.Flat("log_amplitude", shape=sets, initval=first)
        covariances = [
            pt.exp(log_amplitude[k]) * pm.gp.cov.ExpQuad(few.shape[1], ls=pt.exp(log_ls[k])) for k in range(sets)
        ]
        if step:
            log_noise = pm.Flat("log_noise", shape=sets, initval=np.zeros(sets))
            covariances = [own + pm.gp.cov.WhiteNoise(pt.exp(0.5 * log_noise[k])) for k, own in enumerate(covariances)]
        gps = [pm.gp.Latent(cov_func=own) for own in covariances]
        if shared:
            f = gps[0].prior("f", X=inputs, n_outputs=c)
        else:
            f = pt.stack([gp.prior(f"f_{k}", X=inputs) for k, gp in enumerate(gps)])
        if step:
            gpep.RobustMax("y", f.T, epsilon=EPSILON, observed=np.arange(5) % c)
        else:
            gpep.MultinomialProbit("y", f.T, observed=np.arange(5) % c)
    return model


class Follow:
    """A callback that scores held-out points after some steps.

    Rows are seconds, steps, negative log likelihood, error, and the log likelihood with label noise.

    Every few minutes it saves the fit and the scores into a folder, from which another run continues.
    """

    def __init__(self, split: Split, scored: Sequence[int], folder: Path) -> None:
        self._split, self._scored, self._folder = split, set(scored), folder
        self._written = time.monotonic()
        self._began, self._own = time.process_time(), 0.0
        self.scores: list[tuple[float, int, float, float, float]] = []
        self.done = 0
        """Number of earlier steps."""
        self.left_off: Path | None = None
        """Saved fit after these steps."""
        folder.mkdir(parents=True, exist_ok=True)
        if (known := folder / _KNOWN).exists():
            with np.load(known) as stored:
                self.done, self.left_off = int(stored["done"]), _file(folder, int(stored["done"]))
                self.scores = [(row[0], int(row[1]), *row[2:]) for row in stored["scores"].tolist()]
                self._began -= float(stored["seconds"])

    def __call__(self, fit: Any, losses: Array, step: int) -> None:
        if step in self._scored:
            self.note(fit, step)
        if time.monotonic() - self._written > 60.0 * MINUTES:
            entered = time.process_time()
            self._write(fit, step, entered - self._began - self._own)
            self._own += time.process_time() - entered

    def note(self, fit: Any, step: int) -> None:
        """Score a fit after this number of steps, unless this has been done."""
        if self.scores and self.scores[-1][1] == step:
            return
        entered = time.process_time()
        parts = range(0, self._split.ynew.size, PREDICTED)
        p = np.concatenate([
            fit.predict(self._split.Xnew[at : at + PREDICTED], covariances=False)["p"].values for at in parts
        ])  # fmt: skip
        self.scores.append((entered - self._began - self._own, step, *_scores(p, self._split.ynew)))
        self._own += time.process_time() - entered

    def _write(self, fit: Any, step: int, seconds: float) -> None:
        """Save the fit first, and then the file that names it, so that one complete fit always exists."""
        fit.to_datatree().to_netcdf(_file(self._folder, step))
        unfinished = self._folder / "unfinished.npz"
        np.savez(unfinished, done=step, scores=np.array(self.scores), seconds=seconds)
        unfinished.replace(self._folder / _KNOWN)
        for other in self._folder.glob("*.nc"):
            if other != _file(self._folder, step):
                other.unlink()
        self._written = time.monotonic()


def _scores(p: Array, labels: Array) -> tuple[float, float, float]:
    """Scores of probabilities, and the log likelihood with label noise, which bounds each point's."""
    return *scores(p, labels), scores(with_label_noise(p), labels)[0]


def batches(rows: int, batch: int) -> int:
    """Number of batches of an epoch."""
    return -(-rows // batch)


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step}.nc"


def rival(split: Split, which: str) -> dict[str, Any]:
    """As `learn`, for a classifier of scikit-learn."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    classifier = {
        "logistic": partial(LogisticRegression, max_iter=1000),
        "boosting": HistGradientBoostingClassifier,
        "truth": Truth,
    }[which]()
    began = time.process_time()
    classifier.fit(split.X, split.y)
    row = (time.process_time() - began, 0, *_scores(classifier.predict_proba(split.Xnew), split.ynew))
    return {
        "scores": np.array([row]),
        "rows": split.y.size,
        "losses": np.empty(0),
        "message": which,
        "megabytes": most_memory(),
    }


def most_memory() -> float:
    """Peak memory of the current process, in megabytes of 10⁶ bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


RIVALS = {"logistic": "logistic regression", "boosting": "gradient boosting", "truth": "the truth"}


def load_and_learn(
    data: str, source: str, points: int | None, held_out: int | None, method: str, **settings: Any
) -> dict[str, Any]:
    """Result of `learn` for a data set, or for some of its rows."""
    return learn(load(data, source, points, held_out), method, **settings)


def load_and_compare(data: str, source: str, points: int | None, held_out: int | None, method: str) -> dict[str, Any]:
    """Result of `rival` for a data set, or for some of its rows."""
    return rival(load(data, source, points, held_out), method)


def load(data: str, source: str, points: int | None, held_out: int | None) -> Split:
    """A data set, or some of its rows, in their order."""
    split = SOURCES[source](data)
    if points is None and held_out is None:
        return split
    rng = np.random.default_rng(0)
    train, test = (
        np.arange(size) if many is None else np.sort(rng.permutation(size)[:many])
        for size, many in ((split.y.size, points), (split.ynew.size, held_out))
    )
    return Split(split.X[train], split.y[train], split.Xnew[test], split.ynew[test])


class Batched(Experiment):
    """Scores against time on one large data set."""

    alone = True
    sizable: ClassVar[bool] = True
    size = 0  # all rows
    source: ClassVar[str]
    quick_source: ClassVar[str] = ""
    """Data set of the quick form; empty for the data set `source`."""
    rivals: ClassVar[Sequence[str]]
    methods: ClassVar[Sequence[str]] = ("ep", "ep-sites", "sep", "sep-step", "vi", "vi-step", "exact")
    epochs: ClassVar[int]
    warmup: ClassVar[int] = 1
    rate: ClassVar[float] = 1e-3  # Adam's default, as in the paper
    falls: ClassVar[bool] = False
    """Whether the rate falls to zero at the end."""
    printed: ClassVar[Mapping[str, str]] = {}
    note: ClassVar[str]
    rows: ClassVar[int]
    quick_method: ClassVar[str] = "sep"

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        if quick:
            given = {"data": data, "source": self.quick_source or self.source, "points": 60, "held_out": 20}
            few = self.settings(self.quick_method, 60) | {
                "inducing": 4, "steps": 4, "batch": 20, "scored": [2], "compiled": False
            }  # fmt: skip
            return [
                Cell(self.quick_method, load_and_learn, {**given, "method": self.quick_method, **few}, resumes=True)
            ]
        place = {"data": data, "source": self.source}
        points, rows = self.size or None, self.size or self.rows
        held_out = min(10_000, max(self.size, 1000)) if self.size else None
        given = {**place, "points": points, "held_out": held_out}
        return [Cell(which, load_and_compare, {**given, "method": which}) for which in self.rivals] + [
            Cell(name, load_and_learn, {**given, "method": name, **self.settings(name, rows)}, resumes=True)
            for name in self.methods
        ]

    def settings(self, name: str, rows: int) -> dict[str, Any]:
        """Arguments of `learn` for a method and a number of rows."""
        method = METHODS[name]
        steps = (method.epochs or self.epochs) * batches(rows, method.batch)
        return {
            "inducing": min(method.inducing, rows),
            "steps": steps,
            "batch": method.batch,
            "scored": sorted({round(at) for at in np.geomspace(10, steps, 25)}),
            "warmup": self.warmup,
            "rate": self.rate,
            "falls": self.falls,
            "compiled": True,
        }

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        lines = [
            "| method | rows | steps | processor, s | memory, MB | error | negative log likelihood | with label noise "
            "| paper: error, likelihood |",
            "| --- " * 9 + "|",
        ]
        record: dict[str, Any] = {}
        for method, title in titles().items():
            if method not in found:
                continue
            megabytes = float(found[method]["megabytes"])
            record[method] = {"rows": int(found[method]["rows"]), "scores": found[method]["scores"].tolist(),
                              "megabytes": megabytes}  # fmt: skip
            seconds, steps, score, error, floored = found[method]["scores"][-1]
            lines.append(f"| {title} | {int(found[method]['rows'])} | {steps:.0f} | {seconds:.0f} | {megabytes:.0f} "
                         f"| {error:.4f} | {score:.4f} | {floored:.4f} | {self.printed.get(method, '')} |")  # fmt: skip
        rate = f"rate {self.rate:g}{', falling to 0' if self.falls else ''}"
        lines += ["", f"{self.note} By default, each class has M = {INDUCING} inducing inputs (at most the number of "
                      f"rows), and batches have {BATCH} rows; Adam, {rate}. Processor seconds include compilation and "
                      f"exclude predictions. Label noise of {EPSILON:g} is in the probabilities alone, except with the "
                      "step likelihood."]  # fmt: skip
        return record, "\n".join(lines)

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        if not found:
            return None
        figure = Figure(figsize=(10, 4 + 0.12 * len(found)), layout="constrained")
        axes = figure.subplots(1, 2)
        draw_curves(axes, found)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
        return figure


def draw_curves(axes: Sequence[Axes], found: Mapping[str, Arrays]) -> None:
    """Errors and log likelihoods against processor seconds. Single results are horizontal lines."""
    shown = [method for method in titles() if method in found]
    hues = colours(len(LINE_STYLES))
    labels: Sequence[tuple[int, str]] = ((3, "error"), (2, "negative log likelihood"))
    for ax, (column, label) in zip(axes, labels, strict=True):
        for i, method in enumerate(shown):
            curve = found[method]["scores"]
            turn, hue = divmod(i, len(hues))
            style = {"color": hues[hue], "linestyle": LINE_STYLES[turn], "label": titles()[method]}
            if method in RIVALS:
                ax.axhline(curve[-1, column], **style)
            else:
                ax.plot(curve[:, 0], curve[:, column], **style)
        ax.set(xscale="log", yscale="log", xlabel="processor seconds", ylabel=label)
        for formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter, ax.xaxis.set_major_formatter):
            formatter(FormatStrFormatter("%g"))
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_minor_locator(NullLocator())


def titles() -> dict[str, str]:
    """Titles of methods."""
    return RIVALS | {name: method.title for name, method in METHODS.items()}
