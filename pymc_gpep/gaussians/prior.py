"""The contract of a Gaussian prior of latent functions, and priors with a covariance matrix."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve, solve_triangular

from pymc_gpep.array_types import Array
from pymc_gpep.solvers.dense_form import DenseForm
from pymc_gpep.solvers.prior_form import BoundForm, PriorForm


class NotPositiveDefiniteError(np.linalg.LinAlgError):
    """A matrix that should be a covariance has no Cholesky factor to working precision.

    Attributes
    ----------
    least, jitter : float
        Smallest eigenvalue, and a number on the diagonal that makes it positive; NaN if they were not computed.
    """

    least = jitter = float("nan")

    @classmethod
    def of(
        cls, covariance: str, where: str = "", like: "NotPositiveDefiniteError | None" = None
    ) -> "NotPositiveDefiniteError":
        """Return the error for a prior covariance at a place, in words; `like` is an earlier error of the matrix."""
        least, jitter = (np.nan, np.nan) if like is None else (like.least, like.jitter)
        found = f" (smallest eigenvalue {least:.2g})" if np.isfinite(least) else ""
        number = f"{jitter:g}" if np.isfinite(jitter) else "..."
        error = cls(
            f"{covariance} is not positive definite to working precision{found}{where}. Give the prior a larger "
            f"jitter, gp.prior(..., jitter={number}), or the hyperparameters priors that hold them; a magnitude that "
            "grows without limit is the usual cause."
        )
        error.least, error.jitter = least, jitter
        return error

    @classmethod
    def of_matrices(cls, covariance: str, k: Array) -> "NotPositiveDefiniteError":
        """Return the error for matrices (..., n, n), with their smallest eigenvalue if they are small enough."""
        error = cls()
        if k.shape[-1] <= _MOST_EIGENVALUES and np.isfinite(k).all():
            values = np.linalg.eigvalsh(k)
            error.least = float(values.min())
            lost = max(-error.least, np.finfo(np.float64).eps * k.shape[-1] * float(np.abs(values).max()))
            error.jitter = float(10.0 ** np.ceil(np.log10(10.0 * lost))) if lost > 0.0 else np.nan
        return cls.of(covariance, like=error)


# Largest matrix whose eigenvalues are computed for a message.
_MOST_EIGENVALUES = 500


class Prior(ABC):
    """p(x) = N(m, K) of what is sampled: c latent functions at n points, or standard normals that these are made of.

    Attributes
    ----------
    mean : array (c, n)
        m.
    """

    mean: Array
    of_values: ClassVar[bool] = True
    """Whether what is sampled is latent values."""

    def check(self) -> None:  # noqa: B027  there may be nothing to check
        """Raise a NotPositiveDefiniteError where there is no such Gaussian."""

    def functions(self, x: Array) -> Array:
        """Latent values (..., c, n) of what is sampled, x itself where that is latent values."""
        return x

    def pulled(self, slope: Array) -> Array:
        """The derivative with respect to x of what has the derivative `slope` (c, n) with respect to latent values."""
        return slope

    @property
    def shape(self) -> tuple[int, int]:
        """Number of latent functions, and of points: (c, n)."""
        c, n = self.mean.shape
        return c, n

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count, c, n) of f."""


_SYMMETRY = 1e-8  # relative: covariance functions are symmetric to rounding
_HELD = 2  # matrices of each function, and of all together, at the least: a covariance, and a factor of it
_LEARNED = 4  # the same where the evidence has derivatives in hyperparameters


