"""Linear algebra of a step over a batch, for NumPy and JAX.

Functions that share covariance and inducing inputs are a group with common features. Function k is f = m + wᵀv_k + e
with w = L⁻¹ k(x) and residual variance s = κ − wᵀw. The sums S_k = Σ t w wᵀ and h_k = Σ ν w are over
sites of precision t and location ν. With the share β_k of these sums, the posterior is q(v_k) = N(β_k Σ_k h_k, Σ_k),
Σ_k = (I + β_k S_k)⁻¹. Variances are wᵀΣ_k w, derivatives in w contain Σ_k w, and S Σ S follows from S and Σ. A group
therefore takes one product of all w with all Σ_k, without solving a system for each function.

Coefficients of effects that are added to the process are further features, without a residual.

A step uses the prior moments of each group at inducing inputs and rows. A pull-back turns derivatives in these moments
into derivatives in hyperparameters and inducing inputs. For stationary covariances, moments and pull-back have closed
forms (`StationaryBlocks`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.methods.step_loops import (
    input_slopes,
    log_squared_exponential,
    row_slopes,
    scaled_inputs,
    squared_distances,
    squared_norms,
)
from pymc_gpep.solvers.step_arrays import StepArrays

_ADDED_TO_SQUARES = 1e-12  # Number that PyMC adds to squared distances before it takes their root.


class ProfileValues(NamedTuple):
    """Values and derivatives of a covariance v φ(r²) at an array of distances."""

    values: Array
    """Values v φ(r²)."""
    slopes: Array
    """Derivatives −2 v φ′(r²); the array `values` itself if φ = −2 φ′."""


class Profile(ABC):
    """Function φ(r²) of a covariance. The variance of a point is v φ(0)."""

    name: str

    @abstractmethod
    def at(self, squares: Array, variance: float) -> ProfileValues:
        """Return values at squared distances, given the variance v φ(0)."""

    @abstractmethod
    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        """Return values from inner products (B, M), which are overwritten, and squared norms (B,) and (M,)."""


class _SquaredExponential(Profile):
    """Squared exponential profile, φ = exp(−r² / 2) = −2 φ′."""

    name = "squared exponential"

    def at(self, squares: Array, variance: float) -> ProfileValues:
        values = variance * np.exp(-0.5 * squares)
        return ProfileValues(values, values)

    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        log_squared_exponential(products, left, right, np.log(variance))
        np.exp(products, out=products)
        return ProfileValues(products, products)


class _OfDistance(Profile):
    """Profile φ = p(a r) exp(−a r) with a polynomial p."""

    rate: float

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        """Return the polynomial p(t), and −2 φ′(r²) exp(t), at t = a r."""
        raise NotImplementedError

    def at(self, squares: Array, variance: float) -> ProfileValues:
        t = squares + _ADDED_TO_SQUARES
        np.sqrt(t, out=t)
        t *= self.rate
        value, slope = self.polynomials(t)
        np.negative(t, out=t)
        np.exp(t, out=t)
        t *= variance
        return ProfileValues(value * t, slope * t)

    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        squared_distances(products, left, right)
        return self.at(products, variance)


class _Matern52(_OfDistance):
    name = "Matérn 5/2"
    rate = np.sqrt(5.0)

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return 1.0 + t * (1.0 + t / 3.0), 5.0 / 3.0 * (1.0 + t)


class _Matern32(_OfDistance):
    name = "Matérn 3/2"
    rate = np.sqrt(3.0)

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return 1.0 + t, np.full_like(t, 3.0)


class _Matern12(_OfDistance):
    name = "Matérn 1/2"
    rate = 1.0

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return np.ones_like(t), 1.0 / t


class _Exponential(_OfDistance):
    name = "exponential"
    rate = 0.5

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        return np.ones_like(t), 0.25 / t


PROFILES: tuple[Profile, ...] = (_SquaredExponential(), _Matern52(), _Matern32(), _Matern12(), _Exponential())
"""All profiles. A new profile is a class and an entry of this tuple."""


_RATIO_TOLERANCE = 1e-13  # Largest relative difference of equal ratios of scales.
_FAR = 100.0  # Largest squared distance from the centre (length scales) for float32 products.


class Group(NamedTuple):
    """Functions that share covariance and inducing inputs."""

    functions: list[int]
    """Positions among all functions, in order."""
    covariance: int
    """Position of the shared covariance among all covariances."""
    inputs: int
    """Position of the shared inducing inputs among all sets."""

    @property
    def taken(self) -> slice | list[int]:
        """Index of the functions in arrays; a slice, which makes no copy, if they are consecutive."""
        first, last = self.functions[0], self.functions[-1]
        return slice(first, last + 1) if last - first + 1 == len(self.functions) else self.functions


def grouped(covariance_of: Sequence[int], sets: int) -> list[Group]:
    """Return the groups of functions, in the order of their first functions.

    Parameters
    ----------
    covariance_of : sequence of int
        Position of the covariance of each of c functions among all covariances.
    sets : int
        Number of sets of inducing inputs: 1 if all functions share them, else c.
    """
    if sets > 1:
        return [Group([k], covariance, k) for k, covariance in enumerate(covariance_of)]
    found: dict[int, list[int]] = {}
    for k, covariance in enumerate(covariance_of):
        found.setdefault(covariance, []).append(k)
    return [Group(functions, covariance, 0) for covariance, functions in found.items()]


class RowMoments(NamedTuple):
    """Prior moments of a group of g functions at B rows."""

    cross: Array
    """Covariances of rows with inducing values, (B, M)."""
    variance: Array
    """Prior variances κ of the rows, (B,)."""
    mean: Array | None
    """Prior means m of the rows, (B, g); None if they are 0."""
    effects: Array | None = None
    """Coefficients of the p standard normals of effects added to the process, (B, p); None without effects."""


class InducingMoments(Protocol):
    """Prior at fixed hyperparameters and inducing inputs."""

    covariances: list[Array]
    """Prior covariances (M, M) of the inducing values of each group."""

    def rows(self, x: Array) -> list[RowMoments]:
        """Return the moments of each group at rows (B, d)."""

    def pulled(self, covariances: Sequence[Array], rows: Sequence[RowMoments]) -> tuple[Array, Array]:
        """Return derivatives in hyperparameters, flat and unconstrained, and in inducing inputs (1 or c, M, d).

        Arguments are derivatives in the covariances of the inducing values and in the moments of the last rows.
        """


class StepBlocks(Protocol):
    """Prior as a function of flat unconstrained hyperparameters, and of inducing inputs (1 or c, M, d)."""

    covariance_of: list[int]
    """Position of the covariance of each of the c functions among all covariances."""
    written: bool
    """Whether moments and pull-backs have closed forms, in place of graphs."""

    def at(self, theta: Array, z: Array, single: bool = False) -> InducingMoments:
        """Return the moments at fixed hyperparameters and inducing inputs; with `single`, products may be float32."""

    def same_scales(self, theta: Array) -> Array | None:
        """Return the scales of columns (d,) for a single covariance with equal scales; else None."""

    def scale_functions(self) -> "ScaleFunctions | None":
        """Return the scale functions of a single covariance; None for several covariances or another form."""


class ScaleFunctions(Protocol):
    """Functions of hyperparameters: scales s, variances and noise variances of p stationary covariances."""

    def __call__(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return scales s (p, d), variances v φ(0) (p,) and noise variances (p,)."""

    def pulled(self, theta: Array, scales: Array, variances: Array, noises: Array) -> Array:
        """Return derivatives in hyperparameters from derivatives in scales, variances and noises."""


