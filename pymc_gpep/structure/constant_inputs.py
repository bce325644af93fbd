"""A sum whose processes have their inputs as an array, over other rows: its argument with constants moved."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.noted_inputs import noted_inputs
from pymc_gpep.structure.latent import LatentGP
from pymc_gpep.structure.process_functions import OfMaker
from pymc_gpep.structure.rows_of_graphs import COLUMNS, ROWS, CannotSplitError, Role, Walk, named


class MovedSum:
    """Expressions over other rows than those of a model, in terms of values of its processes there.

    Constants that are columns of the inputs become these columns of new inputs. Data of the model stay as they are.

    Parameters
    ----------
    inputs : array (n, d)
        The inputs of all processes.
    processes : sequence of LatentGP
    stop : sequence of Variable
        Random variables of the model.
    x : TensorVariable, shape (m, d)
        New inputs.

    Attributes
    ----------
    values : dict of TensorVariable to TensorVariable
        Values of each process at the new inputs, by its latent values.
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
        """Return whether a variable stands for the values of a process in a message of the walk."""
        return variable in ancestors([self._leaves[f]])

    def _columns(self, leaf: Constant) -> TensorVariable:
        """Return the columns of the new inputs that a constant has of those of the model."""
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
                raise CannotSplitError(f"has {named(leaf)} besides the inputs")
            if any(len(where) > 1 for where in places):
                raise CannotSplitError("takes one of several columns of the inputs that are the same at all points")
            columns = [number for (number,) in places]
        return self._x[:, columns[0]] if array.ndim == 1 else self._x[:, columns]

    def moved(self, expression: TensorVariable, axis: int) -> TensorVariable:
        """Return an expression whose axis over points runs over the new ones.

        Raises
        ------
        CannotSplitError
            If it cannot be had there.
        """
        (own,) = graph_replace([expression], self._leaves, strict=False)
        one = own.type.broadcastable
        return self._walk(own, [ROWS if i == axis and not one[i] else None for i in range(own.ndim)])

    def mean(self, latent: LatentGP, maker: pm.gp.Latent | None) -> TensorVariable:
        """Return the mean of a process at the new inputs, by the mean function of its maker where that is needed."""
        try:
            return self.moved(latent.mean, latent.mean.ndim - 1)
        except CannotSplitError:
            if maker is None:
                raise
            return OfMaker(maker).mean(self._x)

    def check_apart(self, expressions: Iterable[TensorVariable]) -> None:
        """Refuse expressions that depend on values of processes, as means of other variables may."""
        if found := self.values.keys() & set(ancestors(list(expressions), blockers=self.values)):
            raise CannotSplitError(f"has effects whose means depend on {next(iter(found)).name!r}")

    def with_values(
        self, expression: TensorVariable, values: Mapping[TensorVariable, TensorVariable]
    ) -> TensorVariable:
        """Return an expression with values of processes there, which may be made of values of others."""
        there = {self.values[f]: value.astype(f.dtype) for f, value in values.items()}
        while not set(there).isdisjoint(ancestors([expression])):
            (expression,) = graph_replace([expression], there, strict=False)
        return expression
