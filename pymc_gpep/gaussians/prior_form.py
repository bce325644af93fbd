"""Base classes of priors, and of their linear algebra with sites, for fits, draws and predictions.

Here K is the prior covariance, Π the last factorised site precision, and M = (I + ΠK)⁻¹ Π. The posterior covariance is
K − K M K.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.solvers.inducing import Block
from pymc_gpep.solvers.problem import EPSILON, Algebra, FunctionPosterior, SolverPrior
from pymc_gpep.solvers.site_algebra import NO_COVARIANCE, Moved, NotPositiveDefiniteError, SiteAlgebra
from pymc_gpep.solvers.team import ALONE, Team

# Number of values that a solution stores for each latent value: moments, sites, observations and start.
_BY_ROW = 12


class TakesForms(Protocol):
    """The methods of an approximation that priors call."""

    def takes(self, form: Any, /) -> bool:
        """Return whether the solver accepts priors of this form."""
        ...


class PriorForm(SolverPrior):
    """Gaussian prior of latent values, for fits, draws and predictions. Subclasses store it in different arrays."""

    algebras: ClassVar[frozenset[Algebra]]
    """Kinds of linear algebra that the form offers to solvers."""
    by_normals: ClassVar[bool] = False
    """Whether whitened values are standard normals of the model that define its latent functions."""

    @classmethod
    def checked(cls, array: Any, mean: Any) -> Self:
        """Check arrays, and return their prior.

        Raises
        ------
        ValueError
            If a shape is wrong or a value is not finite. The message names the argument.
        """
        return cls(np.asarray(array, dtype=np.float64), np.atleast_2d(np.asarray(mean, dtype=np.float64)))

    @property
    def flat_columns(self) -> Array:
        """Columns (c, n, p) of the coefficients of p variables with a flat prior."""
        return np.zeros((*self.shape, 0))

    @property
    def maker(self) -> Any:
        """Function that makes a prior of the same form from an array and a mean."""
        return type(self)

    # Memory of a fit, and a description for messages.

    @classmethod
    @abstractmethod
    def matrices(cls, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        """Return the smallest number of matrices with n rows that a fit stores, and the number of their columns.

        Parameters
        ----------
        c, n, q : int
            Numbers of functions, points, and standard normals.
        learned : bool
            Whether derivatives in hyperparameters are computed.
        """

    @classmethod
    @abstractmethod
    def entries(cls, c: int, n: int, q: int, known: Any = None) -> int:
        """Return the number of matrix entries in a solution. `known` has the parts of the prior that data determine."""

    @classmethod
    def kept(cls, c: int, n: int, q: int, known: Any = None) -> int:
        """Return the number of values in a solution, without the parts of the prior that data determine."""
        return cls.entries(c, n, q, known) + _BY_ROW * c * n

    @classmethod
    def algebra(cls, n: int, q: int, known: Any = None) -> str:
        """Return a sentence for messages on the matrices of a fit; empty for dense matrices."""
        return ""

    # Prior covariances.

    @abstractmethod
    def among(self, points: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        """Return prior covariances (1 or c, s, t) of points (s,) with other points (t,)."""

    @abstractmethod
    def some(self, points: NDArray[np.int64]) -> "PriorForm":
        """Return the prior of latent values at these points (s,)."""

    # Standard normals z, and functions of them.

    @property
    @abstractmethod
    def roots(self) -> Array:
        """Matrix J of f = m + J z as a dense array, (1 or c, n, q)."""

    @abstractmethod
    def latent(self, z: Array) -> Array:
        """Return latent values f = m + J z for z (c, q) or (count, c, q)."""

    @abstractmethod
    def whitened_slope(self, slope: Array) -> Array:
        """Return Jᵀ s (..., c, q): the derivative in z of a function with the derivative s (..., c, n) in f."""

    @abstractmethod
    def draw_normals(self, rng: np.random.Generator, count: int) -> Array:
        """Return draws (count, c, q) of the standard normals z."""

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return self.latent(self.draw_normals(rng, count))

    def images(self, b: Array) -> Array:
        """Return the products K b (count, c, n) with the prior covariance, for b (count, c, n)."""
        found = np.empty_like(b)
        for own, out in zip(b, found, strict=True):
            self.multiply(self.coordinates(own), out)
        return found

    # New points: three arguments define m new points. `mean` has prior means (c, m). For priors by covariances, `left`
    # has covariances (1 or c, m, n) with the data, and `variance` (1 or c, m) prior variances. For priors by
    # coefficients, `left` has rows J* (cm, q) of f* = m* + J* z + e, and `variance` the variances of e.

    def point_of(self, i: int) -> tuple[Any, Array, Array]:
        """Return `left`, variance and mean of point i, as a new point given all other points."""
        own, others = np.array([i]), np.delete(np.arange(self.shape[1]), i)
        return self.among(own, others), self.variances[:, own], self.mean[:, own]

    def image(self, left: Any, x: Array) -> Array:
        """Return latent values minus prior means (c, m) at new points, from coordinates x of values at the data."""
        return np.einsum("kmn,kn->km", np.broadcast_to(left, (len(x), *left.shape[1:])), x)

    def block(self, left: Any, variance: Array, mean: Array) -> Block:
        """Return the prior moments of new points as a `Block`."""
        return Block(left.swapaxes(1, 2), variance, mean)

    def draw_at(self, rng: np.random.Generator, f: Array, z: Array, left: Any, variance: Array, mean: Array) -> Array:
        """Return draws (count, c, m) at new points, given draws f (count, c, n) at the data, or their normals z."""
        found = np.empty((len(f), *mean.shape))
        for own, values in zip(found, f, strict=True):
            centre, rest = self.conditional(values, left, variance, mean)
            own[:] = centre + np.sqrt(rest) * rng.standard_normal(mean.shape)
        return found

    def conditional(self, f: Array, k_cross: Array, k_new: Array, new_mean: Array) -> tuple[Array, Array]:
        """Return means and variances (c, m) of the latent functions at m new points, given values at the data.

        Parameters
        ----------
        f : array (c, n)
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the points of the data.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        new_mean : array (c, m)
            Prior mean at the new points.
        """
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Number of values that determine each function at a new point: by default its values at all points."""
        return self.shape[1]

    @property
    def own(self) -> Array:
        """Prior variances (1 or c, n) of the variables of `reach`. By default these are all latent values."""
        return self.variances

    def reach(self, some: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return prior covariances (1 or c, s, n) of points (s,) with the variables of `own`, and points' variances.

        By default the variables are the latent values. The entry of a point with itself is NaN.
        """
        cross = self.among(some, np.arange(self.shape[1]))
        cross[:, np.arange(some.size), some] = np.nan
        return cross, self.variances[:, some]


@dataclass(frozen=True, eq=False)
class BoundForm:
    """Constructor of priors of one form, with the parts of a prior that depend on data alone.

    Parameters
    ----------
    kind : type of PriorForm
        Class of the prior. It is called with an array, a mean and `known`.
    known : object
        Parts that depend on data alone.
    """

    kind: Any
    known: Any

    @property
    def square(self) -> bool:
        return bool(self.kind.square)

    @property
    def algebras(self) -> frozenset[Algebra]:
        return frozenset(self.kind.algebras - getattr(self.known, "lacks", frozenset()))

    @property
    def by_normals(self) -> bool:
        return bool(self.kind.by_normals)

    @property
    def __name__(self) -> str:
        return f"{self.kind.__name__} {self.known}"

    def matrices(self, c: int, n: int, q: int, learned: bool) -> tuple[int, int]:
        count, columns = self.kind.matrices(c, n, q, learned)
        return int(count), int(columns)

    def __call__(self, array: Array, mean: Array) -> PriorForm:
        """Return a prior with this array and this mean."""
        made: PriorForm = self.kind(array, mean, self.known)
        return made

    def checked(self, array: Any, mean: Any) -> PriorForm:
        """Check arrays, and return their prior; see `PriorForm.checked`."""
        made: PriorForm = self.kind.checked(array, mean, self.known)
        return made

    def entries(self, c: int, n: int, q: int) -> int:
        return int(self.kind.entries(c, n, q, self.known))

    def kept(self, c: int, n: int, q: int) -> int:
        return int(self.kind.kept(c, n, q, self.known))

    def algebra(self, n: int, q: int) -> str:
        return str(self.kind.algebra(n, q, self.known))


class PosteriorByAlgebra(FunctionPosterior):
    """Posterior of a single function, computed by the linear algebra of its form of prior.

    Parameters
    ----------
    prior : PriorForm
    algebra : SiteAlgebra
        Linear algebra of the prior, for site precisions (1, n).
    prior_mean : array (n,)
    signed : bool
        Whether precisions may be negative.
    """

    def __init__(self, prior: PriorForm, algebra: SiteAlgebra, prior_mean: Array, *, signed: bool = False) -> None:
        super().__init__(prior, prior_mean)
        self._algebra, self._signed = algebra, signed

    def decompose(self, precision: Array) -> bool:
        """See `FunctionPosterior`. Unchanged precisions are not factorised again."""
        if np.isfinite(self.log_det) and np.array_equal(precision, self.precision):
            return True
        self.precision[:], self.log_det = precision, np.nan
        if not (self._signed or (precision >= 0.0).all()):
            return False
        exists, self.log_det = self._algebra.factorise(self.precision[None])
        return exists

    def spread(self) -> None:
        self.variance[:] = self._algebra.marginal_covariances()[:, 0, 0]

    @property
    def kept(self) -> Array:
        found = self._algebra.kept()
        if found is None:
            return np.asarray(np.maximum(1.0 - self.precision * self.variance, self._prior.least_kept))
        return found[:, 0, 0]

    def solve(self, right: Array) -> Array:
        step = np.empty_like(right)
        self._algebra.solve(right, step)
        return step

    def gradient(self, moved: Moved | None = None, of_variance: Array | None = None) -> Array:
        found = self._algebra.gradient(self.weights[None], moved, self.coordinates)
        if of_variance is not None:
            found += self._prior.variance_gradient(of_variance)
        return found


class PosteriorAlgebra(SiteAlgebra):
    """Linear algebra of a form of prior and a form of sites, for solvers and for posteriors.

    A subclass must implement the methods of `SiteAlgebra`. All other methods have defaults that call these. A subclass
    overrides a default that it can compute faster, or more accurately.

    Attributes
    ----------
    prior : PriorForm
    sites : Sites
        Sites whose precision was factorised last.
    """

    signed: "type[PosteriorAlgebra] | None" = None
    """Class for site precisions of any sign; None if it is this class."""

    prior: PriorForm
    sites: Sites

    @abstractmethod
    def __init__(self, prior: PriorForm, n_functions: int, team: Team = ALONE) -> None: ...

    def take(self, sites: Sites) -> float:
        """Factorise the precision of sites, and return log|I + KΠ|.

        Raises
        ------
        NotPositiveDefiniteError
            If the posterior is improper.
        """
        with np.errstate(all="ignore"):
            exists, log_det = self.factorise(sites.precision)
        if not exists:
            raise NotPositiveDefiniteError(NO_COVARIANCE)
        self.sites = sites
        return log_det - sites.log_total

    def located(self, force: Array) -> tuple[Array, Array]:
        """Return coordinates (c, n) or (1, q) and weights (c, n) of the posterior mean, from `force` ν − Πm."""
        b = np.empty_like(force)
        self.weights(force, b)
        return b, b

    def moments(self, b: Array, mean: Array, cov: Array) -> None:
        self.prior.multiply(self.prior.coordinates(b), mean)
        cov[:] = self.marginal_covariances()

    def pulled(self, f: Array) -> Array:
        """Return the products (count, c, n) of M = (I + ΠK)⁻¹ Π with f (count, c, n)."""
        force = self.sites.product(f)
        found = np.empty_like(force)
        for own, out in zip(force, found, strict=True):
            self.weights(own, out)
        return found

    def joint_covariance(self, left: Array, prior: Array) -> Array:
        """Return `prior` − leftᵀ M left (c, p, c, p), see `Posterior.joint_covariance`."""
        (c, n), p = self.prior.shape, left.shape[-1]
        columns = np.zeros((c, p, c, n))
        columns[range(c), :, range(c)] = np.broadcast_to(left, (c, n, p)).swapaxes(1, 2)
        pulled = self.pulled(columns.reshape(c * p, c, n)).reshape(c, p, c, n)
        cov = -np.einsum("kin,lmkn->kilm", columns[range(c), :, range(c)], pulled, optimize=True)
        cov[range(c), :, range(c)] += np.broadcast_to(prior, (c, p, p))
        return np.asarray(cov)

    def marginal_variance(self, left: Array, prior: Array) -> Array:
        """Return the diagonal (c, p) of `joint_covariance`."""
        (c, n), p = self.prior.shape, left.shape[-1]
        found = np.array(np.broadcast_to(prior.diagonal(axis1=-2, axis2=-1), (c, p)))
        for k, own in enumerate(np.broadcast_to(left, (c, n, p))):
            columns = np.zeros((p, c, n))
            columns[:, k] = own.T
            found[k] -= (columns * self.pulled(columns)).sum(axis=(1, 2))
        return found

    def covariance_at(self, left: Array, variance: Array) -> Array:
        """Return covariances (m, c, c) of functions at new points, see `Posterior.predict`; `variance` is (c, m)."""
        (c, n), m = self.prior.shape, variance.shape[1]
        cov = np.empty((m, c, c))
        for i in range(m):
            own = np.broadcast_to(left[:, i], (c, n))
            pulled = self.pulled(own[:, None] * np.eye(c)[:, :, None])
            cov[i] = -np.einsum("kn,lkn->kl", own, pulled)
        cov[:, range(c), range(c)] = np.maximum(cov[:, range(c), range(c)] + variance.T, 0.0)
        return cov

    def covariance_among(self, points: NDArray[np.intp]) -> Array:
        """Return the covariance (c, s, c, s) of f at these points (s,) of the data."""
        every = np.arange(self.prior.shape[1])
        return self.joint_covariance(self.prior.among(every, points), self.prior.among(points, points))

    def root_among(self, points: NDArray[np.intp]) -> Array:
        """Return a root R (c, s, p) of the covariance R Rᵀ of f at these points (s,)."""
        joint = self.covariance_among(points)
        c, s = joint.shape[:2]
        return covariance_root(joint.reshape(c * s, c * s)).reshape(c, s, c * s)

    def whitened_variance(self, prior: PriorForm) -> Array:
        """Return posterior variances (c, q) of z in f = m + J z, for roots J of a prior with the same covariance."""
        return np.maximum(self.marginal_variance(prior.roots, np.eye(prior.roots.shape[-1])), 0.0)

    def whitened_covariance(self, prior: PriorForm) -> Array:
        """Return the posterior covariance (c, q, c, q) of the standard normals z."""
        return self.joint_covariance(prior.roots, np.eye(prior.roots.shape[-1]))

    def deviations(self, rng: np.random.Generator, draws: int, prior: PriorForm) -> Array:
        """Return exact posterior draws (draws, c, q) of the standard normals z minus their mean.

        Let z be a draw of standard normals, f₀ = J z, and ε a normal vector with the covariance Π, the site precision.
        Then z + Jᵀ(ε − M (f₀ + K ε)) has the posterior covariance. If site precisions may be negative, ε may not exist.
        Then draws use a root of the posterior covariance.
        """
        if self.sites.signed:
            covariance = self.whitened_covariance(prior)
            c, q = covariance.shape[:2]
            root = covariance_root(covariance.reshape(c * q, c * q))
            return np.asarray((root @ rng.standard_normal((c * q, draws))).T.reshape(draws, c, q))
        z = prior.draw_normals(rng, draws)
        noise = self.sites.noise(rng, draws)
        moved = prior.latent(z)
        moved -= prior.mean
        moved += self.prior.images(noise)
        noise -= self.pulled(moved)
        z += prior.whitened_slope(noise)
        return z

    def site_covariances(self) -> Array:
        """Return posterior covariances (n, c, c) of the numbers on which sites act: by default the latent values."""
        return self.marginal_covariances()

    def kept(self) -> Array | None:
        return None

    def site_blocks(self) -> tuple[Array, Array]:
        """See `Posterior.site_blocks`."""
        roots = self.sites.roots
        kept = self.kept()
        if kept is not None:
            return roots, kept
        found = np.eye(roots.shape[2]) - roots.swapaxes(1, 2) @ self.marginal_covariances() @ roots
        if roots.shape[2] == 1:
            return roots, np.maximum(found, EPSILON)
        values, vectors = np.linalg.eigh(found)
        return roots, (vectors * np.maximum(values, EPSILON)[:, None]) @ vectors.swapaxes(1, 2)

    def cavities(self, mean: Array, cov: Array, weights: Array) -> tuple[Array, Array]:
        """See `Posterior.cavities`."""
        if self.sites.signed:
            # (I − ΣΠ)⁻¹ Σ needs no root of Π: a signed Π has none.
            wide = np.linalg.solve(np.eye(len(mean)) - cov @ self.sites.blocks, cov)
            wide = 0.5 * (wide + wide.swapaxes(1, 2))
        else:
            roots, kept = self.site_blocks()
            half = cov @ roots
            wide = cov + half @ np.linalg.solve(kept, half.swapaxes(1, 2))
        return mean.T - np.einsum("iab,bi->ia", wide, weights), wide

    def taken(self) -> float:
        """Return the trace of ΠΣ, for the site precision Π and the posterior covariance Σ."""
        if self.sites.signed:
            return float((self.sites.blocks * self.marginal_covariances()).sum())
        _, kept = self.site_blocks()
        return float((np.eye(kept.shape[-1]) - kept).trace(axis1=1, axis2=2).sum())

    def smoothing(self) -> tuple[Array, Array | None]:
        """Return matrices B (1 or c, n, n) and T (c, n, n) with M = blockdiag(B) − T Tᵀ. T is None if it is 0.

        Raises
        ------
        TypeError
            If M does not have this form.
        """
        raise TypeError(f"M of {type(self).__name__} is not blockdiag(B) − T Tᵀ.")


def covariance_root(k: Array) -> Array:
    """Return roots R (..., n, n) of covariances R Rᵀ (..., n, n) that may be singular."""
    values, vectors = np.linalg.eigh(k)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])


def scaled_symmetric(lower: Array, root: Array) -> Array:
    """Return D S D with D = diag(root). `lower` (n, n) has the lower triangle of the symmetric matrix S."""
    triangle = np.tril(lower)
    full: Array = (triangle + np.tril(triangle, -1).T) * root[:, None] * root
    return full
