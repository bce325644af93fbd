"""Models whose variables are made by `pymc.dims`, as the same models of ordinary variables."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.dims.distributions.transforms import DimTransform, IntervalTransform, SimplexTransform, ZeroSumTransform
from pymc.distributions import transforms
from pymc.logprob.transforms import Transform
from pymc.util import UNSET
from pytensor.compile import optdb
from pytensor.compile.ops import ViewOp, view_op
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Clip
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable, RNGConsumerOp
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT
from pytensor.tensor.variable import TensorVariable
from pytensor.xtensor.basic import XTensorFromTensor, tensor_from_xtensor
from pytensor.xtensor.type import XTensorSharedVariable, XTensorType

from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.graphs.private_names import share_dims

_BY_NAME = {"log": transforms.log, "logodds": transforms.logodds, "circular": transforms.circular}


def lower_dims(model: pm.Model) -> pm.Model:
    """Return a model of `pymc.dims` as the same model of ordinary variables, with the same names, dims and data.

    `pm.fit`, `gpep.marginalize` and most other functions do so by themselves. Step methods of this package sample the
    model that is returned.

    Returns
    -------
    pm.Model
        The model itself if none of its variables is made by `pymc.dims`. Otherwise a new model whose data and coords
        follow those of `model`: `pm.set_data` on either changes both. Variables that `model` gets later are not in it.

    Raises
    ------
    StructureError
        If a variable has a transform that ordinary variables have not, or core dims that are not its last ones.

    Examples
    --------
    >>> with gpep.samplers.lower_dims(model):
    ...     idata = pm.sample(10, tune=10, step=gpep.samplers.EllipticalSlice())
    """
    named = list(model.named_vars.values())
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if not any(isinstance(variable.type, XTensorType) for variable in (*named, *observed)):
        return model
    begun = [value for value in model.rvs_to_initial_values.values() if isinstance(value, Variable)]
    given = [*named, *observed, *begun]
    return rebuilt(model, dict(zip(given, _lowered(given, set(model.basic_RVs)), strict=True)))


def rebuilt(
    model: pm.Model,
    found: Mapping[Variable, TensorVariable],
    added: Mapping[TensorVariable, TensorVariable] | None = None,
) -> pm.Model:
    """Return a model of other variables in the places of those of a model, with the same names, dims and data.

    Parameters
    ----------
    model : pm.Model
    found : dict of Variable to TensorVariable
        Named variables, observed values and graphs of initial values of the model, and what takes their places.
    added : dict of TensorVariable to TensorVariable, optional
        Variables of the model, and a new free variable in front of each.
    """
    made = pm.Model(model=None)  # not part of a model around it
    share_dims(made, model)
    for variable in model.named_vars.values():
        own, dims = found[variable], model.named_vars_to_dims.get(variable.name)
        own.name = variable.name
        if added and (new := added.get(variable)) is not None:
            made.set_initval(new, None)
            made.create_value_var(new, transform=UNSET, default_transform=UNSET)
            made.free_RVs.append(new)
            made.add_named_variable(new)
        if variable in model.free_RVs:
            start = model.rvs_to_initial_values.get(variable)
            made.set_initval(own, found[start] if isinstance(start, Variable) else start)
        if variable in model.basic_RVs:
            transform = _transform(model.rvs_to_transforms[variable], dims or (), str(variable.name))
            value = _value(found[model.rvs_to_values[variable]]) if variable in model.observed_RVs else None
            made.create_value_var(own, transform=transform, default_transform=None, value_var=value)
        for kind in ("free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars"):
            if variable in getattr(model, kind):
                getattr(made, kind).append(own)
        made.add_named_variable(own, dims or None)
    return made


def _lowered(variables: Sequence[Variable], random: Container[Variable]) -> list[TensorVariable]:
    """Return variables without the operations of `pymc.dims`; they have in common what they had in common."""
    graph = FunctionGraph(outputs=list(variables), clone=True, copy_inputs=False)
    optdb.query("+lower_xtensor").rewrite(graph)
    known: dict[Variable, TensorVariable] = {}

    def tensor(variable: Variable) -> TensorVariable:
        if not isinstance(variable.type, XTensorType):
            return cast(TensorVariable, variable)
        if variable.owner is not None and isinstance(variable.owner.op, XTensorFromTensor):
            return cast(TensorVariable, variable.owner.inputs[0])
        if variable not in known:
            known[variable] = _tensor(variable)
        return known[variable]

    def _tensor(variable: Variable) -> TensorVariable:
        if isinstance(variable, XTensorSharedVariable):  # both have one container
            kind = TensorType(variable.type.dtype, variable.type.shape)
            return TensorSharedVariable(kind, None, None, container=variable.container, name=variable.name)
        if isinstance(variable, Constant):
            return cast(TensorVariable, pt.constant(variable.data, dtype=variable.type.dtype))
        node = variable.owner
        if isinstance(node.op, ViewOp):
            return cast(TensorVariable, view_op(tensor(node.inputs[0])))
        raise StructureError(
            f"The model has an operation of pymc.dims that PyTensor does not lower, {type(node.op).__name__}. Write "
            "that part without pymc.dims: x.values is an ordinary variable, and pmd.as_xtensor(x, dims=...) goes back."
        )

    for old, new in zip(variables, list(graph.outputs), strict=True):
        own = tensor(new)
        if old in random and (ordered := _in_order(own, str(old.name))) is not None:
            graph.replace(own, ordered, import_missing=True)
            if isinstance(own.owner.op, DimShuffle):
                back = cast(TensorVariable, ordered.dimshuffle(np.argsort(own.owner.op.new_order).tolist()))
                graph.replace(own.owner.inputs[0], back, import_missing=True)
    for node in graph.toposort():
        if node.op == tensor_from_xtensor:
            graph.replace(node.outputs[0], tensor(node.inputs[0]), import_missing=True)
    return list(map(tensor, graph.outputs))


def _in_order(variable: TensorVariable, name: str) -> TensorVariable | None:
    """Return a random variable whose axes are those that it was declared with; None if it is one already."""
    node = variable.owner
    if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Clip):
        return _censored(*node.inputs)
    if isinstance(node.op, RNGConsumerOp):
        return None
    if isinstance(node.op, DimShuffle) and isinstance(node.inputs[0].owner.op, RandomVariable):
        order, inner = node.op.new_order, node.inputs[0].owner
        op, axes = inner.op, tuple(range(len(order)))
        if op.ndim_supp == 0:
            size = op.size_param(inner)
            shape = None if isinstance(size.type, NoneTypeT) else [size[i] for i in order]
            given = [pt.expand_dims(each, axes[: len(axes) - each.ndim]) for each in op.dist_params(inner)]
            turned = [each.dimshuffle(order) for each in given]
            return cast(TensorVariable, op(*turned, size=shape, rng=op.rng_param(inner), return_next_rng=True)[1])
    raise StructureError(
        f"The dims of {name!r} are in an order that an ordinary variable of its distribution cannot have. Leave dims= "
        "out, or name core_dims last."
    )


def _censored(variable: TensorVariable, lower: TensorVariable, upper: TensorVariable) -> TensorVariable:
    """The distribution that PyMC makes of a variable that is clipped."""
    bounds = [None if each is variable else each for each in (lower, upper)]
    return cast(TensorVariable, pm.Censored.dist(variable, lower=bounds[0], upper=bounds[1]))


def _value(observed: TensorVariable) -> TensorVariable:
    """Observed values, as a constant where they are no data that may change."""
    if any(isinstance(each, SharedVariable) for each in ancestors([observed])):
        return observed
    return cast(TensorVariable, pt.constant(evaluate([observed])[0], dtype=observed.dtype))


def _transform(transform: Transform | None, dims: tuple[str, ...], name: str) -> Transform | None:
    """The transform of ordinary variables that is the same as one of `pymc.dims`."""
    if transform is None or not isinstance(transform, DimTransform | transforms.ChainedTransform):
        return transform
    if isinstance(transform, transforms.ChainedTransform):
        return transforms.ChainedTransform([_transform(each, dims, name) for each in transform.transform_list])
    if isinstance(transform, IntervalTransform):
        lower, upper = (_bound(each, dims) for each in (transform.lower, transform.upper))
        return cast(Transform, transforms.Interval(lower, upper))
    if isinstance(transform, ZeroSumTransform):
        return cast(Transform, transforms.ZeroSumTransform([dims.index(dim) - len(dims) for dim in transform.dims]))
    if isinstance(transform, SimplexTransform) and transform.core_dim == dims[-1]:
        return cast(Transform, transforms.simplex)
    if transform.name in _BY_NAME:
        return _BY_NAME[transform.name]
    raise StructureError(
        f"{name!r} has a transform of pymc.dims that ordinary variables have not, {type(transform).__name__}. Make it "
        "without pymc.dims, and take pmd.as_xtensor of it."
    )


def _bound(bound: Any, dims: tuple[str, ...]) -> Any:
    """A bound with an axis for each of some dims; None if it is infinite."""
    values = bound.data
    if np.isinf(values).all():
        return None
    own = bound.type.dims
    shape = [values.shape[own.index(dim)] if dim in own else 1 for dim in dims]
    return values.transpose([own.index(dim) for dim in dims if dim in own]).reshape(shape) if own else values
