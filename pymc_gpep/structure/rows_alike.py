"""Rows of a graph that are equal whatever its random variables are, and the same graph at some of its rows.

A graph with an axis of rows is followed down to the parts that depend on no random variable. Each operation on the way
takes a row from the same row of its inputs. So two rows with the same numbers in these parts are equal for all
hyperparameters and effects. An index takes rows of another variable, some of which may be equal in turn.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytensor.sparse as ps
import pytensor.tensor as pt
import scipy.sparse as sp
from numpy.typing import NDArray
from pymc.pytensorf import get_symbolic_rv_shapes
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.sparse.math import Dot as SparseDot
from pytensor.sparse.math import StructuredDot
from pytensor.tensor.basic import AllocDiag, Eye, Join
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.structure.errors import StructureError
from pymc_gpep.structure.interpreted import evaluate
from pymc_gpep.structure.latent import LatentGP, without_jitter
from pymc_gpep.structure.rows_of_graphs import COLUMNS, ROWS, CannotSplitError, Leaves, Role, Walk

type Ids = NDArray[np.int64]
"""A number for each row, (n,), the same for rows that are equal."""


def combined(*each: Ids) -> Ids:
    """Return numbers that are the same where all of several numbers are."""
    found = np.zeros(len(each[0]), np.int64)
    for own in each:
        _, found = np.unique(found * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
    return found


def equal_rows(values: NDArray[Any]) -> Ids:
    """Return numbers (n,) that are the same for equal rows of an array (n, ...)."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    if flat.shape[1] == 1:
        return np.unique(flat[:, 0], return_inverse=True, equal_nan=False)[1]
    wide = flat.astype(np.float64) + 0.0  # 0 in place of −0
    bits = np.ascontiguousarray(wide).view(np.uint64)
    keys = np.random.default_rng(0).integers(2**63, size=bits.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = (bits ^ (bits >> np.uint64(31))) * keys
    _, first, ids = np.unique(mixed.sum(axis=1, dtype=np.uint64), return_index=True, return_inverse=True)
    if np.array_equal(wide[first][ids], wide):
        return ids
    return np.unique(wide, axis=0, return_inverse=True)[1].ravel()


class RowsOfGraph(Walk):
    """The rows of a graph that are equal, and the graph at some of its rows.

    Parameters
    ----------
    stop : sequence of Variable
        Random variables, and values of Gaussian processes.
    processes : mapping of Variable to LatentGP
        Gaussian processes by their values.
    data : mapping
        Data of the model → constants that take their place.
    n : int
        Number of rows.
    at : array (m,), optional
        Rows that are taken; all if not given, which finds out which are equal.
    """

    def __init__(
        self,
        stop: Sequence[Variable],
        processes: Mapping[Variable, LatentGP],
        data: Mapping[Variable, Variable],
        n: int,
        at: Ids | None = None,
    ) -> None:
        count = pt.constant(n if at is None else len(at))
        super().__init__(Leaves(), {ROWS: count, COLUMNS: count}, pt.matrix("same"), stop)
        self._processes, self._data, self._n, self._at = dict(processes), data, n, at
        self._random: dict[Variable, bool] = dict.fromkeys([*stop, *processes], True)
        self._found: list[Ids] = []

    def alike(self, variable: TensorVariable, axis: int) -> Ids:
        """Return numbers (n,) that are the same for equal rows.

        Raises
        ------
        CannotSplitError
            If an operation is not known to leave rows apart.
        """
        self(variable, [ROWS if i == axis else None for i in range(variable.type.ndim)])
        return self.ids

    def _other(self, n: int, at: Ids | None) -> "RowsOfGraph":
        return RowsOfGraph(list(self._stop), self._processes, self._data, n, at)

    def _value(self, variable: Variable) -> Any:
        """Return a value that depends on random variables by no more than their shapes."""
        (known,) = graph_replace([variable], dict(self._data), strict=False)
        if isinstance(known, Constant):
            return known.data
        behind = set(ancestors([known], blockers=self._stop))
        found = [rv for rv in self._stop if rv in behind and rv not in self._processes]
        try:
            shapes = evaluate(get_symbolic_rv_shapes(found)) if found else []
            given = {rv: np.zeros(shape, rv.type.dtype) for rv, shape in zip(found, shapes, strict=True)}
            return evaluate([known], given)[0]
        except StructureError:
            raise CannotSplitError("depends on shapes of random variables") from None

    def _is_random(self, variable: Variable) -> bool:
        pending = [variable]
        while pending:
            each = pending[-1]
            if each in self._random:
                pending.pop()
            elif each.owner is None or isinstance(each.owner.op, Shape | Shape_i):
                self._random[pending.pop()] = False
            elif unknown := [v for v in each.owner.inputs if v not in self._random]:
                pending += unknown
            else:
                self._random[pending.pop()] = any(self._random[v] for v in each.owner.inputs)
        return self._random[variable]

    def _unchanged(self, variable: TensorVariable) -> TensorVariable:
        return variable

    def _make(self, variable: TensorVariable, roles: tuple[Role | None, ...]) -> TensorVariable:
        if not any(roles):
            return variable
        if any(role and one for role, one in zip(roles, variable.type.broadcastable, strict=True)):
            raise CannotSplitError("has one point only")
        axis = next(i for i, role in enumerate(roles) if role)
        if not self._is_random(variable):
            return cast(TensorVariable, pt.constant(self._leaf(self._value(variable), axis)))
        if variable in self._stop:
            return self._of_random(variable, axis)
        node = variable.owner
        if isinstance(node.op, AllocDiag | Eye):
            raise CannotSplitError("tells points apart")
        if isinstance(node.op, OpFromGraph):
            return self(inline_ofg_node(node)[node.outputs.index(variable)], roles)
        if COLUMNS not in roles:
            match node.op:
                case Join() if node.op.axis % variable.type.ndim == axis:
                    return self._joined(node.inputs, roles, axis)
                case SparseDot() | StructuredDot() if axis == 0 and not self._is_random(node.inputs[0]):
                    return self._of_sparse(node.op, *node.inputs)
                case Subtensor() | AdvancedSubtensor() if axis == 0:
                    made = self._selected(node.op, node.inputs, roles)
                    if made is not None:
                        return made
        return super()._make(variable, roles)

    def _leaf(self, value: Any, axis: int) -> Any:
        """Take note of numbers with an axis of rows, and return them at rows that are taken."""
        value = np.asarray(value)
        if value.shape[axis] != self._n:
            raise CannotSplitError(f"has {value.shape[axis]} numbers for {self._n} rows")
        if self._at is not None:
            return np.take(value, self._at, axis)
        self._note(equal_rows(np.moveaxis(value, axis, 0)))
        return value

    def _note(self, ids: Ids) -> None:
        self._found = [combined(*self._found, ids)]

    def _of_random(self, variable: TensorVariable, axis: int) -> TensorVariable:
        """Return values of a random variable, all different; those of a process are equal at equal inputs."""
        if self._at is not None:
            return cast(TensorVariable, variable[(*[slice(None)] * axis, self._at)])
        latent = self._processes.get(variable)
        self._note(np.arange(self._n) if latent is None or variable.type.ndim > 1 else self._inputs_of(latent))
        return variable

    def _inputs_of(self, latent: LatentGP) -> Ids:
        """Return numbers (n,) that are the same for points of a process whose values are the same."""
        other = self._other(self._n, None)
        try:
            other(without_jitter(latent), (ROWS, COLUMNS))
            if latent.mean.type.ndim and not latent.mean.type.broadcastable[-1]:
                other(latent.mean, (*[None] * (latent.mean.type.ndim - 1), ROWS))
        except CannotSplitError:
            return np.arange(self._n)
        return other.ids

    @property
    def ids(self) -> Ids:
        """Numbers (n,) that are the same for rows that no variable so far tells apart."""
        return combined(*self._found) if self._found else np.zeros(self._n, np.int64)

    def _joined(self, parts: Sequence[Variable], roles: tuple[Role | None, ...], axis: int) -> TensorVariable:
        """Return parts with rows of their own one after another."""
        lengths = [self._length(cast(TensorVariable, part), axis) for part in parts]
        ends = np.cumsum([0, *lengths])
        if ends[-1] != self._n:
            raise CannotSplitError("has parts of other lengths")
        made, ids = [], []
        for part, begin, end in zip(parts, ends, ends[1:], strict=False):
            at = None if self._at is None else self._at[(self._at >= begin) & (self._at < end)] - begin
            other = self._other(int(end - begin), at)
            made.append(other(part, roles))
            ids.append(other.ids + begin)
        if self._at is None:
            self._note(np.concatenate(ids))
        elif (np.diff(self._at) < 0).any():
            raise CannotSplitError("has rows in another order")
        return cast(TensorVariable, pt.join(axis, *made))

    def _of_sparse(self, op: Any, matrix: Variable, other: Variable) -> TensorVariable:
        """Return a product of a sparse matrix of data, whose rows are rows."""
        value = sp.csr_matrix(self._value_of_sparse(matrix))
        if value.shape[0] != self._n:
            raise CannotSplitError(f"has {value.shape[0]} numbers for {self._n} rows")
        if self._at is not None:
            value = value[self._at]
        else:
            value.sum_duplicates()
            value.eliminate_zeros()
            value.sort_indices()
            known: dict[bytes, int] = {}
            ends = value.indptr
            self._note(
                np.array(
                    [
                        known.setdefault(value.indices[a:b].tobytes() + value.data[a:b].tobytes(), len(known))
                        for a, b in pairwise(ends)
                    ]
                )
            )
        return cast(TensorVariable, op(ps.as_sparse_variable(value.asformat(matrix.type.format)), other))

    def _value_of_sparse(self, matrix: Variable) -> Any:
        if isinstance(matrix, Constant):
            return matrix.data
        (known,) = graph_replace([matrix], dict(self._data), strict=False)
        if isinstance(known, Constant):
            return known.data
        raise CannotSplitError("takes a sparse matrix that is computed")

    def _selected(self, op: Any, inputs: Sequence[Variable], roles: tuple[Role | None, ...]) -> TensorVariable | None:
        """Return rows that an index takes of a variable, equal ones of which are equal; None for other indices."""
        source, *tensors = inputs
        index, *others = indices_from_subtensor(tensors, op.idx_list)
        moves = [each for each in others if each != slice(None)]
        if moves or (isinstance(index, Variable) and index.type.ndim != 1):
            return None
        if isinstance(index, Variable) and self._is_random(index):
            return None
        length = self._length(cast(TensorVariable, source), 0)
        places = np.asarray(self._value(pt.constant(np.arange(length))[index]))
        if places.shape != (self._n,):
            return None
        if self._at is not None:
            return self._other(length, places[self._at])(source, roles)
        inner = self._other(length, None)
        made = inner(source, roles)
        self._note(inner.ids[places])
        return cast(TensorVariable, made[places])

    def _length(self, variable: TensorVariable, axis: int) -> int:
        """Return the length of an axis, whatever the values of random variables are."""
        static = variable.type.shape[axis]
        if static is not None:
            return int(static)
        return int(self._value(variable.shape[axis]))
