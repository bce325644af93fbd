"""A log density of few hyperparameters, interpolated in cells that are smaller where its mass is.

Coordinates x are stretched: z = 2 sinh(x / 2) are standardised coordinates. So a box of moderate size in x contains
long tails. The box is divided into cells of equal size, and the log density is evaluated at the centre of each cell.
Therefore a second mode of the density is found if it is about as wide as a cell.

A split divides a cell into three along one axis. It evaluates the log density at two new centres and keeps the old
centre (Jones, Perttunen and Stuckman 1993, the DIRECT algorithm). The cells with the largest products of mass and error
are split next.

The log density l is compressed to −c log(1 + (t − l) / c), where the constant t is above its maximum. In a cell, a
quadratic function approximates the compressed density. Its gradient is exact, and its second derivatives are
differences of gradients at the splits. Compression makes a fall such as −exp(2x) nearly linear.

PyMC represents a Cholesky factor of a covariance (`pm.LKJCholeskyCov`) by its entries, with logarithms on the diagonal.
In these entries the density has a narrow peak near a standard deviation of 0, with negligible mass. `Coordinates` uses
logarithms of standard deviations, and inverse hyperbolic tangents of canonical partial correlations (Lewandowski,
Kurowicka and Joe 2009), in which this peak is absent. Other hyperparameters are unchanged.

`correction_at` corrects EP's evidence of sums of effects. With few binary rows in a group, its error adds up over
groups, and depends on their scale. The term of second order of the error has a formula (`TiltedFactors.two_loops`). The
term is computed at the maximum, and at a point on each side of the maximum along each axis. Parabolas along the axes
interpolate it.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked
from scipy.optimize import minimize
from scipy.stats import qmc

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.weights import along_curve, resampled, with_marginals
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.local_computations import ColumnDensity
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import LogPosterior

_ITERATIONS = 50  # Largest number of iterations of a search in the coordinates of a Cholesky factor.
_SMALLEST = 1e-10  # Smallest 1 − |z| of a partial correlation z.
_BY_ROW = 2000  # Cost of a row whose averages have no formula, as a number of matrix entries.


class Coordinates:
    """Map between coordinates φ and the unconstrained space θ."""

    def __init__(self, space: Hyperparameters) -> None:
        transforms = space.classifier.model.rvs_to_transforms
        owners = np.array(space.owners)
        self._rows: list[NDArray[np.int64]] = []
        for rv in space.classifier.hyperparameters:
            if isinstance(transforms[rv], CholeskyCovPacked):
                places, first, row = np.flatnonzero(owners == rv.name), 0, 1
                while first < len(places):
                    self._rows.append(places[first : first + row])
                    first, row = first + row, row + 1

    @property
    def trivial(self) -> bool:
        """Whether φ and θ are equal."""
        return all(len(row) < 2 for row in self._rows)

    def theta(self, phi: Array) -> Array:
        """Return the unconstrained vector for coordinates (d,)."""
        theta = phi.copy()
        for row in self._rows:
            theta[row] = self._row(phi[row])[0]
        return theta

    def phi(self, theta: Array) -> Array:
        """Return the coordinates of an unconstrained vector (d,)."""
        phi = theta.copy()
        for row in self._rows:
            entries, left = theta[row[:-1]], np.exp(2.0 * theta[row[-1]])
            squares = np.append(entries**2, left)[::-1].cumsum()[::-1]  # Sums from each entry to the end of the row.
            phi[row[:-1]] = np.arctanh(np.clip(entries / np.sqrt(squares[:-1]), -1 + _SMALLEST, 1 - _SMALLEST))
            phi[row[-1]] = 0.5 * np.log(squares[0])
        return phi

    @staticmethod
    def _row(own: Array) -> tuple[Array, Array, Array]:
        """Return for φ of a row of a Cholesky factor L: its θ, its partial correlations z_k, and ratios L_k / z_k."""
        z, log_sd = np.tanh(own[:-1]), own[-1]
        log_rest = -np.log(np.cosh(own[:-1]))  # log √(1 − z²)
        scale = np.exp(log_sd + np.concatenate([[0.0], log_rest.cumsum()]))
        return np.append(scale[:-1] * z, log_sd + log_rest.sum()), z, scale[:-1]

    def pulled(self, phi: Array, evaluation: Evaluation) -> Evaluation:
        """Transform an evaluation of the density of θ to an evaluation of the density of φ, with derivatives."""
        value, gradient = evaluation.log_posterior, evaluation.gradient.copy()
        for row in self._rows:
            _, z, scale = self._row(phi[row])
            slope = evaluation.gradient[row]
            entries, (own, last) = scale * z, (slope[:-1], slope[-1])
            # For entries L_k = s c_k z_k: ∂L_k / ∂φ_m is s c_k (1 − z_k²) if m = k, and −L_k z_m if m < k.
            later = np.append((own * entries)[::-1].cumsum()[::-1], 0.0)[1:]
            # For each entry, the number of later entries in its row.
            count = np.arange(len(z))[::-1]
            gradient[row[:-1]] = own * scale * (1.0 - z**2) - z * (later + last) - count * z
            gradient[row[-1]] = own @ entries + last + len(z)
            value += float(np.log(scale).sum())
        return evaluation._replace(theta=phi, log_posterior=value, gradient=gradient)


class MovedLogPosterior:
    """Log posterior as a log density of the coordinates φ."""

    def __init__(self, log_posterior: LogPosterior, coordinates: Coordinates) -> None:
        self._log_posterior, self._coordinates = log_posterior, coordinates
        self.space = log_posterior.space
        self._found: dict[bytes, Evaluation] = {}

    def __call__(self, phi: Array, start: Any = None) -> Evaluation:
        """Evaluate at coordinates; see `LogPosterior`."""
        found = self._log_posterior(self._coordinates.theta(phi), start)
        self._found[phi.tobytes()] = found
        return self._coordinates.pulled(phi, found)

    @property
    def rows_without_formula(self) -> int:
        """Number of rows if averages of their density have no formula, which makes evaluations expensive; else 0."""
        classifier = self._log_posterior.classifier
        return classifier.prior.n_points if classifier.likelihood_model.offers(ColumnDensity) else 0

    @property
    def log_concave(self) -> bool:
        """Whether the likelihood is log-concave in the latent values."""
        return self._log_posterior.classifier.likelihood_model.log_concave

    @property
    def checked(self) -> bool:
        """Whether evaluations are exact and cheap enough to check a surrogate in the whole box."""
        return self._log_posterior.joint and not self.rows_without_formula

    def is_small(self, entries: int) -> bool:
        """Return whether evaluations are exact, and cost at most a solution with this number of matrix entries."""
        own = self._log_posterior
        return own.joint and own.entries + _BY_ROW * self.rows_without_formula <= entries

    def log_prior(self, phi: Array) -> float:
        """Return the log prior density of coordinates φ, with Jacobians."""
        theta = self._coordinates.theta(phi)
        value = self.space.log_prior(theta)
        prior = Evaluation(theta, value, np.zeros_like(theta), value, 0, CONVERGED, np.empty(0))
        return self._coordinates.pulled(phi, prior).log_posterior

    def original(self, evaluation: Evaluation) -> Evaluation:
        """Transform an evaluation in the coordinates φ to an evaluation in θ."""
        return self._found.get(evaluation.theta.tobytes(), evaluation)

    def each[T, R](self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return self._log_posterior.each(function, items)

    def _with(self, log_posterior: LogPosterior) -> Self:
        other = copy(self)
        other._log_posterior = log_posterior
        return other

    def loosely(self, gradients: bool = True) -> Self:
        return self._with(self._log_posterior.loosely(gradients))

    def weighing(self) -> Self:
        return self._with(self._log_posterior.weighing())

    def roughly(self) -> Self:
        return self._with(self._log_posterior.roughly())

    def climbed(self, best: Evaluation) -> Evaluation:
        """Search for the maximum in the coordinates, from an evaluation in θ; return the highest point."""
        first = self._coordinates.phi(best.theta)
        loose, top = self.loosely(), [self(first, best.start)]

        def fall(phi: Array) -> tuple[float, Array]:
            found = loose(phi, top[0].start)
            if not found.usable or not np.isfinite(found.gradient).all():
                return np.inf, np.zeros_like(phi)
            if found.log_posterior > top[0].log_posterior:
                top[0] = found
            return -found.log_posterior, -found.gradient

        minimize(fall, first, jac=True, method="BFGS", options={"maxiter": _ITERATIONS, "gtol": 1e-3})
        return top[0]


_MOST = 5000  # Largest number of latent values for a correction of the evidence, which needs matrices of all pairs.
_AT, _BEYOND = 1.7, 1.5  # Distance of points from the maximum (standard deviations); parabolas end at 1.5 × it.
_SHARE, _SMALL = 0.5, 0.01  # A correction is used if the next term is below _SHARE × correction + _SMALL.
_LARGEST = 2.0  # Change of the correction along an axis above which the axis is ignored.


def has_correction(log_posterior: LogPosterior) -> bool:
    """Return whether the model is a sum of effects whose correction is affordable."""
    if not log_posterior.joint:
        return False
    classifier, approximator = log_posterior.classifier, log_posterior.approximator
    few = classifier.prior.effects and classifier.n_functions == 1 and classifier.n_points <= _MOST
    return bool(few and approximator.matches_moments and not approximator.whole_factors)


def correction_at(log_posterior: LogPosterior, z: Array, nodes: Sequence[Evaluation], draws: Array) -> Array:
    """Return the correction of EP's log evidence (m,) at standardised draws (m, d).

    Parameters
    ----------
    log_posterior : LogPosterior
    z : array (s, d)
        Standardised places of nodes, the maximum first.
    nodes : sequence of Evaluation
    draws : array (m, d)
    """
    axes = [_beside(z, axis) for axis in range(z.shape[1])]
    needed = sorted({0, *(s for pair in axes for s in pair)})
    found = dict(zip(needed, (_two_loops(log_posterior, nodes[s]) for s in needed), strict=True))
    total = np.full(len(draws), found[0] if np.isfinite(found[0]) else 0.0)
    for axis, pair in enumerate(axes):
        places = [0.0, *(float(z[s, axis]) for s in pair)]
        values = np.array([0.0, *(found[s] - found[0] for s in pair)])
        if not np.isfinite(values).all() or np.abs(values).max() > _LARGEST:
            continue
        parabola = np.polyfit(places, values, len(places) - 1)
        total += np.polyval(parabola, np.clip(draws[:, axis], _BEYOND * min(places), _BEYOND * max(places)))
    return total


def _beside(z: Array, axis: int) -> list[int]:
    """Return for each side of an axis the index of the place whose distance from the maximum is nearest to `_AT`."""
    on_axis = (z != 0.0).sum(axis=1) == 1
    sides = (np.flatnonzero(on_axis & (side * z[:, axis] > 0.0)) for side in (-1.0, 1.0))
    return [int(own[np.argmin(np.abs(np.abs(z[own, axis]) - _AT))]) for own in sides if own.size]


def _two_loops(log_posterior: LogPosterior, node: Evaluation) -> float:
    solution = log_posterior.solve(node.theta, node.start)
    if not solution.converged:
        return np.nan
    factors = log_posterior.approximator.tilted_factors(solution)
    found = float(factors.two_loops.sum())
    # Largest term beyond second order, a sum over pairs of factors.
    later = float(factors.fourth @ factors.by_fourth_powers(factors.fourth)) / 48.0
    return found if abs(later) < _SHARE * abs(found) + _SMALL else np.nan


_WIDTH = 2.0  # Largest width of a cell of the first grid.
_BATCH = 12  # Number of cells that are split together.
_WORST = 0.02  # Smallest score of a cell in a batch, relative to the cell with the largest score.
_POINTS = 6  # log2 of the number of points at which the density of a cell is averaged.
_UNKNOWN = 2.0  # Assumed error of the log density along an axis without a split.
_THIRD, _MIXED = 40.0, 20.0  # Error of a cell: remainder of values / 40 + remainders of slopes / 20.
_TOP = 8.0  # Log density, relative to the maximum of the search, at which compression begins.
_COMPRESSED = 12.0  # The unit c of the compression is this number plus the number of axes.
_DEEPEST = 500.0  # Largest exponent in the inverse of the compression.
_CONVEX = 4.0  # Largest contribution of second derivatives to the compressed log density in a cell.
_ABOVE = 0.5  # Largest excess of a quadratic model over the largest computed log density.
_NARROW, _DEEP = 0.05, 30.0  # A cell with a smaller half-width and a larger fall of the log density has no mass.
_PROPOSALS = 131_072  # Number of points from which draws are resampled.
_HEAVIEST = 16.0  # Largest weight of a proposal, in units of the mean weight in its cell.
_MARGIN = 0.03  # Width of the border of the box, as a share of the box.
_FALL = 9.0  # Fall of the log prior that determines the border of the box.
_STEP, _GROWTH, _STEPS = 0.25, 0.1, 60  # Steps towards the border: first, growth with the distance, number.

type Evaluate = Callable[[Array, NDArray[np.int64]], tuple[Array, Array]]
"""Function of standardised points (m, d) and, for each, the index of a near earlier point or −1, (m,).

