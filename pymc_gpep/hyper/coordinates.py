"""Coordinates in which the density of hyperparameters is nearer to a normal one than in the unconstrained space.

PyMC has a Cholesky factor of a covariance (`pm.LKJCholeskyCov`) as its entries, those on the diagonal by their
logarithms. Where a standard deviation is near 0 the density has a narrow peak there, with next to no mass. The
logarithms of standard deviations, and canonical partial correlations by their inverse hyperbolic tangents, have none
(Lewandowski, Kurowicka and Joe 2009). Other hyperparameters stay as they are.
"""

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pymc.distributions.transforms import CholeskyCovPacked
from scipy.optimize import minimize

from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.hyperparameters import Hyperparameters
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.kernels.status import CONVERGED

_ITERATIONS = 50  # of the climb to the maximum in the coordinates, at most
_SMALLEST = 1e-10  # 1 − z² of a partial correlation z


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
    def checked(self) -> bool:
        """Whether evaluations at points that the prior allows are exact and cheap enough for a check."""
        return self._log_posterior.joint

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
