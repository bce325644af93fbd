"""Gaussian priors by rows of coefficients of standard normals, or of numbers with a sparse precision."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import BoundPrior, DensePrior, NotPositiveDefiniteError, Prior, check_finite
from pymc_gpep.gaussians.sites import SiteForm, Sites
from pymc_gpep.solvers.coefficients import Coefficients, Entries, rows_of_functions
from pymc_gpep.solvers.precision_form import PrecisionForm, PrecisionStructure
from pymc_gpep.solvers.prior_form import BoundForm, PriorForm
from pymc_gpep.solvers.row_form import RowForm, covariance_root
from pymc_gpep.solvers.sparse_precision import SparsePrecision


class _PriorByRows(DensePrior):
    """f = m + J z by rows of coefficients of numbers z, with far fewer of them than rows.

    Numbers have one axis in front, (1, q), where others have one for each function.
    """

    by_normals = True
    takes_signs = True

    @property
    @abstractmethod
    def rows(self) -> Coefficients:
        """J, (cn, q)."""

    @property
    @abstractmethod
    def n_normals(self) -> int:
        """Number of numbers, q."""

    @property
    @abstractmethod
    def roots(self) -> Array:
        """A root of the covariances, (c, n, q), for those few that want all of it."""

    @property
    def size(self) -> int:
        return self.n_normals

    @property
    def own(self) -> Array:
        """Ones (c, 1): what is known of a row is one number, of variance 1."""
        return np.ones((len(self.mean), 1))

    def reach(self, some: NDArray[np.int64]) -> tuple[Array, Array]:
        return np.sqrt(self.variances[:, some, None]), self.variances[:, some]

    def combined(self, matrix: Array) -> Array:
        return self.rows.combined(matrix)

    @cached_property
    def k(self) -> Array:  # type: ignore[override]
        """The covariances (c, n, n), for those few that want all of them."""
        return self.roots @ self.roots.swapaxes(1, 2)

    def latent(self, z: Array) -> Array:
        """Latent values f = m + J z (..., c, n), of z (..., 1, q)."""
        flat = np.asarray(z, dtype=np.float64).reshape(-1, self.n_normals)
        found = np.stack([self.rows.products(each) for each in flat])
        return np.asarray(self.mean + found.reshape(*z.shape[:-2], *self.shape))


class RowPrior(_PriorByRows):
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

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return self.at(points) @ self.at(others).swapaxes(1, 2)

    def some(self, points: NDArray[np.int64]) -> "RowPrior":
        return RowPrior(self.at(points), self.mean[:, points])

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

    def rooted(self, roots: Array) -> "RowPrior":
        """Return the same prior by other coefficients (c, n, q)."""
        return RowPrior(roots, self.mean)

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


class PrecisionPrior(_PriorByRows):
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

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        return self.at(points) @ self.as_form.covariances_of_rows(self.at(others)[0]).T

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

    def whitened_slope(self, slope: Array) -> Array:
        """Q⁻¹ Aᵀ s (1, q) of s (1, n): the posterior mean of x, where s are its weights b."""
        return self.precision.solve(self.rows.sums(slope[0]))[None]


class NormalsPrior(Prior):
    """z ~ N(0, I), of which c latent functions f_k = m_k + J_k z are made.

    Samplers move z, (1, q), so that covariances of latent values may be singular.

    Parameters
    ----------
    function_mean : array (c, n)
        m.
    rows : Coefficients
        J, (cn, q).
    roots : sequence of array, optional
        Cholesky factors of Gaussian processes among what is made of z, for those that compute their values.
    supported : bool
        Whether hyperparameters are where the model has a density.
    """

    of_values = False

    def __init__(
        self, function_mean: Array, rows: Coefficients, roots: Sequence[Array] = (), supported: bool = True
    ) -> None:
        self.function_mean = np.require(function_mean, np.float64, ["C", "W"])
        self.rows = rows
        self.process_roots = tuple(roots)
        self._supported = supported
        self.mean = np.zeros((1, rows.sums(np.zeros(self.function_mean.size)).size))

    def check(self) -> None:
        known = [self.function_mean, *self.process_roots, self.functions(np.ones_like(self.mean))]
        if not self._supported or not all(np.isfinite(each).all() for each in known):
            raise NotPositiveDefiniteError.of("The prior covariance of the latent values")

    @cached_property
    def full(self) -> Array:
        """J, (c, n, q)."""
        return self.rows.some(np.arange(self.function_mean.size)).reshape(*self.function_mean.shape, -1)

    def functions(self, x: Array) -> Array:
        return self.function_mean + self.moved(x)

    def moved(self, x: Array) -> Array:
        """J x (..., c, n), of x (..., 1, q)."""
        flat = x.reshape(-1, self.mean.size)
        found = np.empty((len(flat), self.function_mean.size))
        for row, each in zip(found, flat, strict=True):
            row[:] = self.rows.products(each)
        return found.reshape(*x.shape[:-2], *self.function_mean.shape)

    def pulled(self, slope: Array) -> Array:
        return self.rows.sums(np.ravel(slope))[None]

    def precision(self, sites: Sites) -> Array:
        """I + JᵀΠJ (q, q), whose lower triangle counts."""
        if sites.form is SiteForm.INDEPENDENT:
            total = self.rows.gram(sites.precision.ravel())
        else:
            pulls = sites.product(self.full.transpose(2, 0, 1))
            total = np.tensordot(pulls, self.full, axes=((1, 2), (0, 1)))
        total[np.diag_indices(len(total))] += 1.0
        return total

    def for_solver(self, takes: Callable[[type[PriorForm]], bool]) -> tuple[Array, type[DensePrior]]:
        """The array that a solver takes, and the prior that is made of it: by rows if that can be had and is smaller.

        Parameters
        ----------
        takes : callable
            Whether the solver takes a form.
        """
        _, n, q = self.full.shape
        if takes(RowPrior.form) and q < n:
            return self.full, RowPrior
        return np.matmul(self.full, self.full.swapaxes(1, 2)), DensePrior

    # Whitened values are what is sampled.

    def latent(self, z: Array) -> Array:
        """Standard normals z as samplers move them, themselves."""
        return z

    def whitened(self, x: Array) -> Array:
        """The inverse of `latent`."""
        return x

    def whitened_slope(self, slope: Array) -> Array:
        """The derivative with respect to z, which is that with respect to x."""
        return slope

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return rng.standard_normal((count, *self.shape))
