"""Rows of a sum as products of data and parts, with its Gaussian processes separate, and the contract of such a prior.

A part is a variable that rows select from, such as the values of a Gaussian process, or that a matrix of data
multiplies. The coefficients A of rows do not depend on hyperparameters, so that they are computed once. The matrix B of
the parts is small.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Add, Mul, Neg, Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import Affinity
from pymc_gpep.graphs.interpreted import EVALUATION_TOLERANCE, SEED, ModelFunctions
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import Elsewhere
from pymc_gpep.solvers.coefficients import Coefficients, Composed, rows_from_entries
from pymc_gpep.sums.affine_map import COEFFICIENT_TOLERANCE, InNormals, cells_by_probes, probes, slopes_of

type Linear = Callable[[TensorVariable], TensorVariable]
"""From values of a process less their mean, in its shape, to what they add to the latent functions, (c, n)."""


@dataclass(frozen=True, eq=False)
class ProcessTerm:
    """The part of the covariance of latent functions that is a Gaussian process.

    Attributes
    ----------
    latent : LatentGP
    shape : tuple of int
        Shape of its values, (points,) or (outputs, points).
    linear : callable
    feeds : array (outputs,)
        The function that each output has a part in, −1 for no function.
    selected : bool
        Whether a row takes one value, times a coefficient.
    whole : bool
        Whether each row takes the value at its own place, whatever the data of the model are.
    """

    latent: LatentGP
    shape: tuple[int, ...]
    linear: Linear
    feeds: NDArray[np.int64]
    selected: bool
    whole: bool

    @classmethod
    def read(
        cls, latent: LatentGP, shape: tuple[int, ...], linear: Linear, given: list[Array], taken: NDArray[np.bool_]
    ) -> "ProcessTerm":
        """Find out what rows take of a process.

        Parameters
        ----------
        given : list of array
            Changes of the latent functions by `probes`, (c, n) each.
        taken : array (c, outputs)
            Whether each output has a part in each function.
        """
        coefficient = given[0]
        cells, alone = cells_by_probes(given, shape)
        selected = bool(alone.all())
        feeds = np.where(taken.any(axis=0), taken.argmax(axis=0), -1)
        points = shape[-1]
        own = [np.array_equal(cells[k] % points, np.arange(points)) for k in feeds if k >= 0]
        plain = all(np.allclose(coefficient[k], 1.0, rtol=0.0, atol=COEFFICIENT_TOLERANCE) for k in feeds if k >= 0)
        fixed = not _follows_data(linear, shape)
        return cls(latent, shape, linear, feeds, selected, selected and all(own) and plain and fixed)

    def covariance(self, k: int) -> list[TensorVariable]:
        """Return covariances (n, n) that it adds to that of a function, each of one of its outputs."""
        outputs = np.flatnonzero(self.feeds == k)
        if not outputs.size:
            return []
        cov = self.latent.cov
        if self.whole:
            return [cov]
        if self.selected:
            coefficient = self.linear(pt.ones(self.shape))[k]
            codes = self.linear(pt.constant(probes(self.shape)[1]))[k]
            ratio = pt.switch(
                pt.eq(coefficient, 0.0), 1.0, codes / pt.switch(pt.eq(coefficient, 0.0), 1.0, coefficient)
            )
            cells = pt.mod(pt.round(ratio).astype("int64") - 1, self.shape[-1])
            return [coefficient[:, None] * coefficient * cov[cells][:, cells]]
        rows = [self._map(k, int(output)) for output in outputs]
        return [each @ cov @ each.T for each in rows]

    def _map(self, k: int, output: int) -> TensorVariable:
        """Matrix (n, points) that takes an output to a function."""
        points = self.shape[-1]
        units = np.zeros((points, *self.shape))
        units[(range(points), output, range(points)) if len(self.shape) > 1 else (range(points), range(points))] = 1.0
        values = pt.tensor("values", dtype="float64", shape=self.shape)
        return vectorize_graph(self.linear(values)[k], {values: pt.constant(units)}).T


def _follows_data(linear: Linear, shape: tuple[int, ...]) -> bool:
    """Tell whether data of the model say which values rows take, or with which coefficients."""
    values = pt.tensor("values", dtype="float64", shape=shape)
    result = linear(values)
    behind = set(ancestors([result]))
    on_path = {values}
    for node in toposort([result]):
        if on_path.isdisjoint(node.inputs):
            continue
        on_path.update(node.outputs)
        added = isinstance(node.op, DimShuffle) or (
            isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Add | Sub | Neg)
        )
        others = [v for v in node.inputs if v not in on_path]
        if not added and any(isinstance(v, SharedVariable) for v in ancestors(others)):
            return True
    return values not in behind


class RowParts(NamedTuple):
    """The coefficients of rows, and of parts."""

    rows: Coefficients
    """A, (cn, r)."""
    root: TensorVariable
    """B (r, q), in terms of the random variables of the model."""


@dataclass(frozen=True)
class _Part:
    """A variable times a number, and what stands for it in the argument."""

    value: TensorVariable
    place: TensorVariable


class _Splitter:
    """Takes an argument apart.

    Parameters
    ----------
    sources : frozenset of Variable
        Variables that are integrated.
    hyperparameters : set of Variable
    """

    def __init__(self, sources: frozenset[Variable], hyperparameters: frozenset[Variable]) -> None:
        self._affinity, self._hyperparameters = Affinity(sources), hyperparameters
        self._made: dict[tuple[Variable, Variable | None], TensorVariable] = {}
        self.parts: list[_Part] = []

    def __call__(self, variable: TensorVariable, scale: TensorVariable | None = None) -> TensorVariable:
        """Return a variable, times a scalar, in terms of parts; what does not depend on these is not scaled."""
        if not self._affinity.behind(variable):
            return variable
        key = variable, scale
        if key not in self._made:
            self._made[key] = self._split(variable, scale)
        return self._made[key]

    def _split(self, variable: TensorVariable, scale: TensorVariable | None) -> TensorVariable:
        node = variable.owner
        if variable in self._affinity.sources or node is None:
            return self._part(variable, scale)
        known = [v for v in node.inputs if not self._affinity.behind(v)]
        moving = [v for v in known if not self._hyperparameters.isdisjoint(ancestors([v]))]
        op = node.op.scalar_op if isinstance(node.op, Elemwise) else None
        if moving and isinstance(op, Mul) and all(all(v.type.broadcastable) for v in moving):
            numbers = [v.reshape(()) for v in moving]
            scale = pt.mul(*numbers, *([scale] if scale is not None else []))
            left = [self(v, scale) if v not in known else v for v in node.inputs if v not in moving]
            return left[0] if len(left) == 1 else pt.mul(*left)
        if moving and not isinstance(op, Add | Sub | Neg):
            return self._part(variable, scale)
        inputs = [v if v in known else self(v, scale) for v in node.inputs]
        made: TensorVariable = node.clone_with_new_inputs(inputs).outputs[node.outputs.index(variable)]
        return made

    def _part(self, variable: TensorVariable, scale: TensorVariable | None) -> TensorVariable:
        place = variable.type()
        self.parts.append(_Part(variable if scale is None else variable * scale.astype(variable.dtype), place))
        return place


def row_parts(
    prior: InNormals,
    argument: TensorVariable,
    shaped: Callable[[TensorVariable], TensorVariable],
    data: Mapping[Variable, Variable],
    most: int,
) -> RowParts | None:
    """Take rows of a sum apart.

    Parameters
    ----------
    prior : InNormals
    argument : TensorVariable
        The argument of the likelihood.
    shaped : function
        Function that returns values of the argument as (c, n).
    data : mapping
        Data of the model → constants that take their place.
    most : int
        Numbers that all parts together may have.

    Returns
    -------
    RowParts or None
        None if parts have more numbers, as where a hyperparameter of each row multiplies an effect.
    """
    apart = _Apart.of(prior, argument)
    if apart is None:
        return None
    functions, rng = ModelFunctions(prior.model, prior.hyperparameters, data), np.random.default_rng(SEED)
    point = functions.nearby(rng)
    linear, whole = shaped(apart.linear), shaped(apart.argument)
    by_normals = functions([apart.root, whole, *apart.shapes], [apart.z])
    small, centre, *shapes = by_normals(point, np.zeros(prior.n_normals))
    if sum(int(np.prod(shape)) for shape in shapes) > most:
        return None
    by_parts = functions([linear], apart.places)
    rows = _rows(lambda *values: by_parts(point, *values)[0], shapes)
    noise = rng.standard_normal(prior.n_normals)
    there = by_normals(point, noise)[1]
    found = centre + rows.products(small @ noise).reshape(centre.shape)
    size = 1.0 + max(np.abs(there).max(), np.abs(centre).max())
    return RowParts(rows, apart.root) if np.allclose(found, there, rtol=0.0, atol=EVALUATION_TOLERANCE * size) else None


@dataclass(frozen=True, eq=False)
class _Apart:
    """An argument taken apart, as graphs."""

    prior: InNormals
    linear: TensorVariable
    """The argument in terms of `places`, but for what does not depend on these."""
    places: list[TensorVariable]
    """Stand for the parts."""
    z: TensorVariable
    """Standard normals."""
    root: TensorVariable
    """B, (r, q)."""
    argument: TensorVariable
    """The argument by standard normals."""
    shapes: list[TensorVariable]
    """Shapes of parts."""

    @classmethod
    def of(cls, prior: InNormals, argument: TensorVariable) -> "_Apart | None":
        """Take an argument apart; None where it has no parts."""
        split = _Splitter(prior.sources, frozenset(prior.hyperparameters))
        linear = split(argument)
        if not split.parts:
            return None
        z = pt.vector("normals", shape=(prior.n_normals,), dtype="float64")
        flat = pt.concatenate([part.value.astype("float64").ravel() for part in split.parts])
        flat, whole, *values = prior.by_normals([flat, argument, *(part.value for part in split.parts)], z, seen=True)
        root = slopes_of(flat, z, prior.n_normals).T
        return cls(prior, linear, [part.place for part in split.parts], z, root, whole, [v.shape for v in values])


class PartsElsewhere:
    """Coefficients of rows apart from those of parts, with data of the model other than those of a fit.

    Parameters
    ----------
    apart : _Apart
    data : mapping
        Data of the model → constants, as the fit had them.
    """

    def __init__(self, apart: _Apart, data: Mapping[Variable, Variable]) -> None:
        self._apart = apart
        self._functions = ModelFunctions(apart.prior.model, apart.prior.hyperparameters, data)
        self._small = self._functions([apart.root, *apart.shapes], [apart.z])
        self._made: dict[tuple[Variable, ...], Callable[..., Sequence[Array]]] = {}

    @classmethod
    def of(
        cls, prior: InNormals, argument: TensorVariable, data: Mapping[Variable, Variable]
    ) -> "PartsElsewhere | None":
        """Take an argument apart; None where it has no parts."""
        apart = _Apart.of(prior, argument)
        return None if apart is None else cls(apart, data)

    def __call__(
        self, point: PointType, given: Mapping[TensorVariable, NDArray[Any]], shaped: Callable[[Array], Array]
    ) -> tuple[Array, Coefficients]:
        """Return m (c, m) and A B (cm, q) at new data, given values of the value variables.

        `shaped` makes (c, m) of what the argument is.
        """
        apart = self._apart
        names = tuple(given)
        if names not in self._made:
            there = {v: pt.tensor(v.name, dtype=v.dtype, shape=(None,) * v.ndim) for v in given}
            inputs = [apart.z, *there.values(), *apart.places]
            self._made[names] = self._functions([apart.linear, apart.argument], inputs, there)
        function, nothing = self._made[names], np.zeros(apart.prior.n_normals)
        root, *shapes = self._small(point, nothing)
        still = [np.zeros(shape) for shape in shapes]
        _, mean = function(point, nothing, *given.values(), *still)
        rows = _rows(lambda *values: shaped(function(point, nothing, *given.values(), *values)[0]), shapes)
        return shaped(mean), Composed(rows, root)


def _rows(linear: Callable[..., Array], shapes: Sequence[Any]) -> Coefficients:
    """Return the coefficients (cn, r) of functions (c, n) of parts of some shapes."""
    shapes = [tuple(map(int, shape)) for shape in shapes]
    nothing = [np.zeros(shape) for shape in shapes]
    still = np.asarray(linear(*nothing))
    cells: list[list[NDArray[np.int64]]] = [[] for _ in still]
    values: list[list[Array]] = [[] for _ in still]
    begin = 0

    def add(places: NDArray[np.int64], changes: Array) -> None:
        """Take entries (c, n) of those functions that a part changes."""
        for k, own in enumerate(changes):
            if own.any():
                cells[k].append(np.broadcast_to(places, changes.shape)[k])
                values[k].append(own)

    for i, shape in enumerate(shapes):

        def change(given: Array, i: int = i) -> Array:
            return np.asarray(linear(*nothing[:i], given, *nothing[i + 1 :])) - still

        size = int(np.prod(shape))
        changes = [change(probe) for probe in probes(shape)]
        own, alone = cells_by_probes(changes, shape)
        if alone.all():
            add(begin + own, changes[0])
        else:
            for place, unit in enumerate(np.eye(size)):
                add(np.array(begin + place), change(unit.reshape(shape)))
        begin += size
    return rows_from_entries(
        [_entries(own, its, still.shape[1]) for own, its in zip(cells, values, strict=True)], begin
    )


def _entries(cells: Sequence[NDArray[np.int64]], values: Sequence[Array], n: int) -> tuple[NDArray[np.int64], Array]:
    """Return entries (n, k) of a function; a single 0 where it has no entry."""
    if not cells:
        return np.zeros((n, 1), np.int64), np.zeros((n, 1))
    return np.stack(cells, axis=1), np.stack(values, axis=1)


class MovedProcess(NamedTuple):
    """A Gaussian process at other inputs than its own."""

    inputs: TensorVariable
    """Its inputs (n, d) in the model."""
    moments: Elsewhere
