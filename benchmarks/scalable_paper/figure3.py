"""Figure 3: places of inducing inputs, with hyperparameters at the values that the data were drawn with."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

import pymc_gpep as gpep
from benchmarks.experiment import Arrays, Cell, Experiment
from benchmarks.scalable_paper.methods import METHODS
from benchmarks.scalable_paper.models import EPSILON
from pymc_gpep.plots.canvas import colours
from pymc_gpep.streaming.step import FallingAdam

Array = np.ndarray

CLASSES, HALF = 3, 2.5
LENGTH, AMPLITUDE, NOISE = 1.0, 1.0, 1e-4
"""Length scale, variance and noise variance. The paper does not print them."""
SHOWN = ("gfitc", "ep", "sep", "vi")
FULL = "full"
INDUCING = (1, 2, 4, 8, 16, 32, 64, 128, 256)
POINTS, ITERATIONS = 1000, 2000
SEP_RATE, SEP_SLOW, MANY = 5e-3, 1e-3, 100
"""Initial rates of Adam in standard deviations of a column, the second for many inducing inputs."""
GRID = 60  # points in each direction
SAME = 0.05  # fraction of a length scale: closer inducing inputs count as one


def falling_steps(iterations: int, inducing: int) -> dict[str, Any]:
    """Options for SEP, whose q is in coordinates that move with inducing inputs.

    Longer steps, as for EP, are unstable if many inducing inputs are close to each other.
    """
    return {"obj_optimizer": FallingAdam(iterations, SEP_RATE if inducing < MANY else SEP_SLOW)}


OWN_STEPS = {"sep": falling_steps}
"""Options of methods whose steps differ here, from numbers of iterations and inducing inputs."""


def draw_data(points: int, seed: int = 0) -> tuple[Array, Array]:
    """Inputs (n, 2), uniform in the box, and the class of the largest of functions drawn from the prior."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-HALF, HALF, size=(points, 2))
    k = AMPLITUDE * np.exp(-0.5 * cdist(X, X, "sqeuclidean") / LENGTH**2) + NOISE * np.eye(points)
    return X, (np.linalg.cholesky(k) @ rng.standard_normal((points, CLASSES))).argmax(axis=1)


def grid(side: int = GRID) -> Array:
    """Points (side², 2) of the box."""
    at = np.linspace(-HALF, HALF, side)
    return np.stack(np.meshgrid(at, at), axis=-1).reshape(-1, 2)


def known_model(X: Array, y: Array, step: bool) -> tuple[pm.Model, pm.gp.Latent]:
    """The model of the data, with the step likelihood or, scaled by its noise, with a multinomial probit."""
    scale = 1.0 if step else 1.0 / NOISE
    with pm.Model() as model:
        cov = scale * AMPLITUDE * pm.gp.cov.ExpQuad(2, ls=LENGTH)
        if step:
            cov += pm.gp.cov.WhiteNoise(np.sqrt(NOISE))
        gp = pm.gp.Latent(cov_func=cov)
        f = gp.prior("f", X=X, n_outputs=CLASSES)
        if step:
            gpep.RobustMax("y", f.T, epsilon=EPSILON, observed=y)
        else:
            gpep.MultinomialProbit("y", f.T, observed=y)
    return model, gp


def place(method: str, inducing: int, points: int, iterations: int) -> dict[str, Any]:
    """Inducing inputs (c, M, 2) before and after, and the most probable class over the grid."""
    X, y = draw_data(points)
    rng = np.random.default_rng(1)
    first = np.stack([X[rng.permutation(points)[:inducing]] for _ in range(CLASSES)])
    with threadpool_limits(1):
        if method == FULL:
            model, gp = known_model(X, y, step=False)
            with model:
                fit = pm.fit(method="nested_ep", hyper="map", progressbar=False)
            # a fit of all rows needs the process
            p = fit.predict(gp, grid())["p"].values
            return {"labels": p.argmax(axis=1), "message": str(fit)}
        with known_model(X, y, step=True)[0]:
            own = OWN_STEPS[method](iterations, inducing) if method in OWN_STEPS else {}
            fit = pm.fit(iterations, inducing=first, progressbar=False, **METHODS[method].options | own)
        return {
            "first": first,
            "points": points,
            "inducing": fit.inducing_inputs,
            "labels": _most_probable(fit),
            "objective": fit.objective,
            "message": str(fit),
        }


def _most_probable(fit: Any) -> Array:
    return fit.predict(grid(), covariances=False)["p"].values.argmax(axis=1)


