"""Conversion of `pymc.dims` models to models of ordinary variables, and observed variables with missing responses.

PyMC declares three variables if responses are missing. An observed variable has the rows with a response, a free
variable the other rows, and a Deterministic all rows. Parameters of the first two are selected from all rows.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.dims.distributions.transforms import DimTransform, IntervalTransform, SimplexTransform, ZeroSumTransform
from pymc.distributions import transforms
from pymc.distributions.distribution import PartialObservedRV
from pymc.logprob.transforms import Transform
from pymc.util import UNSET
from pytensor.compile import optdb
from pytensor.compile.ops import ViewOp, view_op
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.scalar.basic import Clip
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable, RNGConsumerOp
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT
from pytensor.tensor.variable import TensorVariable
from pytensor.xtensor.basic import XTensorFromTensor, tensor_from_xtensor
from pytensor.xtensor.type import XTensorSharedVariable, XTensorType

from pymc_gpep.graphs.errors import StructureError, listing
from pymc_gpep.graphs.interpreted import evaluate
from pymc_gpep.graphs.private_names import share_dims
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.links import Reading
from pymc_gpep.likelihoods.observed import missing_labels

_BY_NAME = {"log": transforms.log, "logodds": transforms.logodds, "circular": transforms.circular}


def lower_dims(model: pm.Model) -> pm.Model:
    """Return a model of `pymc.dims` as a model of ordinary variables, with the same names, dims and data.

    `pm.fit`, `gpep.marginalize` and most other functions call this function themselves. Step methods need the converted
    model.

    Returns
    -------
    pm.Model
        The model itself if no variable is from `pymc.dims`. Otherwise a new model that shares data and coords with
        `model`: `pm.set_data` on either changes both. Variables added to `model` later are missing.

    Raises
    ------
    StructureError
        If a variable has a transform that is not available for ordinary variables, or core dims before other dims.

    Examples
    --------
    >>> with gpep.samplers.lower_dims(model):
    ...     idata = pm.sample(10, tune=10, step=gpep.samplers.EllipticalSlice())
    """
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if not any(isinstance(variable.type, XTensorType) for variable in (*model.named_vars.values(), *observed)):
        return model
    given = variables_of(model)
    return rebuilt(model, dict(zip(given, _lowered(given, set(model.basic_RVs)), strict=True)))


def variables_of(model: pm.Model) -> list[Variable]:
    """Return named variables, observed values and graphs of initial values of a model, for `rebuilt`."""
    begun = [value for value in model.rvs_to_initial_values.values() if isinstance(value, Variable)]
    return [*model.named_vars.values(), *(model.rvs_to_values[rv] for rv in model.observed_RVs), *begun]


def rebuilt(
    model: pm.Model,
    found: Mapping[Variable, TensorVariable],
    added: Mapping[TensorVariable, TensorVariable] | None = None,
    flat: Collection[Variable] = (),
    plain: Collection[Variable] = (),
    kinds: Mapping[Variable, str] | None = None,
) -> pm.Model:
    """Return a copy of a model with some variables replaced. Names, dims and data stay the same.

    Parameters
    ----------
    model : pm.Model
    found : dict of Variable to TensorVariable
        Replacements of named variables, observed values and graphs of initial values of the model.
    added : dict of TensorVariable to TensorVariable, optional
        New free variables. Each is declared before a variable of the model, its key.
    flat : collection of Variable, optional
        Variables of the model with replacements that have other axes, and so no dims.
    plain : collection of Variable, optional
        Free variables of the model with replacements that have no transform and no initial value.
    kinds : dict of Variable to str, optional
        Kinds of variables in the new model, "free_RVs" or "deterministics", if they change.
    """
    lists = "free_RVs", "observed_RVs", "deterministics", "potentials", "data_vars"
    kinds = {v: kind for kind in lists for v in getattr(model, kind)} | dict(kinds or {})
    made = pm.Model(model=None)  # The new model must not be nested in the current model.
    share_dims(made, model)
    for variable in model.named_vars.values():
        own, dims = found[variable], None if variable in flat else model.named_vars_to_dims.get(variable.name)
        own.name = variable.name
        if added and (new := added.get(variable)) is not None:
            made.set_initval(new, None)
            made.create_value_var(new, transform=UNSET, default_transform=UNSET)
            made.free_RVs.append(new)
            made.add_named_variable(new)
        kind = kinds.get(variable)
        if kind == "free_RVs":
            start = None if variable in plain else model.rvs_to_initial_values.get(variable)
            made.set_initval(own, found[start] if isinstance(start, Variable) else start)
        if kind in lists[:2]:
            known = None if variable in plain else model.rvs_to_transforms[variable]
            transform = _transform(known, dims or (), str(variable.name))
            value = _value(found[model.rvs_to_values[variable]]) if kind == "observed_RVs" else None
            made.create_value_var(own, transform=transform, default_transform=None, value_var=value)
        if kind is not None:
            getattr(made, kind).append(own)
        made.add_named_variable(own, dims or None)
    return made


def _lowered(variables: Sequence[Variable], random: Container[Variable]) -> list[TensorVariable]:
    """Return variables without the operations of `pymc.dims`. Common parts of their graphs stay common."""
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
        if isinstance(variable, XTensorSharedVariable):  # Both variables share one container.
            kind = TensorType(variable.type.dtype, variable.type.shape)
            return TensorSharedVariable(kind, None, None, container=variable.container, name=variable.name)
        if isinstance(variable, Constant):
            return cast(TensorVariable, pt.constant(variable.data, dtype=variable.type.dtype))
        node = variable.owner
        if isinstance(node.op, ViewOp):
            return cast(TensorVariable, view_op(tensor(node.inputs[0])))
        raise StructureError(
            f"The model has an operation of pymc.dims that PyTensor does not lower, {type(node.op).__name__}. Write "
            "that part without pymc.dims: x.values is an ordinary variable, and pmd.as_xtensor(x, dims=...) inverts it."
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
    """Return a random variable with its axes in the declared order; None if its axes are in this order."""
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
    """Return PyMC's censored distribution for a clipped variable."""
    bounds = [None if each is variable else each for each in (lower, upper)]
    return cast(TensorVariable, pm.Censored.dist(variable, lower=bounds[0], upper=bounds[1]))


