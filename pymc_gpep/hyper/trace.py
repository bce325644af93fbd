"""The contract of a trace: what a search left, of whatever kind it was."""

from collections.abc import Mapping
from typing import Any, Protocol, Self

import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation


class Trace(Protocol):
    """How hyperparameters were found."""

    @property
    def best(self) -> Evaluation:
        """Where the search ended."""

    @property
    def converged(self) -> bool:
        """Whether that is what was sought."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search, or the integral over hyperparameters."""

    @property
    def losses(self) -> Array:
        """Negative log posterior at each iteration, what PyMC's other methods call the loss."""

    @property
    def unit(self) -> str:
        """What is counted: "iteration" or "step"."""

    @property
    def columns(self) -> Mapping[str, Array]:
        """What is known of each iteration, by name."""

    @property
    def slopes(self) -> Array:
        """Largest slope of the log posterior at each iteration; NaN where none is known."""

    @property
    def per_epoch(self) -> int:
        """How many iterations go through all rows once."""

    @property
    def first(self) -> Evaluation:
        """Where the search began, as far as that is known."""

    @property
    def outcome(self) -> str:
        """How it ended, in words that what was sought begins."""

    @property
    def agreement(self) -> str:
        """How many of several searches ended alike, in words; empty if there was one."""

    @property
    def ends(self) -> tuple[Evaluation, ...]:
        """Where searches from several points ended."""

    @property
    def units(self) -> Array | None:
        """Matrix (d, d) of units in which the log posterior curves alike in all directions, where the search knows."""

    def stored(self) -> xr.Dataset:
        """Return what a file has of each iteration."""

    def described(self) -> dict[str, Any]:
        """Return what a file says of the search."""

    def broken_off(self, why: str) -> Self:
        """Return the same, as one whose integral over hyperparameters was interrupted."""

    def ended_as(self, why: str) -> Self:
        """Return the same, as one that has ended for a reason."""
