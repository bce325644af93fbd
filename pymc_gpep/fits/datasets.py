"""Parts of a fit as xarray Datasets, with the dims and coords of the model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.fits.labels import dims_that_fit
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.latent_functions import without_common
from pymc_gpep.hyper.trace import Trace
from pymc_gpep.reading import GPClassifier


def hyperparameters(space: Hyperparameters, theta: Array) -> xr.Dataset:
    """Hyperparameters of one flat vector on their natural scale."""
    return natural(space, theta[None]).isel(node=0, missing_dims="ignore")


def evaluated(space: Hyperparameters, evaluations: Sequence[Evaluation], dim: str) -> xr.Dataset:
    """Hyperparameters on their natural scale where evaluations were, along `dim`, with evidence and log posterior."""
    thetas = np.array([each.theta[: space.size] for each in evaluations]).reshape(len(evaluations), space.size)
    coords = {name: np.array([getattr(e, name) for e in evaluations]) for name in ("evidence", "log_posterior")}
    return with_numbers(natural(space, thetas, dim), dim, coords)


def with_numbers(found: xr.Dataset, dim: str, numbers: Mapping[str, Array]) -> xr.Dataset:
    """Add coordinates along a dim. Where a hyperparameter has the name, that of the coordinate begins with the dim."""
    return found.assign_coords({f"{dim}_{k}" if k in found else k: (dim, values) for k, values in numbers.items()})


def of_points(classifier: GPClassifier, mean: Array, cov: Array, named: bool = True) -> xr.Dataset:
    """Latent values of the points that were fitted, as `of_functions`; `named` if they are those of the model.

    Where a likelihood sees only differences between functions, `sd` (point, class) has standard deviations of values
    less their mean over functions. Standard deviations of the values themselves are, for the most part, those of the
    prior's shift of all functions together, of which labels say nothing. With several observed variables the coord
    `response` names that of each point.
    """
    point_dim = classifier.point_dim or "point"
    arrays, coords = of_functions(classifier, point_dim, mean, cov)
    if not classifier.likelihood_model.sees_common:
        sd = np.sqrt(without_common(mean, cov)[1].diagonal(axis1=1, axis2=2))
        arrays["sd"] = (point_dim, *classifier.function_dims), sd
    labels = classifier.coords_of_points() if named else None
    found = xr.Dataset(arrays, coords=coords if labels is None else coords | {point_dim: labels})
    responses = classifier.responses_of_points()
    return found if responses is None else found.assign_coords(response=(point_dim, responses))


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


def history(trace: Trace) -> xr.Dataset:
    """Return numbers of each iteration, or step."""
    columns = {name: (trace.unit, values) for name, values in trace.columns.items()}
    coords = {"iteration": np.arange(len(trace.losses))} if trace.unit == "iteration" else {}
    return xr.Dataset(columns, coords=coords)


def inducing(classifier: GPClassifier, inputs: Array) -> xr.DataArray:
    """Inducing inputs (inducing, column), or (class, inducing, column) where each function has its own."""
    if len(inputs) == 1:
        return xr.DataArray(inputs[0], dims=["inducing", "column"], name="inducing")
    class_dim = classifier.class_dim or "class"
    coords = {class_dim: classifier.class_names}
    return xr.DataArray(inputs, coords, [class_dim, "inducing", "column"], name="inducing")


def coords_of(classifier: GPClassifier, dims: Iterable[str]) -> dict[str, Any]:
    """Coordinates that the model has for the given dims."""
    coords = classifier.coords
    return {dim: np.asarray(coords[dim]) for dim in dims if coords.get(dim) is not None}


def natural(of: Hyperparameters, thetas: Array, dim: str = "node") -> xr.Dataset:
    """Hyperparameters on their natural scale for flat vectors (s, d), along `dim`."""
    model, coords = of.classifier.model, of.classifier.coords
    arrays = {
        name: ((dim, *dims_that_fit(model, name, value.shape[1:], coords)), value)
        for name, value in of.natural(thetas).items()
    }
    return xr.Dataset(arrays, coords=coords_of(of.classifier, [each for dims, _ in arrays.values() for each in dims]))
