"""Dims of variables whose labels do not have the length of the axis they belong to."""

from collections.abc import Mapping, Sequence
from typing import Any

import pymc as pm

__all__ = ["axes_that_fit", "dims_that_fit", "plain_dims"]


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
