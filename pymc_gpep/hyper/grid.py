"""Integration over few hyperparameters on a grid."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from pymc_gpep.approximations.limits import positive
from pymc_gpep.hyper.curvature import gaussian_at
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyper_method import HyperMethod, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.kernels.status import CONVERGED

__all__ = ["Grid"]

_MOST = 3  # hyperparameters
_FURTHEST = 20  # steps from the maximum in each direction
_NEIGHBOURS = 64  # that a start is predicted from

type _Place = tuple[int, ...]


@dataclass(frozen=True)
class Grid(HyperMethod):
    """A grid along the principal axes of the Gaussian at the maximum (Rue, Martino and Chopin 2009, section 3.1).

    The grid grows from the maximum, node by node, until the density is negligible. It follows skewed posteriors and
    long tails, such as that of a standard deviation of groups which may be 0. All nodes have cells of the same size,
    which integrates smooth densities far more accurately than the step suggests. The relative error of the integral of
    a normal density is 2 exp(−2π² / step²).

    Parameters
    ----------
    step : float, optional
        Distance of nodes, in standard deviations of the Gaussian.
    drop : float, optional
        The grid ends where the log density is so much below its maximum.
    """

    step: float = field(default=1.5, metadata=positive())
    drop: float = field(default=7.0, metadata=positive())

    name: ClassVar[str] = "grid"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """The nodes of the grid where the approximation succeeds, and the integral as log evidence."""
        best = optimum.best
        d = best.theta.size
        if d > _MOST:
            raise ValueError(
                f"hyper='grid' is for at most {_MOST} hyperparameters, but the model has {d}. Take hyper='ccd'."
            )
        gaussian = gaussian_at(log_posterior, optimum)
        near = gaussian.neighbours
        found: dict[_Place, Evaluation | None] = {}
        edge = [(0,) * d]
        while edge:
            nodes = evaluate_nodes(log_posterior, gaussian.at(self.step * np.array(edge, float)), near, progressbar)
            found.update(zip(edge, nodes, strict=True))
            for node in nodes:
                if node is not None and node.status == CONVERGED:
                    near = near.joined(node.theta, node.start, _NEIGHBOURS)
            high = [p for p, node in zip(edge, nodes, strict=True) if node and self._counts(node, best)]
            edge = sorted({each for place in high for each in _around(place)} - found.keys())
        kept = [node for node in found.values() if node is not None and self._counts(node, best)]
        if not kept:
            raise ValueError(f"hyper='grid': {failures(found.values())}. Use hyper='map', or other priors.")
        logs = np.array([node.log_posterior for node in kept]) - best.log_posterior
        cell = d * np.log(self.step) + float(np.linalg.slogdet(gaussian.root)[1])
        return HyperPosterior(
            self.name,
            log_posterior,
            kept,
            np.exp(logs),
            log_evidence=best.log_posterior + cell + float(np.log(np.exp(logs).sum())),
            converged=None not in found.values(),
            message=failures(found.values()),
        )

    def _counts(self, node: Evaluation, best: Evaluation) -> bool:
        return node.log_posterior > best.log_posterior - self.drop


def _around(place: _Place) -> list[_Place]:
    """Return the places beside one, along each axis."""
    steps = np.concatenate([np.eye(len(place), dtype=int), -np.eye(len(place), dtype=int)])
    found = np.array(place) + steps
    return [tuple(map(int, each)) for each in found[np.abs(found).max(axis=1) <= _FURTHEST]]
