"""Integration over the hyperparameters by an interpolated density, with evaluations where its mass is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import logsumexp

from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.cells import (
    Cells,
    Coordinates,
    MovedLogPosterior,
    correction_at,
    extent,
    has_correction,
    stretched,
    unstretched,
)
from pymc_gpep.hyper.curvature import Scales, scales_at
from pymc_gpep.hyper.hyper_method import HyperMethod, above_maximum, evaluate_nodes, evaluated, failures, rough
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.surrogate import DRAWS, Points, Surrogate
from pymc_gpep.hyper.weights import along_curve, weighted_draws
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior

_FIRST = 1.7  # Distance between the maximum and the first point of a ray (standard deviations).
_FALL, _AIM = 5.0, 7.0  # Fall of the log density at which a ray ends, and predicted fall at its next point.
_FARTHER, _FARTHEST = 4.0, 8.0  # Largest ratio of successive distances on a ray; largest step (sd).
_ON_A_RAY = 6  # Largest number of points on a ray.
_LONG = 0.4  # Eigenvalue of the scaled precision below which an eigenvector gets rays.
_BATCH, _GROWTH = 8, 0.3  # Smallest number of points in a round: absolute, and per earlier evaluation.
_PREDICTED, _ENOUGH = 4, 32  # Smallest number of draws that test the surrogate: 4 d², at most 32.
_CHEAP, _TIMES, _NUMBERS = 200_000, 3, 2500  # Limit on evaluations for small solves: × 3, at most 2500 / (1 + d).
_WRONG = 4.0  # Size at which errors of the log density are clipped before their average.
_CANDIDATES, _CHAINS = 300, 256  # Number of draws from which a round selects its points; number of Markov chains.
_EACH = 4  # Number of hyperparameters above which the tolerance grows with its square root.
_UNSURE = 0.8  # Error of the log density at random draws above which a fit reports it.
_FEW = 3  # Largest number of hyperparameters for which cells cover the whole prior.
_ENTRIES = {1: 200_000, 2: 100_000, 3: 20_000}  # Largest size of a solution (matrix entries) for cells.
_CELLS = {1: 100, 2: 400, 3: 2500}  # Largest number of evaluations for cells, by number of hyperparameters.
_CLOSE = {1: 0.1, 2: 0.1, 3: 0.15}  # Allowed error of masses of cells, in units of the tolerance.
_COARSE = 0.06  # Error of the masses of cells above which the fit reports it.
_BORDER = 0.01  # Share of draws close to the border of the box, above which a fit reports it.
_BESIDE = 0.5  # Distance between the last points of rays and the border of the box (standard deviations).
_LOST = 0.02  # Share of mass at points where the approximation fails, above which a fit reports it.
_FAR = 8.0  # Fall of the log density beyond which a cell of the first grid has negligible mass.
_STEEP = 40.0  # Fall beyond which also the neighbours of a cell of the first grid have negligible mass.
_NODES = 80  # Largest number of centres of cells that become nodes.
_CHECKS, _ALONG, _LINE = 64, 6, 60  # Check points in total, and least for an axis; nodes of an integral along a line.
_CLEAR = 1.0  # Excess of a log density over its prediction that counts as missed mass.
_MISSED = 0.045  # Share of missed mass above which the fit reports it.
_WORSE = 5.0  # Tolerance at the most uncertain points of a round, in units of the tolerance at random draws.
_DEEP = 10.0  # The largest fall of the log density at a node is this number plus the number of axes.
_LENGTH = 1.5  # Length scale of the kernel for weights, in units of √d standard deviations.
_JITTER, _WEIGHT_OF_SUM = 1e-9, 100.0
_NEGLIGIBLE = 1e-6  # Weight below which a node is dropped.
_NEIGHBOURS = 64  # Number of solutions from which a start is predicted.


class _Density(NamedTuple):
    """Interpolated density of standardised hyperparameters."""

    draws: Array
    """Draws (m, d) of equal weight."""
    total: float
    """Log of the integral of the density."""
    places: Array
    """Points (s, d) that may be nodes."""
    nodes: list[Evaluation]
    """Evaluations at these points."""
    reasons: list[str]
    """Texts of faults; empty texts are ignored."""
    doubt: str = ""
    """Reason why marginals are rough; empty if they are accurate."""


@dataclass(frozen=True)
class Adaptive(HyperMethod):
    """Integral over an interpolated log posterior, with evaluations where its mass is.

    The first points are the maximum, and two or more on each side along each axis, until the log density has fallen.
    With up to three hyperparameters and few rows, cells then cover the region that the prior allows. Cells are split
    where the mass is, so that separate modes are found (`pymc_gpep.hyper.cells`). Cells are not used for likelihoods
    whose averages have no formula, since evaluations would take too long.

    Otherwise a surrogate interpolates values and gradients (`pymc_gpep.hyper.surrogate`). Each round evaluates the log
    posterior at random draws of the surrogate, and at draws where the surrogate is least certain. Rounds end once the
    surrogate predicts the values at the random draws within the tolerance.

    Marginals of hyperparameters are draws from the interpolated density. Other averages are weighted sums over nodes,
    which are evaluated points. Their weights are nonnegative, and reproduce averages of smooth functions over the
    draws.

    Parameters
    ----------
    tolerance : float
        Largest root mean square error of the interpolated log density at random draws.
    evaluations : int, optional
        Largest number of evaluations after the evaluations for second derivatives. The default is 40 + 12 d for d
        hyperparameters, and up to three times that number with few rows. With cells it is 100, 400 and 2500 for one,
        two and three hyperparameters.
    corrected : bool
        Whether EP's evidence of a sum of effects is corrected to second order, for up to 5000 rows. Without the
        correction, scales of groups with few binary rows are too small.
    """

    tolerance: float = field(default=0.1, metadata=positive())
    evaluations: int | None = field(default=None, metadata=at_least(1))

    corrected: bool = True

    name: ClassVar[str] = "adaptive"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return nodes with weights, draws from the density, and the log of its integral as log evidence."""
        coordinates = Coordinates(log_posterior.space)
        moved = MovedLogPosterior(log_posterior, coordinates)
        best = optimum.best if coordinates.trivial else moved.climbed(optimum.best)
        scales = scales_at(moved, best)
        known = _Known(moved, best, scales, progressbar)
        known.explore()
        places, nodes = known.candidates()
        by = self._by_cells if moved.is_small(_ENTRIES.get(scales.size, 0)) else self._by_surrogate
        density = by(known, random_seed)
        draws, total = density.draws, density.total
        if self.corrected and has_correction(log_posterior):
            logs = correction_at(log_posterior, places, [moved.original(node) for node in nodes], draws)
            draws = weighted_draws(logs, draws, random_seed, len(draws))
            total += float(np.log(np.exp(logs).mean()))
        evidence = best.log_posterior + total + float(np.log(scales.scale).sum())
        weights = quadrature_weights(density.places, draws)
        original = [moved.original(node) for node in density.nodes]
        kept = weights > _NEGLIGIBLE
        reasons = [*density.reasons, above_maximum(max(node.log_posterior for node in original), optimum.best)]
        return self.posterior(
            log_posterior,
            [node for node, keep in zip(original, kept, strict=True) if keep],
            weights[kept],
            reasons,
            scales.held,
            density.doubt,
            log_evidence=evidence,
            density=np.array([coordinates.theta(phi) for phi in scales.at(draws)]),
            settles=not coordinates.trivial,
        )

    def _by_cells(self, known: "_Known", random_seed: int) -> _Density:
        d = known.scales.size
        cells = Cells(*known.box(), known.at_cells)
        limit = self.evaluations or _CELLS[d]
        error = cells.refine(_CLOSE[d] * self.tolerance, limit)
        draws, total, own = cells.draws(DRAWS, random_seed)
        spread = along_curve(draws)[:: max(1, len(draws) // _NODES)]
        chosen = np.unique(own[spread]).astype(np.int64)
        unsure = (
            f"the masses of cells of hyperparameters have an error of ±{error:.2g}. Use "
            f"hyper_options={{'evaluations': {2 * limit}}}"
        )
        border = (
            "the density is not negligible at the border of the searched region. Use tighter priors of the "
            "hyperparameters"
        )
        reasons = [
            unsure if error > _COARSE else "",
            border if cells.at_border(draws) > _BORDER else "",
            failures(known.centres) if cells.share_lost > _LOST else "",
        ]
        nodes = known.atcentres(chosen)
        return _Density(draws, total, cells.z[chosen], nodes, reasons)

    def _by_surrogate(self, known: "_Known", random_seed: int) -> _Density:
        surrogate, error, seed = self._rounds(known, self.evaluations or _most(known), random_seed)
        missed = known.missed(surrogate, seed)
        draws, total = surrogate.draws(DRAWS, random_seed)
        branch = (
            f"the log density is higher than its interpolation at points of about {min(missed, 1.0):.0%} of the mass. "
            "Use hyper='nuts'"
        )
        more = f"Use hyper_options={{'evaluations': {2 * known.count}}}"
        unsure = f"the interpolated log density of hyperparameters has an error of ±{error:.2g}. {more}"
        reasons = [
            failures(known.all) if known.failed > known.count // 4 else "",
            unsure if error > max(_UNSURE, self.tolerance) else "",
            branch if missed > _MISSED else "",
            known.open,
        ]
        doubt = "" if reasons[1] else rough(error, more)
        return _Density(draws, total, *known.candidates(), reasons, doubt)

    def _rounds(self, known: "_Known", limit: int, seed: int) -> tuple[Surrogate, float, int]:
        """Evaluate in rounds until a surrogate predicts random draws. Return surrogate, error and last seed."""
        d, surrogate, error = known.scales.size, None, np.inf
        tolerance = self.tolerance * np.sqrt(max(1.0, d / _EACH))
        last = min(_PREDICTED * d**2, _ENOUGH)
        wrong = np.empty(0)
        while True:
            surrogate = Surrogate(known.points(), known.scales.mixed, surrogate.length if surrogate else None)
            if (len(wrong) >= last and error < tolerance) or known.count >= limit:
                return surrogate, error, seed
            seed += 1
            some, _ = surrogate.draws(_CANDIDATES, seed, _CHAINS)
            some = some[np.sort(np.unique(some, axis=0, return_index=True)[1])]  # A chain may repeat its state.
            half = max(_BATCH, 2 * d - _BATCH, min(int(_GROWTH * known.count), limit - known.count)) // 2
            others = some[half:]
            least = surrogate.least_known(others, half) if len(others) else np.empty(0, np.int64)
            batch = np.concatenate([some[:half], others[least]])
            expected = surrogate(batch)
            off = known.evaluate(batch) - expected
            wrong = np.append(wrong, off[:half])[-max(last, half) :]
            error = max(_root_mean_square(wrong), _root_mean_square(off[half:]) / _WORSE)


def _most(known: "_Known") -> int:
    """Return the default limit on evaluations. It is higher if evaluations and the interpolation are cheap."""
    d = known.scales.size
    limit = 40 + 12 * d
    return max(limit, min(_TIMES * limit, _NUMBERS // (1 + d))) if known.log_posterior.is_small(_CHEAP) else limit


class _Known:
    """Evaluations of the log posterior, in standardised coordinates about the maximum."""

    def __init__(self, log_posterior: MovedLogPosterior, best: Evaluation, scales: Scales, progressbar: bool) -> None:
        self.log_posterior, self.best, self.scales, self._progressbar = log_posterior, best, scales, progressbar
        self._places: list[Array] = [np.zeros(scales.size)]
        self.all: list[Evaluation | None] = [best]
        self._near = scales.neighbours
        self.centres: list[Evaluation | None] = []
        self.open = ""

    @property
    def count(self) -> int:
        """Number of evaluations."""
        return len(self.all) - 1

    @property
    def failed(self) -> int:
        """Number of points at which the approximation failed."""
        return self.all.count(None)

    def evaluate(self, z: Array) -> Array:
        """Evaluate at points (m, d), and return log densities (m,) relative to the maximum.

        Values are NaN where the approximation fails.
        """
        moved: Any = self.log_posterior
        nodes = evaluate_nodes(moved, self.scales.at(z), self._near, self._progressbar)
        for node in nodes:
            if node is not None and node.status == CONVERGED:
                self._near = self._near.joined(node.theta, node.start, _NEIGHBOURS)
        self._places += list(z)
        self.all += nodes
        return np.array([np.nan if node is None else node.log_posterior - self.best.log_posterior for node in nodes])

    def explore(self) -> None:
        """Evaluate along rays from the maximum, on axes and in directions of small curvature."""
        values, vectors = np.linalg.eigh(-self.scales.mixed)
        long = vectors[:, values < _LONG] / np.sqrt(values[values < _LONG])
        directions = np.concatenate([np.eye(self.scales.size), long.T]) if self.scales.size > 1 else np.eye(1)
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
                "the density is not negligible at the last point of a ray. Use tighter priors of the hyperparameters"
            )

    def _slope(self, node: Evaluation) -> Array:
        return self.scales.slope(node.gradient)

    def box(self) -> tuple[Array, Array]:
        """Return the lowest and highest standardised coordinates (d,) that the prior allows or a ray has reached."""
        scales = self.scales
        ends = extent(self.log_posterior.log_prior, self.best.theta, scales.axes)
        low, high = ((end - scales.mean[scales.axes]) / scales.scale for end in ends)
        reached, _ = self.candidates()
        return np.minimum(low, reached.min(axis=0) - _BESIDE), np.maximum(high, reached.max(axis=0) + _BESIDE)

    def missed(self, surrogate: Surrogate, seed: int) -> float:
        """Estimate the share of mass that a surrogate misses, from its draws with one coordinate replaced.

        The replaced coordinate is uniform over the box. The excess of the density over the surrogate is divided by the
        integral of the surrogate along this coordinate. Excesses of the log density below `_CLEAR` count as 0.
        """
        if not self.log_posterior.checked:
            return 0.0
        rng, d = np.random.default_rng(seed), self.scales.size
        low, high = (stretched(end) for end in self.box())
        each = max(_ALONG, _CHECKS // d)
        draws, _ = surrogate.draws(_CANDIDATES, seed, _CHAINS)
        z = draws[rng.choice(len(draws), each * d)]
        axis = np.repeat(np.arange(d), each)
        share = (np.concatenate([rng.permutation(each) for _ in range(d)]) + rng.random(len(z))) / each
        width = (high - low)[axis]
        lines = np.linspace(low, high, _LINE).T[axis]
        dense = np.repeat(z[:, None], _LINE, axis=1)
        dense[np.arange(len(z)), :, axis] = unstretched(lines)
        found = surrogate(dense.reshape(-1, d)).reshape(len(z), _LINE) + np.log(np.cosh(0.5 * lines))
        integral = logsumexp(found, axis=1) + np.log(width / _LINE)
        x = low[axis] + share * width
        z[np.arange(len(z)), axis] = unstretched(x)
        expected = surrogate(z)
        true = np.array([n.log_posterior - self.best.log_posterior if n.usable else -np.inf for n in self._far(z)])
        excess = np.where(true - expected > _CLEAR, np.exp(true) - np.exp(expected), 0.0)
        return float((width * excess * np.cosh(0.5 * x) * np.exp(-integral)).mean())

    def at_cells(self, z: Array, near: NDArray[np.int64]) -> tuple[Array, Array]:
        """Evaluate at centres (m, d) of cells. Return log densities (m,) relative to the maximum, and slopes (m, d).

        Parameters
        ----------
        z : array (m, d)
        near : array (m,)
            Index of the earlier centre from whose solution each solve starts; negative for centres of the first grid.
            Solves of the first grid start from predicted solutions if the likelihood is log-concave.
        """
        loose = self.log_posterior.weighing()
        before = [self.centres[s] if s >= 0 else None for s in near]
        starts = [None if node is None else node.start for node in before]
        pairs = list(zip(self.scales.at(z), starts, strict=True))
        with np.errstate(all="ignore"):
            if near[0] >= 0:
                nodes = loose.each(lambda pair: loose(*pair), pairs)
            else:
                rank = self.log_posterior.loosely(gradients=False).roughly()
                nodes = self._far(z) if rank.log_concave else rank.each(rank, self.scales.at(z))
                high = self._high(z, nodes)
                starts = [node.start if node.usable else None for node in nodes]
                again = loose.each(lambda i: loose(pairs[i][0], starts[i]), high)
                for i, node in zip(high, again, strict=True):
                    nodes[i] = node
        self.centres += [node if node.usable else None for node in nodes]
        values = [node.log_posterior - self.best.log_posterior if node.usable else -np.inf for node in nodes]
        return np.array(values), np.array([self._slope(node) for node in nodes])

    def _high(self, z: Array, nodes: Sequence[Evaluation]) -> list[int]:
        """Return indices of grid centres (m, d) with a high density, and of failed centres with such a neighbour."""
        value = np.array([n.log_posterior - self.best.log_posterior if n.usable else -np.inf for n in nodes])
        place = np.stack([np.unique(along, return_inverse=True)[1] for along in z.T], axis=1)
        beside = [value[(np.abs(place - own) <= 1).all(axis=1)].max() for own in place]
        return [i for i in range(len(z)) if value[i] > -_FAR or (not nodes[i].usable and beside[i] > -_STEEP)]

    def _far(self, z: Array) -> list[Evaluation]:
        """Evaluate at points (m, d) with low accuracy, which suffices far below the maximum."""
        order = np.argsort((stretched(z) ** 2).sum(axis=1), kind="stable")
        rough: Any = self.log_posterior.loosely().roughly()
        found = evaluated(rough, self.scales.at(z[order]), self._near)
        return [found[place] for place in np.argsort(order)]

    def atcentres(self, chosen: NDArray[np.int64]) -> list[Evaluation]:
        """Return evaluations at the centres with these indices, without failed centres."""
        return [node for node in (self.centres[s] for s in chosen) if node is not None]

    def points(self) -> Points:
        """Return the evaluated points with values and slopes, for a surrogate."""
        found = [(z, node) for z, node in zip(self._places, self.all, strict=True) if node is not None]
        values = [node.log_posterior - self.best.log_posterior for _, node in found]
        return Points(
            np.array([z for z, _ in found]), np.array(values), np.array([self._slope(node) for _, node in found])
        )

    def candidates(self) -> tuple[Array, list[Evaluation]]:
        """Return places (standardised) and evaluations of points that may become nodes."""
        lowest = max(node.log_posterior for node in self.all if node is not None) - _DEEP - self.scales.size
        found = [
            (z, node)
            for z, node in zip(self._places, self.all, strict=True)
            if node is not None and node.log_posterior > lowest
        ]
        return np.array([z for z, _ in found]), [node for _, node in found]


def _farther(t: float, fall: float, slope: float) -> float:
    """Return the distance of the next point of a ray, given the distance t, fall and slope of its last point."""
    curvature = max(slope / t, 1e-3) if np.isfinite(slope) else 2.0 * max(fall, 1e-3) / t**2
    slope = slope if np.isfinite(slope) else curvature * t
    if slope <= 0.0:
        return 2.0 * t
    step = (np.sqrt(slope**2 + 2.0 * curvature * (_AIM - fall)) - slope) / curvature
    return t + min(max(step, 0.5), (_FARTHER - 1.0) * t, _FARTHEST)


def _root_mean_square(wrong: Array) -> float:
    found = np.clip(wrong[np.isfinite(wrong)], -_WRONG, _WRONG)
    return float(np.sqrt((found**2).mean())) if found.size else 0.0


def quadrature_weights(places: Array, draws: Array) -> Array:
    """Return nonnegative weights (n,) of points (n, d) that match averages of smooth functions over draws (m, d).

    The weights minimise the squared maximum mean discrepancy to the draws, for a squared exponential kernel. The kernel
    is wide relative to the draws' standard deviations, so means and covariances are matched best.
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
