"""Groups of rows that have the same latent value for all hyperparameters. Each group is one point of a fit.

A walk visits the graph of the latent values, from the result to parts without random variables. Each operation on the
way must map row i of its inputs to row i of its result. Two rows with equal numbers in all these parts are then equal
for all hyperparameters and effects. For an index, equal rows of the indexed variable are found in the same way.

EP approximates one factor for each point. The factor of a group is the product of the factors of its rows. So means and
evidence are more accurate than with one factor for each row. A group takes as much time as a row.

Only methods on all rows together use groups. Methods with inducing inputs, active rows or batches, samplers, several
latent functions, and marginal models with `pm.Data` have one point for each row.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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

from pymc_gpep.array_types import Observed
from pymc_gpep.graphs.errors import StructureError
from pymc_gpep.graphs.interpreted import SEED, ModelFunctions, evaluate, initial_point
from pymc_gpep.graphs.rows_of_graphs import COLUMNS, ROWS, CannotSplitError, Leaves, Role, Walk
from pymc_gpep.latent.gp_latent import LatentGP, jitter_of, without_jitter
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.likelihoods.likelihood import Likelihood
from pymc_gpep.likelihoods.local_computations import ScalarDensity
from pymc_gpep.likelihoods.pooled_rows import Grouped, PooledRows, grouped_rows, products
from pymc_gpep.processes.processes import GPModel, GroupedProcesses
from pymc_gpep.sums.effect_sum import EffectSum
from pymc_gpep.sums.row_parts import ProcessTerm

type Ids = NDArray[np.int64]
"""Group number of each row, (n,). Equal rows have the same number."""


def combined(*each: Ids) -> Ids:
    """Return group numbers (n,) for several arrays of group numbers: rows of a group are equal in all arrays."""
    found = np.zeros(len(each[0]), np.int64)
    for own in each:
        _, found = np.unique(found * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
    return found


def equal_rows(values: NDArray[Any]) -> Ids:
    """Return group numbers (n,) of the rows of an array (n, ...). Equal rows have equal numbers."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    if flat.shape[1] == 1:
        return np.unique(flat[:, 0], return_inverse=True, equal_nan=False)[1]
    wide = flat.astype(np.float64) + 0.0  # Replace −0 by 0.
    bits = np.ascontiguousarray(wide).view(np.uint64)
    keys = np.random.default_rng(0).integers(2**63, size=bits.shape[1], dtype=np.uint64) | np.uint64(1)
    mixed = (bits ^ (bits >> np.uint64(31))) * keys
    _, first, ids = np.unique(mixed.sum(axis=1, dtype=np.uint64), return_index=True, return_inverse=True)
    if np.array_equal(wide[first][ids], wide):
        return ids
    return np.unique(wide, axis=0, return_inverse=True)[1].ravel()


_NO_NOISE = 1e-5  # A larger jitter counts as noise of each row.


