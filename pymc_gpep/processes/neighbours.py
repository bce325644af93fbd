"""Nearest neighbours of places, and a PyTensor operation for the regressions of a process on values at neighbours.

If correlations decrease with the distance between scaled inputs, neighbours are nearest by this distance. Otherwise
neighbours have the largest correlations. Neighbours are constant during a search over hyperparameters: changes would be
jumps of the log evidence.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.graphs.interpreted import ModelFunctions, interpreted, pulled_back
from pymc_gpep.latent.latent_prior import LatentPrior
from pymc_gpep.processes.process_functions import ProcessFunctions
from pymc_gpep.processes.processes import functions_of
from pymc_gpep.processes.stationary import input_scales
from pymc_gpep.solvers.neighbour_precision import NeighbourSets, PlaceTree, regressions_of
from pymc_gpep.solvers.sparse_precision import FactorPattern

_PAIRS = 40_000  # Number of pairs of places in a block. The arrays of a block fit into a processor's cache.
_CORRELATIONS = 4_000_000  # Largest number of correlations in a block.
_SAMPLE = 60  # Largest number of places for a comparison of correlations with distances.
_NOT_FALLING = 1e-6  # Increases of a correlation with distance up to this number count as rounding.


def _symbols(columns: int) -> list[TensorVariable]:
    """Return symbols for two arrays of places, each (s, columns)."""
    return [pt.tensor(name, dtype="float64", shape=(None, columns)) for name in ("a", "b")]


def pair_covariance(
    model: pm.Model, functions: ProcessFunctions, a: TensorVariable, b: TensorVariable
) -> TensorVariable:
    """Return the covariance (s,) of each place in a (s, d) with the place at the same position in b (s, d)."""
    row, column = (pt.tensor(dtype="float64", shape=(1, a.type.shape[1])) for _ in range(2))
    one = functions.covariance(row, column)
    stop = set(model.basic_RVs)
    # Replace random variables by themselves: PyTensor would copy them, and copies do not belong to the model.
    kept = {variable: variable for variable in ancestors([one], blockers=stop) if variable in stop}
    each = vectorize_graph(one, {**kept, row: a[:, None], column: b[:, None]})
    found: TensorVariable = pt.broadcast_to(each[..., 0, 0], (a.shape[0],))
    return found


class NeighbourRegressions(Op):
    """Operation for regressions of p places on m neighbours each, as a function of hyperparameters.

    The result is one vector: coefficients (p, m), residual variances (p,) and prior variances (p,).

    Parameters
    ----------
    model : pm.Model
    functions : ProcessFunctions
    jitter : float
        Jitter that is added to variances of places in the regressions, but not to the returned prior variances.
    places : array (p, d)
        Inputs of the places, in the order of the sets.
    sets : NeighbourSets
    """

    def __init__(
        self, model: pm.Model, functions: ProcessFunctions, jitter: float, places: Array, sets: NeighbourSets
    ) -> None:
        a, b = _symbols(places.shape[1])
        made = [pair_covariance(model, functions, a, b), functions.variance(a)]
        behind = set(ancestors(made, blockers=model.basic_RVs))
        self.leaves = [rv for rv in model.basic_RVs if rv in behind]
        self._given = [each.type() for each in self.leaves]
        replaced = dict(zip(self.leaves, self._given, strict=True))
        self._inputs = [a, b], [a]
        self._graphs = graph_replace([each.astype("float64") for each in made], replaced, strict=False)
        self._jitter, self._places, self._sets = jitter, places, sets

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node for hyperparameters."""
        return Apply(self, [pt.as_tensor_variable(each) for each in inputs], [pt.dvector("neighbour_regressions")])

    @cached_property
    def _functions(self) -> tuple[Any, Any]:
        of_pairs, of_places = (
            interpreted([*self._given, *x], [graph]) for x, graph in zip(self._inputs, self._graphs, strict=True)
        )
        return of_pairs, of_places

    def _blocks(self) -> Sequence[slice]:
        p, end = self._sets.size, len(self._sets.first)
        return [slice(start, min(start + _PAIRS, end)) for start in range(p, end, _PAIRS)]

    def _pairs(self, some: slice) -> tuple[Array, Array]:
        return self._places[self._sets.first[some]], self._places[self._sets.second[some]]

    def entries(self, leaves: Sequence[Array]) -> tuple[Array, Array]:
        """Return the covariances of all pairs in the sets, and prior variances (p,)."""
        of_pairs, of_places = self._functions
        found, p = np.empty(len(self._sets.first)), self._sets.size
        variances = np.asarray(of_places(*leaves, self._places)[0])
        found[:p] = variances + self._jitter
        for some in self._blocks():
            found[some] = of_pairs(*leaves, *self._pairs(some))[0]
        return found, variances

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Compute the coefficients and variances."""
        entries, variances = self.entries(inputs)
        b, d = self._sets.regressions(entries)
        output_storage[0][0] = np.concatenate([b.ravel(), d, variances])

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> list[Variable]:
        """Return the derivatives with respect to the hyperparameters."""
        return list(_NeighbourPullback(self)(*inputs, outputs[0], cotangents[0], return_list=True))

    @cached_property
    def _slopes(self) -> tuple[Any, Any]:
        made = []
        for x, graph in zip(self._inputs, self._graphs, strict=True):
            bars, found = pulled_back([graph], self._given)
            made.append(interpreted([*self._given, *x, *bars], found))
        return made[0], made[1]

    def pulled(self, leaves: Sequence[Array], out: Array, bar: Array) -> list[Array]:
        """Return derivatives in hyperparameters, from derivatives `bar` in the output."""
        p, m = self._sets.cells.shape
        entries, _ = self.entries(leaves)
        b, of_b, of_d = out[: p * m].reshape(p, m), bar[: p * m].reshape(p, m), bar[p * m : -p]
        of_entries = self._sets.pulled(entries, b, of_b, of_d)
        of_pairs, of_places = self._slopes
        total = list(of_places(*leaves, self._places, of_entries[:p] + bar[-p:]))
        for some in self._blocks():
            own = of_pairs(*leaves, *self._pairs(some), of_entries[some])
            total = [a + b for a, b in zip(total, own, strict=True)]
        return total


class _NeighbourPullback(Op):
    """Operation for derivatives in hyperparameters, from derivatives in the output of `NeighbourRegressions`."""

    __props__ = ("of",)

    def __init__(self, of: NeighbourRegressions) -> None:
        self.of = of

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node for inputs and output of the regressions, and derivatives with respect to the output."""
        given = [pt.as_tensor_variable(each) for each in inputs]
        return Apply(self, given, [each.type() for each in given[:-2]])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Compute the derivatives."""
        *leaves, out, bar = inputs
        found = self.of.pulled(leaves, out, np.ascontiguousarray(bar))
        for storage, value, variable in zip(output_storage, found, node.outputs, strict=True):
            storage[0] = np.asarray(value, variable.type.dtype)


class NeighbourChoice:
    """Functions that choose the neighbours of places for a process, at given hyperparameters.

    Parameters
    ----------
    prior : LatentPrior
        Prior of the process, without effects.
    columns : int
        Number of columns of the inputs.
    data : mapping
        Data of the model → constants with the values of the fit.
    """

    def __init__(self, prior: LatentPrior, columns: int, data: Mapping[Variable, Variable]) -> None:
        ((_, functions),) = functions_of(prior, None)
        a, b = _symbols(columns)
        cross = functions.covariance(a, b)
        self._model, self._functions, self._symbols = prior.model, functions, [a, b]
        self._at = ModelFunctions(prior.model, prior.hyperparameters, data)
        self._moments = self._at([cross, functions.variance(a)], [a, b])
        scales = input_scales(cross, a, b)
        self._scales = None if scales is None else self._at([scales])

    def scales(self, point: PointType, x: Array) -> Array | None:
        """Return scales (d,) of the inputs; None if correlations do not decrease with scaled distances."""
        if self._scales is None:
            return None
        (scales,) = self._scales(point)
        some = x[np.linspace(0, len(x) - 1, min(_SAMPLE, len(x))).astype(int)]
        cov, variance = self._covariance(point, some, some)
        if not np.isfinite(scales).all() or np.ptp(variance) > _NOT_FALLING * variance.max():
            return None
        moved = some * scales
        squares = ((moved[:, None] - moved) ** 2).sum(axis=2)
        pairs = np.triu_indices(len(some), 1)
        by_distance = cov[pairs][np.argsort(squares[pairs], kind="stable")]
        falls = (np.diff(by_distance) <= _NOT_FALLING * variance.max()).all()
        return np.asarray(scales) if falls else None

    def centre(self, point: PointType, x: Array) -> Array:
        """Return an offset (d,) to subtract from places: their mean, or 0 if covariances depend on more than distances.

        Without it, distances of inputs with a large offset, such as metres on a map, would lose digits.
        """
        middle: Array = x.mean(axis=0)
        return middle if self.scales(point, x - middle) is not None else np.zeros_like(middle)

    def _covariance(self, point: PointType, a: Array, b: Array) -> tuple[Array, Array]:
        cov, variance = self._moments(point, a, b)
        return np.asarray(cov), np.asarray(variance)

    def _scaled(self, point: PointType, x: Array) -> Array:
        """Return places minus their mean, in units of length scales or, without length scales, of deviations."""
        scales, spread = self.scales(point, x), x.std(axis=0)
        moved: Array = (x - x.mean(axis=0)) * (1.0 / np.where(spread > 0.0, spread, 1.0) if scales is None else scales)
        return moved

    def order(self, point: PointType, x: Array) -> NDArray[np.int64]:
        """Return an order (p,) of places x (p, d): each place is the furthest from all earlier places."""
        return PlaceTree(self._scaled(point, x)).maximin()

    def sets(self, point: PointType, x: Array, m: int) -> tuple[NDArray[np.int64], NeighbourSets]:
        """Return an order (p,) of distinct places x (p, d), and the m nearest earlier places of each.

        About half as many further neighbours are added, see `NeighbourSets.extended`.
        """
        moved = self._scaled(point, x)
        order, count = PlaceTree(moved).maximin(), min(m, max(len(x) - 1, 1))
        sets = NeighbourSets.chosen(self.earlier(point, x[order], x[order], count, np.arange(len(x))))
        return order, sets.extended(moved[order], min(count + (count + 1) // 2, max(len(x) - 1, 1)))

    def earlier(self, point: PointType, x: Array, known: Array, m: int, before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return indices (s, m) of the m nearest places to each x (s, d), among the first `before` (s,) places."""
        scales = self.scales(point, known)
        if scales is None:
            return self._by_correlation(point, x, known, m, before)
        return PlaceTree(known * scales).nearest(x * scales, m, before)

    def _by_correlation(
        self, point: PointType, x: Array, known: Array, m: int, before: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return indices as in `earlier`, but of the places with the largest correlations, computed in blocks."""
        found = np.zeros((len(x), m), np.int64)
        spread = np.sqrt(self._covariance(point, known, known[:1])[1])
        step = max(1, _CORRELATIONS // len(known))
        for start in range(0, len(x), step):
            rows = np.arange(start, min(start + step, len(x)))
            sizes = -np.abs(self._covariance(point, x[rows], known)[0]) / spread
            sizes[np.arange(len(known)) >= before[rows, None]] = 1.0
            some = np.argpartition(sizes, m - 1, axis=1)[:, :m]
            order = np.argsort(np.take_along_axis(sizes, some, 1), axis=1, kind="stable")
            found[rows] = np.take_along_axis(some, order, 1)
        return np.where(np.arange(m) < before[:, None], found, 0)

    @cached_property
    def _of_pairs(self) -> Any:
        return self._at([pair_covariance(self._model, self._functions, *self._symbols)], self._symbols)

    def cliques(
        self, point: PointType, x: Array, known: Array, m: int, pattern: FactorPattern
    ) -> tuple[NDArray[np.int64], ...]:
        """Return for each new place (s, d) close places of the data (s, m), and their number (s,).

        Only covariances of places that share a column of the factor are in the selected inverse. The m nearest places
        each have a column. The method chooses the column that contains the nearest of them: rank r has the weight
        r^-1.5.
        """
        near = self.earlier(point, x, known, min(m, len(known)), np.full(len(x), len(known)))
        size, begin = near.shape[1], pattern.size - len(known)
        position, weights = np.argsort(pattern.order)[begin + near], np.arange(1.0, size + 1.0) ** -1.5
        cells, counts = np.zeros_like(near), np.empty(len(x), np.int64)
        for start in range(0, len(x), step := max(1, _CORRELATIONS // size**2)):
            rows = slice(start, start + step)
            own, place = begin + near[rows], position[rows]
            there = pattern.slots(*np.broadcast_arrays(own[:, :, None], own[:, None])) < pattern.nothing
            there &= place[:, :, None] <= place[:, None]
            best = (there @ weights).argmax(axis=1)
            chosen = np.take_along_axis(there, best[:, None, None], 1)[:, 0]
            counts[rows] = chosen.sum(axis=1)
            first = np.argsort(~chosen, axis=1, kind="stable")
            cells[rows] = np.where(np.sort(~chosen, axis=1), 0, np.take_along_axis(near[rows], first, 1))
        return cells, counts

    def regressions(
        self, point: PointType, places: Array, jitter: float, cells: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[Array, Array]:
        """Return coefficients (s, m) and residual variances (s,) of the last s of p places on neighbours `cells`."""
        b, d, of = np.empty(cells.shape), np.empty(len(cells)), np.arange(len(places) - len(cells), len(places))
        variance = self._covariance(point, places, places[:1])[1] + jitter
        one, other = np.tril_indices(cells.shape[1] + 1)
        for start in range(0, len(of), step := max(1, _PAIRS // len(one))):
            rows = slice(start, start + step)
            near = np.concatenate([of[rows, None], cells[rows]], axis=1)
            pairs = [np.ascontiguousarray(places[near[:, each]].reshape(-1, places.shape[1])) for each in (one, other)]
            entries = np.array(self._of_pairs(point, *pairs)[0]).reshape(len(near), -1)
            entries[:, one == other] = variance[near]
            slots = np.arange(entries.size).reshape(entries.shape)
            b[rows], d[rows] = regressions_of(entries.ravel(), slots, counts[rows], cells.shape[1])
        # At a place of the data the residual variance is 0, apart from rounding.
        return b, np.where(np.isnan(d), 0.0, np.maximum(d - jitter, 0.0))
