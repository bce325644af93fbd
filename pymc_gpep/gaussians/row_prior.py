"""A Gaussian prior of latent functions by rows of coefficients of independent standard normals."""

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import BoundPrior, DensePrior, NotPositiveDefiniteError, check_finite
from pymc_gpep.solvers.coefficients import Coefficients
from pymc_gpep.solvers.function_rows import rows_of_functions
from pymc_gpep.solvers.prior_form import BoundForm
from pymc_gpep.solvers.row_form import RowForm
from pymc_gpep.solvers.signed_posterior import covariance_root


class RowPrior(DensePrior):
    """f = m + J z for standard normals z, with far fewer of them than rows.

    Functions may have normals in common, so that z has one axis: (1, q) where others have one for each function.

    Parameters
    ----------
    array : array (c, n, q) or (1, r, q)
        J, or B of J = A B.
    mean : array (c, n)
    base : Coefficients, optional
        A; the identity if not given.
    """

    form: ClassVar[Any] = RowForm
    by_normals = True
    takes_signs = True

    def __init__(self, array: Array, mean: Array, base: Coefficients | None = None) -> None:
        self.mean = np.require(mean, np.float64, ["C", "W"])
        self._form, self._base = RowForm(array, base), base
        if base is not None:
            self.form = BoundForm(RowForm, base)  # type: ignore[misc]  # solvers are given it with these rows

    @classmethod
    def checked(cls, array: ArrayLike, mean: ArrayLike, base: Coefficients | None = None) -> "RowPrior":
        """Make a prior of arrays that may be anything.

        Raises
        ------
        ValueError
            Naming the argument, if a shape does not fit or a value is not finite.
        """
        means = np.atleast_2d(np.asarray(mean, dtype=np.float64))
        coefficients = np.asarray(array, dtype=np.float64)
        coefficients = coefficients[None] if coefficients.ndim == 2 else coefficients
        fits = coefficients.ndim == 3 and (base is not None or coefficients.shape[:2] == means.shape)
        if means.ndim != 2 or not fits:
            raise ValueError(
                "mean must be (c, n) and coefficients (c, n, q), but they have the shapes "
                f"{means.shape} and {coefficients.shape}."
            )
        check_finite({"mean": means, "coefficients": coefficients})
        return cls(coefficients, means, base)

    @property
    def array(self) -> Array:
        """J, (c, n, q), or B, (1, r, q)."""
        return self._form.array

    @property
    def rows(self) -> Coefficients:
        """J, (cn, q), by entries where that is cheaper."""
        return self._form.rows

    @property
    def n_normals(self) -> int:
        """Number of standard normals, q."""
        return self.array.shape[2]

    @property
    def variances(self) -> Array:
        """Prior variances, (c, n)."""
        return self._form.variances

    def check(self) -> None:
        """J Jᵀ always is a covariance."""

    @property
    def maker(self) -> Any:
        return RowPrior if self._base is None else BoundPrior(RowPrior, self._base)

    @classmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        return 1, q  # rows that stand apart from priors take no more

    @classmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        return n * q

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        return f"By rows: {n} rows of {q} standard normals."

    @property
    def size(self) -> int:
        return self.n_normals

    @property
    def own(self) -> Array:
        """Ones (c, 1): what is known of a row is one number, of variance 1."""
        return np.ones((len(self.mean), 1))

    def reach(self, some: NDArray[np.int64]) -> tuple[Array, Array]:
        return np.sqrt(self.variances[:, some, None]), self.variances[:, some]

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return self.at(points) @ self.at(others).swapaxes(1, 2)

    def some(self, points: NDArray[np.int64]) -> "RowPrior":
        return RowPrior(self.at(points), self.mean[:, points])

    def combined(self, matrix: Array) -> Array:
        return self.rows.combined(matrix)

    def at(self, points: NDArray[np.int64]) -> Array:
        """Return J (c, s, q) at some points (s,)."""
        return self._form.coefficients_at(points)

    def rows_at(self, points: NDArray[np.int64]) -> Coefficients:
        """Return J (cs, q) at some points (s,), as `rows`."""
        return rows_of_functions(self.at(points))

    def known_variances(self, rows: Coefficients) -> Array:
        """Return the prior variances (m,) of T z, of rows T (m, q)."""
        return rows.variances(np.eye(self.n_normals))

    @cached_property
    def roots(self) -> Array:
        """All of J, (c, n, q)."""
        return self.at(np.arange(self.shape[1]))

    @cached_property
    def k(self) -> Array:  # type: ignore[override]
        """The covariances J_k J_kᵀ (c, n, n), for those few that want all of them."""
        return self.roots @ self.roots.swapaxes(1, 2)

    def rooted(self, roots: Array) -> "RowPrior":
        """Return the same prior by other coefficients (c, n, q)."""
        return RowPrior(roots, self.mean)

    def latent(self, z: Array) -> Array:
        """Latent values f = m + J z (..., c, n), of z (..., 1, q)."""
        flat = np.asarray(z, dtype=np.float64).reshape(-1, self.n_normals)
        found = np.stack([self.rows.products(each) for each in flat])
        return np.asarray(self.mean + found.reshape(*z.shape[:-2], *self.shape))

    def whitened_slope(self, slope: Array) -> Array:
        """The derivative Jᵀ s (1, q) with respect to z of what has the derivative s (c, n) with respect to f."""
        return self.rows.sums(slope.ravel())[None]


class RootedPrior(RowPrior):
    """A prior that is given by its covariance, with a root of it for rows, which may be singular."""

    def __init__(self, prior: DensePrior) -> None:
        try:
            roots = prior.roots
        except NotPositiveDefiniteError:
            roots = np.stack([covariance_root(own) for own in prior.k])
        super().__init__(roots, prior.mean)
        self._given = prior

    def check(self) -> None:
        self._given.check()

    @property
    def size(self) -> int:
        return self._given.size

    @property
    def own(self) -> Array:
        return self._given.own

    def reach(self, some: NDArray[np.int64]) -> tuple[Array, Array]:
        return self._given.reach(some)

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return self._given.among(points, others)

    def some(self, points: NDArray[np.int64]) -> DensePrior:  # type: ignore[override]  # again by a covariance
        return self._given.some(points)

    @cached_property
    def roots(self) -> Array:
        """Factors of the covariance, those of the prior that was given."""
        return self._given.roots

    @cached_property
    def k(self) -> Array:  # type: ignore[override]
        """The covariances (1 or c, n, n)."""
        return self._given.k
