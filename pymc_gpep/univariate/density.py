"""The log density of an observed variable as a function of arrays, for one or several latent values in each row."""

import hashlib
import threading
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, cast

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, graph_inputs
from pytensor.printing import debugprint
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.likelihoods.log_probabilities import bounds, censored_sides, log_below, log_probability, uncensored
from pymc_gpep.likelihoods.observed import known_shape
from pymc_gpep.univariate.outcomes import mean_and_square
from pymc_gpep.univariate.row_cut import RowCut, RowsMixedError, compiled_rows, row_derivatives, row_slopes


@dataclass(frozen=True)
class RowGraph:
    """Graphs of the log density of an observed variable in each row, and of related quantities.

    Attributes
    ----------
    output : TensorVariable
        The log density.
    allowed : TensorVariable or None
        Mask of rows that satisfy PyMC's conditions on parameters and observations; None without conditions.
    cumulative : TensorVariable or None
        Log distribution function without censoring; None if PyMC has no formula.
    f, y : TensorVariable
        Vectors of the latent values and of the observations.
    rows : list of TensorVariable
        Vectors of further parameters of the rows.
    uncensored : TensorVariable or None
        Log density of a censored variable without its bounds.
    side : TensorVariable or None
        Side of a censored observation: 1 at its upper bound, −1 at its lower bound, 0 between the bounds.
    first, second : TensorVariable or None
        Mean of an uncensored observation, and mean of its square; None if they have no formula.
    others : list of TensorVariable
        Latent values of the second function and further functions.
    """

    output: TensorVariable
    allowed: TensorVariable | None
    cumulative: TensorVariable | None
    f: TensorVariable
    y: TensorVariable
    rows: list[TensorVariable]
    uncensored: TensorVariable | None = None
    side: TensorVariable | None = None
    first: TensorVariable | None = None
    second: TensorVariable | None = None
    others: list[TensorVariable] = field(default_factory=list)

    @property
    def functions(self) -> list[TensorVariable]:
        """Latent values of all functions, in order."""
        return [self.f, *self.others]


type Other = Literal["cumulative", "uncensored", "side", "first", "second"]
"""Names of the quantities of a row in addition to its log density."""

type _Cut = tuple[RowGraph, list[TensorVariable]]

# Prefix of the names of placeholders for latent values.
_FUNCTION = "function_"


def row_graph(
    variable: TensorVariable, *arguments: TensorVariable, same: Mapping[TensorVariable, TensorVariable] | None = None
) -> _Cut:
    """Return the log density of a random variable as a graph of vectors, separate from its model.

    Parameters
    ----------
    variable : TensorVariable
        The random variable, (n,).
    *arguments : TensorVariable
        Functions of latent values and of parameters. Each has a number for each row, or one number for all rows.
    same : mapping, optional
        Copies of arguments → the arguments.

    Returns
    -------
    RowGraph
    list of TensorVariable
        Parameters of the rows as graphs of the model: a number, or a vector with one number for each row.

    Raises
    ------
    RowsMixedError
        If rows depend on each other.
    NotImplementedError
        If PyMC has no log density of the variable.
    """
    # PyMC may copy the variables of a log density. So variables are matched by name.
    leaves = {
        leaf: leaf.type(name=f"leaf_{i}") for i, leaf in enumerate(_leaves_of(variable, [*arguments, *(same or {})]))
    }
    functions = {
        each: pt.tensor(f"{_FUNCTION}{i}", dtype=each.dtype, shape=(None,) * each.ndim)
        for i, each in enumerate(arguments)
    }
    functions |= {copy: functions[each] for copy, each in (same or {}).items()}
    y = pt.tensor("y", dtype=variable.dtype, shape=(None,) * variable.ndim)
    known = {each: leaf for each, leaf in _constants_of(variable).items() if each not in functions}
    alone = clone_replace(variable, {**known, **leaves, **functions}, rebuild_strict=False, copy_inputs_over=True)
    try:
        found = {"output": log_probability(alone, y)}
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise NotImplementedError(f"PyMC has no log density of {variable}.") from error
    free = uncensored(alone)
    if free is not alone:
        found |= {"uncensored": log_probability(free, y), "side": censored_sides(alone, y)}
    # The parameter of the rows is the clipped bound, and not the bound, which may be infinite.
    inner = {each.name for each in ancestors(bounds(alone))}
    moments, cumulative = _moments(free), _cumulative(free, y)
    for more in (moments | cumulative, cumulative, moments):
        try:
            return _cut_graph(found | more, arguments, leaves, inner)
        except (NotImplementedError, TypeError, ValueError, RowsMixedError):
            continue
    return _cut_graph(found, arguments, leaves, inner)


