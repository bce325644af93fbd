"""Integration over the hyperparameters by a density that is interpolated, and evaluated again where it matters."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import nnls

from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.coordinates import Coordinates, MovedLogPosterior
from pymc_gpep.hyper.correction import correction_at, has_correction
from pymc_gpep.hyper.curvature import Scales, scales_at
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.grid import Grid
from pymc_gpep.hyper.hyper_method import HyperMethod, above_maximum, evaluate_nodes, failures
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.surrogate import DRAWS, Points, Surrogate, resampled
from pymc_gpep.kernels.status import CONVERGED

_FIRST = 1.7  # standard deviations from the maximum of the first point of a ray
_FALL, _AIM = 5.0, 7.0  # fall of the log density where a ray ends, and where its next point should be
_FARTHER, _FARTHEST = 4.0, 8.0  # factor and standard deviations by which the next point is farther out, at most
_ON_A_RAY = 6  # points at most
_LONG = 0.4  # eigenvalue of the scaled precision, below which its direction has rays of its own
_BATCH = 8  # points of a round, at least
_CANDIDATES, _CHAINS = 300, 256
_EACH = 4  # hyperparameters, beyond which the tolerance grows with the root of their number
_UNSURE = 0.8  # error of the log density of random draws, above which a fit says so
_FEW, _SMALL = 3, 100_000  # hyperparameters, and numbers of matrices, up to which a grid takes over
_STEP, _DROP = 1.2, 9.0  # options of that grid
_WORSE = 5.0  # times the tolerance that points have which are least known
_DEEP = 10.0  # fall of the log density, and one more for each axis, beyond which a point is no node
_LENGTH = 1.5  # of the kernel of weights, times √d, in standard deviations
_JITTER, _WEIGHT_OF_SUM = 1e-9, 100.0
_NEGLIGIBLE = 1e-6  # weight of a node that is left out
_NEIGHBOURS = 64  # that a start is predicted from


@dataclass(frozen=True)
class Adaptive(HyperMethod):
    """Interpolate the log posterior, draw from the interpolant, and evaluate again at some of the draws.

    The first points are the maximum, and two or more on each side along each axis, until the log density has fallen.
    A surrogate goes through the values and gradients there (`pymc_gpep.hyper.surrogate`). Each round evaluates the log
    posterior at random draws of the surrogate, and at draws where it is least known. The rounds end when the surrogate
    predicts the values at the random draws. So the density is as accurate as the tolerance says where its mass is.
    With up to three hyperparameters and few rows a grid takes over where the surrogate does not become accurate.

    Marginals of hyperparameters are draws from the surrogate. Everything else is averaged over nodes: evaluated points
    with weights that are not negative, for which averages of smooth functions are those of the draws.

    Parameters
    ----------
    tolerance : float
        Root mean square error of the log density at random draws.
    evaluations : int, optional
        Limit on evaluations after those for the second derivatives. If not given, it is 40 and 12 more for each
        hyperparameter.
    corrected : bool
        Whether the evidence that EP gives to a sum of effects has its correction of second order, up to 5000 rows. With
        few binary rows in a group EP's evidence makes scales too small.
    """

    tolerance: float = field(default=0.1, metadata=positive())
    evaluations: int | None = field(default=None, metadata=at_least(1))

    corrected: bool = True

    name: ClassVar[str] = "adaptive"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Nodes with weights, draws from the density, and its integral as log evidence."""
        coordinates = Coordinates(log_posterior.space)
        moved = MovedLogPosterior(log_posterior, coordinates)
        best = optimum.best if coordinates.trivial else moved.climbed(optimum.best)
        scales = scales_at(moved, best)
        limit = self.evaluations or 40 + 12 * scales.size
        tolerance = self.tolerance * np.sqrt(max(1.0, scales.size / _EACH))
        known = _Known(moved, best, scales, progressbar)
        known.explore()
        surrogate, error, seed = None, np.inf, random_seed
        while True:
            surrogate = Surrogate(known.points(), scales.mixed, surrogate.length if surrogate else None)
            if error < tolerance or known.count >= limit:
                break
            seed += 1
            some, _ = surrogate.draws(_CANDIDATES, seed, _CHAINS)
            some = some[np.sort(np.unique(some, axis=0, return_index=True)[1])]  # chains may stand still
            half = max(_BATCH, 2 * scales.size - _BATCH) // 2
            others = some[half:]
            least = surrogate.least_known(others, half) if len(others) else np.empty(0, np.int64)
            batch = np.concatenate([some[:half], others[least]])
            expected = surrogate(batch)
            wrong = known.evaluate(batch) - expected
            error = max(_root_mean_square(wrong[:half]), _root_mean_square(wrong[half:]) / _WORSE)
        small = log_posterior.joint and scales.size <= _FEW and log_posterior.entries <= _SMALL
        if error > _UNSURE and small and coordinates.trivial and not scales.held:
            # Several branches, which a grid follows from node to node.
            grid = Grid(step=_STEP, drop=_DROP).integrate(log_posterior, optimum, random_seed, progressbar)
            return replace(grid, name=self.name)
        draws, total = surrogate.draws(DRAWS, random_seed)
        places, nodes = known.candidates()
        original = [moved.original(node) for node in nodes]
        if self.corrected and has_correction(log_posterior):
            logs = correction_at(log_posterior, places, original, draws)
            draws = resampled(draws, logs, random_seed, len(draws))
            total += float(np.log(np.exp(logs).mean()))
        density = np.array([coordinates.theta(phi) for phi in scales.at(draws)])
        evidence = best.log_posterior + total + float(np.log(scales.scale).sum())
        weights = quadrature_weights(places, draws)
        kept = weights > _NEGLIGIBLE
        unsure = (
            f"the log density of hyperparameters is interpolated to ±{error:.2g} only. Take "
            f"hyper_options={{'evaluations': {2 * known.count}}}"
        )
        reasons = [
            failures(known.all) if known.failed > known.count // 4 else "",
            unsure if error > max(_UNSURE, self.tolerance) else "",
            above_maximum(max(node.log_posterior for node in original), optimum.best),
            known.open,
        ]
        return self.posterior(
            log_posterior,
            [node for node, keep in zip(original, kept, strict=True) if keep],
            weights[kept],
            reasons,
            scales.held,
            log_evidence=evidence,
            density=density,
            settles=not coordinates.trivial,
        )


