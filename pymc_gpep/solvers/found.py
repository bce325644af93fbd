"""The result of a solver, and derivatives of the evidence there."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_gpep.array_types import Array

__all__ = ["NO_PARAMETERS", "Derivatives", "Found"]

NO_PARAMETERS = np.empty((0, 0))
"""Parameters of a likelihood that is given nothing but latent values."""


class Derivatives(NamedTuple):
    """Derivatives of an evidence."""

    k: Array
    """With respect to the array of the prior: its covariance (1 or c, n, n), or its coefficients (1, n, q)."""
    mean: Array
    """With respect to the prior mean, (c, n)."""
    parameters: Array = NO_PARAMETERS
    """With respect to parameters of the likelihood, (p, n); NaN where it does not say."""


class Found(NamedTuple):
    """Where a solver ended."""

    evidence: float
    status: int
    """One of `pymc_gpep.kernels.status`."""
    weights: Array
    """b = K⁻¹ (posterior mean − prior mean), (c, n)."""
    mean: Array
    """Posterior mean, (c, n)."""
    cov: Array
    """Posterior covariance between the classes of each point, (n, c, c)."""
    precision: Array
    """Precision of the sites, in the shape that the approximation's posterior wants."""
    derivatives: Callable[[], Derivatives]
    """Derivatives of the evidence, once converged."""
    rung: int = 0
    """Which of the solver's schemes had the last word, 0 for its first."""
