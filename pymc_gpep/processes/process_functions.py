"""Covariance and mean of a Gaussian process at any inputs, as graphs.

PyMC models do not store a `pm.gp.Latent`. The model contains only the graph of the covariance at its inputs. It is
rebuilt at new inputs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.alike_graphs import whole
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.rows_of_graphs import COLUMNS, ROWS, CannotSplitError, Leaves, Role, Walk, named
from pymc_gpep.latent.gp_latent import LatentGP, is_process, without_jitter
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.noted_inputs import NotedInputs, noted_inputs, some_columns_alike

AS_THEY_ARE = (ViewOp, DimShuffle, Reshape, SpecifyShape)
"""Operations that at most change the shape of inputs."""


class ProcessFunctions(Protocol):
    """Covariance and mean of a Gaussian process at any inputs (m, d), as graphs of the model's random variables."""

    inputs: TensorVariable
    """Inputs of the model, (n, d)."""

    def covariance(self, a: TensorVariable, b: TensorVariable) -> TensorVariable:
        """Return the covariances (m, s) of points a (m, d) and b (s, d), without diagonal terms such as noise."""

    def variance(self, a: TensorVariable) -> TensorVariable:
        """Return the prior variances (m,) at points a (m, d)."""

    def mean(self, a: TensorVariable) -> TensorVariable:
        """Return the prior mean at points a (m, d), (m,) or (outputs, m)."""


class OfMaker:
    """Covariance and mean of a process from the functions of a `pm.gp.Latent`."""

    def __init__(self, gp: pm.gp.Latent) -> None:
        self._gp = gp
        own = pt.as_tensor_variable(gp.X)
        self._dtype = own.dtype
        self.inputs = own.astype("float64")

    def covariance(self, a: TensorVariable, b: TensorVariable) -> TensorVariable:
        return self._of(self._gp.cov_func, a, b)

    def variance(self, a: TensorVariable) -> TensorVariable:
        return self._of(partial(self._gp.cov_func, diag=True), a)

    def mean(self, a: TensorVariable) -> TensorVariable:
        # A mean function may drop the axis of a single column, as `pm.gp.mean.Linear` does for one coefficient.
        columns = self.inputs.type.shape[1]
        return self._of(self._gp.mean_func, a if columns is None else pt.specify_shape(a, (None, columns)))

    def _of(self, function: Callable[..., TensorVariable], *inputs: TensorVariable) -> TensorVariable:
        """Apply a function to inputs as floats.

        If the function uses inputs as indices, apply it to inputs of the model's dtype.
        """
        try:
            return pt.as_tensor_variable(function(*inputs))
        except (TypeError, IndexError, NotImplementedError):
            if self._dtype.startswith("float"):
                raise
            return pt.as_tensor_variable(function(*(whole(each, self._dtype) for each in inputs)))


class OfGraph:
    """Covariance and mean of a process from the graph of its prior in the model."""

    def __init__(self, latent: LatentGP, columns: "_Columns", stop: Sequence[Variable]) -> None:
        self._covariance = without_jitter(latent)
        self._mean = latent.mean
        self._columns = columns
        self._stop = stop
        self.inputs = columns.inputs

    def covariance(self, a: TensorVariable, b: TensorVariable) -> TensorVariable:
        same = pt.zeros((a.shape[0], b.shape[0]))
        return self._walk(a, b, same)(self._covariance, (ROWS, COLUMNS))

    def variance(self, a: TensorVariable) -> TensorVariable:
        row = pt.tensor("row", dtype=a.dtype, shape=(1, None))
        column = pt.tensor("column", dtype=a.dtype, shape=(1, None))
        one = self._walk(row, column, pt.ones((1, 1)))(self._covariance, (ROWS, COLUMNS))
        # Replace random variables by themselves: PyTensor would copy them, and copies do not belong to the model.
        kept = {variable: variable for variable in ancestors([one], blockers=self._stop) if variable in self._stop}
        each = vectorize_graph(one, {**kept, row: a[:, None], column: a[:, None]})
        return pt.broadcast_to(each[..., 0, 0], (a.shape[0],))

    def mean(self, a: TensorVariable) -> TensorVariable:
        roles = (*[None] * (self._mean.type.ndim - 1), ROWS)
        return self._walk(a, a, pt.zeros((a.shape[0], a.shape[0])))(self._mean, roles)

    def _walk(self, a: TensorVariable, b: TensorVariable, same: TensorVariable) -> Walk:
        lengths = {ROWS: a.shape[0], COLUMNS: b.shape[0]}
        return Walk(_At(self._columns, {ROWS: a, COLUMNS: b}), lengths, same, self._stop)


