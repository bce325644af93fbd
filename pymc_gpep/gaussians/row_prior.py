"""A Gaussian prior of one latent function by rows of coefficients of independent standard normals."""

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_prior import DensePrior
from pymc_gpep.solvers.coefficients import Coefficients, coefficients
from pymc_gpep.solvers.row_form import RowForm

__all__ = ["RowPrior"]


class RowPrior(DensePrior):
    """f = m + J z for standard normals z, with far fewer of them than rows.

    Parameters
    ----------
    array : array (1, n, q)
        J.
    mean : array (1, n)
    """

    form = RowForm

    def __init__(self, array: Array, mean: Array) -> None:
        self.roots = np.require(array, np.float64, ["C", "W"])
        self.mean = np.require(mean, np.float64, ["C", "W"])

    @classmethod
    def checked(cls, array: ArrayLike, mean: ArrayLike) -> "RowPrior":
        """Make a prior of arrays that may be anything.

        Raises
        ------
        ValueError
            Naming the argument, if a shape does not fit or a value is not finite.
        """
        means = np.atleast_2d(np.asarray(mean, dtype=np.float64))
        coefficients = np.asarray(array, dtype=np.float64)
        coefficients = coefficients[None] if coefficients.ndim == 2 else coefficients
        if means.ndim != 2 or len(means) != 1 or coefficients.shape[:2] != means.shape or coefficients.ndim != 3:
            raise ValueError(
                "mean must be (1, n) and coefficients (1, n, q), but they have the shapes "
                f"{means.shape} and {coefficients.shape}."
            )
        for name, values in (("mean", means), ("coefficients", coefficients)):
            if not np.isfinite(values).all():
                raise ValueError(
                    f"{name} must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not."
                )
        return cls(coefficients, means)

    @cached_property
    def rows(self) -> Coefficients:
        """J, by entries where that is cheaper."""
        return coefficients(self.roots[0])

    @property
    def array(self) -> Array:
        """J, (1, n, q)."""
        return self.roots

    @property
    def variances(self) -> Array:
        """Prior variances, (1, n)."""
        return np.einsum("cij,cij->ci", self.roots, self.roots)

    @cached_property
    def k(self) -> Array:  # type: ignore[override]
        """The covariance J Jᵀ (1, n, n), for those few that want all of it."""
        return self.roots @ self.roots.swapaxes(1, 2)

    def rooted(self, roots: Array) -> "RowPrior":
        """Return the same prior by other coefficients of the same normals."""
        return RowPrior(roots, self.mean)

    def latent(self, z: Array) -> Array:
        """Latent values f = m + J z (..., 1, n), of z (..., 1, q)."""
        return np.asarray(self.mean + z @ self.roots[0].T)
