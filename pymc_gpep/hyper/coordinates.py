"""Coordinates in which the density of hyperparameters is nearer to a normal one, and the correction of EP's evidence.

PyMC represents a Cholesky factor of a covariance (`pm.LKJCholeskyCov`) by its entries, those on the diagonal by their
logarithms. Near a standard deviation of 0 the density has a narrow peak there, with next to no mass. `Coordinates` has
the logarithms of standard deviations, and canonical partial correlations by their inverse hyperbolic tangents
(Lewandowski, Kurowicka and Joe 2009). In these there is no such peak. Other hyperparameters are unchanged.

`correction_at` is for sums of effects. With few binary rows in a group the error of EP's evidence adds up over groups,
and depends on their scale. Its term of second order is known (`TiltedFactors.two_loops`). It is computed at the maximum
and at a point on each side of it along each axis. Parabolas interpolate it, axis by axis.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked
from scipy.optimize import minimize

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.likelihoods.local_computations import ColumnDensity
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.hyperparameters import Hyperparameters
from pymc_gpep.log_posteriors.log_posterior import LogPosterior

_ITERATIONS = 50  # of the climb to the maximum in the coordinates, at most
_SMALLEST = 1e-10  # 1 − z² of a partial correlation z
_BY_ROW = 2000  # Numbers in matrices whose cost is that of averages of a row without a formula.


class Coordinates:
    """The map from coordinates φ to the unconstrained space θ."""

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
        """Whether φ is θ, up to the order of one."""
        return all(len(row) < 2 for row in self._rows)

    def theta(self, phi: Array) -> Array:
        """The unconstrained vector for coordinates (d,)."""
        theta = phi.copy()
        for row in self._rows:
            theta[row] = self._row(phi[row])[0]
        return theta

    def phi(self, theta: Array) -> Array:
        """The coordinates of an unconstrained vector (d,)."""
        phi = theta.copy()
        for row in self._rows:
            entries, left = theta[row[:-1]], np.exp(2.0 * theta[row[-1]])
            squares = np.append(entries**2, left)[::-1].cumsum()[::-1]  # from each entry to the end of the row
            phi[row[:-1]] = np.arctanh(np.clip(entries / np.sqrt(squares[:-1]), -1 + _SMALLEST, 1 - _SMALLEST))
            phi[row[-1]] = 0.5 * np.log(squares[0])
        return phi

    @staticmethod
    def _row(own: Array) -> tuple[Array, Array, Array]:
        """Elements of θ for a row of the factor, its partial correlations z, and the factors s c of its entries."""
        z, log_sd = np.tanh(own[:-1]), own[-1]
        log_rest = -np.log(np.cosh(own[:-1]))  # log √(1 − z²)
        scale = np.exp(log_sd + np.concatenate([[0.0], log_rest.cumsum()]))
        return np.append(scale[:-1] * z, log_sd + log_rest.sum()), z, scale[:-1]

    def pulled(self, phi: Array, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation at θ as one at φ: of the density of φ, with its derivatives."""
        value, gradient = evaluation.log_posterior, evaluation.gradient.copy()
        for row in self._rows:
            _, z, scale = self._row(phi[row])
            slope = evaluation.gradient[row]
            entries, (own, last) = scale * z, (slope[:-1], slope[-1])
            # ∂L_k / ∂w_m is s c_k (1 − z²) for m = k and −L_k z_m for m < k.
            later = np.append((own * entries)[::-1].cumsum()[::-1], 0.0)[1:]
            count = np.arange(len(z))[::-1]  # entries after each, whose volumes it is part of
            gradient[row[:-1]] = own * scale * (1.0 - z**2) - z * (later + last) - count * z
            gradient[row[-1]] = own @ entries + last + len(z)
            value += float(np.log(scale).sum())
        return evaluation._replace(theta=phi, log_posterior=value, gradient=gradient)


class MovedLogPosterior:
    """A log posterior as the log density of other coordinates."""

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
        """Number of rows if averages of their density have no formula, so that an evaluation is expensive; else 0."""
        classifier = self._log_posterior.classifier
        return classifier.prior.n_points if classifier.likelihood_model.offers(ColumnDensity) else 0

    @property
    def checked(self) -> bool:
        """Whether evaluations at points that the prior allows are exact and cheap enough for a check."""
        return self._log_posterior.joint and not self.rows_without_formula

    def is_small(self, entries: int) -> bool:
        """Whether evaluations are exact and cost no more than solutions with so many numbers in their matrices."""
        own = self._log_posterior
        return own.joint and own.entries + _BY_ROW * self.rows_without_formula <= entries

    def log_prior(self, phi: Array) -> float:
        """Log prior density of coordinates φ, Jacobians included."""
        theta = self._coordinates.theta(phi)
        value = self.space.log_prior(theta)
        prior = Evaluation(theta, value, np.zeros_like(theta), value, 0, CONVERGED, np.empty(0))
        return self._coordinates.pulled(phi, prior).log_posterior

    def original(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation in the coordinates as one in θ."""
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

    def climbed(self, best: Evaluation) -> Evaluation:
        """Return the highest point that a climb in the coordinates from a point of θ reaches."""
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


_MOST = 5000  # latent values, beyond which matrices of all pairs are too large
_AT, _BEYOND = 1.7, 1.5  # standard deviations of the points, and how much farther parabolas go on
_SHARE, _SMALL = 0.5, 0.01  # the next order as a share of this one, and as a number, at most
_LARGEST = 2.0  # difference between two points beyond which the series says nothing


def has_correction(log_posterior: LogPosterior) -> bool:
    """Whether a sum of effects has a known correction that does not take too long."""
    if not log_posterior.joint:
        return False
    classifier, approximator = log_posterior.classifier, log_posterior.approximator
    few = classifier.prior.effects and classifier.n_functions == 1 and classifier.n_points <= _MOST
    return bool(few and approximator.matches_moments and not approximator.whole_factors)


def correction_at(log_posterior: LogPosterior, z: Array, nodes: Sequence[Evaluation], draws: Array) -> Array:
    """The correction (m,) at standardised draws (m, d).

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
    """Numbers of a place on each side along one axis, as far from the maximum as most of the mass."""
    on_axis = (z != 0.0).sum(axis=1) == 1
    sides = (np.flatnonzero(on_axis & (side * z[:, axis] > 0.0)) for side in (-1.0, 1.0))
    return [int(own[np.argmin(np.abs(np.abs(z[own, axis]) - _AT))]) for own in sides if own.size]


def _two_loops(log_posterior: LogPosterior, node: Evaluation) -> float:
    solution = log_posterior.solve(node.theta, node.start)
    if not solution.converged:
        return np.nan
    factors = log_posterior.approximator.tilted_factors(solution)
    found = float(factors.two_loops.sum())
    # The largest term of the next order, of pairs of factors.
    later = float(factors.fourth @ factors.lines**4 @ factors.fourth) / 48.0
    return found if abs(later) < _SHARE * abs(found) + _SMALL else np.nan