def _value(observed: TensorVariable) -> TensorVariable:
    """Return observed values: a constant, unless they are data that may change."""
    if any(isinstance(each, SharedVariable) for each in ancestors([observed])):
        return observed
    return cast(TensorVariable, pt.constant(evaluate([observed])[0], dtype=observed.dtype))


def _transform(transform: Transform | None, dims: tuple[str, ...], name: str) -> Transform | None:
    """Return the transform for ordinary variables that equals a transform of `pymc.dims`."""
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
        f"{name!r} has the transform {type(transform).__name__} of pymc.dims, which ordinary variables do not support. "
        "Declare the variable without pymc.dims, and convert it by pmd.as_xtensor(x, dims=...)."
    )


def _bound(bound: Any, dims: tuple[str, ...]) -> Any:
    """Return a bound with these dims as axes; None if it is infinite."""
    values = bound.data
    if np.isinf(values).all():
        return None
    own = bound.type.dims
    shape = [values.shape[own.index(dim)] if dim in own else 1 for dim in dims]
    return values.transpose([own.index(dim) for dim in dims if dim in own]).reshape(shape) if own else values


@dataclass(frozen=True, eq=False)
class MissingResponses:
    """Observed variable with missing responses in some rows.

    Attributes
    ----------
    name : str
        Name given by the user.
    observed, unobserved : TensorVariable
        Random variables of the rows with a response, and of the rows without a response.
    mask : array of bool
        Mask of entries without a response, in the shape of the observations.
    whole : TensorVariable
        Random variable of all rows, or of a single row if all rows have the same parameters.
    """

    name: str
    observed: TensorVariable
    unobserved: TensorVariable
    mask: NDArray[np.bool_]
    whole: TensorVariable

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Mask of the rows without a response."""
        return self.mask.ravel()

    @property
    def n_rows(self) -> int:
        """Number of rows, including rows without a response."""
        return len(self.missing)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Indices of the rows without a response."""
        return np.flatnonzero(self.missing)

    @property
    def fitted(self) -> NDArray[np.int64]:
        """Indices of the rows with a response."""
        return np.flatnonzero(~self.missing)

    def read(self, likelihood: Likelihood, latents: frozenset[Variable]) -> Reading | None:
        """Read the observed rows as a likelihood. Return None if the likelihood is of another distribution."""
        found = likelihood.read(self.whole, latents)
        if found is None:
            return None
        argument, parameters = found.argument, found.parameters
        if argument.ndim == 1 + likelihood.function_axis and argument.type.shape[0] != 1:
            argument = argument[self.fitted]
        if parameters is not None:
            parameters = pt.broadcast_to(parameters, (parameters.shape[0], self.n_rows))[:, self.fitted]
        return Reading(argument, parameters, everywhere=found, likelihood=found.likelihood, names=found.names)

    def drawn(self) -> TensorVariable:
        """Return a copy of the unobserved variable that is not part of the model, for draws."""
        node = self.unobserved.owner
        made: TensorVariable = node.clone().outputs[node.outputs.index(self.unobserved)]
        return made

    def check(self, model: pm.Model) -> None:
        """Raise an error if a term of the model depends on missing responses, or if all responses are missing.

        Raises
        ------
        StructureError
            If the model has such terms, or no response.
        """
        if self.missing.all():
            raise StructureError(missing_labels(self.missing, f"Values of {self.name!r}"))
        terms = [term for term in (*model.basic_RVs, *model.potentials) if term is not self.unobserved]
        if dependent := [term for term in terms if self.unobserved in ancestors([term])]:
            raise StructureError(
                f"Responses of {self.name!r} are missing, and {listing(dependent)} depends on them. A fit leaves "
                f"missing responses out, so only a Deterministic may depend on them. Remove {listing(dependent)} from "
                f"the model, or leave out the rows where {self.name!r} is missing."
            )