class StationaryBlocks:
    """Prior with mean 0, covariances v φ(r²) with r² = Σ_d s_d² (x_d − x'_d)², and noise of each row.

    Parameters
    ----------
    profiles : sequence of Profile
        Profile φ of each covariance.
    functions : ScaleFunctions
    covariance_of : list of int
        See `StepBlocks`.
    """

    written = True

    def __init__(self, profiles: Sequence[Profile], functions: ScaleFunctions, covariance_of: list[int]) -> None:
        self.profiles = profiles
        self.functions = functions
        self.covariance_of = covariance_of

    def at(self, theta: Array, z: Array, single: bool = False) -> "_StationaryMoments":
        """See `StepBlocks`. Distances are float64 if points are many length scales from their centre."""
        return _StationaryMoments(self, theta, z, single)

    def scale_functions(self) -> ScaleFunctions | None:
        return self.functions if len(self.profiles) == 1 else None

    def same_scales(self, theta: Array) -> Array | None:
        (first, *others), *_ = self.functions(theta)
        return None if others or (first != first[0]).any() else first


class _StationaryMoments:
    def __init__(self, blocks: StationaryBlocks, theta: Array, z: Array, single: bool) -> None:
        self._functions, self._theta, self._single = blocks.functions, theta.copy(), single
        self._scales, variances, self._noises = blocks.functions(theta)
        self._groups, self._shape = grouped(blocks.covariance_of, len(z)), z.shape
        # Centre inputs, since distances are differences of products.
        self._middle = z.mean(axis=(0, 1))
        z = z - self._middle
        self._products: list[_Products] = []
        places = [self._products_of(z, each.inputs, self._scales[each.covariance]) for each in self._groups]
        self._each = [
            _OfGroup(blocks.profiles[each.covariance], float(variances[each.covariance]), products, ratio)
            for each, (products, ratio) in zip(self._groups, places, strict=True)
        ]
        self.covariances = [each.covariance for each in self._each]

    def _products_of(self, z: Array, inputs: int, scales: Array) -> tuple["_Products", float]:
        """Return products of an earlier group with proportional scales, or new products, and the ratio to them."""
        for known in self._products:
            if known.inputs == inputs and (ratio := known.ratio(scales)):
                return known, ratio
        self._products.append(_Products(inputs, z[inputs], scales))
        return self._products[-1], 1.0

    def rows(self, x: Array) -> list[RowMoments]:
        x = x - self._middle
        narrow: Array = x.astype(np.float32) if self._single else x
        for each in self._products:
            each.see(x, narrow)
        return [
            each.rows(x, narrow, float(self._noises[group.covariance]))
            for group, each in zip(self._groups, self._each, strict=True)
        ]

    def pulled(self, covariances: Sequence[Array], rows: Sequence[RowMoments]) -> tuple[Array, Array]:
        slopes, of_scales = np.zeros(self._shape), np.zeros(self._scales.shape)
        of_variances, of_noises = np.zeros((2, len(of_scales)))
        for group, each, covariance, moments in zip(self._groups, self._each, covariances, rows, strict=True):
            own_scales, own_variance = each.pulled(covariance, moments, slopes[group.inputs])
            of_scales[group.covariance] += own_scales
            of_variances[group.covariance] += own_variance
            of_noises[group.covariance] += moments.variance.sum()
        return self._functions.pulled(self._theta, of_scales, of_variances, of_noises), slopes


