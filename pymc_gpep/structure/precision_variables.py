"""Integrated variables by numbers x with a sparse precision: moments by entries of its inverse, and by solves."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import Coefficients, Entries
from pymc_gpep.structure.affine_variables import AffineVariables, InNormals, SumVariables
from pymc_gpep.structure.integrated_variables import Joint, PosteriorFunctions
from pymc_gpep.structure.sparse_slopes import Blocks, SparseSlopes


class Numbers(Protocol):
    """The posterior of x."""

    @property
    def centre(self) -> Array:
        """Mean, (q,)."""

    @property
    def covariance(self) -> Any:
        """Covariance, which has `solve` and `halved` of rows (m, q)."""

    def variances_of(self, rows: Coefficients) -> Array:
        """Return variances (m,) of T x, of rows T."""


class _Solved:
    """A covariance (q, q) that columns can be multiplied by."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers.centre)

    def __matmul__(self, columns: Array) -> Array:
        return np.asarray(self._numbers.covariance.solve(np.ascontiguousarray(columns.T)).T)


class _SparseJoint(Joint):
    """A Gaussian of several variables by few coefficients of each."""

    def __init__(self, means: dict[str, Array], rows: Mapping[str, Entries], numbers: Numbers) -> None:
        super().__init__(means, {}, _Solved(numbers))
        self._rows, self._numbers = rows, numbers

    def variances(self) -> dict[str, Array]:
        return {
            name: np.maximum(self._numbers.variances_of(rows), 0.0).reshape(np.shape(self.means[name]))
            for name, rows in self._rows.items()
        }

    def columns(self, name: str, some: slice = slice(None)) -> Array:
        rows = self._rows[name]
        return rows.some(np.arange(len(rows.cells))[some]).T

    def combined(self, name: str, weights: Array) -> Array:
        return self._rows[name].sums(weights.ravel())


class PrecisionVariables(SumVariables):
    """Integrated variables as affine functions of numbers with a sparse precision.

    Parameters
    ----------
    prior : InNormals
    blocks : sequence of tuple of int
        Shapes of the variables that the numbers are of.
    data : mapping
        Data of the model → constants that take their place.
    """

    def __init__(self, prior: InNormals, blocks: Blocks, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, data)
        self._blocks = blocks

    @cached_property
    def _own_rows(self) -> "_NamedRows":
        return self._named(self._variables)

    def _named(self, variables: Mapping[str, TensorVariable]) -> "_NamedRows":
        return _NamedRows(self._prior, variables, self._blocks, self._data)

    def draws(self, point: PointType, f: Array, z: Array) -> dict[str, Array]:
        found = self._own_rows(point)
        flat = self.flat(z)
        return {
            name: np.stack([centre + rows.products(each).reshape(centre.shape) for each in flat])
            for name, (centre, rows) in found.items()
        }

    def posterior(self, functions: PosteriorFunctions) -> tuple[Array, Any]:
        """Return mean (q,) of the numbers, and their covariance as far as columns are multiplied by it."""
        numbers = _numbers(functions)
        return numbers.centre, _Solved(numbers)

    def moments(self, point: PointType, functions: PosteriorFunctions) -> tuple[dict[str, Array], dict[str, Array]]:
        joint = self._sparse_joint(self._own_rows, self._values, point, functions)
        return joint.means, joint.variances()

    def affine(self, names: Sequence[str]) -> Callable[[PointType, PosteriorFunctions], Joint]:
        self._check(names)
        rows = self._named({name: self._prior.model[name] for name in names})
        return lambda point, functions: self._sparse_joint(rows, names, point, functions)

    def _sparse_joint(
        self, variables: "_NamedRows", names: Sequence[str], point: PointType, functions: PosteriorFunctions
    ) -> Joint:
        numbers = _numbers(functions)
        found = variables(point)
        means = {}
        for name in names:
            centre, rows = found[name]
            means[name] = centre + rows.products(numbers.centre).reshape(centre.shape)
        return _SparseJoint(means, {name: found[name][1] for name in names}, numbers)

    def covariance(
        self, point: PointType, functions: PosteriorFunctions, places: Mapping[str, slice], size: int
    ) -> Array:
        numbers = _numbers(functions)
        slopes = np.zeros((size, len(numbers.centre)))
        for name, (_, rows) in self._own_rows(point).items():
            if name in places:
                slopes[places[name]] = rows.some(np.arange(len(rows.cells)))
        half = numbers.covariance.halved(slopes)
        found: Array = half @ half.T
        return found


class _NamedRows:
    """Variables by name as t + T x, by entries of T where these are few."""

    def __init__(
        self,
        prior: InNormals,
        variables: Mapping[str, TensorVariable],
        blocks: Blocks,
        data: Mapping[Variable, Variable],
    ) -> None:
        self._names = list(variables)
        self._slopes = SparseSlopes(prior, list(variables.values()), blocks, data)
        self._dense = AffineVariables(prior, variables, data) if self._slopes.entries is None else None

    def __call__(self, point: PointType) -> dict[str, tuple[Array, Entries]]:
        """Return t (...) and rows of T by name."""
        if self._dense is not None:
            return {name: (centre, _in_full(slopes)) for name, (centre, slopes) in self._dense(point).items()}
        centre, rows = self._slopes(point)
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self._slopes.shapes)])
        found = {}
        for name, shape, begin, end in zip(self._names, self._slopes.shapes, ends[:-1], ends[1:], strict=True):
            own = Entries(rows.cells[begin:end], rows.values[begin:end], rows.q)
            found[name] = centre[begin:end].reshape(shape), own
        return found


def _in_full(slopes: Array) -> Entries:
    """Rows of all coefficients, of slopes (q, ...)."""
    q = len(slopes)
    values = np.ascontiguousarray(slopes.reshape(q, -1).T)
    cells: NDArray[np.int64] = np.tile(np.arange(q), (len(values), 1))
    return Entries(cells, values, q)


def _numbers(functions: PosteriorFunctions) -> Numbers:
    found: Numbers = functions.posterior  # type: ignore[attr-defined]  # those of all rows together have it
    return found