class _Known:
    """Evaluations of the log posterior, in standardised coordinates about the maximum."""

    def __init__(self, log_posterior: MovedLogPosterior, best: Evaluation, scales: Scales, progressbar: bool) -> None:
        self.log_posterior, self.best, self._scales, self._progressbar = log_posterior, best, scales, progressbar
        self._places: list[Array] = [np.zeros(scales.size)]
        self.all: list[Evaluation | None] = [best]
        self._near = scales.neighbours
        self.open = ""

    @property
    def count(self) -> int:
        """How many evaluations were made."""
        return len(self.all) - 1

    @property
    def failed(self) -> int:
        """At how many points the approximation failed."""
        return self.all.count(None)

    def evaluate(self, z: Array) -> Array:
        """Evaluate at points (m, d), and return log densities (m,) relative to the maximum.

        They are NaN where the approximation fails.
        """
        moved: Any = self.log_posterior
        nodes = evaluate_nodes(moved, self._scales.at(z), self._near, self._progressbar)
        for node in nodes:
            if node is not None and node.status == CONVERGED:
                self._near = self._near.joined(node.theta, node.start, _NEIGHBOURS)
        self._places += list(z)
        self.all += nodes
        return np.array([np.nan if node is None else node.log_posterior - self.best.log_posterior for node in nodes])

    def explore(self) -> None:
        """Evaluate along rays from the maximum until the log density has fallen: along axes, and long directions."""
        values, vectors = np.linalg.eigh(-self._scales.mixed)
        long = vectors[:, values < _LONG] / np.sqrt(values[values < _LONG])
        directions = np.concatenate([np.eye(self._scales.size), long.T]) if self._scales.size > 1 else np.eye(1)
        rays = [(sign * each, _FIRST) for each in directions for sign in (-1.0, 1.0)]
        for _ in range(_ON_A_RAY):
            if not rays:
                return
            falls = -self.evaluate(np.array([t * along for along, t in rays]))
            found = self.all[-len(rays) :]
            rays = [
                (along, _farther(t, fall, -float(along @ self._slope(node))))
                for (along, t), fall, node in zip(rays, falls, found, strict=True)
                if node is not None and fall < _FALL
            ]
        if rays:
            self.open = (
                "the density is not negligible where the last point of a ray is. Give hyperparameters priors that "
                "hold them"
            )

    def _slope(self, node: Evaluation) -> Array:
        return self._scales.slope(node.gradient)

    def points(self) -> Points:
        """Points with values and slopes, for a surrogate."""
        found = [(z, node) for z, node in zip(self._places, self.all, strict=True) if node is not None]
        values = [node.log_posterior - self.best.log_posterior for _, node in found]
        return Points(
            np.array([z for z, _ in found]), np.array(values), np.array([self._slope(node) for _, node in found])
        )

    def candidates(self) -> tuple[Array, list[Evaluation]]:
        """Places and evaluations of points that may be nodes."""
        lowest = max(node.log_posterior for node in self.all if node is not None) - _DEEP - self._scales.size
        found = [
            (z, node)
            for z, node in zip(self._places, self.all, strict=True)
            if node is not None and node.log_posterior > lowest
        ]
        return np.array([z for z, _ in found]), [node for _, node in found]


