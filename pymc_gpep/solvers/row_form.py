"""A prior covariance K = J Jᵀ of one latent function, by rows J of coefficients of q independent standard normals z.

Matrices are of the size of z: with Λ = I + JᵀπJ = L Lᵀ and H = J L⁻ᵀ

    log|I + πK| = log|Λ|,   var f_i = ‖h_i‖²,   (I + πK)⁻¹ r = r − π J Λ⁻¹ Jᵀ r,   M = π − π H Hᵀ π,

so that n rows cost O(n q²), products of matrices. 1 − π var f loses digits where a row all but decides on its latent
value alone: its relative error is that of rounding over itself.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.function_posterior import FunctionPosterior
from pymc_gpep.solvers.prior_form import PriorForm
from pymc_gpep.solvers.team import Team

__all__ = ["RowForm", "RowFunctionPosterior", "precision_factor"]

_EPS = float(np.finfo(np.float64).eps)
_AMPLIFIED = 8.0  # as for a matrix, see `pymc_gpep.kernels.linalg.rounding`


def precision_factor(coefficients: Array, precision: Array) -> Array | None:
    """The Cholesky factor L (q, q) of Λ = I + JᵀπJ, with J (n, q) and π (n,) ≥ 0; None where there is none."""
    scaled = np.sqrt(precision)[:, None] * coefficients
    total = dsyrk(1.0, scaled.T, lower=1)  # the transpose of a C-ordered array is what BLAS takes without a copy
    if not np.isfinite(total).all():
        return None
    total[np.diag_indices(len(total))] += 1.0
    try:
        factor: Array = cholesky(total, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    return factor


class RowFunctionPosterior(FunctionPosterior):
    """The posterior by Λ."""

    def __init__(self, coefficients: Array, prior_mean: Array) -> None:
        super().__init__(prior_mean)
        self._j = coefficients
        self._factor: Array = np.empty((0, 0))
        self._half: Array = np.empty((0, 0))

    def decompose(self, precision: Array) -> bool:
        """See `FunctionPosterior`."""
        self.precision[:] = precision
        if not (precision >= 0.0).all():
            return False
        factor = precision_factor(self._j, self.precision)
        if factor is None:
            return False
        self._factor = factor
        self.log_det = 2.0 * float(np.log(factor.diagonal()).sum())
        return True

    def invert(self) -> None:
        """See `FunctionPosterior`; H (n, q)."""
        root, _ = dtrtri(self._factor, lower=1)
        self._half = self._j @ root.T

    def times(self, weights: Array) -> Array:
        """See `FunctionPosterior`."""
        return np.asarray(self._j @ (self._j.T @ weights))

    def spread(self) -> None:
        """See `FunctionPosterior`."""
        np.einsum("ij,ij->i", self._half, self._half, out=self.variance)

    @property
    def kept(self) -> Array:
        """See `FunctionPosterior`."""
        return np.asarray(np.maximum(1.0 - self.precision * self.variance, _EPS))

    def smooth(self, force: Array) -> Array:
        """See `FunctionPosterior`."""
        solved = cho_solve((self._factor, True), self._j.T @ force, check_finite=False)
        return np.asarray(force - self.precision * (self._j @ solved))

    def gradient(self, moved: Array | None = None, of_variance: Array | None = None) -> Array:
        """See `FunctionPosterior`; (1, n, q), twice the derivative in K times J."""
        b = self.weights
        solved = cho_solve((self._factor, True), self._j.T, check_finite=False).T  # J Λ⁻¹, and M J = π J Λ⁻¹
        gradient = np.outer(b, self._j.T @ b) - self.precision[:, None] * solved
        if moved is not None:
            gradient += np.outer(moved, self._j.T @ b) + np.outer(b, self._j.T @ moved)
        if of_variance is not None:
            gradient += 2.0 * of_variance[:, None] * self._j
        return np.asarray(gradient[None])


class RowForm(PriorForm):
    """Coefficients J (1, n, q) of one latent function."""

    square = False

    def among(self, points: NDArray[np.int64]) -> Array:
        """See `PriorForm`."""
        some = self.array[:, points]
        return some @ some.swapaxes(1, 2)

    @property
    def variances(self) -> Array:
        """See `PriorForm`."""
        return np.einsum("cij,cij->ci", self.array, self.array)

    def is_covariance(self, team: Team) -> bool:
        """See `PriorForm`; J Jᵀ always is one."""
        return True

    def multiply(self, b: Array, out: Array) -> None:
        """See `PriorForm`."""
        out[0] = self.array[0] @ (self.array[0].T @ b[0])

    def rounding(self, b: Array) -> float:
        """See `PriorForm`."""
        return _AMPLIFIED * _EPS * float(self.variances.max()) * float(np.abs(b).sum())

    def newton_direction(
        self, curvature: Array, slope: Array, reduction: float, limit: int, image: Array, pull: Array
    ) -> None:
        """See `PriorForm`; by a factorisation, NaN where there is none."""
        j = self.array[0]
        factor = precision_factor(j, curvature)
        if factor is None:
            pull[:] = image[:] = np.nan
            return
        pull[0] = slope[0] - curvature * (j @ cho_solve((factor, True), j.T @ slope[0], check_finite=False))
        self.multiply(pull, image)

    def posterior(self, prior_mean: Array) -> RowFunctionPosterior:
        """See `PriorForm`."""
        return RowFunctionPosterior(self.array[0], prior_mean)