def check_finite(arrays: Mapping[str, Array]) -> None:
    """Raise a ValueError that names an array which is not finite."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name} must be finite, but has {np.count_nonzero(~np.isfinite(values))} values that are not."
            )


class DensePrior(Prior):
    """f_k ~ N(m_k, K_k), independent for k = 1 … c, with f_k = m_k + L_k z_k for standard normals z.

    Arrays are taken as they are; `checked` makes one of what a user gives.

    Priors of all forms derive from this class, also without a covariance matrix. They override the members that read
    `k`, and `matrices`, `entries` and `algebra`, by which the memory of a fit is estimated.

    Parameters
    ----------
    k : array (1 or c, n, n)
        Covariance, shared by the functions or one for each.
    mean : array (c, n)
    """

    form: ClassVar[type[PriorForm]] = DenseForm
    """How solvers are given it."""
    by_normals: ClassVar[bool] = False
    """Whether its whitened values are the numbers that a model's latent functions are made of."""
    takes_signs: ClassVar[bool] = False
    """Whether its posteriors take sites with negative precisions."""

    def __init__(self, k: Array, mean: Array) -> None:
        # Kernels are compiled for arrays that are contiguous and writeable.
        self.k: Array = np.require(k, np.float64, ["C", "W"])
        self.mean = np.require(mean, np.float64, ["C", "W"])

    @classmethod
    def checked(cls, k: ArrayLike, mean: ArrayLike) -> "DensePrior":
        """Make a prior of arrays that may be anything.

        Raises
        ------
        ValueError
            Naming the argument, if a shape does not fit, a value is not finite, or a covariance is not symmetric or
            has a negative diagonal.
        """
        means = np.ascontiguousarray(mean, dtype=np.float64)
        if means.ndim not in (1, 2) or 0 in means.shape:
            raise ValueError(
                "mean must be (c, n) with c ≥ 1 latent functions and n ≥ 1 points, or (n,) for one function, but has "
                f"shape {means.shape}."
            )
        means = np.atleast_2d(means)
        c, n = means.shape
        covariance = np.ascontiguousarray(k, dtype=np.float64)
        if covariance.shape not in ((n, n), (1, n, n), (c, n, n)):
            raise ValueError(
                f"k must be ({n}, {n}) or ({c}, {n}, {n}) to fit the mean, but has shape {covariance.shape}."
            )
        covariance = covariance.reshape(-1, n, n)
        check_finite({"mean": means, "k": covariance})
        size = np.abs(covariance).max()
        if np.abs(covariance - covariance.transpose(0, 2, 1)).max() > _SYMMETRY * size:
            raise ValueError("k must be symmetric, but is not: check the covariance function.")
        if covariance.diagonal(axis1=1, axis2=2).min() < 0:
            raise ValueError("k must have no negative variance on its diagonal: check the covariance function.")
        return cls(covariance, means)

    def check(self) -> None:
        _ = self.roots

    @property
    def array(self) -> Array:
        """The array that solvers are given, which is the covariance."""
        return self.k

    def for_solver(self, takes: Callable[[type[PriorForm]], bool]) -> "tuple[Array, type[DensePrior]]":
        """The array that a solver takes, and the prior that is made of it; see `NormalsPrior`."""
        return self.array, type(self)

    @property
    def maker(self) -> Any:
        """The maker of priors of the same form, from an array and a mean."""
        return type(self)

    @classmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        """How many matrices with n rows a fit holds at the least, and how many columns each has.

        Parameters
        ----------
        c, n, q : int
            Numbers of functions, of points, and of standard normals.
        learned : bool
            Whether derivatives in hyperparameters are wanted.
        """
        return (_LEARNED if learned else _HELD) * (1 + c), n

    @classmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        """How many numbers the matrices of a solution hold; `known` is what data fix of the prior."""
        return (c * n) ** 2

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        """A sentence that says what matrices are made of, empty where that is usual."""
        return ""

    @property
    def function_mean(self) -> Array:
        """Mean of the latent functions, (c, n)."""
        return self.mean

    @property
    def variances(self) -> Array:
        """Prior variances, (1 or c, n)."""
        return self.k.diagonal(axis1=1, axis2=2)

    @property
    def size(self) -> int:
        """How many numbers each function is known by, which are its values here."""
        return self.shape[1]

    @property
    def own(self) -> Array:
        """Prior variances of what functions are known by, (1 or c, n)."""
        return self.variances

    def reach(self, some: NDArray[np.int64]) -> tuple[Array, Array]:
        """Prior covariances (1 or c, n, s) of some points with what functions are known by, and variances.

        Covariances of a point with itself are NaN.
        """
        cross = self.among(some, np.arange(self.shape[1]))
        cross[:, np.arange(some.size), some] = np.nan
        return cross, self.variances[:, some]

    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        """Prior covariances (1 or c, s, t) of some points (s,) with others (t,)."""
        return self.k[:, points][..., others]

    def some(self, points: NDArray[np.int64]) -> "DensePrior":
        """Return the prior at some points (s,)."""
        return DensePrior(self.k[:, points][:, :, points], self.mean[:, points])

    def combined(self, matrix: Array) -> Array:
        """J S (cn, p) of S (q, p), of functions one after another with factors J (c, n, q); L S (n, p) of one."""
        return np.concatenate([root @ matrix for root in self.roots])

    @cached_property
    def roots(self) -> Array:
        """Lower Cholesky factors L of the covariance (1 or c, n, n), with zeros above the diagonal.

        Raises
        ------
        NotPositiveDefiniteError
            If a covariance has no Cholesky factor.
        """
        try:
            roots = np.linalg.cholesky(self.k)
        except np.linalg.LinAlgError:
            roots = np.full_like(self.k, np.nan)
        if not np.isfinite(roots).all():
            raise NotPositiveDefiniteError.of_matrices("the prior covariance", self.k)
        return roots

    def rooted(self, roots: Array) -> "DensePrior":
        """Return the same prior by other factors J (1 or c, n, q), J Jᵀ = K, which may be wide, tall or singular."""
        other = DensePrior(self.k, self.mean)
        other.roots = roots
        return other

    def latent(self, z: Array) -> Array:
        """Latent values f = m + L z, of z (c, q) or (count, c, q)."""
        columns = z.reshape(-1, *z.shape[-2:]).transpose(1, 2, 0)
        return self.mean + np.matmul(self.roots, columns).transpose(2, 0, 1).reshape(*z.shape[:-1], self.shape[1])

    def whitened(self, f: Array) -> Array:
        """The z = L⁻¹ (f − m) of f (c, n)."""
        return self.whitened_residual(f - self.mean)

    def whitened_residual(self, residual: Array) -> Array:
        """L⁻¹ r of r (c, n)."""
        if len(self.roots) == 1:
            solved = solve_triangular(self.roots[0], residual.T, lower=True, check_finite=False)
            return np.ascontiguousarray(solved.T)
        return np.stack(
            [
                solve_triangular(root, own, lower=True, check_finite=False)
                for root, own in zip(self.roots, residual, strict=True)
            ]
        )

    def whitened_slope(self, slope: Array) -> Array:
        """The derivative Lᵀ s (c, q) with respect to z of what has the derivative s (c, n) with respect to f."""
        return np.asarray(np.matmul(self.roots.swapaxes(1, 2), slope[..., None])[..., 0])

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return self.latent(rng.standard_normal((count, *self.shape)))

    def conditional(self, f: Array, k_cross: Array, k_new: Array, new_mean: Array) -> tuple[Array, Array]:
        """Mean and variance (c, m) of the latent functions at m new points given their values at the old.

        Parameters
        ----------
        f : array (c, n)
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the old.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        new_mean : array (c, m)
            Prior mean at the new points.

        Raises
        ------
        NotPositiveDefiniteError
            If the covariance has no Cholesky factor.
        """
        residual = f - self.mean
        means, variances = np.empty(new_mean.shape), np.empty(new_mean.shape)
        # One for all functions or one for each; which of the two may differ where they have equal processes of their
        # own.
        distinct = max(len(self.k), len(k_cross))
        for i in range(distinct):
            own = slice(None) if distinct == 1 else slice(i, i + 1)
            root, between = self.roots[i % len(self.k)], k_cross[i % len(k_cross)]
            means[own] = new_mean[own] + (between @ cho_solve((root, True), residual[own].T)).T
            spread = solve_triangular(root, between.T, lower=True)
            variances[own] = np.maximum(k_new[i % len(k_new)] - (spread**2).sum(axis=0), 0.0)
        return means, variances


@dataclass(frozen=True, eq=False)
class BoundPrior:
    """Makes priors that have something in common, which data of a model fix, as a type of priors makes them.

    Parameters
    ----------
    kind : type of DensePrior
        Takes an array, a mean, and what is `known`.
    known : object
    """

    kind: Any
    known: Any

    @cached_property
    def form(self) -> BoundForm:
        return BoundForm(self.kind.form, self.known)

    @property
    def by_normals(self) -> bool:
        return bool(self.kind.by_normals)

    def __call__(self, array: Array, mean: Array) -> DensePrior:
        """Return the prior of an array."""
        made: DensePrior = self.kind(array, mean, self.known)
        return made

    def checked(self, array: ArrayLike, mean: ArrayLike) -> DensePrior:
        """Return the prior of arrays that may be anything; see the type of priors."""
        made: DensePrior = self.kind.checked(array, mean, self.known)
        return made

    def entries(self, c: int, n: int, q: int) -> int:
        return int(self.kind.entries(c, n, q, self.known))

    def algebra(self, n: int, q: int) -> str:
        return str(self.kind.algebra(n, q, self.known))
