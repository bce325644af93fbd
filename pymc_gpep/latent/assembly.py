"""The assembly of latent values into the argument of a likelihood.

Between the priors and the likelihood only operations may stand that move numbers about: transposing, stacking,
indexing, reshaping. The reader numbers the cells of the latent values and does to them what the model does to latent
values. The numbers that arrive say which latent function feeds which class. No combination of such operations needs
code of its own.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.graphs.errors import NotProcessesAloneError, StructureError, describe, listing
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.latent.gp_latent import LatentGP, as_it_is, read_latent

_JOINING = (Join,)
_SELECTING = (DimShuffle, ViewOp, Subtensor, AdvancedSubtensor, Reshape, SpecifyShape)


class Dims(NamedTuple):
    """Names that the model gives to the axes of a (classes, points) array, and to the classes."""

    class_dim: str | None = None
    point_dim: str | None = None
    class_labels: tuple[object, ...] | None = None


class Assembly(NamedTuple):
    """The latent priors behind an argument of shape (points, classes), and what each of their outputs feeds."""

    latents: tuple[LatentGP, ...]
    classes: tuple[tuple[int, ...], ...]
    n_points: int
    dims: Dims


def read_assembly(argument: TensorVariable, likelihood: TensorVariable, model: pm.Model) -> Assembly:
    """Find the priors behind the argument of a likelihood and the class that each of their outputs feeds.

    Parameters
    ----------
    argument : TensorVariable, shape (n, c)
        The argument of the likelihood; the class axis is the last.
    likelihood : TensorVariable
        The likelihood's random variable, for messages.
    model : pm.Model

    Raises
    ------
    NotProcessesAloneError
        If something else than a rearrangement of latent values reaches the likelihood, or if not all their points do in
        their order.
    StructureError
        If the argument is not one function for each class.
    """
    latents, named = _walk(argument, likelihood, model)
    shapes = evaluate(get_symbolic_rv_shapes([latent.free for latent in latents]))
    sizes = [int(shape[-1]) for shape in shapes]
    if len(set(sizes)) > 1:
        raise NotProcessesAloneError(f"Latent functions of {likelihood.name!r} have different numbers of points.")
    n = sizes[0]
    if n == 0:
        raise StructureError(
            f"The latent functions of {likelihood.name!r} have no points. Declare the model with one row at least; a "
            "fit with inducing inputs takes others in its place, data=(inputs, labels)."
        )

    # Number the cells: cell i of function r, counted over all outputs of all priors, is r * n + i.
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    cells = {
        latent.f: np.arange(end - np.prod(shape), end).reshape(shape).astype(latent.f.dtype)
        for latent, shape, end in zip(latents, shapes, ends, strict=True)
    }
    codes, *named_codes = (code.astype(np.int64) for code in evaluate([argument, *named], cells))
    functions = _functions_of_classes(codes, n, likelihood, model)
    _check_one_function_per_class(functions, latents, [int(end) // n for end in ends], likelihood)
    class_of = {int(function): k for k, function in enumerate(functions)}
    classes = tuple(
        tuple(class_of[int(function)] for function in np.atleast_2d(cells[latent.f])[:, 0] // n) for latent in latents
    )
    dims = _read_dims(dict(zip(named, named_codes, strict=True)), class_of, n, model)
    return Assembly(tuple(latents), classes, n, dims)


def _walk(
    argument: TensorVariable, likelihood: TensorVariable, model: pm.Model
) -> tuple[list[LatentGP], list[TensorVariable]]:
    """Follow the argument back to the priors; return them and the variables with named axes met on the way."""
    latents: list[LatentGP] = []
    named: list[TensorVariable] = []
    pending = [argument]
    seen: set[TensorVariable] = set()
    while pending:
        variable = pending.pop()
        if variable in seen:
            continue
        seen.add(variable)
        if variable.name in model.named_vars_to_dims:
            named.append(variable)
        if (latent := read_latent(variable, model)) is not None:
            latents.append(latent)
        elif variable.owner is not None and isinstance(variable.owner.op, _JOINING):
            pending.extend(cast(list[TensorVariable], variable.owner.inputs[::-1]))
        elif variable.owner is not None and isinstance(variable.owner.op, _SELECTING):
            source, *how = cast(list[TensorVariable], variable.owner.inputs)
            _check_fixed(how, source, likelihood, model)
            pending.append(source)
        else:
            raise NotProcessesAloneError(f"{likelihood.name!r} is given more than latent values in another order.")
    return latents, named


def _check_fixed(how: Sequence[Variable], source: Variable, likelihood: TensorVariable, model: pm.Model) -> None:
    """Refuse indices and shapes that depend on the values, not only the shapes, of random variables."""
    shapes = [v for v in ancestors(how) if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)]
    random = [v for v in ancestors(how, blockers=shapes) if v in model.basic_RVs]
    if random:
        raise StructureError(
            f"Which latent values reach {likelihood.name!r} depends on {listing(random)}. Select from "
            f"{describe(source)} with fixed indices only."
        )


def _functions_of_classes(
    codes: NDArray[np.int64], n: int, likelihood: TensorVariable, model: pm.Model
) -> NDArray[np.int64]:
    """Return the number of the function that feeds each class, given the cells of the argument, (n, c)."""
    name = repr(likelihood.name)
    if _is_points_by_functions(codes, n):
        return codes[0] // n
    if codes.shape == (1, n) and _is_points_by_functions(codes.T, n):
        raise StructureError(
            f"The argument of {name} is one latent function at {n} points. A classifier of c classes needs c of them: "
            "gp.prior(..., n_outputs=c), and then f.T."
        )
    if _is_points_by_functions(codes.T, n):
        raise StructureError(
            f"The argument of {name} has the classes first, {codes.shape}. The class axis must be last: give it the "
            "transpose, f.T."
        )
    if codes.size == n and len(codes) < n:
        raise StructureError(
            f"The argument of {name} is one latent function of {n} points, of which each class has some. Functions of "
            "classes must be independent, one for each class at the same inputs: gp.prior(..., X=X, n_outputs="
            f"{codes.shape[1]}). {as_it_is(model)}"
        )
    for k, column in enumerate((codes // n).T):
        if len(set(column)) > 1:
            raise StructureError(
                f"Class {k} of {name} is fed by several latent functions, each at some of the points. Give each class "
                "one function, at all points."
            )
    raise NotProcessesAloneError(f"{name} is given latent values at other points than those of their priors.")


def _is_points_by_functions(codes: NDArray[np.int64], n: int) -> bool:
    """Tell whether axis 0 runs over all points in their order and each column is one function."""
    return len(codes) == n and bool((codes == codes[0] // n * n + np.arange(n)[:, None]).all())


def _check_one_function_per_class(
    functions: NDArray[np.int64], latents: Sequence[LatentGP], ends: Sequence[int], likelihood: TensorVariable
) -> None:
    """Refuse functions that feed no class, or several; `ends` counts the functions up to and with each prior."""
    for function, used in enumerate(np.bincount(functions, minlength=ends[-1])):
        if used == 1:
            continue
        which = int(np.searchsorted(ends, function, side="right"))
        latent = latents[which]
        start = ends[which - 1] if which else 0
        output = f"Output {function - start} of {latent.f.name!r}" if latent.f.ndim == 2 else repr(latent.f.name)
        fed = ", ".join(map(str, np.flatnonzero(functions == function)))
        raise StructureError(
            f"{output} feeds {f'the classes {fed}' if fed else 'no class'} of {likelihood.name!r}, which has "
            f"{len(functions)} classes for {ends[-1]} latent functions. Every class needs one of its own: give the "
            "priors as many outputs (n_outputs) as there are classes."
        )


def _read_dims(
    codes: Mapping[TensorVariable, NDArray[np.int64]], class_of: Mapping[int, int], n: int, model: pm.Model
) -> Dims:
    """Return the names of the axes of the first variable, from the likelihood backwards, that holds all classes.

    Without such a variable there is no class axis to name. Names may be missing, or each class may have a variable of
    its own.
    """
    point_dim = None
    for variable, code in codes.items():
        dims = model.named_vars_to_dims[variable.name]
        if code.ndim != 2:
            point_dim = dims[-1]
            continue
        for cells, (points, class_dim) in ((code, dims), (code.T, dims[::-1])):
            if _is_points_by_functions(cells, n) and cells.shape[1] == len(class_of):
                labels = model.coords.get(class_dim)
                order = np.argsort([class_of[int(function)] for function in cells[0] // n])
                return Dims(class_dim, points, None if labels is None else tuple(labels[k] for k in order))
    return Dims(point_dim=point_dim)
