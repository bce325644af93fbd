"""Latent values as a function of independent standard normals, at given hyperparameters.

The joint density of hyperparameters and latent values becomes, with f = f(z; θ),

    p(θ) Z̃(θ) N(z; 0, I) p(y | f, θ) / sites(f),

where Z̃ normalises prior times sites. The better the sites stand in for the likelihood, the closer z is to standard
normal whatever θ is. Without sites this is the usual whitening by the prior. Densities are exact either way.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from pymc_gpep.gaussians.dense_prior import Prior, solve_roots
from pymc_gpep.kernels.gaussians.whitening import colour, colour_transposed, log_sites, whiten
from pymc_gpep.solvers.whitening import whitening

__all__ = ["PriorWhitening", "SiteWhitening", "Whitening"]

Array = NDArray[np.float64]


class Whitening(ABC):
    """The map between z and f at one point of the hyperparameters.

    Attributes
    ----------
    prior : Prior
    log_evidence : float
        log Z̃, 0 without sites.
    centre : array (c, n)
        f at z = 0.
    """

    prior: Prior
    log_evidence: float
    centre: Array

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape of z; n is the last."""

    @abstractmethod
    def latent(self, z: Array) -> Array:
        """f (c, n) for a given z."""

    @abstractmethod
    def slope(self, slope: Array) -> Array:
        """Derivative with respect to z of what has the derivative `slope` (c, n) with respect to f."""

    @abstractmethod
    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        """z for a given f: what is needed besides f to determine it is drawn given f."""

    @abstractmethod
    def log_sites(self, f: Array) -> tuple[float, Array]:
        """Log of the sites at f, and its derivative (c, n)."""


class PriorWhitening(Whitening):
    """f_k = m_k + L_k z_k, with the Cholesky factors of the prior covariance."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self.log_evidence = 0.0
        self.centre = prior.mean

    @property
    def shape(self) -> tuple[int, int]:
        c, n = self.prior.mean.shape
        return c, n

    def latent(self, z: Array) -> Array:
        return self.centre + np.matmul(self.prior.roots, z[..., None])[..., 0]

    def slope(self, slope: Array) -> Array:
        return np.asarray(np.matmul(self.prior.roots.swapaxes(1, 2), slope[..., None])[..., 0])

    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        return solve_roots(f - self.centre, self.prior.roots)

    def log_sites(self, f: Array) -> tuple[float, Array]:
        return 0.0, np.zeros_like(f)


class SiteWhitening(Whitening):
    """The map of `pymc_gpep.kernels.gaussians.whitening`, for sites that couple the classes.

    Parameters
    ----------
    prior : Prior
    pi, nu : array (c, n)
        Precisions and locations of the sites, exp(νᵀf − ½ fᵀΠf).

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not positive definite to working precision.
    """

    def __init__(self, prior: Prior, pi: Array, nu: Array) -> None:
        c, n = pi.shape
        self.prior = prior
        self.centre = np.empty((c, n))
        self._pi, self._nu = pi, nu
        inverses, p = np.empty((c, n, n)), np.empty((n, n))
        self.log_evidence = whitening(prior.k, prior.mean, pi, nu, inverses, p, self.centre)
        if not np.isfinite(self.log_evidence):
            raise np.linalg.LinAlgError("The posterior covariance under the sites is not positive definite.")
        self._map = prior.k, prior.roots, pi, inverses, p

    @property
    def shape(self) -> tuple[int, int]:
        c, n = self._pi.shape
        return 2 * c + 1, n

    def latent(self, z: Array) -> Array:
        f = np.empty_like(self.centre)
        colour(*self._map, z, f)
        return f + self.centre

    def slope(self, slope: Array) -> Array:
        z = np.empty(self.shape)
        colour_transposed(*self._map, slope, z)
        return z

    def whitened(self, f: Array, rng: np.random.Generator) -> Array:
        z = rng.standard_normal(self.shape)
        whiten(*self._map, f - self.centre, z)
        return z

    def log_sites(self, f: Array) -> tuple[float, Array]:
        pull = self._pi * f
        slope = self._nu - (pull - self._pi * (pull.sum(0) / self._pi.sum(0)))
        return float(log_sites(self._pi, self._nu, f)), slope