class _Products:
    """Inner products for distances, shared by groups with the same z and proportional scales."""

    def __init__(self, inputs: int, z: Array, scales: Array) -> None:
        self.inputs, self.z, self.scales, self.squares = inputs, z, scales, scales**2
        self._scaled, self.norms = np.empty_like(z), np.empty(len(z))
        scaled_inputs(z, self.squares, self._scaled, self.norms)
        roots = z * scales
        self.of_z = roots @ roots.T
        self.of_rows, self.row_norms = np.empty((0, len(z))), np.empty(0)
        self._users, self._largest = 1, 1.0
        self.near = True

    def ratio(self, scales: Array) -> float | None:
        """Add a group, and return the ratio of its products to the shared products; None if it is not constant."""
        place = int(np.argmax(self.scales))
        root = scales[place] / self.scales[place]
        if not np.allclose(root * self.scales, scales, rtol=_RATIO_TOLERANCE, atol=0.0):
            return None
        self._users, self._largest = self._users + 1, max(self._largest, float(root**2))
        return float(root**2)

    def under(self, ratio: float, products: Array) -> Array:
        """Return `products` times a ratio, for the caller to overwrite; `products` itself for a single group."""
        return products if self._users == 1 else ratio * products

    def see(self, x: Array, narrow: Array) -> None:
        """Compute the inner products of the inducing inputs z with rows x (B, d)."""
        self.row_norms = np.empty(len(x))
        squared_norms(x, self.squares, self.row_norms)
        self.near = bool(self._largest * max(self.row_norms.max(), self.norms.max()) < _FAR)
        if narrow is not x and self.near:
            self.of_rows = (narrow @ self._scaled.astype(np.float32).T).astype(np.float64)
        else:
            self.of_rows = x @ self._scaled.T