It returns log densities (m,), minus infinity where the approximation fails, and slopes (m, d).
"""


def stretched(z: Array) -> Array:
    """Return coordinates x = 2 arsinh(z / 2) for standardised coordinates z."""
    return np.asarray(2.0 * np.arcsinh(0.5 * z))


def unstretched(x: Array) -> Array:
    """Return standardised coordinates z = 2 sinh(x / 2)."""
    return np.asarray(2.0 * np.sinh(0.5 * x))


class Cells:
    """Cells of a box, with a quadratic model of the log density in each cell.

    Parameters
    ----------
    low, high : array (d,)
        Ends of the box, in standardised coordinates.
    evaluate : Evaluate

    Attributes
    ----------
    count : int
        Number of evaluations.
    lost : list of float
        Estimated log masses of cells at whose centres the approximation failed.
    """

    def __init__(self, low: Array, high: Array, evaluate: Evaluate) -> None:
        self._evaluate, self.d = evaluate, len(low)
        self._fall = _COMPRESSED + self.d
        low, high = stretched(low), stretched(high)
        self._low, self._high = low, high
        counts = np.maximum(np.ceil((high - low) / _WIDTH), 1).astype(int)
        grid = np.meshgrid(*(np.arange(count) + 0.5 for count in counts), indexing="ij")
        centres = low + np.stack(grid, axis=-1).reshape(-1, self.d) * (high - low) / counts
        m = len(centres)
        self._unit = qmc.Sobol(self.d, rng=np.random.default_rng(0)).random_base2(_POINTS) * 2.0 - 1.0
        self.centre, self.half = centres, np.tile(0.5 * (high - low) / counts, (m, 1))
        self.value, self.slope = self._at(centres, np.full(m, -1))
        self.second = np.zeros((m, self.d, self.d))
        self.error = np.full((m, self.d), _UNKNOWN)
        self.split = np.zeros((m, self.d), dtype=bool)
        self.count, self.lost = m, list[float]()

    def _at(self, x: Array, near: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the compressed log density (m,) of x (m, d), with Jacobians, and its derivatives (m, d)."""
        value, slope = self._evaluate(unstretched(x), near)
        found = np.isfinite(value) & np.isfinite(slope).all(axis=1)
        value = np.where(found, value + np.log(np.cosh(0.5 * x)).sum(axis=1), -np.inf)
        slope = np.where(found[:, None], slope * np.cosh(0.5 * x) + 0.5 * np.tanh(0.5 * x), 0.0)
        ratio = 1.0 + np.maximum(_TOP - value, 0.0) / self._fall
        slope = slope / ratio[:, None]
        return -self._fall * np.log(ratio), slope

    @property
    def _highest(self) -> float:
        """Largest computed log density of x."""
        return _TOP - self._fall * np.expm1(-self.value.max() / self._fall)

    def _model(self, u: Array, which: NDArray[np.int64]) -> Array:
        """Return log densities (m, k) by the quadratic models of m cells, at places u (m, k, d) minus their centres."""
        linear = np.einsum("mkd,md->mk", u, self.slope[which])
        split = self.split[which]
        second = np.where(split[:, :, None] & split[:, None], self.second[which], 0.0)
        square = np.minimum(np.einsum("mkd,mde,mke->mk", u, second, u), _CONVEX)
        compressed = self.value[which][:, None] + linear + 0.5 * square
        value = _TOP - self._fall * np.expm1(np.clip(-compressed / self._fall, 0.0, _DEEPEST))
        return np.minimum(value, self._highest + _ABOVE)

    def _masses(self, which: NDArray[np.int64], shift: Array | None = None, part: Array | float = 1.0) -> Array:
        """Return log masses (m,) of cells, or of parts of cells with shifts (m, d) and relative widths (m, d)."""
        half = self.half[which] * part
        places = self._unit * half[:, None]
        inside = self._model(places if shift is None else places + shift[:, None], which)
        top = inside.max(axis=1)
        with np.errstate(invalid="ignore"):
            average = np.log(np.exp(inside - top[:, None]).mean(axis=1))
        narrow = (half < _NARROW).any(axis=1) & (self.value[which] < -_DEEP)
        mass = np.where(np.isfinite(top) & ~narrow, top + average, -np.inf)
        return mass + np.log(2.0 * half).sum(axis=1)

    @property
    def z(self) -> Array:
        """Centres (m, d) in standardised coordinates."""
        return unstretched(self.centre)

    def at_border(self, draws: Array) -> float:
        """Return the share of standardised draws (m, d) that are close to the border of the box."""
        x, margin = stretched(draws), _MARGIN * (self._high - self._low)
        return float(((x < self._low + margin) | (x > self._high - margin)).any(axis=1).mean())

    @property
    def share_lost(self) -> float:
        """Estimated share of the mass where the approximation fails."""
        return float(
            np.exp(np.array(self.lost) - self.log_mass.max()).sum() / np.exp(self.log_mass - self.log_mass.max()).sum()
        )

    def refine(self, tolerance: float, limit: int) -> float:
        """Split cells until their mean error is below the tolerance, or evaluations reach a limit.

        Return the mean error of the log density, weighted by the masses of cells. The error of a cell is clipped at 1.
        """
        self.log_mass = self._masses(np.arange(len(self.value)))
        while True:
            mass = np.exp(self.log_mass - self.log_mass.max())
            score = mass / mass.sum() * np.minimum(self.error.sum(axis=1), 1.0)
            total = float(score.sum())
            if total < tolerance or self.count + 2 * _BATCH > limit:
                return total
            worst = np.argsort(-score, kind="stable")[:_BATCH]
            self._split(np.sort(worst[score[worst] > _WORST * score[worst[0]]]))

    def _axis(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the axis (m,) along which each cell is split next."""
        change = np.abs(self.slope[own]) * self.half[own]
        return np.where(self.split[own], self.error[own], _UNKNOWN + change).argmax(axis=1)

    def _split(self, own: NDArray[np.int64]) -> None:
        rows, axis = np.arange(len(own)), self._axis(own)
        away = 2.0 * self.half[own, axis] / 3.0
        step = np.zeros((len(own), self.d))
        step[rows, axis] = away
        ends = np.concatenate([self.centre[own] + step, self.centre[own] - step])
        value, slope = self._at(ends, np.tile(own, 2))
        self.count += len(ends)
        third = np.where(step != 0.0, 1.0 / 3.0, 1.0)
        parts = [self._masses(own, sign * step, third) for sign in (1.0, -1.0)]
        self.lost += list(np.concatenate(parts)[~np.isfinite(value)])
        (ahead, behind), (to, back) = value.reshape(2, -1), slope.reshape(2, len(own), self.d)
        here = self.slope[own]
        change = (to - back) / (2.0 * away[:, None])
        known = np.isfinite(ahead) & np.isfinite(behind) & np.isfinite(self.value[own])
        second = self.second[own]
        second[rows, axis], second[rows, :, axis] = change, change
        # Remainders of the quadratic model, from values and from slopes: they show third derivatives.
        bend = 0.5 * second[rows, axis, axis] * away**2
        along = here[rows, axis] * away
        with np.errstate(invalid="ignore"):
            wrong = np.maximum(
                np.abs(ahead - self.value[own] - along - bend), np.abs(behind - self.value[own] + along - bend)
            )
        half = self.half[own].copy()
        half[rows, axis] /= 3.0
        others = np.abs(0.5 * (to + back) - here) * half
        others[rows, axis] = 0.0
        error = self.error[own]
        error[rows, axis] = np.where(known, wrong / _THIRD + others.sum(axis=1) / _MIXED, _UNKNOWN / 2.0)
        sides = []
        for sign, end in ((1.0, to), (-1.0, back)):
            side = second.copy()
            side[rows, axis] = side[rows, :, axis] = sign * (end - here) / away[:, None]
            sides.append(np.where(known[:, None, None], side, 0.0))
        self.second[own] = np.where(known[:, None, None], second, 0.0)
        self.half[own], self.error[own] = half, error
        self.split[own, axis] = known
        self.split = np.concatenate([self.split, self.split[own], self.split[own]])
        self.centre = np.concatenate([self.centre, ends])
        self.half = np.concatenate([self.half, half, half])
        self.value, self.slope = np.concatenate([self.value, value]), np.concatenate([self.slope, slope])
        self.second, self.error = np.concatenate([self.second, *sides]), np.concatenate([self.error, error, error])
        new = np.concatenate([own, np.arange(len(self.value) - len(ends), len(self.value))])
        self.log_mass = np.append(self.log_mass, np.zeros(len(ends)))
        self.log_mass[new] = self._masses(new)

    def draws(self, count: int, seed: int) -> tuple[Array, float, Array]:
        """Return standardised draws (count, d) of equal weight, the log of the integral, and the cell of each draw."""
        mass = np.exp(self.log_mass - self.log_mass.max())
        order = along_curve(self.centre)
        places = (np.arange(_PROPOSALS) + 0.5) / _PROPOSALS
        cell = order[np.searchsorted(np.cumsum(mass[order]) / mass.sum(), places).clip(max=len(order) - 1)]
        unit = qmc.Sobol(self.d, rng=np.random.default_rng(seed)).random(_PROPOSALS) * 2.0 - 1.0
        u = unit * self.half[cell]
        size = np.log(2.0 * self.half[cell]).sum(axis=1)
        logs = np.minimum(self._model(u[:, None], cell)[:, 0] + size - self.log_mass[cell], np.log(_HEAVIEST))
        x = self.centre[cell] + u
        chosen = resampled(logs, x, seed, count)
        total = float(self.log_mass.max() + np.log(mass.sum()))
        return unstretched(with_marginals(x[chosen], x, np.exp(logs))), total, cell[chosen]


def extent(log_prior: Callable[[Array], float], theta: Array, axes: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the lowest and highest values (k,) that the prior allows for elements `axes` of θ, varied one at a time.

    At these values the log prior has fallen by `_FALL` from its largest value.
    """
    ends = np.tile(theta[axes], (2, 1))
    top = log_prior(theta)
    for number, axis in enumerate(axes):
        for end, sign in ((0, -1.0), (1, 1.0)):
            there, best = theta.copy(), top
            for _ in range(_STEPS):
                there[axis] += sign * max(_STEP, _GROWTH * abs(there[axis] - theta[axis]))
                found = log_prior(there)
                best = max(best, found)
                if not found > best - _FALL:
                    break
            ends[end, number] = there[axis]
    return ends[0], ends[1]