def _farther(t: float, fall: float, slope: float) -> float:
    """Distance of the next point of a ray, from the last one at t with its fall and the slope of the fall."""
    curvature = max(slope / t, 1e-3) if np.isfinite(slope) else 2.0 * max(fall, 1e-3) / t**2
    slope = slope if np.isfinite(slope) else curvature * t
    if slope <= 0.0:
        return 2.0 * t
    step = (np.sqrt(slope**2 + 2.0 * curvature * (_AIM - fall)) - slope) / curvature
    return t + min(max(step, 0.5), (_FARTHER - 1.0) * t, _FARTHEST)


def _root_mean_square(wrong: Array) -> float:
    found = wrong[np.isfinite(wrong)]
    return float(np.sqrt((found**2).mean())) if found.size else 0.0


def quadrature_weights(places: Array, draws: Array) -> Array:
    """Weights (n,) of places (n, d), none negative, for which averages of smooth functions are those of draws (m, d).

    They have the smallest squared maximum mean discrepancy from the draws, for a squared exponential kernel. The kernel
    is wide in units of the draws' standard deviations, so that means and covariances come first.
    """
    d = places.shape[1]
    root = np.linalg.cholesky(np.cov(draws.T).reshape(d, d) + 1e-12 * np.eye(d))
    x, y = (np.linalg.solve(root, (each - draws.mean(axis=0)).T).T for each in (places, draws))
    length = _LENGTH * np.sqrt(d)

    def kernel(a: Array, b: Array) -> Array:
        square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
        return np.exp(-0.5 * np.maximum(square, 0.0) / length**2)

    factor = np.linalg.cholesky(kernel(x, x) + _JITTER * np.eye(len(x)))
    target = np.linalg.solve(factor, kernel(x, y).mean(axis=1))
    system = np.vstack([factor.T, np.full(len(x), _WEIGHT_OF_SUM)])
    weights, _ = nnls(system, np.append(target, _WEIGHT_OF_SUM))
    return np.asarray(weights / weights.sum())