class _OfGroup:
    """Prior moments of a group, computed from the shared `_Products` times the ratio of the group's scales."""

    def __init__(self, profile: Profile, variance: float, products: _Products, ratio: float) -> None:
        self._profile, self._variance, self._products, self._ratio = profile, variance, products, ratio
        self._norms = ratio * products.norms
        self.covariance, self._slopes = profile.between(
            products.under(ratio, products.of_z), self._norms, self._norms, variance
        )
        diagonal = np.arange(len(self._norms))
        # The distance of a point from itself is constant, and φ′ may diverge at 0.
        self._slopes[diagonal, diagonal] = 0.0
        self.covariance[diagonal, diagonal] = variance
        self._last: Any = None

    def rows(self, x: Array, narrow: Array, noise: float) -> RowMoments:
        seen, ratio = self._products, self._ratio
        products = seen.under(ratio, seen.of_rows)
        found = self._profile.between(products, ratio * seen.row_norms, self._norms, self._variance)
        self._last = x, narrow if seen.near else x, *found
        return RowMoments(found.values, np.full(len(x), self._variance + noise), None)

    def pulled(self, covariance: Array, rows: RowMoments, slopes: Array) -> tuple[Array, float]:
        """Return derivatives in scales (d,) and variance, and add derivatives in inducing inputs to `slopes` (M, d)."""
        x, narrow, cross, cross_slopes = self._last
        z, squares, kind = self._products.z, self._ratio * self._products.squares, narrow.dtype
        of_variance = float(np.vdot(rows.cross, cross)) + float(np.vdot(covariance, self.covariance))
        of_variance = of_variance / self._variance + float(rows.variance.sum())
        of_rows, of_inducing = rows.cross * cross_slopes, covariance * self._slopes
        of_squares = np.zeros(len(squares))
        input_slopes(
            z, squares,
            of_rows.astype(kind, copy=False).T @ narrow,
            of_inducing.astype(kind, copy=False) @ z.astype(kind, copy=False),
            of_rows.sum(axis=0), of_inducing.sum(axis=0), slopes, of_squares,
        )  # fmt: skip
        row_slopes(x, of_rows.sum(axis=1), of_squares)
        return 2.0 * np.sqrt(self._ratio) * self._products.scales * of_squares, of_variance


class StepFeatures(NamedTuple):
    """Features of a group at B rows."""

    w: Array
    """Features w of the rows, (B, M + p)."""
    rest: Array
    """Residual variances s of the rows, (B,)."""
    moments: RowMoments
    group: Group

    @property
    def n_inducing(self) -> int:
        """Number of inducing values, M."""
        return int(self.moments.cross.shape[1])


class StepSlopes(NamedTuple):
    """Derivatives with respect to the features of a group of g functions at B rows."""

    w: Array
    """Derivatives in the features w at fixed residual variances s, (B, M + p)."""
    rest: Array
    """Derivatives in the residual variances s, (B,); 0 if s = 0."""
    mean: Array
    """Derivatives in prior means, (B, g)."""


