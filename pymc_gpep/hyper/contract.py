"""What every way to treat the hyperparameters is: options, and `integrate`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pymc.progress_bar import CustomProgress, default_progress_theme
from rich.console import Console

from pymc_gpep.approximations.limits import check_limits
from pymc_gpep.hyper.hyper_posterior import HyperPosterior, Node
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.kernels.status import CONVERGED

__all__ = ["HyperMethod", "evaluate_nodes", "failures"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class HyperMethod(ABC):
    """A way from the maximum of the hyperparameters' posterior to nodes and weights.

    Raises
    ------
    ValueError
        If an option has a value that makes no sense.
    """

    name: ClassVar[str]
    """What `pm.fit(hyper=...)` calls it."""

    def __post_init__(self) -> None:
        check_limits(self)

    @abstractmethod
    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Nodes and weights, from a log posterior with at least one hyperparameter and where its maximum was found.

        Raises
        ------
        ValueError
            If the point is no maximum, and the method needs one.
        """


def evaluate_nodes(
    log_posterior: LogPosterior, thetas: Iterable[Array], total: int, progressbar: bool
) -> list[Node | None]:
    """Solve at every point (d,); None where the approximation fails."""
    nodes: list[Node | None] = []
    with CustomProgress(console=Console(theme=default_progress_theme), disable=not progressbar) as progress:
        for theta in progress.track(thetas, total=total, description="Integrating over hyperparameters"):
            evaluation = log_posterior(theta)
            good = evaluation.status == CONVERGED and np.isfinite(evaluation.log_posterior)
            nodes.append(Node(evaluation, log_posterior.sites) if good else None)
    return nodes


def failures(nodes: Iterable[Node | None]) -> str:
    """How many nodes had to be left out, in words; empty if none."""
    found = list(nodes)
    failed = found.count(None)
    return f"the approximation failed at {failed} of {len(found)} points, which were left out" if failed else ""
