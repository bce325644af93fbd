"""Values that a log posterior computes at one point, and such evaluations as a table for files."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED


class Evaluation(NamedTuple):
    """The log posterior at one point of the unconstrained space."""

    theta: Array
    """A flat vector: hyperparameters, and after them what else is learned."""
    log_posterior: float
    """Evidence, log priors, log Jacobians and the model's other terms."""
    gradient: Array
    evidence: float
    iterations: int
    """Iterations that the approximation took."""
    status: int
    """One of `pymc_gpep.kernels.status`."""
    start: Array
    """Where a solve at this point or near by starts; empty in what was read from a file, but for the best point."""

    @classmethod
    def failed(cls, theta: Array, status: int) -> "Evaluation":
        """Return what there is of a point at which the approximation fails."""
        return cls(np.asarray(theta), np.nan, np.full(np.size(theta), np.nan), np.nan, 0, status, np.empty(0))

    @property
    def usable(self) -> bool:
        """Whether the approximation converged and the log posterior is finite."""
        return self.status == CONVERGED and bool(np.isfinite(self.log_posterior))


_COLUMNS = tuple(name for name in Evaluation._fields if name != "start")


def evaluation_table(evaluations: Sequence[Evaluation], dim: str) -> xr.Dataset:
    """Evaluations without their starts, one for each place along `dim`."""
    columns = {name: np.array([getattr(each, name) for each in evaluations]) for name in _COLUMNS}
    return xr.Dataset({name: ((dim, "parameter")[: values.ndim], values) for name, values in columns.items()})


def evaluations_of(table: xr.Dataset, dim: str) -> tuple[Evaluation, ...]:
    """The evaluations in a table."""
    kinds = {name: kind for name, kind in Evaluation.__annotations__.items() if kind in (int, float)}
    rows = (table.isel({dim: i}) for i in range(table.sizes.get(dim, 0)))
    of_rows = ([kinds.get(name, np.asarray)(row[name].values) for name in _COLUMNS] for row in rows)
    return tuple(Evaluation._make([*values, np.empty(0)]) for values in of_rows)