class StepWhitening:
    """Map from inducing values to whitened values, at fixed hyperparameters and inducing inputs.

    Parameters
    ----------
    arrays : StepArrays
    moments : InducingMoments
    groups : sequence of Group
    jitter : float
        Jitter on the diagonal of each covariance of inducing values, relative to the diagonal's mean.

    Raises
    ------
    LinAlgError
        If a covariance has no Cholesky factor. Under JAX, results are NaN.
    """

    def __init__(self, arrays: StepArrays, moments: InducingMoments, groups: Sequence[Group], jitter: float) -> None:
        self._arrays, self._moments, self._groups, self._jitter = arrays, moments, groups, jitter
        self._roots = [
            arrays.root(arrays.with_diagonal(k.copy(), jitter * k.trace() / len(k))) for k in moments.covariances
        ]

    def features(self, x: Array) -> list[StepFeatures]:
        """Return the features of each group at rows (B, d)."""
        return [
            self._features(root, moments, group)
            for root, moments, group in zip(self._roots, self._moments.rows(x), self._groups, strict=True)
        ]

    def _features(self, root: Array, moments: RowMoments, group: Group) -> StepFeatures:
        arrays = self._arrays
        w = arrays.whitened(root, moments.cross.copy())
        rest = arrays.residual_variances(moments.variance, w)
        whole = w if moments.effects is None else arrays.xp.concatenate([w, moments.effects], axis=1)
        return StepFeatures(whole, rest, moments, group)

    def pulled(self, features: Sequence[StepFeatures], slopes: Sequence[StepSlopes]) -> tuple[Array, Array]:
        """Return derivatives in hyperparameters and in inducing inputs (1 or c, M, d), from derivatives in features."""
        found = [self._pulled(root, own, bars) for root, own, bars in zip(self._roots, features, slopes, strict=True)]
        covariances, rows = zip(*found, strict=True)
        return self._moments.pulled(covariances, rows)

    def _pulled(self, root: Array, features: StepFeatures, slopes: StepSlopes) -> tuple[Array, RowMoments]:
        """Return derivatives in the covariance of the inducing values and in the moments of rows."""
        arrays, of_effects = self._arrays, None
        w, size, w_bar = features.w, features.n_inducing, slopes.w
        if features.moments.effects is not None:
            w, w_bar, of_effects = w[:, :size], w_bar[:, :size].copy(), w_bar[:, size:]
        half = arrays.pulled_root(root, w_bar.T @ w)
        half = arrays.with_diagonal(half, self._jitter * half.trace() / len(half))
        cross = arrays.whitened(root, w_bar, transposed=True)
        return half, RowMoments(cross, slopes.rest, slopes.mean, of_effects)


class Covered(NamedTuple):
    """Posterior moments of the rows of a batch."""

    mean: Array
    """Posterior means of the projections wᵀv_k, (B, c)."""
    variance: Array
    """Posterior variances of the projections wᵀv_k, (B, c)."""
    covariances: list[Array]
    """Products Σ_k w of each group of g functions, (B, g M)."""


