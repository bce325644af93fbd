"""xarray datasets of a fit: variables, dims and coordinates, and checks of the names of the model."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.log_posteriors.evaluation import Evaluation, Trace
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.latent_functions import without_common
from pymc_gpep.reading import GPClassifier, StructureError

_OF_ROWS = (
    *("mean", "sd", "variance", "cov", "p", "p_interval", "ci_bound", "error"),
    *("log_density", "quantile", "new_point"),
)
"""Names in datasets with an axis of rows. A dim of the rows of a model may not have one of these names."""
_OF_ALL = ("moment", "node")
"""Names of dims in datasets of variables. No dim or variable of a model may have one of these names."""


def check_dims(classifier: GPClassifier) -> None:
    """Check that no dim or variable of a model has a name that results of its fit use.

    Raises
    ------
    StructureError
        If a dim or variable has such a name. The message names the dim and its variable.
    """
    model = classifier.model
    for variable in (*model.free_RVs, *model.deterministics):
        if variable.name in _OF_ALL:
            raise _refused_variable(str(variable.name))
    for variable in (*model.basic_RVs, *model.deterministics):
        for dim in model.named_vars_to_dims.get(variable.name) or ():
            if dim in _OF_ALL:
                raise _refused(variable.name, dim)
    for part in classifier.each:
        classes = (part.class_dim or "class",) if part.likelihood_model.n_classes(part.n_functions) else ()
        functions = part.function_dims
        results = {f"{part.response}_{each}" for each in ("mean", "variance", "quantile")}
        taken = results.union(_OF_ROWS, (f"{each}_other" for each in functions))
        own = (part.point_dim, *(part.axes.dims if part.axes else ()))
        pairs = [*((dim, taken.union(classes, functions)) for dim in own), (part.class_dim, taken)]
        for dim, others in pairs:
            if dim in others:
                raise _refused(part.response, str(dim))


def _refused(name: str, dim: str) -> StructureError:
    return StructureError(
        f"{name!r} has the dim {dim!r}, which is a reserved name in the results of a fit. Rename the dim in coords= "
        f"and dims= of the model, for example to {dim + '_label'!r}."
    )


def dims_that_fit(
    model: pm.Model, name: str, shape: tuple[int, ...], coords: Mapping[str, Sequence[Any] | None]
) -> list[str]:
    """Return the name of the dim of each axis of a variable with this shape.

    An axis without a dim in the model, or with a dim of another length, has the default name of ArviZ.
    """
    given = model.named_vars_to_dims.get(name) or ()
    dims = [f"{name}_dim_{i}" for i in range(len(shape))]
    for i, (dim, size) in enumerate(zip(given, shape, strict=False)):
        labels = None if dim is None else coords.get(dim)
        if dim is not None and (labels is None or len(labels) == size):
            dims[i] = str(dim)
    return dims


def axes_that_fit(
    model: pm.Model, name: str, shape: tuple[int, ...], coords: Mapping[str, Sequence[Any] | None]
) -> list[tuple[str, list[Any]]]:
    """Return the dim of each axis of a variable, with its labels. Without labels these are numbers from 0."""
    dims = dims_that_fit(model, name, shape, coords)
    labels = ((dim, coords.get(dim), size) for dim, size in zip(dims, shape, strict=True))
    return [(dim, list(range(size) if own is None else own)) for dim, own, size in labels]


def plain_dims(
    model: pm.Model, shapes: Mapping[str, tuple[int, ...]], coords: Mapping[str, Sequence[Any] | None]
) -> dict[str, list[str]]:
    """Return default dims, by name of variable. A variable needs them if a dim in the model has another length.

    PyMC cannot make a `DataTree` of draws of such a variable. In bambi's ordinal families, for example, probabilities
    for each threshold have the dim of the classes.
    """
    named = [name for name in model.named_vars_to_dims if name in shapes]
    found = {name: dims_that_fit(model, name, shapes[name], coords) for name in named}
    return {
        name: dims
        for name, dims in found.items()
        if any(own is not None and own != dim for own, dim in zip(model.named_vars_to_dims[name], dims, strict=False))
    }


def _refused_variable(name: str) -> StructureError:
    return StructureError(
        f"The model has a variable {name!r}, which is a reserved name in the results of a fit. Rename the variable, "
        f"for example to {name + '_of_y'!r}."
    )


def hyperparameters(space: Hyperparameters, theta: Array) -> xr.Dataset:
    """Return the hyperparameters of a flat vector on their natural scale."""
    return natural(space, theta[None]).isel(node=0, missing_dims="ignore")


def evaluated(space: Hyperparameters, evaluations: Sequence[Evaluation], dim: str) -> xr.Dataset:
    """Return a Dataset of evaluations along `dim`: hyperparameters on their natural scale, evidence, log posterior."""
    thetas = np.array([each.theta[: space.size] for each in evaluations]).reshape(len(evaluations), space.size)
    coords = {name: np.array([getattr(e, name) for e in evaluations]) for name in ("evidence", "log_posterior")}
    return with_numbers(natural(space, thetas, dim), dim, coords)


def with_numbers(found: xr.Dataset, dim: str, numbers: Mapping[str, Array]) -> xr.Dataset:
    """Add `numbers` as coordinates along `dim`. The name of a hyperparameter is prefixed by the dim."""
    return found.assign_coords({f"{dim}_{k}" if k in found else k: (dim, values) for k, values in numbers.items()})


def of_points(classifier: GPClassifier, mean: Array, cov: Array, named: bool = True) -> xr.Dataset:
    """Return moments of the latent values at the fitted points, as in `of_functions`.

    With `named`, points have the labels of the model. If a likelihood depends only on differences between functions,
    `sd` (point, class) has standard deviations of the values minus their mean over functions. It leaves out the common
    shift of all functions, since data do not change its prior variance. With several observed variables the coord
    `response` names the variable of each point. Rows of prior factors are left out.
    """
    mean, cov = mean[classifier.seen], cov[classifier.seen]
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
    """Return variables and coords of a Dataset of latent moments at m points: `mean` (m, c), `cov` (m, c, c).

    If a point has one function, and the model has no axis for functions, the variables are `mean` and `variance` (m,).
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
    """Return the history of the search, by iteration or step."""
    columns = {name: (trace.unit, values) for name, values in trace.columns.items()}
    coords = {"iteration": np.arange(len(trace.losses))} if trace.unit == "iteration" else {}
    return xr.Dataset(columns, coords=coords)


