"""Gaussian posteriors of latent functions: what those who predict, draw and check ask of one, whatever its form."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from pymc_gpep.array_types import Array
from pymc_gpep.gaussians.prior import Prior
from pymc_gpep.gaussians.sites import Sites
from pymc_gpep.gaussians.whitening import Whitening

__all__ = ["Posterior"]


class Posterior[P: Prior](ABC):
    """q(f) ∝ p(f) exp(νᵀf − ½ fᵀΠf), a prior times sites.

    Computing from a prior covariance that is not a covariance matrix raises `NotPositiveDefiniteError`.

    Parameters
    ----------
    prior : Prior
    precision : array
        Precisions of the sites, in the shape of their form.
    weights : array (c, n)
        b = ν − Πμ, the force with which the sites pull at the posterior mean μ. For a covariance K, μ = m + K b.
    mean : array (c, n), optional
        μ, where it is known already.
    """

    sites_class: ClassVar[type[Sites]]
    """Class of its sites."""
    whitens: ClassVar[bool] = False
    """Whether there is a `whitening`."""

    def __init__(self, prior: P, precision: Array, weights: Array, mean: Array | None = None) -> None:
        self.prior = prior
        self.precision: Array = np.require(precision, np.float64, ["C", "W"])
        self.weights: Array = np.require(weights, np.float64, ["C", "W"])
        if mean is not None:
            self.mean = mean

    @classmethod
    @abstractmethod
    def of(cls, prior: P, sites: Sites) -> Self:
        """The posterior of given sites.

        Raises
        ------
        NotPositiveDefiniteError
            If a matrix has no Cholesky factor to working precision.
        """

    @cached_property
    @abstractmethod
    def mean(self) -> Array:
        """Posterior means μ at the points of the data, (c, n)."""

    @cached_property
    def sites(self) -> Sites:
        """The sites, located by the weights and the mean."""
        return self.sites_class.through(self.precision, self.mean, self.weights)

    @property
    @abstractmethod
    def log_determinant(self) -> float:
        """log|I + KΠ|."""

    @property
    def relative_log_normaliser(self) -> float:
        """Log ∫ p(f) sites(f) df, of sites that are scaled to be 1 at μ: −½ log|I + KΠ| − ½ bᵀ(μ − m)."""
        return -0.5 * (self.log_determinant + float((self.weights * (self.mean - self.prior.mean)).sum()))

    @property
    def log_normaliser(self) -> float:
        """Log ∫ p(f) exp(νᵀf − ½ fᵀΠf) df."""
        return float(self.sites.log_density(self.mean)) + self.relative_log_normaliser

    @property
    def divergence(self) -> float:
        """KL(q ‖ p) from the prior: ½ (bᵀ(μ − m) + log|I + KΠ| − tr ΠΣ), Σ the posterior covariance."""
        _, kept = self.site_blocks()
        taken = float((np.eye(kept.shape[-1]) - kept).trace(axis1=1, axis2=2).sum())
        return -self.relative_log_normaliser - 0.5 * taken

    def relative_site_log_density(self, x: Array) -> Array:
        """Log of the sites at μ + x, of sites that are scaled to be 1 at μ: bᵀx − ½ xᵀΠx.

        With `relative_log_normaliser` it makes ratios of densities in which no large numbers cancel.

        Parameters
        ----------
        x : array (c, n) or (count, c, n)

        Returns
        -------
        array () or (count,)
        """
        return np.asarray((self.weights * x).sum((-2, -1)) - 0.5 * self.sites.quadratic(x))

    def site_log_density(self, f: Array) -> Array:
        """νᵀf − ½ fᵀΠf, () or (count,), of f (c, n) or (count, c, n)."""
        return self.sites.log_density(f)

    @abstractmethod
    def marginals(self) -> tuple[Array, Array]:
        """Mean (c, n) and covariance (n, c, c) of the latent values at each point of the data."""

    @abstractmethod
    def predict(self, k_cross: Array, k_new: Array, prior_mean: Array) -> tuple[Array, Array]:
        """Mean (c, m) and covariance (m, c, c) of the latent functions at m new points.

        Parameters
        ----------
        k_cross : array (1 or c, m, n)
            Prior covariance between the new points and the old.
        k_new : array (1 or c, m)
            Prior variances at the new points.
        prior_mean : array (c, m)
            Prior mean at the new points.
        """

    def cavities(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        """Mean (n, c) and covariance (n, c, c) of the latent values of each point when its own site is left out.

        With E_i from `site_blocks` the covariance is Σ_i + Σ_i R_i E_i⁻¹ R_iᵀ Σ_i, a sum without cancellation, and no
        Σ_i is inverted. The site pulls with the force b_i, ν_i − Π_i μ_i for a location ν_i. So without it the mean is
        μ_i less that covariance times b_i.

        Parameters
        ----------
        mean : array (c, n)
            Posterior means μ at the points of the data.
        cov : array (n, c, c)
            Posterior covariances Σ_i between the classes there.
        """
        roots, kept = self.site_blocks()
        half = cov @ roots
        wide = cov + half @ np.linalg.solve(kept, half.swapaxes(1, 2))
        return mean.T - np.einsum("iab,bi->ia", wide, self.weights), wide

    @abstractmethod
    def site_blocks(self) -> tuple[Array, Array]:
        """Roots R_i (n, c, r) of the site precisions, Π_i = R_i R_iᵀ, and E_i = I − R_iᵀ Σ_i R_i (n, r, r).

        With Σ_i the marginal covariance of f_i, E_i is what the site leaves of the cavity's covariance, as 1 − πσ² is
        for one class. It comes from M, R_i E_i R_iᵀ = M_ii, since the difference has no digits left where it is small.
        """

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """Draws (count, c, n) of f at the points of the data."""

    @abstractmethod
    def derivatives(self) -> tuple[Array, ...]:
        """Derivatives of `log_normaliser` at fixed sites, one for each array that the prior is made of."""

    def whitening(self) -> Whitening:
        """The map from independent standard normals to f.

        Raises
        ------
        TypeError
            If no such map is known, see `whitens`.
        """
        raise TypeError(f"No map from standard normals is known for {self.sites_class.form} sites; ask `whitens`.")