class StepPosterior:
    """Posteriors q(v_k) = N(β_k Σ_k h_k, Σ_k) with Σ_k = (I + β_k S_k)⁻¹, for all functions k.

    Parameters
    ----------
    arrays : StepArrays
    precision, location, share : array
        Sums S (c, M, M) and h (c, M) over sites; factors β (c,).
    roots : bool
        Whether to store roots of Σ_k, in float64. The common shift of functions with different features needs them.

    Raises
    ------
    LinAlgError
        If I + β S has no Cholesky factor. Under JAX, the posterior is NaN.
    """

    def __init__(
        self, arrays: StepArrays, precision: Array, location: Array, share: Array, roots: bool = False
    ) -> None:
        self._arrays, self._precision, self._share, self.location = arrays, precision, share, location
        self.mean, self.covariance, self._half_log_dets, self._roots = arrays.gaussians(
            precision, location, share, roots
        )

    @property
    def log_normalisers(self) -> Array:
        """Log normalisers log ∫ N(v | 0, I) exp(β hᵀv − ½ β vᵀS v) dv, (c,)."""
        found: Array = 0.5 * self._share * (self.location * self.mean).sum(axis=1) - self._half_log_dets
        return found

    @property
    def divergences(self) -> Array:
        """Divergences KL(q(v_k) ‖ N(0, I)), (c,)."""
        found: Array = 0.5 * (self._traces + self._squares - self.mean.shape[1]) + self._half_log_dets
        return found

    @property
    def whole_log_normalisers(self) -> Array:
        """Log normalisers for β = 1, (c,); for float32 Σ to first order in 1 − β, by Σ S = (I − Σ) / β."""
        if not self._arrays.single:
            return self._arrays.log_normalisers(self._precision, self.location)
        rest = (self._squares - self.mean.shape[1] + self._traces) / self._share
        found: Array = self.log_normalisers + 0.5 * (1.0 - self._share) * (
            (self.location * self.mean).sum(axis=1) + rest
        )
        return found

    @property
    def _traces(self) -> Array:
        return self.covariance.trace(axis1=1, axis2=2, dtype=np.float64)

    @property
    def _squares(self) -> Array:
        found: Array = (self.mean * self.mean).sum(axis=1)
        return found

    def shift(self, common: Array) -> Array:
        """Move sites by the common shift, h_k ← h_k + S_k a, for functions with equal features. Return the new g (M,).

        See `pymc_gpep.solvers.common_shift`. The matrix of the system is Σ_k (I − Σ_k) / β_k, since S Σ S = (S − (I −
        Σ) / β) / β. The right-hand side uses S μ = h − μ / β.
        """
        arrays, share = self._arrays, self._share
        missing = (self.location - self.mean / share[:, None]).sum(axis=0) - common
        weights = arrays.solved(arrays.residual_covariances(self.covariance, share), missing, arrays.ridge)
        moved = arrays.products(self._precision, weights)
        self.location = self.location + moved
        self.mean = self.mean + weights - self.covariance @ weights.astype(self.covariance.dtype)
        return common + moved.sum(axis=0)

    def shift_by_tests(self, common: Array, cross: Array, precision: Array, ridge: float) -> Array:
        """Move sites like `shift`, with r test functions, from g (r,), R (c, r, M), Q (r, r) and the stored roots."""
        arrays = self._arrays
        system = arrays.residual_tests(precision, cross, self._roots, self._share)
        missing = (cross @ self.mean[:, :, None])[:, :, 0].sum(axis=0) - common
        weights = arrays.solved(system, missing, ridge)
        self.location = self.location + weights @ cross
        self.mean = arrays.means(self._roots, self.location, self._share)
        return common + precision @ weights

    def covered(self, features: Sequence[StepFeatures]) -> Covered:
        """Return the moments of the rows of a batch."""
        arrays = self._arrays
        means, variances, found = [], [], []
        for each in features:
            size, taken = each.w.shape[1], each.group.taken
            covariances = arrays.narrow(each.w) @ self.covariance[taken].reshape(-1, size).T
            means.append(each.w @ self.mean[taken].T)
            variances.append(arrays.inner_products(each.w, covariances, len(each.group.functions)))
            found.append(covariances)
        groups = [each.group for each in features]
        return Covered(self.in_order(groups, means), self.in_order(groups, variances), found)

    def in_order(self, groups: Sequence[Group], columns: Sequence[Array]) -> Array:
        """Return the columns (B, c) of all functions in order, from columns (B, g) of each group."""
        if len(groups) == 1:
            return columns[0]
        places = np.argsort([k for each in groups for k in each.functions])
        found: Array = self._arrays.xp.concatenate(columns, axis=1)[:, places]
        return found

    def slopes(
        self,
        features: Sequence[StepFeatures],
        covered: Covered,
        of_mean: Array,
        of_variance: Array,
        of_rest: Array,
    ) -> list[StepSlopes]:
        """Return derivatives of each group, from derivatives (B, c) in means and variances of wᵀv_k and in s.

        The derivatives include the dependence of s = κ − wᵀw on w. Derivatives in s are 0 if s = 0.
        """
        found = []
        for each, covariances in zip(features, covered.covariances, strict=True):
            taken = each.group.taken
            own_mean, own_rest = of_mean[:, taken], of_rest[:, taken] * (each.rest > 0.0)[:, None]
            slopes = self._arrays.feature_slopes(
                each.w, covariances, of_variance[:, taken], own_rest, each.n_inducing, own_mean @ self.mean[taken]
            )
            found.append(StepSlopes(slopes, own_rest.sum(axis=1), own_mean))
        return found
