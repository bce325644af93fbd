"""Sites: Gaussian factors exp(νᵀf − ½ fᵀΠf) that replace a likelihood, in classes by the form of their precision Π.

Π has a block Π_i over the latent functions of each point. Π and the location ν determine a site up to a constant.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.array_types import Array
from pymc_gpep.kernels.gaussians.block_sites import block_roots

FLOOR = 1e-200
"""A site with a smaller precision counts as absent."""


class SiteForm(StrEnum):
    """Forms of the precision of sites at a point."""

    COUPLED = "coupled"
    """Π_i = diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i. Sites do not change if a number is added to all latent functions."""
    BLOCK = "block"
    """Any positive semi-definite matrix whose rows sum to zero."""
    SIGNED = "signed"
    """Any symmetric matrix; eigenvalues may be negative."""
    INDEPENDENT = "independent"
    """Π_i = diag(π_i): each latent function has a separate site."""
    FACTORIAL = "factorial"
    """Sites that couple points. In the posterior, latent values of different points are independent."""


@dataclass(frozen=True, eq=False)
class Sites(ABC):
    """Sites exp(νᵀf − ½ fᵀΠf) of c latent functions at n points.

    Attributes
    ----------
    precision : array (c, n) or (n, c, c)
        Array that determines the precision Π. Its shape depends on the form of the sites.
    location : array (c, n)
        Location ν.
    """

    precision: Array
    location: Array

    form: ClassVar[SiteForm]
    pointwise: ClassVar[bool] = True
    """Whether each point has a separate precision Π_i. Then sites of some points can be replaced."""

    @classmethod
    def of(cls, precision: Array, location: Array, prior: Any) -> Self:
        """Return sites with these arrays. Only the form `FACTORIAL` uses `prior`."""
        return cls(precision, location)

    @classmethod
    def through(cls, precision: Array, mean: Array, weights: Array, prior: Any) -> Self:
        """Return sites with the log derivative b = ν − Πμ at the posterior mean μ.

        Parameters
        ----------
        precision : array
        mean, weights : array (c, n)
            Posterior mean μ, and log derivative b.
        prior : PriorForm
        """
        return cls.of(precision, weights + cls.of(precision, weights, prior).product(mean), prior)

    @property
    def signed(self) -> bool:
        """Whether precisions may have negative eigenvalues, so they have no roots."""
        return False

    @property
    def log_total(self) -> float:
        """Sum Σ_i log 1ᵀπ_i for coupled sites, whose log determinants include it; else 0."""
        return 0.0

    @cached_property
    def roots(self) -> Array:
        """Roots R_i (n, c, r) with Π_i = R_i R_iᵀ.

        Raises
        ------
        TypeError
            If precisions may have negative eigenvalues, or if sites couple points.
        """
        raise TypeError(f"Precisions of {self.form} sites have no roots; call `cavities`.")

    @property
    def blocks(self) -> Array:
        """Precisions Π_i, (n, c, c)."""
        raise TypeError(f"Sites of the form {self.form} do not belong to single points.")

    def block(self, k: int, other: int) -> Array | None:
        """Return the entries (n,) of site precisions for two functions; None if they are 0."""
        return np.ascontiguousarray(self.blocks[:, k, other])

    def noise(self, rng: np.random.Generator, draws: int) -> Array:
        """Return draws (draws, c, n) from a normal distribution with covariance Π."""
        n, _, r = self.roots.shape
        return np.asarray(np.einsum("iap,ipd->dai", self.roots, rng.standard_normal((n, r, draws))))

    def at(self, points: NDArray[np.intp]) -> Self:
        """Return the sites of these points.

        Raises
        ------
        TypeError
            If sites couple points.
        """
        if not self.pointwise:
            raise TypeError(f"Sites of the form {self.form} do not belong to single points.")
        own = self.precision[:, points] if self.precision.ndim == 2 else self.precision[points]
        return type(self)(own, self.location[:, points])

    @abstractmethod
    def product(self, f: Array) -> Array:
        """Return Πf (..., c, n) for f (..., c, n)."""

    @abstractmethod
    def quadratic(self, x: Array) -> Array:
        """Return xᵀΠx (...) for x (..., c, n). It is computed as a sum of squares, except for signed precisions."""

    def slope(self, f: Array) -> Array:
        """Return the derivative ν − Πf (..., c, n) of the log of the sites."""
        return self.location - self.product(f)

    def value_and_slope(self, f: Array) -> tuple[float, Array]:
        """Return the log of the sites at f (c, n), and its derivative (c, n), from a single product."""
        pull = self.product(f)
        return float(np.vdot(f, self.location - 0.5 * pull)), self.location - pull

    def log_density(self, f: Array) -> Array:
        """Return νᵀf − ½ fᵀΠf (...) for f (..., c, n)."""
        return np.asarray((self.location * f).sum((-2, -1)) - 0.5 * self.quadratic(f))


class CoupledSites(Sites):
    """Sites with precisions diag(π_i) − π_iπ_iᵀ / 1ᵀπ_i, and π in `precision` (c, n). Locations of a point sum to 0."""

    form = SiteForm.COUPLED

    @cached_property
    def _total(self) -> Array:
        """Sums 1ᵀπ_i over the functions of each point, (n,)."""
        return np.asarray(self.precision.sum(0))

    @cached_property
    def roots(self) -> Array:
        """Roots D^½ (I − uuᵀ) of site precisions (n, c, c), with D = diag(π_i) and the unit vector u ∝ D^½1."""
        root = np.sqrt(self.precision).T
        unit = root / np.linalg.norm(root, axis=1, keepdims=True)
        return np.asarray(root[:, :, None] * (np.eye(len(self.precision)) - unit[:, :, None] * unit[:, None, :]))

    @property
    def log_total(self) -> float:
        return float(np.log(self._total).sum())

    @property
    def blocks(self) -> Array:
        return np.asarray(self.roots @ self.roots.swapaxes(1, 2))

    def noise(self, rng: np.random.Generator, draws: int) -> Array:
        noise = rng.standard_normal((*self.precision.shape, draws)) * np.sqrt(self.precision)[..., None]
        noise -= (self.precision / self._total)[..., None] * noise.sum(0)
        return np.asarray(noise.transpose(2, 0, 1))

    def product(self, f: Array) -> Array:
        level = (self.precision * f).sum(-2, keepdims=True) / self._total
        return np.asarray(self.precision * (f - level))

    def block(self, k: int, other: int) -> Array:
        """See `Sites`. The entries are computed without subtraction."""
        pi = self.precision
        if k == other:
            others = np.add(pi[:k].sum(axis=0), pi[k + 1 :].sum(axis=0))
            return np.asarray(pi[k] * (others / self._total))
        return np.asarray(-pi[k] * (pi[other] / self._total))

    def quadratic(self, x: Array) -> Array:
        level = (self.precision * x).sum(-2, keepdims=True) / self._total
        return np.asarray((self.precision * (x - level) ** 2).sum((-2, -1)))


class SignedSites(Sites):
    """Sites with any symmetric precision matrix of each point, in `precision` (n, c, c)."""

    form = SiteForm.SIGNED

    @property
    def signed(self) -> bool:
        return True

    @property
    def blocks(self) -> Array:
        return self.precision

    def product(self, f: Array) -> Array:
        return np.asarray(np.einsum("iab,...bi->...ai", self.precision, f))

    def quadratic(self, x: Array) -> Array:
        return np.asarray((self.product(x) * x).sum((-2, -1)))


class BlockSites(SignedSites):
    """Sites with positive semi-definite precisions (n, c, c). Rows of these matrices sum to zero."""

    form = SiteForm.BLOCK

    @property
    def signed(self) -> bool:
        return False

    @cached_property
    def roots(self) -> Array:
        """Roots R_i (n, c, c − 1) with Π_i = R_i R_iᵀ."""
        n, c, _ = self.precision.shape
        roots = np.empty((n, c, c - 1))
        block_roots(self.precision, roots)
        return roots

    def quadratic(self, x: Array) -> Array:
        return np.asarray((np.einsum("iap,...ai->...ip", self.roots, x) ** 2).sum((-2, -1)))


class IndependentSites(Sites):
    """Separate sites of each latent function. Unless the likelihood is log-concave, `precision` (c, n) may be < 0."""

    form = SiteForm.INDEPENDENT

    @property
    def signed(self) -> bool:
        return bool((self.precision < 0.0).any())

    @property
    def blocks(self) -> Array:
        return np.asarray(self.precision.T[:, :, None] * np.eye(len(self.precision)))

    def noise(self, rng: np.random.Generator, draws: int) -> Array:
        noise = rng.standard_normal((*self.precision.shape, draws)) * np.sqrt(self.precision)[..., None]
        return np.asarray(noise.transpose(2, 0, 1))

    @cached_property
    def roots(self) -> Array:
        """Diagonal roots R_i (n, c, c) with Π_i = R_i R_iᵀ."""
        return np.asarray(np.sqrt(self.precision).T[:, :, None] * np.eye(len(self.precision)))

    def block(self, k: int, other: int) -> Array | None:
        return np.asarray(self.precision[k]) if k == other else None

    def product(self, f: Array) -> Array:
        return np.asarray(self.precision * f)

    def quadratic(self, x: Array) -> Array:
        return np.asarray((self.precision * x**2).sum((-2, -1)))
