"""Prior moments that a step over a batch uses, by groups of functions, and their pull-back.

Functions of a group share covariance and inducing inputs. A step uses the prior moments at inducing inputs and
rows. A pull-back turns derivatives in these into derivatives in hyperparameters and inducing inputs. Stationary
covariances have both written down (`StationaryBlocks`).
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

_ADDED_TO_SQUARES = 1e-12  # what PyMC adds to squared distances before it takes their root


class ProfileValues(NamedTuple):
    """A covariance v φ(r²) at many distances."""

    values: Array
    """v φ(r²)."""
    slopes: Array
    """−2 v φ′(r²): the same array where it is the same function."""


class Profile(ABC):
    """A function φ(r²), and what follows from v φ(0), which is what a point has."""

    name: str

    @abstractmethod
    def at(self, squares: Array, variance: float) -> ProfileValues:
        """Return values at squared distances, from v φ(0)."""

    @abstractmethod
    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        """The same in place of inner products (B, M), from squared norms (B,) and (M,)."""


class _SquaredExponential(Profile):
    """φ = exp(−r² / 2), which is its own derivative."""

    name = "squared exponential"

    def at(self, squares: Array, variance: float) -> ProfileValues:
        values = variance * np.exp(-0.5 * squares)
        return ProfileValues(values, values)

    def between(self, products: Array, left: Array, right: Array, variance: float) -> ProfileValues:
        log_squared_exponential(products, left, right, np.log(variance))
        np.exp(products, out=products)
        return ProfileValues(products, products)


class _OfDistance(Profile):
    """φ = p(a r) exp(−a r), with a polynomial p."""

    rate: float

    def polynomials(self, t: Array) -> tuple[Array, Array]:
        """p(t), and −2 φ′ exp(t) as a function of t = a r."""
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
"""All there are; another one is a class and its place here."""


_RATIO_TOLERANCE = 1e-13  # Largest relative difference of equal ratios of scales.
_FAR = 100.0  # squared distance from the middle, in length scales, that leaves products of 32 bits enough digits


class Group(NamedTuple):
    """Functions that share covariance and inducing inputs."""

    functions: list[int]
    """Their places among all functions, in order."""
    covariance: int
    """Place of their covariance among all covariances."""
    inputs: int
    """Place of their inducing inputs among the sets of these."""

    @property
    def taken(self) -> slice | list[int]:
        """The functions as an index that copies nothing where they follow one another."""
        first, last = self.functions[0], self.functions[-1]
        return slice(first, last + 1) if last - first + 1 == len(self.functions) else self.functions


def grouped(covariance_of: Sequence[int], sets: int) -> list[Group]:
    """Groups of functions, by the first function of each.

    Parameters
    ----------
    covariance_of : sequence of int
        Place of the covariance of each of c functions among all covariances.
    sets : int
        Number of sets of inducing inputs: 1 if all functions have the same ones, else c.
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
    """Covariance of rows and inducing values, (B, M)."""
    variance: Array
    """κ, (B,)."""
    mean: Array | None
    """m, (B, g); None where it is 0."""
    effects: Array | None = None
    """Coefficients of the p standard normals of effects beside the process, (B, p); None without effects."""


class InducingMoments(Protocol):
    """A prior at fixed hyperparameters and inducing inputs."""

    covariances: list[Array]
    """Prior covariance of the inducing values of each group, (M, M)."""

    def rows(self, x: Array) -> list[RowMoments]:
        """Moments of each group at rows (B, d)."""

    def pulled(self, covariances: Sequence[Array], rows: Sequence[RowMoments]) -> tuple[Array, Array]:
        """Derivatives in hyperparameters, flat and unconstrained, and in inducing inputs (1 or c, M, d).

        From those in the covariances of the inducing values and in the moments of the last rows that were asked for.
        """


