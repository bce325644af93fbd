"""Sites that couple the functions of a point, with rows of coefficients of few standard normals."""

from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dtrtri

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.prior_form import SiteAlgebra
from pymc_gpep.solvers.row_factor import precision_factor
from pymc_gpep.solvers.site_precisions import CoupledPrecisions, SitePrecisions

__all__ = ["CoupledRowAlgebra", "RowAlgebra"]


class RowAlgebra(SiteAlgebra):
    """The algebra by Λ = I + JᵀΠJ, see `pymc_gpep.solvers.row_form`.

    Parameters
    ----------
    rows : Coefficients
        J, (cn, q).
    shape : tuple of int
        Shape of the array that they are made of.
    form : callable
        Makes precisions of their array.
    """

    _precisions: SitePrecisions
    _factor: Array

    def __init__(self, rows: Coefficients, shape: tuple[int, ...], form: Callable[[Array], SitePrecisions]) -> None:
        self._rows, self._shape, self._form = rows, shape, form

    def factorise(self, precision: Array) -> tuple[bool, float]:
        """See `SiteAlgebra`."""
        self._precisions = self._form(precision.copy())
        factor = precision_factor(self._rows, self._precisions) if self._precisions.legal else None
        if factor is None:
            return False, np.nan
        self._factor = factor
        return True, 2.0 * float(np.log(factor.diagonal()).sum())

    def _times(self, b: Array) -> Array:
        """K b (c, n)."""
        return self._rows.products(self._rows.sums(b.ravel())).reshape(b.shape)

    def _smoothed(self, force: Array) -> Array:
        """(I + ΠK)⁻¹ r (c, n), of r (c, n)."""
        solved = cho_solve((self._factor, True), self._rows.sums(force.ravel()), check_finite=False)
        return force - self._precisions.times(self._rows.products(solved).reshape(force.shape))

    def weights(self, force: Array, out: Array) -> None:
        """See `SiteAlgebra`; corrected once by what is left of r − (I + ΠK) b."""
        out[:] = self._smoothed(force)
        out += self._smoothed(force - self._precisions.times(self._times(out)) - out)

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        """See `SiteAlgebra`."""
        mean[:] = self._times(b)
        root, _ = dtrtri(self._factor, lower=1)
        cov[:] = self._rows.covariances(root)

    def gradient(self, b: Array, moved: Array | None = None) -> Array:
        """See `SiteAlgebra`; twice the derivative in K times J, or what that is in B of J = A B."""
        rows, pulled = self._rows, self._rows.sums(b.ravel())
        inverse = cho_solve((self._factor, True), np.eye(len(self._factor)), check_finite=False)
        gradient = rows.outer((b if moved is None else b + moved).ravel(), pulled)
        gradient -= rows.coupled_weighted(self._precisions, inverse)  # M J = Π J Λ⁻¹
        if moved is not None:
            gradient += rows.outer(b.ravel(), rows.sums(moved.ravel()))
        return gradient.reshape(self._shape)


class CoupledRowAlgebra(RowAlgebra):
    """That with Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i; log determinants have Σ_i log 1ᵀπ_i with them."""

    def __init__(self, rows: Coefficients, shape: tuple[int, ...]) -> None:
        super().__init__(rows, shape, CoupledPrecisions)

    def factorise(self, precision: Array) -> tuple[bool, float]:
        """See `SiteAlgebra`."""
        ok, log_det = super().factorise(precision)
        return ok, log_det + float(np.log(precision.sum(axis=0)).sum())