class Figure3(Experiment):
    title = "Figure 3: where inducing inputs go"
    sizable: ClassVar[bool] = True
    size = POINTS

    def cells(self, data: str, quick: bool) -> Sequence[Cell]:
        del data  # drawn from the model
        points, iterations, numbers = (50, 3, (2,)) if quick else (self.size, ITERATIONS, INDUCING)
        settings = {"points": points, "iterations": iterations}
        cells = [] if quick else [Cell(FULL, place, {"method": FULL, "inducing": 0, **settings})]
        return cells + [
            Cell(f"{method}, M {inducing}", place, {"method": method, "inducing": inducing, **settings})
            for inducing in numbers
            for method in (("ep",) if quick else SHOWN)
        ]

    def report(self, found: Mapping[str, Arrays]) -> tuple[dict[str, Any], str]:
        truth = found[FULL]["labels"] if FULL in found else None
        lines = [
            "| M | method | median distance to the nearest of the class: before, after | places of a class | median "
            "distance to a boundary: before, after | share of the grid that agrees with the full GP |",
            "| --- " * 6 + "|",
        ]
        record: dict[str, Any] = {"rows": []}
        for inducing, method in ((m, name) for m in INDUCING for name in SHOWN):
            if (each := found.get(f"{method}, M {inducing}")) is None:
                continue
            row = measures(each, truth)
            record["rows"].append({"method": method, "inducing": inducing, **row})
            near = "—" if inducing == 1 else f"{row['nearest_before']:.3f}, {row['nearest']:.4f}"
            agree = "—" if truth is None else f"{row['agreement']:.3f}"
            lines.append(f"| {inducing} | {METHODS[method].title} | {near} | {row['places']:.1f} "
                         f"| {row['boundary_before']:.3f}, {row['boundary']:.3f} | {agree} |")  # fmt: skip
        lines += ["", f"Length scale {LENGTH:g}, variance {AMPLITUDE:g}, noise {NOISE:g}, all fixed. Inducing inputs "
                      f"closer than {SAME:g} length scales, directly or through others, count as one place. Boundaries "
                      "are of the full GP (nested EP of all points) if it was run, otherwise of the fit."]  # fmt: skip
        return record, "\n".join(lines)

    def pictured(self, found: Mapping[str, Arrays]) -> Mapping[str, Arrays]:
        return {
            name: {key: each[key] for key in ("points", "inducing", "labels")}
            for name, each in found.items()
            if name != FULL
        }

    def draw(self, found: Mapping[str, Arrays]) -> Figure | None:
        numbers = [m for m in INDUCING if any(f"{method}, M {m}" in found for method in SHOWN)]
        methods = [method for method in SHOWN if any(f"{method}, M {m}" in found for m in numbers)]
        if not numbers:
            return None
        side = min(2.6, 13.0 / len(numbers))
        figure = Figure(figsize=(side * len(numbers), side * len(methods) + 0.4), layout="constrained")
        axes = figure.subplots(len(methods), len(numbers), squeeze=False)
        own = colours(CLASSES)
        lighter = [tuple(0.55 + 0.45 * part for part in to_rgb(colour)) for colour in own]
        at = np.linspace(-HALF, HALF, GRID)
        for row, method in zip(axes, methods, strict=True):
            for ax, inducing in zip(row, numbers, strict=True):
                ax.set(xticks=[], yticks=[], xlim=(-HALF, HALF), ylim=(-HALF, HALF), aspect="equal")
                if (each := found.get(f"{method}, M {inducing}")) is None:
                    continue
                X, y = draw_data(int(each["points"]))
                ax.scatter(*X.T, c=[lighter[label] for label in y], s=2, linewidths=0)
                labels = each["labels"].reshape(GRID, GRID)
                for k in range(CLASSES):
                    ax.contour(at, at, (labels == k).astype(float), levels=[0.5], colors="black", linewidths=0.8)
                    ax.scatter(*each["inducing"][k].T, color=own[k], s=14, edgecolors="black", linewidths=0.6, zorder=3)
        for ax, inducing in zip(axes[0], numbers, strict=True):
            ax.set_title(f"M = {inducing}")
        for ax, method in zip(axes[:, 0], methods, strict=True):
            ax.set_ylabel(METHODS[method].title)
        return figure


def measures(each: Arrays, truth: Array | None) -> dict[str, float]:
    """Distances of inducing inputs from each other and from boundaries, and agreement over the grid."""
    after, before = each["inducing"], each["first"]
    edges = boundary(each["labels"] if truth is None else truth)
    row = {
        "nearest": nearest(after),
        "nearest_before": nearest(before),
        "places": float(np.mean([places(z) for z in after])),
        "boundary": to_boundary(after, edges),
        "boundary_before": to_boundary(before, edges),
    }
    return row if truth is None else row | {"agreement": float((each["labels"] == truth).mean())}


def nearest(inducing: Array) -> float:
    """Median over (c, M, 2) of the distance to the nearest inducing input of the same class, or NaN."""
    if inducing.shape[1] < 2:
        return float("nan")
    return float(np.median([_without_own(cdist(z, z)).min(axis=1) for z in inducing]))


def _without_own(distance: Array) -> Array:
    return distance + np.where(np.eye(len(distance)) > 0, np.inf, 0.0)


def places(z: Array) -> int:
    """Number of groups of inputs that are connected by small distances."""
    near = cdist(z, z) < SAME * LENGTH
    left, count = set(range(len(z))), 0
    while left:
        count += 1
        reached = [left.pop()]
        while reached:
            close = left & set(np.flatnonzero(near[reached.pop()]).tolist())
            left -= close
            reached.extend(close)
    return count


def boundary(labels: Array) -> Array:
    """Points (m, 2) of the grid whose neighbour has another class."""
    square = labels.reshape(GRID, GRID)
    edge = np.zeros_like(square, dtype=bool)
    for a, b in ((np.s_[:-1], np.s_[1:]), (np.s_[:, :-1], np.s_[:, 1:])):
        differs = square[a] != square[b]
        edge[a] |= differs
        edge[b] |= differs
    return grid()[edge.ravel()]


def to_boundary(inducing: Array, edges: Array) -> float:
    """Median distance of inducing inputs from a boundary, or NaN."""
    if not len(edges):
        return float("nan")
    return float(np.median(cdist(inducing.reshape(-1, 2), edges).min(axis=1)))


EXPERIMENT = Figure3()
