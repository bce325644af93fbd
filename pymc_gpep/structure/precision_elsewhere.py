"""Sums of effects at new rows, by numbers x with a sparse precision."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.blocking import PointType
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import Entries
from pymc_gpep.structure.affine_variables import slopes_along
from pymc_gpep.structure.interpreted import graph_function
from pymc_gpep.structure.latent_prior import RowsOfNormals
from pymc_gpep.structure.levels import NOT_ALIKE
from pymc_gpep.structure.new_data import NewData, OwnRows
from pymc_gpep.structure.row_sum import RowSum
from pymc_gpep.structure.sparse_slopes import Blocks, rows_of
from pymc_gpep.structure.sum_elsewhere import SumElsewhere

_DIRECTIONS = 3  # along which rows are compared
_SEED = 1


class PrecisionElsewhere(SumElsewhere):
    """Coefficients of x at new rows.

    Parameters
    ----------
    prior : RowSum
    blocks : sequence of tuple of int
        Shapes of the variables that the numbers are of.
    independent : array (q,)
        Which numbers are standard normals.
    data : mapping
        Data of the model → constants, as the fit had them.
    """

    def __init__(self, prior: RowSum, blocks: Blocks, independent: Any, data: Mapping[Variable, Variable]) -> None:
        super().__init__(prior, None, data, blocks)
        self._independent = independent
        self._functions: dict[tuple[str, ...], Callable[..., Array]] = {}

    def _slopes(self, value: TensorVariable, z: TensorVariable) -> TensorVariable:
        """Slopes along a few directions, which tell rows apart."""
        units = np.random.default_rng(_SEED).standard_normal((_DIRECTIONS, self._prior.n_normals))
        return slopes_along(value, z, pt.constant(units))

    def by_normals(self, point: PointType, x: NewData | OwnRows) -> RowsOfNormals:
        """See `Elsewhere`; raises what `SumElsewhere` raises."""
        if isinstance(x, OwnRows):
            mean, every = self._sparse_rows(point, (), [], self._rows)
            rows = Entries(every.cells[x.positions], every.values[x.positions], every.q)
            return RowsOfNormals(rows, np.zeros((1, len(x))), mean[:, x.positions])
        for name in x.strange:
            if (self._levels.owners(point, name)[~self._independent] >= 0).any():
                raise ValueError(f"data[{name!r}] {NOT_ALIKE}")
        x = self._resolved(point, x)
        mean, rows = self._at_rows(point, x)
        beside = np.zeros((1, len(x)))
        for alone in self._levels.owned_cells(point, x, rows.cells):
            beside += (np.where(alone, rows.values, 0.0) ** 2).sum(axis=1)
            rows.values[alone] = 0.0
        return RowsOfNormals(rows, beside, mean)

    def _at_rows(self, point: PointType, x: NewData) -> tuple[Array, Entries]:
        """Return means (1, m) and coefficients at rows without new levels, or with their placeholders."""
        names = (*x.by_row, *x.others)
        if names not in self._complete:
            self._at(point, NewData(x.by_row, x.others, len(x))[:1])  # refuses data that are missing
            self._complete.add(names)
        return self._sparse_rows(point, names, [*x.by_row.values(), *x.others.values()], len(x))

    def _used(self, point: PointType, x: NewData, other: NewData) -> NDArray[np.bool_]:
        _, rows = self._at_rows(point, x)
        each = self._levels.owned_cells(point, other, rows.cells)
        return np.any([(owned & (rows.values != 0.0)).any(axis=1) for owned in each], axis=0)

    def __call__(self, point: PointType, x: NewData | OwnRows) -> NoReturn:
        raise TypeError("Covariances with all fitted rows are not known by a sparse precision.")

    def _sparse_rows(
        self, point: PointType, names: tuple[str, ...], values: Sequence[Any], m: int
    ) -> tuple[Array, Entries]:
        """Return means (1, m) and coefficients at data by name."""
        prior, model = self._prior, self._prior.model
        value_vars = [model.rvs_to_values[rv] for rv in prior.hyperparameters]
        if names not in self._functions:
            z = pt.vector("numbers", shape=(prior.n_normals,), dtype="float64")
            known = {name: self._known[name] for name in names}
            there = {v: pt.tensor(name, dtype=v.dtype, shape=(None,) * v.ndim) for name, v in known.items()}
            outputs = model.replace_rvs_by_values(prior.by_normals([self._argument], z, seen=True))
            outputs = graph_replace(outputs, {**self._data, **there}, strict=False)
            self._functions[names] = graph_function(model, [*value_vars, z, *there.values()], outputs[0])
        function, theta = self._functions[names], [point[v.name] for v in value_vars]

        def argument(numbers: Array) -> Array:
            return self._by_function(np.asarray(function(*theta, numbers, *values)), m)

        still = argument(np.zeros(prior.n_normals))
        return still, rows_of(lambda numbers: argument(numbers)[0] - still[0], self._blocks)