class RowsOfGraph(Walk):
    """A walk over a graph that finds equal rows, or returns the graph at selected rows.

    Parameters
    ----------
    stop : sequence of Variable
        Random variables, and latent values of Gaussian processes.
    processes : mapping of Variable to LatentGP
        Latent values → their Gaussian process.
    data : mapping
        Data of the model → constants that replace them.
    n : int
        Number of rows.
    at : array (m,), optional
        Selected rows. By default the walk finds equal rows among all rows.
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
        """Return group numbers (n,) of the rows of a variable. Equal rows have equal numbers.

        Raises
        ------
        CannotSplitError
            If an operation may combine rows.
        """
        self(variable, [ROWS if i == axis else None for i in range(variable.type.ndim)])
        return self.ids

    def _other(self, n: int, at: Ids | None) -> "RowsOfGraph":
        return RowsOfGraph(list(self._stop), self._processes, self._data, n, at)

    def _value(self, variable: Variable) -> Any:
        """Return the value of a variable. It may depend on shapes of random variables, but not on their values."""
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
        random, op = self._is_random(variable), getattr(variable.owner, "op", None)
        if isinstance(op, AllocDiag | Eye) and (random or all(roles)):
            # The diagonal is noise of each row, as in `pm.gp.cov.WhiteNoise`.
            raise CannotSplitError("differs at each point")
        if not random:
            return self._of_data(variable, roles)
        if variable in self._stop:
            return self._of_random(variable, axis)
        node = variable.owner
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

    def _of_data(self, variable: TensorVariable, roles: tuple[Role | None, ...]) -> TensorVariable:
        """Return data at the selected rows. A matrix over pairs of rows is rebuilt, to avoid rounding errors."""
        axes = [i for i, role in enumerate(roles) if role]
        if len(axes) > 1 and variable.owner is not None:
            try:
                return super()._make(variable, roles)
            except CannotSplitError:
                pass
        value = self._value(variable)
        for axis in axes:
            value = self._leaf(value, axis)
        return cast(TensorVariable, pt.constant(value))

    def _leaf(self, value: Any, axis: int) -> Any:
        """Return an array at the selected rows. Without selected rows, record the equal rows of the array."""
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
        """Return a random variable at the selected rows, or record its equal rows.

        Rows of a process are equal at equal inputs. All other rows are distinct.
        """
        if self._at is not None:
            return cast(TensorVariable, variable[(*[slice(None)] * axis, self._at)])
        latent = self._processes.get(variable)
        self._note(np.arange(self._n) if latent is None or variable.type.ndim > 1 else self._inputs_of(latent))
        return variable

    def _inputs_of(self, latent: LatentGP) -> Ids:
        """Return group numbers (n,) of the points of a process. Points with equal values have equal numbers."""
        other = self._other(self._n, None)
        if jitter_of(latent) > _NO_NOISE:
            return np.arange(self._n)
        try:
            other(without_jitter(latent), (ROWS, COLUMNS))
            if latent.mean.type.ndim and not latent.mean.type.broadcastable[-1]:
                other(latent.mean, (*[None] * (latent.mean.type.ndim - 1), ROWS))
        except CannotSplitError:
            return np.arange(self._n)
        return other.ids

    @property
    def ids(self) -> Ids:
        """Group numbers (n,) of the rows. Rows of a group are equal in all variables recorded so far."""
        return combined(*self._found) if self._found else np.zeros(self._n, np.int64)

    def _joined(self, parts: Sequence[Variable], roles: tuple[Role | None, ...], axis: int) -> TensorVariable:
        """Return a join of parts along the axis of rows. Each part is a block of rows."""
        lengths = [self._length(cast(TensorVariable, part), axis) for part in parts]
        ends = np.cumsum([0, *lengths])
        if ends[-1] != self._n:
            raise CannotSplitError(f"joins parts of {ends[-1]} rows in total, not {self._n}")
        made, ids = [], []
        for part, begin, end in zip(parts, ends, ends[1:], strict=False):
            at = None if self._at is None else self._at[(self._at >= begin) & (self._at < end)] - begin
            other = self._other(int(end - begin), at)
            made.append(other(part, roles))
            ids.append(other.ids + begin)
        if self._at is None:
            self._note(np.concatenate(ids))
        elif (np.diff(self._at) < 0).any():
            raise CannotSplitError("selects joined rows in another order")
        return cast(TensorVariable, pt.join(axis, *made))

    def _of_sparse(self, op: Any, matrix: Variable, other: Variable) -> TensorVariable:
        """Return the product of a sparse matrix and a variable. The matrix is data with a row for each fitted row."""
        value = sp.csr_matrix(self._value_of_sparse(matrix))
        if value.shape[0] != self._n:
            raise CannotSplitError(f"has a sparse matrix of {value.shape[0]} rows for {self._n} rows")
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
        raise CannotSplitError("multiplies by a sparse matrix that is not data")

    def _selected(self, op: Any, inputs: Sequence[Variable], roles: tuple[Role | None, ...]) -> TensorVariable | None:
        """Return the rows that an index over rows selects from a variable; None for other indices."""
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
        return cast(TensorVariable, made[pt.constant(places)])

    def _length(self, variable: TensorVariable, axis: int) -> int:
        """Return the length of an axis. It must not depend on values of random variables."""
        static = variable.type.shape[axis]
        if static is not None:
            return int(static)
        return int(self._value(variable.shape[axis]))


_POINTS = 5  # Coefficients of rows are compared at this number of random points.
_FEWEST_FINITE = 3  # Coefficients must be finite at this number of points or more.
_DISTANCE = 1.0  # Standard deviation of these points about the initial point, in unconstrained coordinates.
_WASTE = 20  # Groups are not used if their likelihood has this many times the parameters of the rows.
_SMALL = 1_000_000  # Groups with fewer parameters are used with any ratio.


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Groups of rows with equal latent values, and the likelihood with one point for each group.

    Attributes
    ----------
    of : array (n,)
        Group of each row. Groups are numbered in the order of their first rows.
    first : array (g,)
        First row of each group.
    alike : array (n,)
        Number of the parameter set of each row. Rows of a set have equal likelihood parameters.
    points : Grouped
        Likelihood, observations and parameters of the groups.
    """

    of: NDArray[np.int64]
    first: NDArray[np.int64]
    alike: NDArray[np.int64]
    points: Grouped

    def likelihood_of(
        self,
        likelihood: Likelihood,
        y: Observed,
        rows: NDArray[np.int64],
        of: NDArray[np.int64],
        briefly: bool = False,
    ) -> tuple[Likelihood, NDArray[np.float64]]:
        """Return the likelihood for other groups, and the observations of these groups.

        Parameters
        ----------
        likelihood : Likelihood
            Likelihood of all rows, with its parameters.
        y : array (n,)
            Observations of all rows.
        rows : array (m,)
            Rows of the other groups. A row may be in several groups.
        of : array (m,)
            Group of each of these rows. Each group has at least one row.
        briefly : bool
            Whether the likelihood is evaluated only a few times. Sufficient statistics then do not save time.
        """
        own = likelihood.at(rows)
        known = own.parameters if own.has_parameters else np.zeros((0, len(rows)))
        plain = PooledRows(of, y[rows], self.alike[rows], lambda at: cast(TensorVariable, known[:, at]))
        if briefly and (made := products(own, plain)) is not None:
            return made, np.zeros(plain.n_groups)
        found = grouped_rows(own, plain._replace(parameters=lambda at: pt.constant(known[:, at])))
        (parameters,) = evaluate([found.parameters])
        return found.likelihood.given(parameters), found.labels


