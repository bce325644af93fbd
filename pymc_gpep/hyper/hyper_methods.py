"""Table of the integrals over the hyperparameters by name. The default keeps hyperparameters at their maximum."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from pymc_gpep.argument_types import check_name, did_you_mean
from pymc_gpep.hyper.adaptive import Adaptive
from pymc_gpep.hyper.draws import ImportanceSampling, MarkovChain
from pymc_gpep.hyper.hyper_method import HyperMethod
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.nodes import CentralComposite, Grid, LaplaceNodes
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.log_posteriors.log_posterior import LogPosterior
from pymc_gpep.registry import Registry


@dataclass(frozen=True)
class Maximum(HyperMethod):
    """A single node at the maximum (type-II maximum a posteriori)."""

    name: ClassVar[str] = "map"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return the maximum as the only node."""
        return HyperPosterior(self.name, log_posterior, [optimum.best], np.ones(1))


HYPER: Registry[type[HyperMethod]] = Registry(
    "hyper",
    (Maximum, Adaptive, LaplaceNodes, Grid, CentralComposite, ImportanceSampling, MarkovChain),
    of=HyperMethod,
)
"""Treatments of the hyperparameters, the default first."""


def hyper_method(name: str, options: Mapping[str, Any] | None = None) -> HyperMethod:
    """Return the method with this name.

    Parameters
    ----------
    name : str
        Name of a method in `HYPER`.
    options : mapping, optional
        Parameters of the method by name.

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If an option is not an option of the method.
    """
    check_name("hyper", name, HYPER.names)
    known = [field.name for field in fields(HYPER[name])]
    if unknown := sorted(set(options or {}) - set(known)):
        raise TypeError(
            f"hyper_options: hyper={name!r} has no option {', '.join(unknown)}. Options: {', '.join(known) or 'none'}."
            f"{did_you_mean(unknown, known)}"
        )
    return HYPER[name](**(options or {}))
