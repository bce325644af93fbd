"""Gaussian approximation at the maximum of the log posterior of the hyperparameters."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.approximations.solution import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.optimum import Optimum
from pymc_gpep.hyper.surrogate import Points, Surrogate
from pymc_gpep.log_posteriors.evaluation import Evaluation
from pymc_gpep.log_posteriors.log_posterior import LogPosterior

_FIRST_STEP = 0.03  # First step of differences, in unconstrained units.
# Step of central differences (conditional standard deviations). Their error is of second order.
_STEP = 0.1
_RANGE = 2.5  # Largest ratio between a step and `_STEP`, or its inverse, that is accepted.
_CURVED = 1e-4  # Smallest eigenvalue, relative to the diagonal, that counts as curvature.
_FLAT = 0.02  # Lower limit to which small eigenvalues of a scaled precision are raised.
_SLOPES = 1000  # Number of slopes above which an interpolation uses values only.
_DOUBLINGS = 9  # Number of doublings of the first step along an axis without curvature.


class GaussianAtMaximum(NamedTuple):
    """Gaussian N(mean, R Rᵀ), where the columns of R are along the principal axes."""

    mean: Array
    root: Array
    near: tuple[Evaluation, ...]
    """Evaluations at the mean, and at the points whose gradients give the second derivatives."""

    @property
    def neighbours(self) -> Neighbours:
        """Solutions from which starts are predicted, with distances in standard deviations."""
        return Neighbours(tuple(e.theta for e in self.near), tuple(e.start for e in self.near), self.root)

    @property
    def log_volume(self) -> float:
        """Log of the integral of a Gaussian density that is 1 at its maximum."""
        return 0.5 * self.mean.size * np.log(2 * np.pi) + float(np.linalg.slogdet(self.root)[1])

    def at(self, z: Array) -> Array:
        """Return hyperparameters (s, d) for standardised hyperparameters."""
        return self.mean + z @ self.root.T


def interpolated(z: Array, nodes: Sequence[Evaluation], gaussian: GaussianAtMaximum) -> Surrogate:
    """Return an interpolation of the log density through nodes at standardised places z (s, d)."""
    places, first = np.unique(z.round(9), axis=0, return_index=True)
    values = np.array([nodes[s].log_posterior for s in first]) - gaussian.near[0].log_posterior
    slopes = np.array([nodes[s].gradient for s in first]) @ gaussian.root
    if slopes.size > _SLOPES:
        slopes = np.full_like(slopes, np.nan)
    return Surrogate(Points(places, values, slopes), -np.eye(places.shape[1]))


class Scales(NamedTuple):
    """Standardised coordinates z about a maximum: θ = mean + scale z along the integrated axes."""

    mean: Array
    axes: NDArray[np.int64]
    """Indices (k,) of the elements of θ that are integrated over."""
    scale: Array
    """Standard deviations (k,) of each element given the other elements."""
    mixed: Array
    """Second derivatives (k, k) of the log posterior in z, negative definite with a diagonal of −1."""
    near: tuple[Evaluation, ...]
    held: str
    """Text on elements that stay at the maximum; empty without such elements."""

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return len(self.axes)

    @property
    def neighbours(self) -> Neighbours:
        """Solutions from which starts are predicted, with distances in standard deviations."""
        units = np.ones(self.mean.size)
        units[self.axes] = self.scale
        return Neighbours(tuple(e.theta for e in self.near), tuple(e.start for e in self.near), np.diag(units))

    def at(self, z: Array) -> Array:
        """Return hyperparameters (s, d) for standardised hyperparameters (s, k)."""
        theta = np.tile(self.mean, (len(z), 1))
        theta[:, self.axes] += self.scale * z
        return theta

    def slope(self, gradient: Array) -> Array:
        """Transform derivatives in θ (d,) to derivatives in z (k,)."""
        return np.asarray(gradient[self.axes] * self.scale)


def second_derivatives(log_posterior: LogPosterior, centre: Evaluation, steps: Array) -> Array:
    """Return the Hessian (d, d) by central differences of the gradient; NaN where the approximation fails."""
    d = centre.theta.size
    rows = np.empty((d, d))
    for i, step in enumerate(np.diag(steps)):
        ahead, behind = (log_posterior(centre.theta + side, centre.start) for side in (step, -step))
        rows[i] = (ahead.gradient - behind.gradient) / (2 * steps[i])
    return 0.5 * (rows + rows.T)


def hessian(log_posterior: LogPosterior, centre: Evaluation) -> tuple[Array, tuple[Evaluation, ...]]:
    """Return the Hessian (d, d) of the log posterior, by central differences of its exact gradient.

    Each step is about a tenth of the standard deviation of a hyperparameter given the other hyperparameters. A first
    step of another size is repeated. So there are 2 d evaluations, plus one for each repeated step. Second derivatives
    are NaN where the approximation fails. The evaluations are returned as well.
    """
    d = centre.theta.size
    near = Neighbours((centre.theta,), (centre.start,))

    def along(axis: int) -> tuple[Array, Evaluation, Evaluation]:
        step = _FIRST_STEP * np.eye(d)[axis]
        ahead = log_posterior(centre.theta + step, near)
        curvature = (centre.gradient - ahead.gradient)[axis] / _FIRST_STEP
        wanted = _STEP / np.sqrt(curvature) if curvature > _CURVED else _FIRST_STEP / _RANGE
        if not 1 / _RANGE < wanted / _FIRST_STEP < _RANGE:
            step *= wanted / _FIRST_STEP
            ahead = log_posterior(centre.theta + step, near)
        behind = log_posterior(centre.theta - step, near.joined(ahead.theta, ahead.start, 2))
        return (ahead.gradient - behind.gradient) / (2 * step[axis]), ahead, behind

    found = log_posterior.each(along, range(d))
    rows = np.array([row for row, *_ in found]).reshape(d, d)
    return 0.5 * (rows + rows.T), tuple(evaluation for _, *both in found for evaluation in both)


def gaussian_at(log_posterior: LogPosterior, optimum: Optimum) -> GaussianAtMaximum:
    """Return the Gaussian with the mode and the second derivatives of the log posterior.

    Raises
    ------
    ValueError
        If the log posterior is not curved downwards in all directions.
    """
    theta = optimum.best.theta
    second, around = hessian(log_posterior.loosely(), optimum.best)
    precision = -second
    scale = np.sqrt(np.maximum(precision.diagonal(), 0.0))
    curved = np.isfinite(precision).all() and (scale > 0).all()
    if not curved or np.linalg.eigvalsh(precision / np.outer(scale, scale))[0] < _CURVED:
        point = {name: value.tolist() for name, value in log_posterior.point(theta).items()}
        why = "" if optimum.converged else f"The optimiser did not converge: {optimum.message.strip('. ')}. "
        raise ValueError(
            f"The log posterior of the hyperparameters has no curved maximum at {point} (unconstrained), so a "
            f"Gaussian approximation fails. {why}The data may not determine a hyperparameter. Use tighter priors, or "
            + ("integrate with hyper='nuts'." if log_posterior.joint else "keep them at their maximum, hyper='map'.")
        )
    values, vectors = np.linalg.eigh(precision)
    return GaussianAtMaximum(theta, vectors / np.sqrt(values), (optimum.best, *around))


def scales_at(log_posterior: Any, best: Evaluation) -> Scales:
    """Return standardised coordinates about the maximum, even if the log posterior is not curved at it.

    The unit of an axis without curvature is the distance at which the log posterior has fallen by ½. Hyperparameters
    along which the log posterior does not fall stay at the maximum. Directions without curvature get a small curvature.

    Raises
    ------
    ValueError
        If the log posterior falls along no axis.
    """
    theta, loose = best.theta, log_posterior.loosely()
    second, around = hessian(loose, best)
    second = np.nan_to_num(second)
    curvature = -second.diagonal()
    scale = np.zeros(theta.size)
    good = curvature > _CURVED
    scale[good] = 1.0 / np.sqrt(curvature[good])
    for axis in map(int, np.flatnonzero(~good)):
        scale[axis] = _distance_of_fall(loose, best, axis)
    axes = np.flatnonzero(scale > 0.0)
    if not axes.size:
        raise ValueError(
            "The log posterior does not fall along any hyperparameter, so it cannot be integrated. Give "
            "hyperparameters informative priors, or keep them at their maximum, hyper='map'."
        )
    precision = -second[np.ix_(axes, axes)] * np.outer(scale[axes], scale[axes])
    precision[np.diag_indices(len(axes))] = 1.0
    values, vectors = np.linalg.eigh(precision)
    if values[0] < _FLAT:
        precision = (vectors * np.maximum(values, _FLAT)) @ vectors.T
    names = (
        [name for axis, name in enumerate(log_posterior.space.parameters) if axis not in axes]
        if len(axes) < theta.size
        else []
    )
    held = f"{', '.join(names)} stay at the maximum, since the log posterior does not fall along them" if names else ""
    return Scales(theta, axes, scale[axes], -precision, (best, *around), held)


def _distance_of_fall(log_posterior: Any, best: Evaluation, axis: int) -> float:
    """Return the distance along an axis at which the log posterior has fallen by ½ on a side; 0 if it does not fall."""
    step = _FIRST_STEP
    for _ in range(_DOUBLINGS):
        for side in (-step, step):
            theta = best.theta.copy()
            theta[axis] += side
            found = log_posterior(theta, best.start)
            fall = best.log_posterior - found.log_posterior
            if fall > 0.5:
                return step / np.sqrt(2.0 * fall)
        step *= 2.0
    return 0.0