class _Columns:
    """Data in the graph of a prior as columns of its inputs.

    Parameters
    ----------
    found : iterable of Variable
        Data over points. If all data are columns of the array that `pm.gp.Latent.prior` received, the inputs are this
        array. Otherwise they are the first data that contain all columns.

    Raises
    ------
    CannotSplitError
        If no data are over points. If the data are not columns of one array, or if the order of its columns is unknown.
    """

    def __init__(self, found: Iterable[Variable]) -> None:
        leaves = sorted(found, key=lambda leaf: (not isinstance(leaf, SharedVariable), -_width(leaf)))
        if not leaves:
            raise CannotSplitError("depends on no data")
        known: dict[Variable, tuple[int, ...] | None] = {}
        if not isinstance(leaves[0], SharedVariable):
            noted = noted_inputs(leaves[0])
            # A constant with a name was data before `freeze_dims_and_data`.
            if noted is None and leaves[0].name is None and _width(leaves[0]) > 1:
                raise CannotSplitError(
                    f"has the inputs as an array of {_width(leaves[0])} columns in an unknown order. Import pymc_gpep "
                    "before the model is built, so that the order is recorded"
                )
            if noted is not None:
                known = _columns_noted(leaves, noted.array)
                if not (_is_in_order(noted) and np.array_equal(noted.array, _data(leaves[0]))):
                    leaves = [pt.constant(noted.array, name="X"), *leaves]
        base, *others = leaves
        self._of: dict[Variable, list[int]] = {}
        if others:
            place: dict[bytes, list[int]] = {}
            for number, column in enumerate(_values(base).T):
                place.setdefault(column.tobytes(), []).append(number)
            for leaf in others:
                columns = known.get(leaf)
                if columns is not None:
                    self._of[leaf] = list(columns)
                    continue
                places = [place.get(column.tobytes(), []) for column in _values(leaf).T]
                if not all(places):
                    raise CannotSplitError(f"depends on {named(leaf)} in addition to {named(base)}")
                if not all(len(where) == 1 for where in places):
                    raise CannotSplitError(
                        f"depends on columns of {named(base)} that are equal at all points, so that the reader cannot "
                        "match them"
                    )
                self._of[leaf] = [number for (number,) in places]
        self._base = base
        self._all = list(range(_width(base)))
        self.inputs: TensorVariable = base[:, None] if base.type.ndim == 1 else base

    def __contains__(self, variable: Variable) -> bool:
        return variable is self._base or variable in self._of

    def at(self, leaf: Variable, x: TensorVariable) -> TensorVariable:
        """Return the columns of new inputs x that replace data `leaf` of the graph."""
        columns = self._of.get(leaf, self._all)
        if leaf.type.ndim == 1:
            return x[:, columns[0]]
        return pt.specify_shape(x, (None, leaf.type.shape[1])) if columns == self._all else x[:, columns]


class _At:
    """Replacements (`RowPoints`) of a `Walk`: data at the inputs of the rows and of the columns."""

    def __init__(self, columns: _Columns, inputs: Mapping[Role, TensorVariable]) -> None:
        self._columns = columns
        self._inputs = inputs

    def __call__(self, data: Variable, role: Role) -> TensorVariable:
        return self._columns.at(data, self._inputs[role])

    def holds(self, variable: Variable) -> bool:
        return variable in self._columns


