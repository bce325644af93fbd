"""Dims of variables whose labels do not have the length of the axis they belong to."""

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

from pymc_gpep.reading import GPClassifier, StructureError

_OF_ROWS = (
    *("mean", "sd", "variance", "cov", "p", "p_interval", "ci_bound", "error"),
    *("log_density", "quantile", "new_point"),
)
"""Names in results at rows, which a dim of rows may not have."""
_OF_ALL = ("moment", "node")
"""Dims of results of variables, which no dim of the model may have."""


def check_dims(classifier: GPClassifier) -> None:
    """Refuse dims and variables of a model whose names results of its fit use.

    Raises
    ------
    StructureError
        The message names the dim and what has it.
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
        for dim, others in ((part.point_dim, taken.union(classes, functions)), (part.class_dim, taken)):
            if dim in others:
                raise _refused(part.response, str(dim))


def _refused(name: str, dim: str) -> StructureError:
    return StructureError(
        f"{name!r} has the dim {dim!r}, a name that results of a fit use themselves. Rename the dim where the model is "
        f"made, in coords= and dims=: {dim + '_label'!r}, say."
    )


def dims_that_fit(
    model: pm.Model, name: str, shape: tuple[int, ...], coords: Mapping[str, Sequence[Any] | None]
) -> list[str]:
    """Return a dim for each axis of a variable of a model, given its shape and the labels of dims.

    An axis without a dim, or with a dim whose labels have another length, is called as ArviZ would call it.
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
    """Return the same dims, each with its labels; numbers from 0 where it has no labels."""
    dims = dims_that_fit(model, name, shape, coords)
    labels = ((dim, coords.get(dim), size) for dim, size in zip(dims, shape, strict=True))
    return [(dim, list(range(size) if own is None else own)) for dim, own, size in labels]


def plain_dims(
    model: pm.Model, shapes: Mapping[str, tuple[int, ...]], coords: Mapping[str, Sequence[Any] | None]
) -> dict[str, list[str]]:
    """Return dims of the variables of a model whose own dims have labels of another length.

    PyMC makes no `DataTree` of draws of such a variable. Ordinal families of bambi have one: a probability for each
    threshold, with the labels of the classes.
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
        f"The model has a variable {name!r}, a name that results of a fit use themselves. Rename the variable: "
        f"{name + '_of_y'!r}, say."
    )