class StepBlocks(Protocol):
    """A prior as a function of hyperparameters, flat and unconstrained, and inducing inputs (1 or c, M, d)."""

    covariance_of: list[int]
    """Place of the covariance of each of the c functions among all covariances."""
    written: bool
    """Whether moments and pull-backs are written down, and ask no graphs."""

    def at(self, theta: Array, z: Array, single: bool = False) -> InducingMoments:
        """Fix them; where `single`, products may have 32 bits a number. Groups are those of `grouped`."""

    def same_scales(self, theta: Array) -> Array | None:
        """Return the factors of columns in distances (d,) where one covariance has them, all equal; else None."""

    def scale_functions(self) -> "ScaleFunctions | None":
        """The parts of the only covariance; None where there are more, or it is of another form."""


class ScaleFunctions(Protocol):
    """Scales s (p, d), variances v φ(0) (p,) and variances of noise (p,) of p stationary covariances."""

    def __call__(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return these for hyperparameters."""

    def pulled(self, theta: Array, scales: Array, variances: Array, noises: Array) -> Array:
        """Derivatives in hyperparameters from those in each of these."""


class StationaryBlocks:
    """Covariances v φ(r²), r² = Σ_d s_d² (x_d − x'_d)², with a mean of 0 and noise of each row beside them.

    Parameters
    ----------
    profiles : sequence of Profile
        φ of each covariance.
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
        """See `StepBlocks`. Distances have 64 bits where points are many length scales from their middle."""
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
        # Distances are differences of products, which lose no digits to a middle far from 0.
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
        """Products that a group before has as well, with the ratio of its own to these, or new ones."""
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
    """Inner products that distances are made of, for groups with the same z whose scales are in proportion."""

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
        """By how much products of one more user are larger; None, and no user more, if scales are not in proportion."""
        place = int(np.argmax(self.scales))
        root = scales[place] / self.scales[place]
        if not np.allclose(root * self.scales, scales, rtol=_RATIO_TOLERANCE, atol=0.0):
            return None
        self._users, self._largest = self._users + 1, max(self._largest, float(root**2))
        return float(root**2)

    def under(self, ratio: float, products: Array) -> Array:
        """Products times a ratio, for one user to overwrite; the same array where there is no other user."""
        return products if self._users == 1 else ratio * products

    def see(self, x: Array, narrow: Array) -> None:
        """Make products of z with rows (B, d)."""
        self.row_norms = np.empty(len(x))
        squared_norms(x, self.squares, self.row_norms)
        self.near = bool(self._largest * max(self.row_norms.max(), self.norms.max()) < _FAR)
        if narrow is not x and self.near:
            self.of_rows = (narrow @ self._scaled.astype(np.float32).T).astype(np.float64)
        else:
            self.of_rows = x @ self._scaled.T


class _OfGroup:
    """Moments of one group, whose products are larger by a ratio than those given."""

    def __init__(self, profile: Profile, variance: float, products: _Products, ratio: float) -> None:
        self._profile, self._variance, self._products, self._ratio = profile, variance, products, ratio
        self._norms = ratio * products.norms
        self.covariance, self._slopes = profile.between(
            products.under(ratio, products.of_z), self._norms, self._norms, variance
        )
        diagonal = np.arange(len(self._norms))
        self._slopes[diagonal, diagonal] = 0.0  # a point stays where it is; without it φ′ may have no limit
        self.covariance[diagonal, diagonal] = variance
        self._last: Any = None

    def rows(self, x: Array, narrow: Array, noise: float) -> RowMoments:
        seen, ratio = self._products, self._ratio
        products = seen.under(ratio, seen.of_rows)
        found = self._profile.between(products, ratio * seen.row_norms, self._norms, self._variance)
        self._last = x, narrow if seen.near else x, *found
        return RowMoments(found.values, np.full(len(x), self._variance + noise), None)

    def pulled(self, covariance: Array, rows: RowMoments, slopes: Array) -> tuple[Array, float]:
        """Derivatives in scales (d,) and variance; those in inducing inputs are added to `slopes` (M, d)."""
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
