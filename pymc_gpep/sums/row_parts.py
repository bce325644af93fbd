"""Coefficients of rows as products of data and parts, and Gaussian processes as terms of a sum.

A sum is t + A B z with standard normals z. A part is a variable from which rows select entries, for example the values
of a Gaussian process. It may also be a variable that is multiplied by a matrix of data. The coefficients A of rows do
not depend on hyperparameters, so they are computed once. The matrix B of the parts is small.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import Add, Mul, Neg, Sub
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.affine import Affinity
from pymc_gpep.graphs.interpreted import EVALUATION_TOLERANCE, SEED, AtPoint
from pymc_gpep.latent.gp_latent import LatentGP
from pymc_gpep.latent.latent_prior import PriorAtNewRows
from pymc_gpep.solvers.coefficients import Coefficients, Composed
from pymc_gpep.sums.affine_map import (
    COEFFICIENT_TOLERANCE,
    AffineMap,
    InNormals,
    cells_by_probes,
    coefficients_of,
    kept_random,
    probes,
)

type Linear = Callable[[TensorVariable], TensorVariable]
"""Function from centred values of a process, in its shape, to their contribution to the latent functions, (c, n)."""


@dataclass(frozen=True, eq=False)
class ProcessTerm:
    """A Gaussian process among the terms of latent functions.

    Attributes
    ----------
    latent : LatentGP
    shape : tuple of int
        Shape of the values of the process, (points,) or (outputs, points).
    linear : callable
        Contribution of the process to the latent functions.
    feeds : array (outputs,)
        Index of the latent function to which each output contributes; −1 without a function.
    selected : bool
        Whether the contribution to each row is a coefficient times a single value of the process.
    whole : bool
        Whether row i is equal to value i of the process, for all data of the model.
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
        """Return the term of a process, from changes of the latent functions due to `probes`.

        Parameters
        ----------
        given : list of array
            Changes of the latent functions, (c, n) each.
        taken : array (c, outputs)
            Whether an output contributes to a function.
        """
        coefficient = given[0]
        cells, alone = cells_by_probes(given, shape)
        selected = bool(alone.all())
        feeds = np.where(taken.any(axis=0), taken.argmax(axis=0), -1)
        points = shape[-1]
        own = [
            np.array_equal(cells[k] % points, np.arange(points)) and np.ptp(cells[k] // points) == 0
            for k in feeds
            if k >= 0
        ]
        plain = all(np.allclose(coefficient[k], 1.0, rtol=0.0, atol=COEFFICIENT_TOLERANCE) for k in feeds if k >= 0)
        fixed = not _follows_data(linear, shape)
        return cls(latent, shape, linear, feeds, selected, selected and all(own) and plain and fixed)

    def covariance(self, k: int) -> list[TensorVariable]:
        """Return the covariances (n, n) that the process contributes to function k, one for each output."""
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
            places = pt.round(ratio).astype("int64") - 1
            cells, output = pt.mod(places, self.shape[-1]), places // self.shape[-1]
            joint = coefficient[:, None] * coefficient * cov[cells][:, cells]
            # Outputs of a process are independent.
            return [joint * pt.eq(output[:, None], output) if outputs.size > 1 else joint]
        rows = [self._map(k, int(output)) for output in outputs]
        return [each @ cov @ each.T for each in rows]

    def _map(self, k: int, output: int) -> TensorVariable:
        """Return the matrix (n, points) that maps an output of the process to latent function k."""
        points = self.shape[-1]
        units = np.zeros((points, *self.shape))
        units[(range(points), output, range(points)) if len(self.shape) > 1 else (range(points), range(points))] = 1.0
        values = pt.tensor("values", dtype="float64", shape=self.shape)
        return vectorize_graph(self.linear(values)[k], {values: pt.constant(units)}).T


def _follows_data(linear: Linear, shape: tuple[int, ...]) -> bool:
    """Return whether the values that rows select, or their coefficients, depend on data of the model."""
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


@dataclass(frozen=True)
class _Part:
    """A part of an argument: a variable times a scale. A placeholder replaces the part in the argument."""

    value: TensorVariable
    place: TensorVariable


class _Splitter:
    """Function that replaces the parts of an argument by placeholders.

    Parameters
    ----------
    sources : frozenset of Variable
        Variables that are integrated out.
    hyperparameters : set of Variable
    """

    def __init__(self, sources: frozenset[Variable], hyperparameters: frozenset[Variable]) -> None:
        self._affinity, self._hyperparameters = Affinity(sources), hyperparameters
        self._made: dict[tuple[Variable, Variable | None], TensorVariable] = {}
        self.parts: list[_Part] = []

    def __call__(self, variable: TensorVariable, scale: TensorVariable | None = None) -> TensorVariable:
        """Return a variable with placeholders for its parts times `scale`. Terms without parts are not scaled."""
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


class RowParts(NamedTuple):
    """Coefficients of rows in parts, and of parts in standard normals. Their product maps normals to rows."""

    rows: Coefficients
    """Coefficients of r parts in each row, (cn, r)."""
    root: TensorVariable
    """Graph of the coefficients (r, q) of q standard normals in each part, with random variables of the model."""


class PartsMap:
    """An argument in the form t + A B z. Rows have coefficients A (cn, r) of parts, and parts B (r, q) of normals z.

    Parameters
    ----------
    prior : InNormals
    argument : TensorVariable
        Argument of the likelihood.
    spread : callable
        Function of values of the argument along s directions, and of the number of rows n. It returns (s, c, n).
    data : mapping
        Data of the model → constants with their values in the fit.
    """

    def __init__(
        self,
        prior: InNormals,
        argument: TensorVariable,
        spread: Callable[[Array, int], Array],
        data: Mapping[Variable, Variable],
    ) -> None:
        split = _Splitter(prior.sources, frozenset(prior.hyperparameters))
        self._prior, self._spread, self._data, self._linear = prior, spread, data, split(argument)
        self._places, parts = [each.place for each in split.parts], [each.value for each in split.parts]
        flat: TensorVariable = pt.concatenate([each.astype("float64").ravel() for each in parts])
        named = {f"part {i}": each for i, each in enumerate(parts)}
        self._by_normals = AffineMap(prior, {"parts": flat, "argument": argument, **named}, data, seen=True)
        self._root: TensorVariable = self._by_normals.graphs("parts", [pt.eye(prior.n_normals)])[1].T
        self._made: dict[tuple[Variable, ...], AffineMap] = {}

    def __call__(self, point: PointType, given: Mapping[TensorVariable, NDArray[Any]], m: int) -> Composed:
        """Return coefficients of standard normals at m new rows, for values of value variables and of `given`."""
        root, *shapes = self._small(point, np.zeros(self._prior.n_normals))
        return Composed(self._rows(point, shapes, given, m), root)

    @cached_property
    def _small(self) -> AtPoint:
        return self._function([])

    def _function(self, more: Sequence[TensorVariable]) -> AtPoint:
        """Return a function that computes the coefficients of normals in parts, `more`, and the shapes of parts."""
        shapes = [each.shape for each in self._by_normals.made[2:]]
        return self._by_normals.functions([self._root, *more, *shapes], self._by_normals.symbols)

    def _rows(
        self, point: PointType, shapes: Sequence[Array], given: Mapping[TensorVariable, NDArray[Any]], n: int
    ) -> Coefficients:
        """Return the coefficients of parts in n rows, for parts of these shapes."""
        of_parts = [tuple(map(int, shape)) for shape in shapes]
        if tuple(given) not in self._made:
            there = {v: pt.tensor(v.name, dtype=v.dtype, shape=(None,) * v.ndim) for v in given}
            ends = np.cumsum([0, *(int(np.prod(shape)) for shape in of_parts)]).tolist()

            def by_numbers(x: TensorVariable, g: Any) -> list[TensorVariable]:
                """Return the argument as a function of the entries x (r,) of all parts."""
                places = zip(self._places, of_parts, pairwise(ends), strict=True)
                # Shapes in the graph may depend on shapes of integrated variables, so zeros replace these variables.
                made = {v: pt.zeros(v.type.shape, v.dtype) for v in self._prior.sources if None not in v.type.shape}
                made |= {each: x[slice(*own)].reshape(shape).astype(each.dtype) for each, shape, own in places}
                return graph_replace([self._linear], kept_random([self._linear]) | made, strict=False)

            self._made[tuple(given)] = AffineMap(
                self._prior,
                {"argument": self._linear},
                {**self._data, **there},
                given=list(there.values()),
                by=by_numbers,
                size=ends[-1],
            )
        still, along = self._made[tuple(given)].along(
            point, "argument", list(given.values()), lambda slopes: self._spread(slopes, n)
        )
        return coefficients_of(along, of_parts, self._spread(still[None], n).shape[1])

    def of_fit(self, n: int, most: int) -> RowParts | None:
        """Return the coefficients of the n fitted rows; None if parts have more than `most` entries.

        Return None also if coefficients of parts in rows are not constant, for example if each row multiplies an effect
        by a different hyperparameter.
        """
        rng = np.random.default_rng(SEED)
        point = self._by_normals.functions.nearby(rng)
        function, noise = self._function([self._by_normals.made[1]]), rng.standard_normal(self._prior.n_normals)
        root, whole, *shapes = function(point, np.zeros(len(noise)))
        if len(root) > most:
            return None
        rows = self._rows(point, shapes, {}, n)
        centre, there = (self._spread(each[None], n)[0] for each in (whole, function(point, noise)[1]))
        found = centre + rows.products(root @ noise).reshape(centre.shape)
        size = 1.0 + max(np.abs(there).max(), np.abs(centre).max())
        same = np.allclose(found, there, rtol=0.0, atol=EVALUATION_TOLERANCE * size)
        return RowParts(rows, self._root) if same else None


class MovedProcess(NamedTuple):
    """A Gaussian process at new inputs."""

    inputs: TensorVariable
    """Inputs of the process in the model, (n, d)."""
    moments: PriorAtNewRows
