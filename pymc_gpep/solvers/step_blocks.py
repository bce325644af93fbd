"""Prior moments that a step needs, of functions that share covariance and inducing inputs, and their pull-back.

A step knows a prior by its moments at inducing inputs and rows. A pull-back turns derivatives in these into derivatives
in hyperparameters and inducing inputs. Stationary covariances have both written down (`StationaryBlocks`).
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.sparse_step.loops import input_slopes, row_slopes, scaled_inputs, squared_norms
from pymc_gpep.solvers.profiles import Profile

__all__ = ["InducingMoments", "RowMoments", "ScaleFunctions", "StationaryBlocks", "StepBlocks"]


_FAR = 100.0  # squared distance from 0, in length scales, that leaves products of 32 bits enough digits


class RowMoments(NamedTuple):
    """Prior moments of B rows."""

    cross: Array
    """Covariance of rows and inducing values, (B, M)."""
    variance: Array
    """κ, (B,)."""
    mean: Array | None
    """m, (B, c); None where it is 0."""
    effects: Array | None = None
    """Coefficients of the p standard normals of effects beside the process, (B, p); None without effects."""


class InducingMoments(Protocol):
    """A prior at fixed hyperparameters and inducing inputs."""

    covariance: Array
    """Prior covariance of the inducing values, (M, M)."""

    def rows(self, x: Array) -> RowMoments:
        """Moments at rows (B, d)."""

    def pulled(self, covariance: Array, rows: RowMoments) -> tuple[Array, Array]:
        """Derivatives in hyperparameters, flat and unconstrained, and in inducing inputs (M, d).

        From those in the covariance of the inducing values and in the moments of the last rows that were asked for.
        """


class StepBlocks(Protocol):
    """A prior as a function of hyperparameters, flat and unconstrained, and inducing inputs (M, d)."""

    def at(self, theta: Array, z: Array, single: bool = False) -> InducingMoments:
        """Fix them; where `single`, products may have 32 bits a number."""

    def same_scales(self, theta: Array) -> Array | None:
        """Return the factors of columns in distances (d,), where they are known and the same; else None."""

    def scale_functions(self) -> "ScaleFunctions | None":
        """Scales and variance as functions of hyperparameters; None where a covariance is not made of these."""


class ScaleFunctions(Protocol):
    """Scales s (d,) and variance v φ(0) of a stationary covariance, as functions of hyperparameters."""

    def __call__(self, theta: Array) -> tuple[Array, float]:
        """Both."""

    def pulled(self, theta: Array, scales: Array, variance: float) -> Array:
        """Derivatives in hyperparameters from those in both."""


class StationaryBlocks:
    """A covariance v φ(r²), r² = Σ_d s_d² (x_d − x'_d)², with a mean of 0.

    Parameters
    ----------
    profile : Profile
    functions : ScaleFunctions
    """

    def __init__(self, profile: Profile, functions: ScaleFunctions) -> None:
        self.profile = profile
        self.functions = functions

    def at(self, theta: Array, z: Array, single: bool = False) -> "_StationaryMoments":
        """See `StepBlocks`. Distances have 64 bits where points are many length scales from 0."""
        return _StationaryMoments(self, theta, z, single)

    def scale_functions(self) -> ScaleFunctions:
        """See `StepBlocks`."""
        return self.functions

    def same_scales(self, theta: Array) -> Array | None:
        """See `StepBlocks`."""
        scales, _ = self.functions(theta)
        return scales if (scales == scales[0]).all() else None


class _StationaryMoments:
    def __init__(self, blocks: StationaryBlocks, theta: Array, z: Array, single: bool) -> None:
        self._single = single
        self._blocks, self._theta, self._z = blocks, theta.copy(), z
        self._scales, self._variance = blocks.functions(theta)
        self._squares = self._scales**2
        self._scaled, self._norms = np.empty_like(z), np.empty(len(z))
        scaled_inputs(z, self._squares, self._scaled, self._norms)
        roots = z * self._scales
        found = blocks.profile.between(roots @ roots.T, self._norms, self._norms, self._variance)
        self.covariance, self._slopes = found
        diagonal = np.arange(len(z))
        self._slopes[diagonal, diagonal] = 0.0  # a point stays where it is; without it φ′ may have no limit
        self.covariance[diagonal, diagonal] = self._variance
        self._last: Any = None

    def rows(self, x: Array) -> RowMoments:
        norms = np.empty(len(x))
        squared_norms(x, self._squares, norms)
        narrow = x.astype(np.float32) if self._single else x
        if self._single and max(norms.max(), self._norms.max()) < _FAR:
            products = (narrow @ self._scaled.astype(np.float32).T).astype(np.float64)
        else:
            products = x @ self._scaled.T
        found = self._blocks.profile.between(products, norms, self._norms, self._variance)
        self._last = x, narrow, *found
        return RowMoments(found.values, np.full(len(x), self._variance), None)

    def pulled(self, covariance: Array, rows: RowMoments) -> tuple[Array, Array]:
        x, narrow, cross, cross_slopes = self._last
        of_variance = float(np.vdot(rows.cross, cross)) + float(np.vdot(covariance, self.covariance))
        of_variance = of_variance / self._variance + float(rows.variance.sum())
        of_rows, of_inducing = rows.cross * cross_slopes, covariance * self._slopes
        slopes, of_squares = np.empty_like(self._z), np.zeros(len(self._scales))
        kind = narrow.dtype
        input_slopes(
            self._z, self._squares,
            of_rows.astype(kind, copy=False).T @ narrow,
            of_inducing.astype(kind, copy=False) @ self._z.astype(kind, copy=False),
            of_rows.sum(axis=0), of_inducing.sum(axis=0), slopes, of_squares,
        )  # fmt: skip
        row_slopes(x, of_rows.sum(axis=1), of_squares)
        of_scales = 2.0 * self._scales * of_squares
        return self._blocks.functions.pulled(self._theta, of_scales, of_variance), slopes
