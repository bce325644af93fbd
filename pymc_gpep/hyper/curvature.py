"""The Gaussian at the maximum of the hyperparameters' log posterior."""

from typing import NamedTuple

import numpy as np

from pymc_gpep.approximations.neighbours import Neighbours
from pymc_gpep.array_types import Array
from pymc_gpep.hyper.evaluation import Evaluation
from pymc_gpep.hyper.log_posterior import LogPosterior
from pymc_gpep.hyper.optimum import Optimum

__all__ = ["GaussianAtMaximum", "gaussian_at", "hessian", "second_derivatives"]


_FIRST_STEP = 0.03  # in units of the unconstrained space, before its scale is known
_STEP = 0.1  # in conditional standard deviations; the error of a central difference is of the order of its square
_RANGE = 2.5  # factor by which a step may be off
_CURVED = 1e-4  # smallest eigenvalue, relative to the diagonal, that counts as curvature


class GaussianAtMaximum(NamedTuple):
    """N(mean, R Rᵀ), the columns of R along the principal axes."""

    mean: Array
    root: Array
    near: tuple[Evaluation, ...]
    """Of the log posterior: at the mean, and where its second derivatives were taken from."""

    @property
    def neighbours(self) -> Neighbours:
        """Known ends that starts are predicted from, in units of standard deviations."""
        return Neighbours(tuple(e.theta for e in self.near), tuple(e.start for e in self.near), self.root)

    @property
    def log_volume(self) -> float:
        """log of the integral of a Gaussian density that is 1 at its maximum."""
        return 0.5 * self.mean.size * np.log(2 * np.pi) + float(np.linalg.slogdet(self.root)[1])

    def at(self, z: Array) -> Array:
        """Hyperparameters (s, d) for standardised ones."""
        return self.mean + z @ self.root.T


def second_derivatives(log_posterior: LogPosterior, centre: Evaluation, steps: Array) -> Array:
    """Hessian (d, d) of the log posterior by central differences of its gradient; NaN where the approximation fails."""
    d = centre.theta.size
    rows = np.empty((d, d))
    for i, step in enumerate(np.diag(steps)):
        ahead, behind = (log_posterior(centre.theta + side, centre.start) for side in (step, -step))
        rows[i] = (ahead.gradient - behind.gradient) / (2 * steps[i])
    return 0.5 * (rows + rows.T)


def hessian(log_posterior: LogPosterior, centre: Evaluation) -> tuple[Array, tuple[Evaluation, ...]]:
    """Second derivatives (d, d) of the log posterior, by central differences of its exact gradient.

    Each step is about a tenth of the standard deviation of one hyperparameter given the others. The first step tells
    whether it was: 2 d evaluations in all, and one more for each that was not. NaN where the approximation fails.
    Returns these evaluations as well.
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
    """Gaussian whose log density has the mode and the second derivatives of the log posterior.

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
            f"The log posterior of the hyperparameters has no curved maximum at {point} (unconstrained), so it has no "
            f"Gaussian there. {why}The data may leave some hyperparameters open. Give them a prior that holds them, or "
            + ("integrate with hyper='nuts'." if log_posterior.joint else "keep them at their maximum, hyper='map'.")
        )
    values, vectors = np.linalg.eigh(precision)
    return GaussianAtMaximum(theta, vectors / np.sqrt(values), (optimum.best, *around))
