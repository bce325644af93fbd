"""Parts of a fit as xarray Datasets, with the dims and coords of the model."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.fits.fit import Fit
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import Evaluation
from pymc_gpep.structure import GPClassifier

__all__ = [
    "history",
    "hyperparameters",
    "iterations",
    "latent",
    "natural",
    "nodes",
    "of_functions",
    "of_points",
    "starts",
    "without_common",
]


def hyperparameters(fit: Fit) -> xr.Dataset:
    """Hyperparameters at the maximum on their natural scale."""
    return natural(fit.log_posterior, fit.optimum.best.theta[None]).isel(node=0, missing_dims="ignore")


def nodes(fit: Fit) -> xr.Dataset:
    """Hyperparameters at the nodes on their natural scale, with weight, evidence and log posterior of each."""
    hyper = fit.hyper_posterior
    coords = {name: ("node", [getattr(e, name) for e in hyper.nodes]) for name in ("evidence", "log_posterior")}
    return natural(fit.log_posterior, hyper.theta).assign_coords({"weight": ("node", hyper.weights)} | coords)


def starts(fit: Fit) -> xr.Dataset:
    """Hyperparameters where the optimiser ended from each start, on their natural scale, and log posteriors there."""
    ends = fit.optimum.ends or (fit.optimum.best,)
    coords = {name: ("start", [getattr(e, name) for e in ends]) for name in ("evidence", "log_posterior")}
    return (
        natural(fit.log_posterior, np.array([end.theta for end in ends]))
        .rename_dims(node="start")
        .assign_coords(coords)
    )


def latent(fit: Fit) -> xr.Dataset:
    """Posterior mean (point, class) and covariance (point, class, class) of the latent values, as `of_functions`."""
    return of_points(fit.classifier, *fit.latent_moments())


def of_points(classifier: GPClassifier, mean: Array, cov: Array, named: bool = True) -> xr.Dataset:
    """Latent values of the points that were fitted, as `of_functions`; `named` if they are those of the model.

    Where a likelihood sees only differences between functions, `sd` (point, class) has standard deviations of values
    less their mean over functions. Those of the values themselves are, for the most part, those of the prior's shift of
    all functions together, of which labels say nothing.
    """
    point_dim = classifier.point_dim or "point"
    arrays, coords = of_functions(classifier, point_dim, mean, cov)
    if not classifier.likelihood_model.sees_common:
        sd = np.sqrt(without_common(mean, cov)[1].diagonal(axis1=1, axis2=2))
        arrays["sd"] = (point_dim, *classifier.function_dims), sd
    return xr.Dataset(arrays, coords=coords | (_coords(classifier, [point_dim]) if named else {}))


def without_common(mean: Array, cov: Array) -> tuple[Array, Array]:
    """Mean (m, c) and covariance (m, c, c) of latent values less their mean over functions, at each of m points."""
    centred = np.eye(mean.shape[1]) - 1.0 / mean.shape[1]
    found = centred @ cov @ centred
    places = np.arange(mean.shape[1])
    found[:, places, places] = np.maximum(found[:, places, places], 0.0)  # rounding
    return mean @ centred, found


def of_functions(
    classifier: GPClassifier, dim: str, mean: Array, cov: Array | None
) -> tuple[dict[str, tuple[tuple[str, ...], Array]], dict[str, Any]]:
    """Variables and coords of a Dataset: `mean` (m, c) and, if given, `cov` (m, c, c) of latent functions at m points.

    Where a point has one function, and the model no axis for it, they are `mean` and `variance` (m,).
    """
    if not classifier.function_dims:
        variance = {} if cov is None else {"variance": ((dim,), cov[:, 0, 0])}
        return {"mean": ((dim,), mean[:, 0]), **variance}, {}
    (function_dim,) = classifier.function_dims
    other = f"{function_dim}_other"
    names = classifier.class_names
    covariance = {} if cov is None else {"cov": ((dim, function_dim, other), cov)}
    return {"mean": ((dim, function_dim), mean), **covariance}, {function_dim: names, other: names}


def history(fit: Fit) -> xr.Dataset:
    """Evidence, log posterior and solver iterations at each iteration of the optimiser."""
    return iterations(fit.optimum.history)


def iterations(evaluations: Sequence[Evaluation]) -> xr.Dataset:
    """Of evaluations, one for each iteration."""
    columns = ("evidence", "log_posterior", "iterations")
    return xr.Dataset(
        {name: ("iteration", [getattr(e, name) for e in evaluations]) for name in columns},
        coords={"iteration": np.arange(len(evaluations))},
    )


def _coords(classifier: GPClassifier, dims: Iterable[str]) -> dict[str, Any]:
    """Coordinates that the model has for the given dims."""
    coords = classifier.model.coords
    return {dim: np.asarray(coords[dim]) for dim in dims if coords.get(dim) is not None}


def natural(of: Hyperparameters, thetas: Array) -> xr.Dataset:
    """Hyperparameters on their natural scale for flat vectors (s, d), with dim `node`."""
    arrays = {}
    for name, value in of.natural(thetas).items():
        dims = of.classifier.model.named_vars_to_dims.get(name) or [f"{name}_dim_{i}" for i in range(value.ndim - 1)]
        arrays[name] = (("node", *dims), value)
    return xr.Dataset(arrays, coords=_coords(of.classifier, [dim for dims, _ in arrays.values() for dim in dims]))