def process_functions(prior: LatentPrior, gps: Mapping[LatentGP, pm.gp.Latent] | None) -> list[ProcessFunctions]:
    """Return covariance and mean of each process of a model, at any inputs.

    Parameters
    ----------
    prior : LatentPrior
    gps : dict of LatentGP to pm.gp.Latent, optional
        Process of each prior. By default the priors are read from the graph of the model.

    Raises
    ------
    StructureError
        If the graph of a prior cannot be rebuilt over new inputs. With `gps` also if the model computes inputs from
        data: new inputs then have another form than inputs of the `pm.gp.Latent`.
    """
    if gps is not None:
        for latent, gp in gps.items():
            _refuse_other_inputs(prior, latent, gp)
        return [OfMaker(gps[latent]) for latent in prior.latents]
    stop = list(prior.model.basic_RVs)
    leaves = Leaves()
    none = pt.zeros((1, 1))
    latent = prior.latents[0]
    try:
        for latent in prior.latents:
            walk = Walk(leaves, {ROWS: pt.lscalar(), COLUMNS: pt.lscalar()}, none, stop)
            walk(without_jitter(latent), (ROWS, COLUMNS))
            walk(latent.mean, (*[None] * (latent.mean.type.ndim - 1), ROWS))
        columns = _Columns(leaves.found)
        functions = [OfGraph(latent, columns, stop) for latent in prior.latents]
        x = pt.dmatrix("inputs")
        for latent, function in zip(prior.latents, functions, strict=True):
            function.covariance(x, x)
            function.mean(x)
    except CannotSplitError as why:
        advice = (
            "Give gp=..., the pm.gp.Latent whose .prior made it (a list for several). New inputs are then in the form "
            "of its prior(X=...). Or put all inputs into the model as one pm.Data."
            if is_process(latent)
            else "Make it by a covariance function of inputs: pm.gp.Latent(cov_func=...).prior('f', X=pm.Data('X', X))."
        )
        raise StructureError(
            f"The prior of {latent.f.name!r} cannot be computed at other inputs from the graph of the model: it {why}. "
            f"{advice}"
        ) from None
    return list(functions)


def _refuse_other_inputs(prior: LatentPrior, latent: LatentGP, gp: pm.gp.Latent) -> None:
    """Raise a StructureError if new inputs would have different forms with and without `gp`."""
    moved = gp.X
    while isinstance(moved, Variable) and moved.owner is not None and isinstance(moved.owner.op, AS_THEY_ARE):
        moved = moved.owner.inputs[0]
    if not isinstance(moved, Variable) or moved.owner is None:
        return
    try:
        process_functions(prior, None)
    except StructureError:
        return
    named = ", ".join(map(repr, prior.inputs)) or "an array"
    raise StructureError(
        f"The inputs of {latent.f.name!r} are computed within the model from {named}, and gp has the results. "
        f"Leave gp out, and give new inputs in the form of {named}, as in predict(Xnew)."
    )


def _is_in_order(noted: NotedInputs) -> bool:
    """Return whether the columns of a constant equal to the noted inputs are also in the same order."""
    if noted.columns is None:
        return not some_columns_alike(noted.array)
    return noted.columns == tuple(range(noted.array.shape[1]))


def _columns_noted(leaves: Iterable[Variable], array: Array) -> dict[Variable, tuple[int, ...] | None]:
    """Return for each constant of the graph its recorded columns in the inputs `array`."""
    noted = {leaf: noted_inputs(leaf) for leaf in leaves}
    return {leaf: own.columns for leaf, own in noted.items() if own is not None and np.array_equal(own.array, array)}


def _width(leaf: Variable) -> int:
    return _values(leaf).shape[1]


