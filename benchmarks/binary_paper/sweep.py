"""Evidence, Jensen's bound and predictions of held-out labels on a grid of hyperparameters, for each method."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from benchmarks.binary_paper.covariances import Priors
from benchmarks.binary_paper.data import load
from benchmarks.binary_paper.methods import AUTHORS, LINKS
from benchmarks.binary_paper.paths import PROGRAMS, RIDGES, STEPPED, Path, Programs, Regressions, Solves, Steps
from benchmarks.experiment import Arrays
from benchmarks.paper.data import Split
from pymc_gpep.comparison.evidence_grid import serpentine
from pymc_gpep.comparison.held_out_scores import information
from pymc_gpep.likelihoods.one_function import TwoClasses

Array = np.ndarray

LOG_LENGTHSCALES = (0.0, 5.0)
LOG_MAGNITUDES = (-1.0, 5.0)
"""Limits of log ℓ and log σ_f on the grid. The paper does not state them; they include all points named in its text."""
MEASURES = ("evidence", "bound", "printed", "information", "errors", "converged", "iterations", "point_seconds")
COORDINATES = ("log_lengthscale", "log_magnitude")


def grid(lengthscales: int, magnitudes: int) -> list[list[float]]:
    """Return the points (log ℓ, log σ_f) of a grid, ordered so that successive points are neighbours."""
    axes = np.linspace(*LOG_LENGTHSCALES, lengthscales), np.linspace(*LOG_MAGNITUDES, magnitudes)
    return _points([axis.tolist() for axis in axes])


def _points(axes: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[axis[i] for axis, i in zip(axes, at, strict=True)] for at in serpentine([len(axis) for axis in axes])]


def nested(lengthscales: int, magnitudes: int) -> tuple[list[list[float]], list[list[float]]]:
    """Return the points of a grid in two parts: alternate points in both directions, and all other points."""
    points = grid(lengthscales, magnitudes)
    first = every_other(points)
    return first, [point for point in points if point not in first]


def every_other(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return alternate points of a grid in both directions, in the order of the grid."""
    coarse = [sorted({point[axis] for point in points})[::2] for axis in range(2)]
    return [list(point) for point in points if point[0] in coarse[0] and point[1] in coarse[1]]


def beyond(coarse: Sequence[Sequence[float]], more: int) -> list[list[float]]:
    """Return points that extend a grid by `more` lines and columns at each side, with the steps of the grid."""
    axes = [_longer(sorted({point[axis] for point in coarse}), more) for axis in range(2)]
    return [point for point in _points(axes) if point not in coarse]


def _longer(axis: list[float], more: int) -> list[float]:
    steps = (axis[1] - axis[0]) * np.arange(1, more + 1)
    return [*(axis[0] - steps[::-1]).tolist(), *axis, *(axis[-1] + steps).tolist()]


def sweep(
    data: str, name: str, number: int, likelihood: str, covariance: str, points: Sequence[Sequence[float]],
    methods: Sequence[str], size: list[int] | None = None, rough: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return `MEASURES` (methods, points). Each solve starts from earlier solves of the same method.

    If `rough`, results have only as many correct digits as a table shows, see
    `benchmarks.binary_paper.paths.TOLERANCES`. `point_seconds` are processor seconds with predictions. `printed` is for
    the factorial method, and NaN for other methods.
    """
    split = load(name, data, number, size)
    return {"held_out": split.ynew.size} | sweep_split(split, likelihood, covariance, points, methods, rough)


def sweep_split(
    split: Split, likelihood: str, covariance: str, points: Sequence[Sequence[float]], methods: Sequence[str],
    rough: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the result of `sweep` for a given split."""
    priors, link = Priors(split, covariance), LINKS[likelihood]
    found = {measure: np.full((len(methods), len(points)), np.nan) for measure in MEASURES}
    paths: list[Path] = [
        Regressions(method in AUTHORS, split, link, priors) if method.startswith("LR")
        else Steps(STEPPED[method], split, link) if method in STEPPED
        else Programs(PROGRAMS[method], split, link) if method in PROGRAMS
        else Programs("FV", split, link, RIDGES[method]) if method in RIDGES
        else Solves(method, split, link, rough)
        for method in methods
    ]  # fmt: skip
    for j, (log_lengthscale, log_magnitude) in enumerate(points):
        prior = priors.at(log_lengthscale, log_magnitude)
        for i, path in enumerate(paths):
            began = time.process_time()
            x = path.at((log_lengthscale, log_magnitude), prior)
            found["point_seconds"][i, j] = time.process_time() - began
            found["converged"][i, j], found["iterations"][i, j] = x.converged, x.iterations
            if x.converged:
                found["evidence"][i, j], found["bound"][i, j], found["printed"][i, j] = x.evidence, x.bound, x.printed
                found["errors"][i, j] = np.count_nonzero((x.mean > 0.0) != split.ynew)
                density = log_density(link, x.mean, x.variance, split.ynew)
                found["information"][i, j] = information(density, split.ynew, split.y, 2)
    return {"points": points, "methods": list(methods)} | found


def log_density(link: TwoClasses, mean: Array, variance: Array, labels: Array) -> Array:
    """Return log probabilities (m,) of labels for Gaussian latent values, accurate in the far tail."""
    return link.log_tail(mean[:, None], variance[:, None, None], labels)


def gathered(parts: Sequence[Arrays]) -> dict[str, xr.Dataset]:
    """Return results of sweeps over parts of a grid as arrays over `COORDINATES`, by method; NaN at other points."""
    axes = [sorted({float(point[axis]) for part in parts for point in part["points"]}) for axis in range(2)]
    grids = {}
    for method in dict.fromkeys(str(name) for part in parts for name in part["methods"]):
        columns = {measure: np.full(tuple(map(len, axes)), np.nan) for measure in MEASURES}
        for part in parts:
            names = part["methods"].tolist()
            if method in names:
                at = tuple(np.searchsorted(axes[axis], part["points"][:, axis]) for axis in range(2))
                for measure, column in columns.items():
                    column[at] = part[measure][names.index(method)]
        data = {measure: (COORDINATES, column) for measure, column in columns.items()}
        grids[method] = xr.Dataset(data, coords=dict(zip(COORDINATES, axes, strict=True)))
        grids[method]["computed"] = grids[method]["converged"].notnull()
        grids[method]["converged"] = grids[method]["converged"] == 1.0
    return grids


def peak(values: xr.DataArray, sign: float = 1.0) -> dict[str, float]:
    """Return the coordinates of the largest value, or of the smallest value if `sign` is −1.

    In a tie the first point wins.
    """
    at = np.unravel_index(np.nanargmax(sign * values.values), values.shape)
    return {str(dim): float(values[dim].values[i]) for dim, i in zip(values.dims, at, strict=True)}


def shown(at: Mapping[str, float]) -> str:
    return f"({', '.join(f'{at[name]:.4g}' for name in COORDINATES)})"