def row_groups(
    prior: LatentPrior,
    likelihood: Likelihood,
    labels: TensorVariable,
    parameters: TensorVariable,
    data: Mapping[Variable, Variable],
) -> tuple[LatentPrior, RowGroups] | None:
    """Return the prior of the groups of rows, and the groups; None if no two rows have the same latent value."""
    if prior.n_functions > 1 or not likelihood.offers(ScalarDensity):
        return None
    graph: _Rows
    if isinstance(prior, GPModel):
        graph = _RowsOfProcess(prior, data)
    elif isinstance(prior, EffectSum) and not prior.by_class:
        graph = _RowsOfSum(prior, data)
    else:
        return None
    of, first = _in_order(combined(graph.alike(), _parts_of(likelihood, prior.n_points)))
    if len(first) == prior.n_points:
        return None
    function = ModelFunctions(prior.model, prior.hyperparameters, data)([parameters, labels])
    given, y = function(initial_point(prior.model))
    try:
        alike = graph.walk().alike(parameters, 1) if len(given) else np.zeros(prior.n_points, np.int64)
    except CannotSplitError:
        alike = np.arange(prior.n_points)
    own = likelihood.given(np.asarray(given))
    rows = PooledRows(of, np.asarray(y), alike, partial(graph.at, parameters, (None, ROWS)))
    points = grouped_rows(own, rows)
    size = int(points.parameters.type.shape[0] or 0) * len(first)
    if size > max(_SMALL, _WASTE * prior.n_points * (2 + len(given))):
        return None
    return graph.grouped(first), RowGroups(of, first, alike, points)


def _parts_of(likelihood: Likelihood, n: int) -> NDArray[np.int64]:
    """Return the index of the observed variable of each row, (n,)."""
    parts = getattr(likelihood, "parts", ())
    return likelihood.parameters[0].astype(np.int64) if parts else np.zeros(n, np.int64)


