"""Fits by way of inducing values whose hyperparameters an optimiser of a log posterior has found."""

from typing import Any

import xarray as xr

from pymc_gpep.array_types import Array
from pymc_gpep.fits import datasets
from pymc_gpep.fits.inducing_fit import InducingFit
from pymc_gpep.hyper.optimum import Optimum

__all__ = ["OptimisedFit"]


class OptimisedFit(InducingFit):
    """What they have in common: an approximation with its options, and how the search went."""

    approximator: Any
    optimum: Optimum

    @property
    def name(self) -> str:
        """Of the method, for `pm.fit`."""
        return str(self.approximator.name)

    @property
    def hist(self) -> Array:
        """Negative log posterior at each iteration of the optimiser, what other methods call the loss.

        With active rows it may rise where they are chosen anew.
        """
        return self.optimum.losses

    @property
    def history(self) -> xr.Dataset:
        """Evidence, or bound or objective, log posterior and iterations of EP at each iteration of the optimiser."""
        return datasets.iterations(self.optimum.history)