def inducing(classifier: GPClassifier, inputs: Array) -> xr.DataArray:
    """Return inducing inputs (inducing, column); (class, inducing, column) if they differ between functions."""
    if len(inputs) == 1:
        return xr.DataArray(inputs[0], dims=["inducing", "column"], name="inducing")
    class_dim = classifier.class_dim or "class"
    coords = {class_dim: classifier.class_names}
    return xr.DataArray(inputs, coords, [class_dim, "inducing", "column"], name="inducing")


def coords_of(classifier: GPClassifier, dims: Iterable[str]) -> dict[str, Any]:
    """Return the coordinates of the model for these dims."""
    coords = classifier.coords
    return {dim: np.asarray(coords[dim]) for dim in dims if coords.get(dim) is not None}


def natural(of: Hyperparameters, thetas: Array, dim: str = "node") -> xr.Dataset:
    """Return the hyperparameters of flat vectors (s, d) on their natural scale, along `dim`."""
    model, coords = of.classifier.model, of.classifier.coords
    arrays = {
        name: ((dim, *dims_that_fit(model, name, value.shape[1:], coords)), value)
        for name, value in of.natural(thetas).items()
    }
    return xr.Dataset(arrays, coords=coords_of(of.classifier, [each for dims, _ in arrays.values() for each in dims]))