def _in_order(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Renumber groups in the order of their first rows. Return the new numbers (n,), and the first rows."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place[inverse], first[order]


class _Rows(ABC):
    """Rows of the latent function of a prior.

    Parameters
    ----------
    prior : LatentPrior
    data : mapping
        Data of the model → constants that replace them.
    """

    def __init__(self, prior: LatentPrior, data: Mapping[Variable, Variable]) -> None:
        self._all, self._data = prior, data

    def walk(self, at: NDArray[np.int64] | None = None) -> RowsOfGraph:
        """Return a walk that finds equal rows, or a walk over the selected rows `at` (m,)."""
        prior = self._all
        processes = {latent.f: latent for latent in prior.processes}
        stop = [*prior.model.basic_RVs, *processes]
        return RowsOfGraph(stop, processes, self._data, prior.n_points, at)

    @abstractmethod
    def alike(self) -> NDArray[np.int64]:
        """Return group numbers (n,) of the rows. Rows of a group have the same latent value."""

    @abstractmethod
    def grouped(self, first: NDArray[np.int64]) -> LatentPrior:
        """Return the prior at the first row of each group."""

    def at(self, variable: TensorVariable, roles: tuple[Role | None, ...], rows: NDArray[np.int64]) -> TensorVariable:
        """Return a variable at the rows `rows` (m,). `roles` mark its axes of rows."""
        axes = [i for i, role in enumerate(roles) if role]
        if len(axes) == 1 and variable.type.broadcastable[axes[0]]:
            whole = pt.broadcast_to(variable, (*variable.shape[: axes[0]], self._all.n_points))
            return cast(TensorVariable, whole[(*[slice(None)] * axes[0], rows)])
        try:
            return self.walk(rows)(variable, roles)
        except CannotSplitError:
            for axis in axes:
                variable = cast(TensorVariable, variable[(*[slice(None)] * axis, rows)])
            return variable


class _RowsOfProcess(_Rows):
    """Rows of a latent function that is a Gaussian process."""

    def __init__(self, prior: GPModel, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, data)
        self._prior = prior
        (self._latent,) = prior.latents

    def alike(self) -> NDArray[np.int64]:
        return self.walk().alike(self._latent.f, self._latent.f.type.ndim - 1)

    def grouped(self, first: NDArray[np.int64]) -> GroupedProcesses:
        latent = self._latent
        try:
            cov = self.at(without_jitter(latent), (ROWS, COLUMNS), first) + jitter_of(latent) * pt.eye(len(first))
        except StructureError:
            cov = latent.cov[first][:, first]
        mean = self.at(latent.mean, (*[None] * (latent.mean.type.ndim - 1), ROWS), first)
        return GroupedProcesses(
            self._prior.model, (replace(latent, mean=mean, cov=cov),), len(first),
            kept=self._prior.kept, whole=self._prior, first=first,
        )  # fmt: skip


class _RowsOfSum(_Rows):
    """Rows of a latent function that is a sum of effects."""

    def __init__(self, prior: EffectSum, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, data)
        self._prior = prior
        self._proved = True

    def alike(self) -> NDArray[np.int64]:
        argument = self._prior.argument
        if not argument.type.ndim or argument.type.broadcastable[0]:
            return np.zeros(self._prior.n_points, np.int64)
        try:
            return self.walk().alike(argument, 0)
        except CannotSplitError:
            self._proved = False
            return self._by_values()

    def _by_values(self) -> NDArray[np.int64]:
        """Return group numbers (n,) from coefficients at random points, since the graph may combine rows."""
        prior = self._prior
        n, rng = prior.n_points, np.random.default_rng(SEED)
        z = pt.vector("normals", shape=(prior.n_plain,), dtype="float64")
        values = [pt.tensor(f"values_{i}", dtype="float64", shape=shape) for i, shape in enumerate(prior.sizes)]
        functions = ModelFunctions(prior.model, prior.hyperparameters, self._data)
        function = functions(prior.by_parts([prior.argument], z, values, seen=True), [z, *values])
        found = []
        for _ in range(_POINTS):
            point = functions.nearby(rng, _DISTANCE)
            noise = [rng.standard_normal(prior.n_plain), *(rng.standard_normal(shape) for shape in prior.sizes)]
            (argument,) = function(point, *noise)
            found.append(np.broadcast_to(argument, (n,)))
        finite = [each for each in found if np.isfinite(each).all()]
        return equal_rows(np.stack(finite, axis=1)) if len(finite) >= _FEWEST_FINITE else np.arange(n)

    def grouped(self, first: NDArray[np.int64]) -> EffectSum:
        prior, argument = self._prior, self._prior.argument
        if argument.type.ndim and not argument.type.broadcastable[0]:
            argument = self.at(argument, (ROWS,), first) if self._proved else argument[first]
        made = replace(
            prior,
            argument=argument,
            n_points=len(first),
            everywhere=prior.argument if prior.everywhere is None else prior.everywhere,
            n_rows=prior.n_rows or prior.n_points,
            alone=(),
        )
        terms = tuple(_moved(made, i, term) for i, term in enumerate(prior.terms))
        return replace(made, terms=terms)


def _moved(prior: EffectSum, i: int, term: ProcessTerm) -> ProcessTerm:
    """Return the term of process i for the argument of another prior."""
    return replace(term, linear=partial(prior.of_process, i), whole=False)
