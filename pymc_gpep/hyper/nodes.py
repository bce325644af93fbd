"""Integrals by nodes about the maximum: Laplace's method, the central composite design, and a grid."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.special import ndtri
from scipy.stats import qmc

from pymc_gpep.approximations.limits import at_least, positive
from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.curvature import GaussianAtMaximum, gaussian_at, interpolated
from pymc_gpep.hyper.hyper_method import HyperMethod, above_maximum, evaluate_nodes, failures, rough, spread_of_errors
from pymc_gpep.hyper.hyper_posterior import HyperPosterior
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.surrogate import DRAWS
from pymc_gpep.hyper.weights import along_curve, resampled, weighted_draws
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior


@dataclass(frozen=True)
class LaplaceNodes(HyperMethod):
    """Equally weighted nodes with the mean and covariance of the Gaussian at the maximum (Laplace's method).

    The Gaussian has the mode and second derivatives of the log posterior in the unconstrained space.

    Parameters
    ----------
    nodes : int
        Number of nodes, at least the number of hyperparameters plus two.
    """

    nodes: int = field(default=64, metadata=at_least(1))

    name: ClassVar[str] = "laplace"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return quasi-random nodes, with the log evidence of Laplace's method."""
        d = optimum.best.theta.size
        if self.nodes < d + 2:
            raise ValueError(f"nodes must be at least {d + 2} for {d} hyperparameters, but is {self.nodes}.")
        gaussian = gaussian_at(log_posterior, optimum)
        z = standard_normal_nodes(self.nodes, d, random_seed)
        nodes = evaluate_nodes(log_posterior, gaussian.at(z), gaussian.neighbours, progressbar)
        good = self.usable(nodes)
        evidence = optimum.best.log_posterior + gaussian.log_volume
        density = gaussian.at(standard_normal_nodes(DRAWS, d, random_seed))
        doubt = rough(spread_of_errors(nodes, -0.5 * (z**2).sum(axis=1)))
        complaints, weights = [failures(nodes)], np.ones(len(good))
        return self.posterior(
            log_posterior, good, weights, complaints, doubt=doubt, log_evidence=evidence, density=density
        )


def standard_normal_nodes(nodes: int, d: int, random_seed: int) -> Array:
    """Return quasi-random points (nodes, d) with mean 0 and the identity as covariance."""
    z = ndtri(qmc.Halton(d, scramble=True, rng=np.random.default_rng(random_seed)).random(nodes))
    z -= z.mean(axis=0)
    root = np.linalg.cholesky(z.T @ z / nodes)
    return np.asarray(np.linalg.solve(root, z.T).T)


_REACH = 2.0  # Distance from the mode (standard deviations) at which the spread on each side is measured.
_FEW = 8  # Largest number of hyperparameters with a design of resolution V.
_NEGLIGIBLE = 1e-6  # Weight below which a node is dropped.
_TAIL, _FALL = 3.5, 5.0  # Distance at which tails are checked; a smaller fall at this distance shows a long tail.
_CHECKS = 12  # Smallest number of draws at which the interpolation is checked.
_SPREAD = 1 / 3, 3.0  # Limits of the spread, relative to the standard deviations of the Gaussian.


@dataclass(frozen=True)
class CentralComposite(HyperMethod):
    """Central composite design: a centre and points on a sphere (Rue, Martino and Chopin 2009, section 6.5).

    The sphere is in standardised coordinates along the principal axes of the Gaussian at the maximum. Each side of an
    axis has a separate unit, from the fall of the density on that side. A point's weight is the ratio of the posterior
    to the standard normal density, times the Jacobian of the units (which Rue et al. leave out), times a design weight.
    Design weights reproduce mean and covariance of a standard normal distribution.

    Parameters
    ----------
    f0 : float, optional
        Radius of the sphere, divided by √d for d hyperparameters. The default √(1 + 2 / d) also reproduces the fourth
        moment of the radius of a normal distribution. Rue et al. and Vanhatalo, Pietiläinen and Vehtari (2010) use 1.1,
        the default for d = 10.
    resolution : int, optional
        Resolution of the fractional factorial design of a cube's corners. Over these corners, products of fewer than
        `resolution` different coordinates have mean 0. The default is 5, and 4 for more than 8 hyperparameters, since
        14 hyperparameters then take 32 corners in place of 256.
    """

    f0: float | None = field(default=None, metadata=at_least(1))
    resolution: int | None = field(default=None, metadata=at_least(3))

    name: ClassVar[str] = "ccd"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return the nodes at which the approximation succeeds, with the log of the integral as log evidence."""
        best = optimum.best
        d = best.theta.size
        f0 = np.sqrt(1 + 2 / d) if self.f0 is None else self.f0
        gaussian = gaussian_at(log_posterior, optimum)
        spread, near = _spread(log_posterior, gaussian, best)
        sphere = f0 * sphere_design(d, self.resolution or (5 if d <= _FEW else 4))
        u = np.concatenate([np.zeros((1, d)), sphere])
        normal_weights = np.full(len(u), 1 / (len(sphere) * f0**2))
        normal_weights[0] = 1 - 1 / f0**2
        side = np.where(u == 0, spread.mean(axis=0), np.where(u > 0, spread[1], spread[0]))
        thetas = gaussian.at(side * u)
        nodes = evaluate_nodes(log_posterior, thetas, near, progressbar)
        kept = np.array([node is not None for node in nodes]) & (normal_weights > 0)
        good = [node for node, keep in zip(nodes, kept, strict=True) if node is not None and keep]
        if not good:
            raise ValueError(f"hyper='ccd': {failures(nodes)}. Use hyper='map', or other priors.")
        drop = np.array([node.log_posterior for node in good]) - best.log_posterior
        logs = drop + 0.5 * (u[kept] ** 2).sum(axis=1) + np.log(side[kept]).sum(axis=1) + np.log(normal_weights[kept])
        weights = np.exp(logs - logs.max())
        wanted = weights > _NEGLIGIBLE * weights.sum()
        heavy = [node for node, want in zip(good, wanted, strict=True) if want]
        evidence = best.log_posterior + gaussian.log_volume + float(logs.max() + np.log(weights.sum()))
        z = np.concatenate([np.zeros((1, d)), (side * u)[kept]])
        known = [best, *good]
        surrogate = interpolated(z, known, gaussian)
        draws, _ = surrogate.draws(DRAWS, random_seed)
        some = draws[along_curve(draws)[:: DRAWS // max(_CHECKS, 2 * d)]]
        tails = _TAIL * np.concatenate([-np.eye(d), np.eye(d)])
        found = evaluate_nodes(log_posterior, gaussian.at(np.concatenate([some, tails])), near, progressbar)
        found, at_tails = found[: len(some)], found[len(some) :]
        doubt = _long_tail(at_tails, best) or rough(spread_of_errors(found, surrogate(some)))
        z = np.concatenate([z, some[[node is not None for node in found]]])
        surrogate = interpolated(z, [*known, *(node for node in found if node is not None)], gaussian)
        density = gaussian.at(surrogate.draws(DRAWS, random_seed)[0])
        complaints, own = [failures(nodes)], weights[wanted]
        return self.posterior(
            log_posterior, heavy, own, complaints, doubt=doubt, log_evidence=evidence, density=density
        )


def _spread(log_posterior: LogPosterior, gaussian: GaussianAtMaximum, best: Evaluation) -> tuple[Array, Neighbours]:
    """Return standard deviations (2, d) on each side of each axis, relative to the Gaussian, and starts for nodes.

    A normal density with this standard deviation has the fall of the posterior at two standard deviations of the
    Gaussian. The result is 1 if the posterior cannot be computed, or does not fall.
    """
    log_posterior = log_posterior.loosely(gradients=False)
    d = gaussian.mean.size
    near = gaussian.neighbours
    known = Neighbours((best.theta,), (best.start,), gaussian.root)
    spread = np.ones((2, d))
    ends = gaussian.at(_REACH * np.concatenate([-np.eye(d), np.eye(d)]))
    for place, found in enumerate(log_posterior.each(lambda theta: log_posterior(theta, near), ends)):
        fall = best.log_posterior - found.log_posterior
        if fall > 0:
            spread[divmod(place, d)] = np.clip(_REACH / np.sqrt(2 * fall), *_SPREAD)
        if found.status == CONVERGED:
            known = known.joined(found.theta, found.start, 2 * d + 1)
    return spread, known


def _long_tail(nodes: list[Evaluation | None], best: Evaluation) -> str:
    """Return a text if the density has a long tail, which the design does not reach; else an empty text."""
    fall = min((best.log_posterior - node.log_posterior for node in nodes if node is not None), default=np.inf)
    if fall > _FALL:
        return ""
    return (
        f"marginals of hyperparameters are rough, since the density has a long tail: at {_TAIL} standard deviations "
        f"its logarithm falls by {fall:.1f}, that of a normal density by {0.5 * _TAIL**2:.1f}. Use "
        "hyper='adaptive'"
    )


def sphere_design(d: int, resolution: int = 5) -> Array:
    """Return points (k, d) on the sphere of radius √d: on the axes, and for d > 1 corners of the cube.

    The corners are a fractional factorial design: products of fewer than `resolution` different coordinates have mean
    0. Columns are Walsh functions (Sanchez and Sanchez 2005, for resolution V). Each column is the first Walsh function
    that is not a product of at most `resolution` − 2 earlier columns.
    """
    axes = np.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])
    if d == 1:
        return axes
    columns: list[int] = []
    products = [{0}, *(set[int]() for _ in range(resolution - 2))]  # Entry i: the products of i columns.
    while len(columns) < d:
        column = 1 + max(columns, default=0)
        while any(column in found for found in products):
            column += 1
        for many in range(resolution - 2, 0, -1):
            products[many] |= {column ^ other for other in products[many - 1]}
        columns.append(column)
    runs = np.arange(2 ** max(columns).bit_length())
    corners = 1.0 - 2.0 * (np.bitwise_count(runs[:, None] & np.array(columns)) % 2)
    return np.concatenate([corners, axes])


_MOST = 3  # Largest number of hyperparameters of a grid.
_FURTHEST = 20  # Largest number of grid steps from the maximum in each direction.
_FEW_NODES = 4  # Number of nodes along an axis below which the step is halved.
_FINEST = 0.2  # Smallest step, relative to the first step.
_NODES = 5000  # Largest number of evaluations of a grid.
_NEIGHBOURS = 64  # Number of solutions from which a start is predicted.

_MARGIN = 3  # Number of cells with negligible density that a spline adds around the nodes.
_MANY = 150  # Largest number of nodes for a surrogate, which is slow.
_PROPOSALS, _INSIDE = 40_000, 16_384  # Numbers of proposals for draws, by a spline and by a surrogate.
_CONVEX = 0.25  # Largest excess of a log density over its tangent, per squared distance.
_LOWEST = 25.0  # Fall at which a log density is clipped, since splines oscillate at steep falls.
_PARTS = 6  # Number of parts of a cell along each axis.

type _Place = tuple[int, ...]


@dataclass(frozen=True)
class Grid(HyperMethod):
    """Regular grid along the principal axes of the Gaussian at the maximum (Rue, Martino and Chopin 2009, section 3.1).

    The grid grows from the maximum, node by node, until the density is negligible. So it represents skewed posteriors
    and long tails, for example of a standard deviation of groups that may be 0. All nodes have cells of equal size,
    which integrates smooth densities far more accurately than the step suggests. The relative error of the integral of
    a normal density is 2 exp(−2π² / step²).

    Parameters
    ----------
    step : float, optional
        Distance of nodes, in standard deviations of the Gaussian. If an axis has fewer than four nodes, its step is
        halved.
    drop : float, optional
        Fall of the log density below its maximum beyond which nodes are dropped.
    """

    step: float = field(default=1.5, metadata=positive())
    drop: float = field(default=7.0, metadata=positive())

    name: ClassVar[str] = "grid"

    def integrate(
        self, log_posterior: LogPosterior, optimum: Optimum, random_seed: int = 0, progressbar: bool = False
    ) -> HyperPosterior:
        """Return the nodes at which the approximation succeeds, with the log of the integral as log evidence."""
        best = optimum.best
        d = best.theta.size
        if d > _MOST:
            raise ValueError(
                f"hyper='grid' is for at most {_MOST} hyperparameters, but the model has {d}. Use hyper='ccd'."
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
            narrow = np.array([len({place[axis] for place in kept}) < _FEW_NODES for axis in range(d)])
            narrow &= spacing > _FINEST * self.step
            if not edge and kept and narrow.any():
                # If the density is narrower than the Gaussian, the grid needs a smaller step.
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
        cells = _Cells.of(found, spacing, gaussian)
        draws = cells.by_spline(random_seed) if len(kept) > _MANY else cells.by_surrogate(gaussian, random_seed)
        density = gaussian.at(draws)
        return self.posterior(
            log_posterior, list(kept.values()), weights, reasons, log_evidence=evidence, density=density
        )

    def _kept(self, found: dict[_Place, Evaluation | None], best: Evaluation) -> dict[_Place, Evaluation]:
        """Return the nodes whose density is not negligible relative to the highest node."""
        nodes = {place: node for place, node in found.items() if node is not None}
        top = max([best.log_posterior, *(node.log_posterior for node in nodes.values())])
        return {place: node for place, node in nodes.items() if node.log_posterior > top - self.drop}


def _open(kept: dict[_Place, Evaluation], edge: list[_Place], spacing: Array) -> str:
    """Return a text if the density is not negligible at the edge of the grid; else an empty text."""
    if edge:
        return f"the grid ended at {_NODES} points, before the density was negligible. Use hyper='ccd'"
    if (spacing * np.abs(list(kept))).max() < _FURTHEST:
        return ""
    return (
        f"the density is not negligible {_FURTHEST} steps from the maximum, where the grid ends. Give hyperparameters "
        "informative priors, or use hyper='nuts'"
    )


class _Cells(NamedTuple):
    """Cells around the nodes of a grid, including nodes at its edge with a negligible density."""

    places: NDArray[np.int64]
    """Integer coordinates of the nodes, (s, d), in steps from the maximum."""
    spacing: Array
    """Steps of the grid, (d,), in standard deviations."""
    nodes: list[Evaluation]
    logs: Array
    """Log densities at nodes, relative to the maximum, (s,)."""
    slopes: Array
    """Derivatives of log densities at standardised places, (s, d)."""

    @classmethod
    def of(cls, found: dict[_Place, Evaluation | None], spacing: Array, gaussian: GaussianAtMaximum) -> "_Cells":
        """Return the cells of all nodes at which the approximation succeeded."""
        known = {place: node for place, node in found.items() if node is not None}
        logs = np.array([node.log_posterior for node in known.values()]) - gaussian.near[0].log_posterior
        slopes = np.array([node.gradient for node in known.values()]) @ gaussian.root
        return cls(np.array(list(known)), spacing, list(known.values()), logs, slopes)

    def limited(self, values: Array, points: Array, cell: NDArray[np.intp]) -> Array:
        """Limit interpolated log densities (m,) at standardised points (m, d) to a small excess over tangents.

        The tangent is at the node of the point's cell. A concave log density is below its tangents, but an
        interpolation of a steep density may have spurious modes between nodes.
        """
        apart = points - self.spacing * self.places[cell]
        above = np.where(np.isfinite(self.slopes[cell]), self.slopes[cell], np.inf) * apart
        tangent = self.logs[cell] + np.where(np.isfinite(above), above, 0.0).sum(axis=1)
        limits: Array = tangent + _CONVEX * (apart**2).sum(axis=1)
        return np.where(np.isfinite(above).all(axis=1), np.minimum(values, limits), values)

    def by_spline(self, random_seed: int) -> Array:
        """Return standardised draws (m, d) from the density whose logarithm is a cubic spline through the nodes.

        Points are drawn uniformly from the cells of nodes, and weighted by the spline.
        """
        rng = np.random.default_rng(random_seed)
        logs = np.maximum(self.logs, self.logs.max() - _LOWEST)
        first = self.places.min(axis=0) - _MARGIN
        box = np.full(self.places.max(axis=0) - first + 1 + _MARGIN, logs.min())
        box[tuple((self.places - first).T)] = logs
        weights = np.exp(logs - logs.max())
        chosen = rng.choice(len(logs), size=_PROPOSALS, p=weights / weights.sum())
        points = self.places[chosen] + rng.uniform(-0.5, 0.5, size=(_PROPOSALS, self.places.shape[1]))
        found = map_coordinates(box, (points - first).T, order=3, mode="nearest")
        points = self.spacing * points
        return weighted_draws(self.limited(found, points, chosen) - logs[chosen], points, random_seed, DRAWS)

    def by_surrogate(self, gaussian: GaussianAtMaximum, random_seed: int) -> Array:
        """Return standardised draws (m, d) from the density that a surrogate interpolates through the nodes.

        Points are drawn from small parts of the cells of nodes, and weighted. Nodes at the edge are interpolated too,
        and the surrogate is used only in these cells, since it may have a spurious mode elsewhere.
        """
        rng = np.random.default_rng(random_seed)
        d = len(self.spacing)
        surrogate = interpolated(self.spacing * self.places, self.nodes, gaussian)
        along = (np.arange(_PARTS) + 0.5) / _PARTS - 0.5
        within = np.stack(np.meshgrid(*[along] * d, indexing="ij"), axis=-1).reshape(-1, d)
        centres = self.spacing * (self.places[:, None] + within).reshape(-1, d)
        cell = np.repeat(np.arange(len(self.places)), len(within))
        logs = self.limited(surrogate(centres), centres, cell)
        chosen = np.sort(resampled(logs, centres, random_seed, _INSIDE))
        unit = qmc.Sobol(d, rng=rng).random(_INSIDE) - 0.5
        points = centres[chosen] + self.spacing * unit / _PARTS
        found = self.limited(surrogate(points), points, cell[chosen])
        return weighted_draws(found - logs[chosen], points, random_seed, DRAWS)


def _beside(place: _Place) -> list[_Place]:
    """Return the neighbours of a place along each axis."""
    steps = np.concatenate([np.eye(len(place), dtype=int), -np.eye(len(place), dtype=int)])
    return [tuple(map(int, each)) for each in np.array(place) + steps]


def _edge(found: dict[_Place, Evaluation | None], kept: dict[_Place, Evaluation], spacing: Array) -> list[_Place]:
    """Return the next places of the grid: neighbours of kept nodes, and places behind a single failed node."""
    gaps = [place for place, node in found.items() if node is None and not kept.keys().isdisjoint(_beside(place))]
    around = {each for place in (*kept, *gaps) for each in _beside(place)} - found.keys()
    return sorted(place for place in around if (spacing * np.abs(place)).max() <= _FURTHEST)


def _finer(place: _Place, narrow: NDArray[np.bool_]) -> _Place:
    """Return the coordinates of a place after the steps along `narrow` axes are halved."""
    return tuple(map(int, np.where(narrow, 2, 1) * place))
