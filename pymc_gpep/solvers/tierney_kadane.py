"""Laplace's evidences with one more point, under each label that it could have: Tierney and Kadane's numerators."""

from collections.abc import Callable

import numpy as np

from pymc_gpep.array_types import Array, Observed
from pymc_gpep.kernels.status import CONVERGED
from pymc_gpep.solvers.dense_form import DenseForm
from pymc_gpep.solvers.laplace_coupled import CoupledAscent
from pymc_gpep.solvers.newton import newton
from pymc_gpep.solvers.problem import History, Problem

__all__ = ["evidences_with_new_point"]


def evidences_with_new_point(
    k: Array,
    prior_mean: Array,
    y: Observed,
    b: Array,
    k_cross: Array,
    k_new: Array,
    new_mean: Array,
    tolerance: float,
    max_iterations: int,
    *,
    log_density: Callable[..., float],
    along_line: Callable[..., tuple[float, float]],
) -> Array:
    """Laplace's log q(y, y* = l) at each of m new points, each on its own; (m, c), NaN where no mode was found.

    Parameters
    ----------
    k : (1 or c, n, n) array
        Prior covariance.
    prior_mean : (c, n) array
    y : (n,) or (n, c) array of int
        Labels, or votes.
    b : (c, n) array
        Weights at the mode given `y`, from where each search starts.
    k_cross : (1 or c, m, n) array
    k_new : (1 or c, m) array
        Prior covariances of the new points, as many as in `k`.
    new_mean : (c, m) array
    tolerance : float
        Largest residual of the modes.
    max_iterations : int
    log_density, along_line : kernels
        Kernels of `pymc_gpep.likelihoods.local_computations.CoupledCurvature`.
    """
    c, n = prior_mean.shape
    prior = np.empty((len(k), n + 1, n + 1))
    prior[:, :n, :n] = k
    evidences = np.full((new_mean.shape[1], c), np.nan)
    for new in range(len(evidences)):
        prior[:, n, :n] = prior[:, :n, n] = k_cross[:, new]
        prior[:, n, n] = k_new[:, new]
        mean = np.column_stack([prior_mean, new_mean[:, new]])
        for label in range(c):
            weights = np.column_stack([b, np.zeros(c)])
            observed = np.append(y, label) if y.ndim == 1 else np.vstack([y, np.eye(c, dtype=np.int64)[label]])
            problem = Problem(DenseForm(prior), mean, observed)
            ascent = CoupledAscent(problem, log_density, along_line)
            evidence, status = newton(problem, weights, ascent, History(max_iterations), tolerance=tolerance)
            if status == CONVERGED:
                evidences[new, label] = evidence
    return evidences
