"""Hyperparameters at the maximum of their posterior."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pymc_gpep.hyper.contract import HyperMethod
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum

__all__ = ["Maximum"]


@dataclass(frozen=True)
class Maximum(HyperMethod):
    """One node, at the maximum (type-II maximum a posteriori)."""

    name: ClassVar[str] = "map"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """One node with all the weight."""
        return HyperPosterior(self.name, log_posterior, [optimum.best], np.ones(1))