def _moments(variable: TensorVariable) -> dict[str, TensorVariable]:
    """Return the means of a variable ("first") and of its square ("second"); {} if they have no formula."""
    try:
        return dict(zip(("first", "second"), mean_and_square(variable), strict=True))
    except NotImplementedError:
        return {}


def _cumulative(variable: TensorVariable, value: TensorVariable) -> dict[str, TensorVariable]:
    """Return the log distribution function ("cumulative"); {} if PyMC has no formula."""
    try:
        return {"cumulative": log_below(variable, value)}
    except (NotImplementedError, TypeError, ValueError):
        return {}


def _cut_graph(
    found: Mapping[str, TensorVariable],
    arguments: Sequence[TensorVariable],
    leaves: Mapping[Variable, Variable],
    inner: Container[str | None],
) -> _Cut:
    """Return the graphs of the quantities `found`, and the parameters of their rows as graphs of the model.

    Inputs of the graphs are matched to variables of the model by name. Inputs named in `inner` do not become
    parameters, but expressions of these inputs may.
    """
    every = list(found.values())
    behind = {each.name: each for each in explicit_graph_inputs(every) if not isinstance(each, Constant)}
    back = {behind[new.name]: old for old, new in leaves.items() if new.name in behind}
    names = [f"{_FUNCTION}{i}" for i in range(len(arguments))]
    if not all(name in behind for name in names):
        raise NotImplementedError("The log density does not depend on an argument.")
    back |= {behind[name]: argument for name, argument in zip(names, arguments, strict=True)}

    def of_model(each: TensorVariable) -> TensorVariable:
        (made,) = graph_replace([each], back, strict=False)
        return cast(TensorVariable, made)

    def length_of(each: TensorVariable, axis: int) -> int:
        return _length(of_model(each), axis)

    functions = [pt.dvector("latent" if not i else f"latent_{i}") for i in range(len(arguments))]
    dtype = every[0].type.dtype if "y" not in behind else behind["y"].type.dtype
    y = pt.vector("seen", dtype="float64" if dtype.startswith("float") else dtype)
    moving = {behind[name]: f for name, f in zip(names, functions, strict=True)} | (
        {behind["y"]: y} if "y" in behind else {}
    )
    own = [behind[new.name] for new in leaves.values() if new.name in behind]
    rows = {each: pt.dvector(f"row_{i}") for i, each in enumerate(own) if each.name not in inner}

    def cut_with(also: Mapping[TensorVariable, TensorVariable]) -> _Cut:
        cut = RowCut({**moving, **also}, length_of)
        output = cut.through(found["output"])
        allowed = cut.allowed()
        others = {name: cut.through(each) for name, each in found.items() if name != "output"}
        graph = RowGraph(
            output=output,
            allowed=allowed,
            cumulative=others.get("cumulative"),
            f=functions[0],
            y=y,
            rows=[*also.values(), *cut.inputs],
            uncensored=others.get("uncensored"),
            side=others.get("side"),
            first=others.get("first"),
            second=others.get("second"),
            others=functions[1:],
        )
        return graph, [of_model(each) for each in (*also, *cut.parts)]

    made = cut_with({})
    if any(each.type.ndim > 1 for each in own):
        return made
    # Prefer a cut at hyperparameters and data over rows, unless it has more parameters than the first cut.
    try:
        deeper = cut_with(rows)
    except RowsMixedError:
        return made
    return deeper if len(deeper[1]) <= len(made[1]) else made


def _length(variable: TensorVariable, axis: int) -> int:
    length = known_shape(variable)[axis]
    if length is None:
        raise NotImplementedError(f"Axis {axis} of {variable} must have a static length, but its length is unknown.")
    return length


