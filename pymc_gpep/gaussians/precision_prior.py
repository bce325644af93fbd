"""A Gaussian prior of one latent function by rows of few coefficients, and a sparse precision of what they multiply."""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import BoundPrior, DensePrior, NotPositiveDefiniteError, check_finite
from pymc_gpep.solvers.coefficients import Coefficients, Entries
from pymc_gpep.solvers.precision_form import PrecisionForm
from pymc_gpep.solvers.precision_structure import PrecisionStructure
from pymc_gpep.solvers.prior_form import BoundForm
from pymc_gpep.solvers.sparse_precision import SparsePrecision


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
    by_normals = True
    takes_signs = True

    def __init__(self, array: Array, mean: Array, structure: PrecisionStructure) -> None:
        self.mean = np.require(mean, np.float64, ["C", "W"])
        self.as_form = PrecisionForm(array, structure)
        self.form = BoundForm(PrecisionForm, structure)  # type: ignore[misc]  # solvers are given it with this structure

    @classmethod
    def checked(  # type: ignore[override]  # entries are nowhere without a structure
        cls, array: ArrayLike, mean: ArrayLike, structure: PrecisionStructure
    ) -> "PrecisionPrior":
        """Make a prior of arrays that may be anything.

        Raises
        ------
        ValueError
            Naming the argument, if a shape does not fit or a value is not finite.
        """
        means = np.atleast_2d(np.asarray(mean, dtype=np.float64))
        numbers = np.asarray(array, dtype=np.float64)
        n, size = len(structure.cells), structure.cells.size + len(structure.first)
        if means.shape != (1, n) or numbers.shape != (1, 1, size):
            raise ValueError(
                f"mean must be (1, {n}) and coefficients with a precision (1, 1, {size}), but they have the shapes "
                f"{means.shape} and {numbers.shape}."
            )
        check_finite({"mean": means, "coefficients": numbers})
        return cls(numbers, means, structure)

    @property
    def maker(self) -> BoundPrior:
        return BoundPrior(PrecisionPrior, self.structure)

    @classmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        return 0, q

    @classmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        return int(known.posterior.entries)

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        entries = known.posterior.entries
        return f"By a sparse precision: {n} rows of {q} numbers, with {entries} entries in its factor."

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
            raise NotPositiveDefiniteError(
                "The prior precision of the integrated variables is not positive definite to working precision. Add to "
                "the diagonal of a precision, tau + 1e-6 * scipy.sparse.eye_array(n), or give hyperparameters priors "
                "that hold them."
            )
        return self.as_form.prior

    @property
    def variances(self) -> Array:
        """Prior variances, (1, n)."""
        return self.as_form.variances

    def check(self) -> None:
        _ = self.precision

    @property
    def size(self) -> int:
        return self.n_normals

    @property
    def own(self) -> Array:
        """Ones (1, 1): what is known of a row is one number, of variance 1."""
        return np.ones((1, 1))

    def reach(self, some: NDArray[np.int64]) -> tuple[Array, Array]:
        return np.sqrt(self.variances[:, some, None]), self.variances[:, some]

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return self.at(points) @ self.as_form.covariances_of_rows(self.at(others)[0]).T

    def combined(self, matrix: Array) -> Array:
        return self.rows.combined(matrix)

    def at(self, points: NDArray[np.int64]) -> Array:
        """Return A (1, s, q) at some points (s,)."""
        return self.rows.some(points)[None]

    def rows_at(self, points: NDArray[np.int64]) -> Coefficients:
        """Return A (s, q) at some points (s,), as `rows`."""
        return Entries(self.structure.cells[points], self.as_form.values[points], self.n_normals)

    def known_variances(self, rows: Coefficients) -> Array:
        """Return the prior variances (m,) of T x, of rows T (m, q)."""
        return self.precision.variances(rows)

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
