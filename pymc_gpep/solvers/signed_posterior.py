"""The posterior of one function under sites whose precisions may be negative, where the prior covariance is a matrix.

A root of the covariance makes rows of coefficients of it, whose algebra takes precisions of any sign. The roots of
precisions, by which other posteriors are computed, do not exist here.
"""

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import coefficients
from pymc_gpep.solvers.row_form import RowFunctionPosterior


def covariance_root(k: Array) -> Array:
    """Return R (n, n) with R Rᵀ = K, of a covariance K (n, n) that may be singular."""
    values, vectors = np.linalg.eigh(k)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


class SignedFunctionPosterior(RowFunctionPosterior):
    """The posterior by Λ = I + RᵀΠR, R Rᵀ = K."""

    def __init__(self, k: Array, prior_mean: Array) -> None:
        super().__init__(coefficients(covariance_root(k)), prior_mean, signed=True)

    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`; (1, n, n)."""
        b, pi = self.weights, self.precision
        half = pi[:, None] * self._rows.combined(self._root.T)
        gradient = 0.5 * (np.outer(b, b) + half @ half.T - np.diag(pi))
        if moved is not None:
            gradient += 0.5 * (np.outer(moved, b) + np.outer(b, moved))
        if of_variance is not None:
            gradient[np.diag_indices(len(pi))] += of_variance
        return gradient[None]
