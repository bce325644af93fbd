"""Integration over few hyperparameters on a grid."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from pymc_gpep.approximations.limits import positive
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.curvature import drawn_between, gaussian_at
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyper_method import HyperMethod, above_maximum, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.resampling import DRAWS, resampled
from pymc_gpep.kernels.status import CONVERGED

_MOST = 3  # hyperparameters
_FURTHEST = 20  # steps from the maximum in each direction
_FEW = 4  # nodes along an axis, below which they come closer
_FINEST = 0.2  # of the step, about as close as they come
_NODES = 5000  # evaluations at which the grid ends
_NEIGHBOURS = 64  # that a start is predicted from

_MARGIN, _BELOW = 3, 3.0  # cells around nodes, and how far below the last nodes their log density is taken to be
_MANY = 150  # nodes that are too many for a surrogate
_PROPOSALS = 40_000  # points of which draws are some

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
        Distance of nodes, in standard deviations of the Gaussian. Where fewer than four fit along an axis, it is halved
        there.
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
        edge, spacing = [(0,) * d], np.full(d, self.step)
        while edge and len(found) < _NODES:
            nodes = evaluate_nodes(log_posterior, gaussian.at(spacing * np.array(edge)), near, progressbar)
            found.update(zip(edge, nodes, strict=True))
            for node in nodes:
                if node is not None and node.status == CONVERGED:
                    near = near.joined(node.theta, node.start, _NEIGHBOURS)
            kept = self._kept(found, best)
            edge = _edge(found, kept, spacing / self.step)
            narrow = np.array([len({place[axis] for place in kept}) < _FEW for axis in range(d)])
            narrow &= spacing > _FINEST * self.step
            if not edge and kept and narrow.any():
                # The density is narrower than the Gaussian, and takes nodes that are closer.
                spacing = np.where(narrow, 0.5 * spacing, spacing)
                found = {_finer(place, narrow): node for place, node in found.items()}
                kept = self._kept(found, best)
                edge = _edge(found, kept, spacing / self.step)
        if not kept:
            raise ValueError(f"hyper='grid': {failures(found.values())}. Use hyper='map', or other priors.")
        logs = np.array([node.log_posterior for node in kept.values()])
        top = float(logs.max())
        weights = np.exp(logs - top)
        cell = float(np.log(spacing).sum()) + float(np.linalg.slogdet(gaussian.root)[1])
        reasons = [failures(found.values()), _open(kept, edge, spacing / self.step), above_maximum(top, best)]
        evidence = top + cell + float(np.log(weights.sum()))
        places = np.array(list(kept))
        if len(kept) > _MANY:
            draws = spacing * _draws(places, logs, self.drop, random_seed)
        else:
            draws = drawn_between(spacing * places, list(kept.values()), gaussian, random_seed)
        density = gaussian.at(draws)
        return self.posterior(
            log_posterior, list(kept.values()), weights, reasons, log_evidence=evidence, density=density
        )

    def _kept(self, found: dict[_Place, Evaluation | None], best: Evaluation) -> dict[_Place, Evaluation]:
        """Return the nodes whose density is not negligible beside the highest."""
        nodes = {place: node for place, node in found.items() if node is not None}
        top = max([best.log_posterior, *(node.log_posterior for node in nodes.values())])
        return {place: node for place, node in nodes.items() if node.log_posterior > top - self.drop}


def _open(kept: dict[_Place, Evaluation], edge: list[_Place], spacing: Array) -> str:
    """Return where the grid ends before the density is negligible, in words; empty if nowhere."""
    if edge:
        return f"the grid ended at {_NODES} points, before the density is negligible. Take hyper='ccd'"
    if (spacing * np.abs(list(kept))).max() < _FURTHEST:
        return ""
    return (
        f"the density is not negligible {_FURTHEST} steps from the maximum, where the grid ends. Give hyperparameters "
        "priors that hold them, or take hyper='nuts'"
    )


def _draws(places: NDArray[np.int64], logs: Array, drop: float, random_seed: int) -> Array:
    """Draws (m, d) in steps of the grid, of a density whose logarithm is a cubic spline through nodes.

    Points are drawn evenly from the cells of nodes, and weighted by the spline.
    """
    rng = np.random.default_rng(random_seed)
    first = places.min(axis=0) - _MARGIN
    box = np.full(places.max(axis=0) - first + 1 + _MARGIN, logs.max() - drop - _BELOW)
    box[tuple((places - first).T)] = logs
    weights = np.exp(logs - logs.max())
    chosen = rng.choice(len(places), size=_PROPOSALS, p=weights / weights.sum())
    points = places[chosen] + rng.uniform(-0.5, 0.5, size=(_PROPOSALS, places.shape[1]))
    found = map_coordinates(box, (points - first).T, order=3, mode="nearest") - logs[chosen]
    return points[resampled(found, points, random_seed, DRAWS)]


def _beside(place: _Place) -> list[_Place]:
    """Return the places beside one, along each axis."""
    steps = np.concatenate([np.eye(len(place), dtype=int), -np.eye(len(place), dtype=int)])
    return [tuple(map(int, each)) for each in np.array(place) + steps]


def _edge(found: dict[_Place, Evaluation | None], kept: dict[_Place, Evaluation], spacing: Array) -> list[_Place]:
    """Return the places of the grid where it grows: beside kept nodes, and beyond one point that fails."""
    gaps = [place for place, node in found.items() if node is None and not kept.keys().isdisjoint(_beside(place))]
    around = {each for place in (*kept, *gaps) for each in _beside(place)} - found.keys()
    return sorted(place for place in around if (spacing * np.abs(place)).max() <= _FURTHEST)


def _finer(place: _Place, narrow: NDArray[np.bool_]) -> _Place:
    """Return a place where steps along some axes are half as long."""
    return tuple(map(int, np.where(narrow, 2, 1) * place))