def _values(leaf: Variable) -> Array:
    """Return data over points as a matrix (n, d)."""
    array = np.asarray(_data(leaf), dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def _data(leaf: Variable) -> Array:
    found: Array = leaf.data if isinstance(leaf, Constant) else leaf.get_value(borrow=True)
    return found


class MovedSum:
    """Expressions over rows, rebuilt over new rows, with symbols for the values of processes at the new rows.

    Constants that are columns of the inputs are replaced by columns of the new inputs. Data of the model do not change.

    Parameters
    ----------
    inputs : array (n, d)
        Inputs of all processes.
    processes : sequence of LatentGP
    stop : sequence of Variable
        Random variables of the model.
    x : TensorVariable, shape (m, d)
        New inputs.

    Attributes
    ----------
    values : dict of TensorVariable to TensorVariable
        Symbol for the values of each process at the new inputs, by its latent values.
    """

    def __init__(
        self, inputs: Array, processes: Sequence[LatentGP], stop: Sequence[Variable], x: TensorVariable
    ) -> None:
        self._inputs, self._x = inputs, x
        self._places: dict[bytes, list[int]] = {}
        for number, column in enumerate(inputs.T):
            self._places.setdefault(column.tobytes(), []).append(number)
        self.values: dict[TensorVariable, TensorVariable] = {}
        self._leaves: dict[Variable, TensorVariable] = {}
        self._there: dict[Variable, TensorVariable] = {}
        for latent in processes:
            f = latent.f
            points_first = pt.tensor(f"{f.name}_by_point", dtype=f.dtype, shape=f.type.shape[::-1])
            self.values[f] = pt.tensor(f"{f.name}_there", dtype=f.dtype, shape=(*f.type.shape[:-1], None))
            self._leaves[f] = points_first.T
            self._there[points_first] = self.values[f].T
        fixed = [*stop, *self.values]
        same = pt.zeros((x.shape[0], x.shape[0]))
        self._walk = Walk(self, {ROWS: x.shape[0], COLUMNS: x.shape[0]}, same, [v for v in fixed if v in set(stop)])

    def __call__(self, data: Variable, role: Role) -> TensorVariable:
        if data in self._there:
            return self._there[data]
        if isinstance(data, SharedVariable):
            return cast(TensorVariable, data)
        if not isinstance(data, Constant):
            raise CannotSplitError(f"depends on {named(data)}")
        return self._columns(data)

    def holds(self, variable: Variable) -> bool:
        whole = isinstance(variable, Constant) and np.array_equal(variable.data, self._inputs)
        return whole or variable in self._there

    def is_of(self, variable: Variable, f: TensorVariable) -> bool:
        """Return whether a variable in an error of the walk belongs to the values f of a process."""
        return variable in ancestors([self._leaves[f]])

    def _columns(self, leaf: Constant) -> TensorVariable:
        """Return columns of the new inputs in place of a constant that has columns of the model's inputs."""
        array = np.asarray(leaf.data, dtype=np.float64)
        if array.shape == self._inputs.shape and np.array_equal(array, self._inputs):
            return self._x
        noted = noted_inputs(leaf)
        if noted is not None and noted.columns is not None and np.array_equal(noted.array, self._inputs):
            columns = list(noted.columns)
        else:
            wide = array.reshape(len(array), -1).T if array.ndim else array[None, None]
            places = [self._places.get(column.tobytes(), []) for column in wide]
            if array.ndim > 2 or not all(places):
                raise CannotSplitError(f"depends on {named(leaf)} in addition to the inputs")
            if any(len(where) > 1 for where in places):
                raise CannotSplitError("depends on a column of the inputs that equals another column at all points")
            columns = [number for (number,) in places]
        return self._x[:, columns[0]] if array.ndim == 1 else self._x[:, columns]

    def moved(self, expression: TensorVariable, axis: int) -> TensorVariable:
        """Return an expression over the new points, along its axis `axis` over points.

        Raises
        ------
        CannotSplitError
            If the expression cannot be computed at new points.
        """
        (own,) = graph_replace([expression], self._leaves, strict=False)
        one = own.type.broadcastable
        return self._walk(own, [ROWS if i == axis and not one[i] else None for i in range(own.ndim)])

    def mean(self, latent: LatentGP, maker: pm.gp.Latent | None) -> TensorVariable:
        """Return the mean of a process at new inputs: from its graph, or else from the mean function of `maker`."""
        try:
            return self.moved(latent.mean, latent.mean.ndim - 1)
        except CannotSplitError:
            if maker is None:
                raise
            return OfMaker(maker).mean(self._x)

    def check_apart(self, expressions: Iterable[TensorVariable]) -> None:
        """Raise a CannotSplitError if expressions, such as means of other variables, depend on values of processes."""
        if found := self.values.keys() & set(ancestors(list(expressions), blockers=self.values)):
            raise CannotSplitError(f"has effects with means that depend on {next(iter(found)).name!r}")

    def with_values(
        self, expression: TensorVariable, values: Mapping[TensorVariable, TensorVariable]
    ) -> TensorVariable:
        """Replace the symbols of processes by `values` at new rows, and also the symbols that these values contain."""
        there = {self.values[f]: value.astype(f.dtype) for f, value in values.items()}
        while not set(there).isdisjoint(ancestors([expression])):
            (expression,) = graph_replace([expression], there, strict=False)
        return expression
