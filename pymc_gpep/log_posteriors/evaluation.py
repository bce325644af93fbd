"""Evaluation of a log posterior at one point, tables of evaluations for files, and the trace of a search."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED


class Evaluation(NamedTuple):
    """Values of a log posterior at one point of the unconstrained space."""

    theta: Array
    """Flat vector: hyperparameters, followed by other learned parameters."""
    log_posterior: float
    """Sum of log evidence, log priors, log Jacobians and other terms of the model."""
    gradient: Array
    evidence: float
    iterations: int
    """Number of iterations of the approximation."""
    status: int
    """Status of the solve, a constant of `pymc_gpep.kernels.status`."""
    start: Array
    """Start for a solve at this point or at a near point; empty if it was not stored."""

    @classmethod
    def failed(cls, theta: Array, status: int) -> "Evaluation":
        """Return the evaluation at a point where the approximation fails."""
        return cls(np.asarray(theta), np.nan, np.full(np.size(theta), np.nan), np.nan, 0, status, np.empty(0))

    @property
    def usable(self) -> bool:
        """Whether the approximation converged and the log posterior is finite."""
        return self.status == CONVERGED and bool(np.isfinite(self.log_posterior))


_COLUMNS = tuple(name for name in Evaluation._fields if name != "start")


def evaluation_table(evaluations: Sequence[Evaluation], dim: str) -> xr.Dataset:
    """Return a dataset of evaluations along `dim`, without their starts."""
    columns = {name: np.array([getattr(each, name) for each in evaluations]) for name in _COLUMNS}
    return xr.Dataset({name: ((dim, "parameter")[: values.ndim], values) for name, values in columns.items()})


def evaluations_of(table: xr.Dataset, dim: str) -> tuple[Evaluation, ...]:
    """Return the evaluations in a dataset of `evaluation_table`, with empty starts."""
    kinds = {name: kind for name, kind in Evaluation.__annotations__.items() if kind in (int, float)}
    rows = (table.isel({dim: i}) for i in range(table.sizes.get(dim, 0)))
    of_rows = ([kinds.get(name, np.asarray)(row[name].values) for name in _COLUMNS] for row in rows)
    return tuple(Evaluation._make([*values, np.empty(0)]) for values in of_rows)


class Trace(Protocol):
    """Record of the search for hyperparameters."""

    @property
    def best(self) -> Evaluation:
        """Evaluation at the end of the search."""

    @property
    def converged(self) -> bool:
        """Whether the search reached its target."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search, or the integral over hyperparameters."""

    @property
    def losses(self) -> Array:
        """Negative log posterior at each iteration. PyMC calls such values losses."""

    @property
    def unit(self) -> str:
        """Unit in which the search is counted: "iteration" or "step"."""

    @property
    def columns(self) -> Mapping[str, Array]:
        """Records of each iteration, by name."""

    @property
    def slopes(self) -> Array:
        """Largest slope of the log posterior at each iteration; NaN if it was not computed."""

    @property
    def per_epoch(self) -> int:
        """Number of iterations in an epoch."""

    @property
    def first(self) -> Evaluation:
        """First point of the search, if it is stored."""

    @property
    def outcome(self) -> str:
        """Text on the end of the search, for messages."""

    @property
    def agreement(self) -> str:
        """Text with the number of searches that ended at the best point; empty for a single search."""

    @property
    def ends(self) -> tuple[Evaluation, ...]:
        """Evaluations at the ends of searches from several starts."""

    @property
    def units(self) -> Array | None:
        """Root (d, d) of the estimated inverse curvature; None if the search did not compute it."""

    def stored(self) -> xr.Dataset:
        """Return the records of each iteration, to be stored in a file."""

    def described(self) -> dict[str, Any]:
        """Return a description of the search, to be stored in a file."""

    def broken_off(self, why: str) -> Self:
        """Return a copy for a fit that was interrupted during integration over hyperparameters."""

    def ended_as(self, why: str) -> Self:
        """Return a copy with the text `why` as reason of its end."""