def missing_responses(model: pm.Model) -> dict[TensorVariable, MissingResponses]:
    """Return the observed variables with missing responses, by the variable of the rows with a response."""
    found = {}
    observed = {rv.name: rv for rv in model.observed_RVs}
    for rv in model.free_RVs:
        name = rv.name.removesuffix("_unobserved")
        if name == rv.name or f"{name}_observed" not in observed or name not in model.named_vars:
            continue
        # PyMC inserts the unobserved values by a mask. A single value passes through `SpecifyShape` before.
        behind = list(ancestors([model[name]]))
        nodes = [each.owner for each in behind if each.owner]
        alike = {rv, *(node.outputs[0] for node in nodes if isinstance(node.op, SpecifyShape) and rv in node.inputs)}
        setters = [node for node in nodes if not alike.isdisjoint(node.inputs)]
        masks = [v.data for node in setters for v in node.inputs if isinstance(v, Constant) and v.type.dtype == "bool"]
        if not masks:
            continue
        (mask,) = masks
        own = observed[f"{name}_observed"]
        found[own] = MissingResponses(name, own, rv, mask, _whole(own, ~mask, name))
    return found


def unobserved_responses(model: pm.Model) -> frozenset[TensorVariable]:
    """Return the free variables that PyMC creates for missing responses."""
    return frozenset(each.unobserved for each in missing_responses(model).values())


def _whole(observed: TensorVariable, mask: NDArray[np.bool_], name: str) -> TensorVariable:
    """Return the variable of all rows, given the variable of the observed rows.

    Return `observed` itself if its parameters are the same for all rows.
    """
    node = observed.owner
    op = node.op
    # PyMC uses this operation for mixtures, and other distributions of several random variables.
    if isinstance(op, PartialObservedRV):
        inner = node.inputs[0].owner
        whole = inner.clone().outputs[inner.outputs.index(node.inputs[0])]
        whole.name = name
        return cast(TensorVariable, whole)
    if not isinstance(op, RandomVariable):
        return observed
    parameters = op.dist_params(node)
    whole = [_uncut(each, mask) for each in parameters]
    if all(a is b for a, b in zip(parameters, whole, strict=True)):
        return observed
    made: TensorVariable = op.make_node(op.rng_param(node), None, *whole).outputs[node.outputs.index(observed)]
    made.name = name
    return made


def _uncut(parameter: Variable, mask: NDArray[np.bool_]) -> Variable:
    """Return the source of a parameter that selects the rows of the mask; for other parameters return the parameter."""
    node = parameter.owner
    if node is None:
        return parameter
    if isinstance(node.op, DimShuffle) and node.op.new_order[:1] == ("x",):
        first = node.inputs[0].owner
        if first is not None and isinstance(first.op, Subtensor) and first.inputs[0].type.shape[:1] == (1,):
            return first.inputs[0]
    if not isinstance(node.op, AdvancedSubtensor):
        return parameter
    source, *index = node.inputs
    masks = (mask, mask.ravel())
    same = [isinstance(each, Constant) and any(np.array_equal(each.data, own) for own in masks) for each in index]
    return source if same == [True] or _selects(source, index, mask) else parameter


def _selects(source: Variable, index: Sequence[Variable], mask: NDArray[np.bool_]) -> bool:
    """Return whether indices, one for each axis, select the entries of `source` at which the mask is True.

    An axis of `source` with length 1 is broadcast to the mask; its index must be 0.
    """
    if len(index) != mask.ndim or any(not isinstance(leaf, Constant) for leaf in graph_inputs(index)):
        return False
    places = zip(evaluate(list(index)), np.nonzero(mask), source.type.broadcastable, strict=True)
    return all(not np.any(own) if alike else np.array_equal(own, there) for own, there, alike in places)
