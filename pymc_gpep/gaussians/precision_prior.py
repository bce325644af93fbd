"""A Gaussian prior of one latent function by rows of few coefficients, and a sparse precision of what they multiply."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.dense_prior import DensePrior, check_finite
from pymc_gpep.gaussians.prior import NotPositiveDefiniteError
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.precision_form import BoundPrecision, PrecisionForm
from pymc_gpep.solvers.precision_structure import PrecisionStructure
from pymc_gpep.solvers.sparse_precision import SparsePrecision

__all__ = ["BoundPrecisionPrior", "PrecisionPrior"]


class PrecisionPrior(DensePrior):
    """f = m + A x for numbers x ~ N(0, Q⁻¹), with a sparse precision Q.

    Numbers have one axis in front, (1, q), as functions have.

    Parameters
    ----------
    array : array (1, 1, nk + m)
        Coefficients and entries of Q, see `PrecisionForm`.
    mean : array (1, n)
    structure : PrecisionStructure
    """

    form: ClassVar[Any] = PrecisionForm

    def __init__(self, array: Array, mean: Array, structure: PrecisionStructure) -> None:
        self.mean = np.require(mean, np.float64, ["C", "W"])
        self.as_form = PrecisionForm(array, structure)
        self.form = BoundPrecision(structure)  # type: ignore[misc]  # solvers are given it with this structure

    @property
    def array(self) -> Array:
        """Coefficients and entries of Q."""
        return self.as_form.array

    @property
    def structure(self) -> PrecisionStructure:
        """Where these are."""
        return self.as_form.structure

    @property
    def rows(self) -> Coefficients:
        """A, (n, q)."""
        return self.as_form.rows

    @property
    def n_normals(self) -> int:
        """Length of x, q."""
        return self.structure.q

    @property
    def precision(self) -> SparsePrecision:
        """Q, factorised.

        Raises
        ------
        NotPositiveDefiniteError
            If it is not positive definite.
        """
        if self.as_form.prior is None:
            raise NotPositiveDefiniteError.of("The prior covariance of the integrated variables")
        return self.as_form.prior

    @property
    def variances(self) -> Array:
        """Prior variances, (1, n)."""
        return self.as_form.variances

    def check(self) -> None:
        _ = self.precision

    def at(self, points: NDArray[np.int64]) -> Array:
        """Return A (1, s, q) at some points (s,)."""
        return self.rows.some(points)[None]

    def some(self, points: NDArray[np.int64]) -> "PrecisionPrior":
        """Return the prior at some points (s,)."""
        own = self.structure
        structure = PrecisionStructure(own.cells[points], own.first, own.second, own.columns, own.widths)
        array = np.concatenate([self.as_form.values[points].ravel(), self.as_form.entries])
        return PrecisionPrior(array[None, None], self.mean[:, points], structure)

    @cached_property
    def roots(self) -> Array:
        """A root of the covariance (1, n, q), for those few that want one."""
        every = self.at(np.arange(self.shape[1]))[0]
        return self.precision.halved(every)[None]

    @cached_property
    def k(self) -> Array:  # type: ignore[override]
        """The covariance A Q⁻¹ Aᵀ (1, n, n), for those few that want all of it."""
        return self.roots @ self.roots.swapaxes(1, 2)

    def latent(self, z: Array) -> Array:
        """Latent values f = m + A x (..., 1, n), of x (..., 1, q)."""
        flat = np.asarray(z, dtype=np.float64).reshape(-1, self.n_normals)
        found = np.stack([self.rows.products(each) for each in flat])
        return np.asarray(self.mean + found.reshape(*z.shape[:-2], *self.shape))

    def whitened_slope(self, slope: Array) -> Array:
        """Q⁻¹ Aᵀ s (1, q) of s (1, n): the posterior mean of x, where s are its weights b."""
        return self.precision.solve(self.rows.sums(slope[0]))[None]


@dataclass(frozen=True, eq=False)
class BoundPrecisionPrior:
    """Makes priors with the same structure, as the type `RowPrior` makes them of an array."""

    structure: PrecisionStructure

    @cached_property
    def form(self) -> BoundPrecision:
        """See `PrecisionPrior`."""
        return BoundPrecision(self.structure)

    def __call__(self, array: Array, mean: Array) -> PrecisionPrior:
        """Return the prior of an array."""
        return PrecisionPrior(array, mean, self.structure)

    def checked(self, array: ArrayLike, mean: ArrayLike) -> PrecisionPrior:
        """Make a prior of arrays that may be anything.

        Raises
        ------
        ValueError
            Naming the argument, if a shape does not fit or a value is not finite.
        """
        means = np.atleast_2d(np.asarray(mean, dtype=np.float64))
        numbers = np.asarray(array, dtype=np.float64)
        size = self.structure.cells.size + len(self.structure.first)
        if means.shape != (1, len(self.structure.cells)) or numbers.shape != (1, 1, size):
            raise ValueError(
                f"mean must be (1, {len(self.structure.cells)}) and coefficients with a precision (1, 1, {size}), but "
                f"they have the shapes {means.shape} and {numbers.shape}."
            )
        check_finite({"mean": means, "coefficients": numbers})
        return PrecisionPrior(numbers, means, self.structure)