class RowDensity:
    """Log density as a function of arrays, with derivatives. It is compiled at its first use.

    Parameters
    ----------
    graph : RowGraph
    learned : sequence of bool
        Mask of the parameters of rows that depend on hyperparameters. The other parameters have no derivatives.
    """

    def __init__(self, graph: RowGraph, learned: Sequence[bool]) -> None:
        self.graph, self.learned = graph, tuple(learned)
        self._lock = threading.Lock()
        self._others: dict[Other, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"graph": self.graph, "learned": self.learned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    @property
    def _value(self) -> TensorVariable:
        """Log density, NaN in rows that violate PyMC's conditions."""
        graph = self.graph
        value = graph.output.astype("float64")
        return value if graph.allowed is None else pt.switch(graph.allowed, value, np.nan)

    @cached_property
    def digest(self) -> str:
        """Checksum of the density, which is equal in all processes."""
        graph = self.graph
        text = cast(str, debugprint([self._value, *graph.functions, graph.y, *graph.rows], file="str", print_type=True))
        constants = [v.data for v in ancestors([self._value]) if isinstance(v, Constant)]
        numbers = b"".join(np.asarray(each).tobytes() for each in constants if isinstance(each, np.ndarray))
        return hashlib.sha256(text.encode() + numbers + repr(self.learned).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, RowDensity) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"RowDensity({self.digest})"

    @cached_property
    def _cut(self) -> RowCut:
        """Log density, divided into parts that depend on latent values and parts that do not."""
        graph = self.graph
        moving = {each: pt.dvector(f"f_{i}") for i, each in enumerate(graph.functions)}
        cut = RowCut(moving, _length, prefix="column")
        self._of_columns = cut.through(graph.output)
        self._allowed = None if graph.allowed is None else cut.through(graph.allowed)
        self._moved = list(moving.values())
        return cut

    @cached_property
    def _columns_function(self) -> Any:
        return compiled_rows([self.graph.y, *self.graph.rows], self._cut.parts)

    def _orders(self, count: int) -> list[TensorVariable]:
        """Return latent values and `columns` as inputs, then log density and `count` − 1 derivatives as outputs."""
        cut = self._cut
        found = row_derivatives(self._of_columns, self._moved[0], count)
        if self._allowed is not None:
            found[0] = pt.switch(self._allowed, found[0], np.nan)
        return [*self._moved, *cut.inputs, *found]

    @cached_property
    def _function(self) -> Any:
        *inputs, value, first, second = self._orders(3)
        return compiled_rows(inputs, [value, first, second])

    @cached_property
    def _third_function(self) -> Any:
        *inputs, _, _, _, third = self._orders(4)
        return compiled_rows(inputs, [third])

    def _made_slopes(self, count: int) -> Any:
        graph = self.graph
        orders = row_derivatives(graph.output, graph.f, count)
        wanted = [row for row, learned in zip(graph.rows, self.learned, strict=True) if learned]
        slopes = [slope for row in wanted for slope in row_slopes(orders, row, graph.f)]
        return compiled_rows([*graph.functions, graph.y, *graph.rows], slopes)

    @cached_property
    def _slope_function(self) -> Any:
        return self._made_slopes(1)

    @cached_property
    def _slopes_function(self) -> Any:
        return self._made_slopes(3)

    @cached_property
    def _orders_function(self) -> Any:
        graph = self.graph
        found = row_derivatives(self._value, graph.f, 3)
        return compiled_rows([*graph.functions, graph.y, *graph.rows], found)

    @cached_property
    def _value_function(self) -> Any:
        graph = self.graph
        return compiled_rows([*graph.functions, graph.y, *graph.rows], [self._value])

    def _function_of(self, name: Other) -> Any:
        if name not in self._others:
            graph = self.graph
            value = getattr(graph, name)
            made = pt.exp(value) if name == "cumulative" else value.astype("float64")
            self._others[name] = compiled_rows([*graph.functions, graph.y, *graph.rows], [made])
        return self._others[name]

    def values(self, f: Array, y: NDArray[Any], parameters: Array) -> Array:
        """Return the log density (m,) at latent values (m,) or (k, m), for observations and parameters of m rows."""
        return self._values_by(self._value_function, f, y, parameters)

    def other(self, name: Other, f: Array, y: NDArray[Any], parameters: Array) -> Array:
        """Return the quantity `name` (m,), for example the distribution function. The graph must have this quantity."""
        return self._values_by(self._function_of(name), f, y, parameters)

    def _values_by(self, function: Any, f: Array, y: NDArray[Any], parameters: Array) -> Array:
        with self._lock:
            seen = np.asarray(y, self.graph.y.dtype)
            (found,) = function(*np.atleast_2d(f), seen, *parameters[: len(self.graph.rows)])
        return np.broadcast_to(found, f.shape[-1])

    def columns(self, y: Observed, parameters: Array) -> Array:
        """Return the parts (q, n) of the log density that only depend on observations (n,) and parameters (p, n)."""
        with self._lock:
            found = self._columns_function(np.asarray(y, self.graph.y.dtype), *parameters[: len(self.graph.rows)])
        return np.stack([np.broadcast_to(each, len(y)) for each in found]) if found else np.empty((0, len(y)))

    def two_derivatives(self, f: Array, columns: Array) -> Array:
        """Return log density and two derivatives (3, m) at latent values (m,), given the parts `columns` (q, m)."""
        with self._lock:
            return np.stack([np.broadcast_to(each, len(f)) for each in self._function(f, *columns)])

    def on_grid(self, f: Array, columns: Array) -> Array:
        """Return log density and two derivatives (3, k, m) at latent values (k, m), given the columns (q, m)."""
        function = self._function
        if not function.broadcasts:
            return self.two_derivatives(f.ravel(), np.tile(columns, (1, len(f)))).reshape(3, *f.shape)
        with self._lock:
            return np.stack([np.broadcast_to(each, f.shape) for each in function(f, *columns)])

    def third_derivative(self, f: Array, columns: Array) -> Array:
        """Return the third derivative (m,) at latent values (m,), given the parts `columns` (q, m)."""
        with self._lock:
            (found,) = self._third_function(f, *columns)
        return np.broadcast_to(found, len(f))

    def orders(self, f: Array, y: Observed, parameters: Array) -> Array:
        """Return log density and two derivatives in the first latent value (3, m), at latent values (k, m)."""
        with self._lock:
            found = self._orders_function(*f, np.asarray(y, self.graph.y.dtype), *parameters[: len(self.graph.rows)])
        return np.stack([np.broadcast_to(each, f.shape[-1]) for each in found])

    def slopes(self, f: Array, y: Observed, parameters: Array, orders: int) -> Array:
        """Return parameter derivatives (p, orders, m) of log density ℓ; for orders = 3 also of ∂ℓ/∂f and ∂²ℓ/∂f²."""
        out = np.zeros((len(parameters), orders, f.shape[-1]))
        learned = np.flatnonzero(self.learned)
        if learned.size:
            function = self._slope_function if orders == 1 else self._slopes_function
            with self._lock:
                found = function(*np.atleast_2d(f), np.asarray(y, self.graph.y.dtype), *parameters[: len(self.learned)])
            found = np.stack([np.broadcast_to(each, f.shape[-1]) for each in found])
            out[learned] = found.reshape(learned.size, orders, -1)
        return out


def _constants_of(variable: TensorVariable) -> dict[Variable, Variable]:
    """Return parameters computed from constants → equal constants, since PyMC tests whether bounds are constants."""
    nodes = {each.owner for each in ancestors([variable]) if each.owner and isinstance(each.owner.op, RandomVariable)}
    made = [each for node in nodes for each in node.inputs if isinstance(each, TensorVariable) and each.owner]
    found = [each for each in made if all(isinstance(leaf, Constant) for leaf in graph_inputs([each]))]
    return {each: cast(Variable, pt.constant(each.eval(mode="FAST_COMPILE"), dtype=each.dtype)) for each in found}


def _leaves_of(variable: TensorVariable, arguments: Collection[TensorVariable]) -> list[Variable]:
    """Return the random variables and data of a model that a variable depends on, other than through its arguments."""
    found: list[Variable] = []
    pending = list(variable.owner.inputs)
    seen: set[Variable] = set()
    while pending:
        each = pending.pop()
        if each in seen or each in arguments or isinstance(each.type, RandomType):
            continue
        seen.add(each)
        if isinstance(each, SharedVariable):
            found.append(each)
        elif each.owner is None:
            if not isinstance(each, Constant):
                found.append(each)
        elif each.name and any(isinstance(v.type, RandomType) for v in each.owner.inputs):
            found.append(each)
        else:
            pending += each.owner.inputs
    return found
